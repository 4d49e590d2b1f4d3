"""Writes and recognizes the lines for what is no longer in a view: a cleared result, or removed messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from compaction_store.models import Element, Payload

_LINE = re.compile(r'"?\[Result of .* cleared: [\d,]+ tokens, seqs? [\d,]')
_INPUT = "[Input cleared: "
_FILE = re.compile(r"; (\S[^;]*) \((read|written|deleted|moved)\)(?=; |\]\Z)")
_LONGEST_TOOL = 100


def cleared(tool: str, tokens: int, place: str) -> str:
    """Returns the line for a result with a number of tokens. `place` names the seqs of the original."""
    return f"[Result of {tool[:_LONGEST_TOOL]} cleared: {tokens:,} tokens, {place}]"


def input_cleared(tokens: int, place: str, files: Iterable[str] = ()) -> str:
    """Returns the line for the input of a call with a number of tokens. `place` names the seqs of the original.

    `files` are the files that the call used, such as `a.py (written)`.
    """
    return f"{_INPUT}{'; '.join([f'{tokens:,} tokens, {place}', *files])}]"


def files_of_cleared(given: Any) -> list[tuple[str, str]]:
    """Returns the files in the line that replaces a call's input, each with its state."""
    line = given.get("input") if isinstance(given, dict) else given
    return _FILE.findall(line) if isinstance(line, str) and line.startswith(_INPUT) else []


def has_cleared_input(text: str) -> bool:
    """Returns whether the JSON of a call contains the line that replaces its input."""
    return _INPUT in text


def left_out(start_seq: int, end_seq: int) -> Payload:
    """Returns the message that a request has where messages were removed."""
    count = end_seq - start_seq + 1
    what = f"1 message, seq {start_seq}" if count == 1 else f"{count:,} messages, seqs {start_seq} to {end_seq}"
    return {"role": "user", "content": f"[{what}, left out]"}


def shown(element: Element) -> tuple[Payload, ...]:
    """Returns the messages of an element as a request has them: where messages were removed, a line that says so.

    The line is not stored as a replacement, because it follows from the span. A list of messages that is made to fit
    without a store has no lines, and its removals have no tokens.
    """
    if element.kind == "removal" and not element.messages and element.tokens:
        return (left_out(element.seq, element.end_seq),)
    return element.messages


def is_cleared(text: str) -> bool:
    """Returns whether a text is the line that replaces a cleared tool result, possibly as a JSON string."""
    return _LINE.match(text) is not None
