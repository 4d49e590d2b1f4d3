"""Finds the places of sentences in text of any language."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

# Every end begins with one of the characters of the first class, so that the other characters are skipped quickly.
_END = re.compile(
    r"[.!?…。！？｡．؟।॥։።\n\r\u2028\u2029](?:(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？｡．؟।॥։።\n\r\u2028\u2029]))"  # noqa: RUF001
)
_NUMBERS = re.compile(r"(?:\s{0,9}\(?\d{1,3}\.){1,9} ")
_LONGEST_NUMBERS = 40
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each sentence or line, without the spaces around it."""
    last = 0
    for end in _END.finditer(text):
        # Numbers of list items belong to the sentence behind them.
        if end.start() - last < _LONGEST_NUMBERS and _NUMBERS.fullmatch(text, last, end.end()):
            continue
        yield from _stripped(text, last, end.start() + 1)
        last = end.end()
    yield from _stripped(text, last, len(text))


def prose(text: str) -> str:
    """Replaces fenced code in a text with spaces. The length stays the same."""
    if "```" not in text and "~~~" not in text:
        return text
    fences = [0, *(fence.start() for fence in _FENCE.finditer(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(fences)]
    return "".join(_blank(part) if number % 2 else part for number, part in enumerate(parts))


def _blank(text: str) -> str:
    return "".join("\n" if c == "\n" else " " for c in text)


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    part = text[start:end]
    if (bare := part.strip()) != "":
        first = start + len(part) - len(part.lstrip())
        yield first, first + len(bare)
