"""Shortens one message to a cap. Its contents share the cap: small contents are kept, and large ones lose their middle.

The result is as well-formed as the message. The inputs of calls stay JSON. A picture or a file is replaced by a note.
Thinking is never altered, but left out if the API allows that. The time is linear in the size of the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from compaction_store.messages.parts import row_of
from compaction_store.models import Payload
from compaction_store.strategies.contents import Content, compact, contents_of, exchanged
from compaction_store.tokens import MARK, Counter

LONG_MARK = f" {MARK} [shortened] {MARK} "
# With a smaller cap, most of the text would be the long mark.
_LONG = 32
_DEEPEST = 40


class Rule(NamedTuple):
    """Whether the inputs of calls may be cut, and whether thinking may be left out. Text may always be cut."""

    inputs: bool = True
    thinking: bool = False


def shorten(message: Payload, cap: int, counter: Counter, rule: Rule) -> Payload:
    """Returns the message with its contents cut to `cap` tokens together, or the same object if nothing is cut."""
    # The most common message has one string as its content.
    content = message.get("content")
    if isinstance(content, str) and "tool_calls" not in message and "function_call" not in message:
        new = cut(content, cap, counter)
        return message if new == content else {**message, "content": new}
    found = contents_of(message)
    sizes = [size_of(piece, counter) if _may(piece, rule) else 0 for piece in found]
    if sum(sizes) <= cap:
        return message
    level = max(1, _level(sizes, cap))
    at: Iterator[int] = iter(sizes)
    # Drop either all thinking of a message or none, because a turn that has thinking must begin with it.
    thoughtless = any(p.kind == "thinking" and size > level for p, size in zip(found, sizes, strict=True))

    def exchange(piece: Content) -> Any:
        size = next(at)
        if piece.kind == "thinking":
            return None if thoughtless else piece.value
        return piece.value if size <= level else _shorter(piece, level, counter)

    return exchanged(message, exchange)


def cut(text: str, cap: int, counter: Counter) -> str:
    """Cuts the middle out of a text. Returns the text unchanged if nothing would be left of it."""
    kept = counter.cut(text, cap, "ends", LONG_MARK if cap >= _LONG else MARK)
    return kept if kept.strip() else text


def _may(piece: Content, rule: Rule) -> bool:
    if piece.kind in {"input", "arguments"}:
        return rule.inputs
    return rule.thinking or piece.kind != "thinking"


def size_of(piece: Content, counter: Counter) -> int:
    if piece.kind in {"text", "arguments"}:
        return counter.text(piece.value)
    if piece.kind == "input":
        return counter.text(compact(piece.value))
    empty: Payload = {"role": "user", "content": []}
    return max(0, counter.messages([{**empty, "content": [piece.value]}]) - counter.messages([empty]))


def _level(sizes: Sequence[int], cap: int) -> int:
    """Returns the largest size to which all contents can be cut so that they take at most `cap` together."""
    left, count = cap, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left -= size
        count -= 1
    return left


def _shorter(piece: Content, level: int, counter: Counter) -> Any:
    if piece.kind == "text":
        return cut(piece.value, level, counter)
    if piece.kind == "input":
        return shorter_json(piece.value, level, counter)
    if piece.kind == "arguments":
        return _shorter_arguments(piece.value, level, counter)
    return f"[{row_of(piece.value).media} left out]"


def _shorter_arguments(text: str, level: int, counter: Counter) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # The text is not JSON, so the cut text need not be JSON either.
        return cut(text, level, counter)
    if not isinstance(value, dict):
        return compact(cut(compact(value), level, counter))
    return compact(shorter_json(value, level, counter))


def shorter_json(value: Payload, cap: int, counter: Counter) -> Payload:
    """Cuts the long texts in a JSON object. If that is not enough, returns a note with both ends of its JSON."""
    texts = list(_texts(value))
    sizes = [counter.text(text) for text in texts]
    frame = max(0, counter.text(compact(value)) - sum(sizes))
    level = _level(sizes, max(0, cap - frame))
    if texts and level > 0:
        at = iter(sizes)
        new: Payload = _with_texts(value, lambda text: text if next(at) <= level else cut(text, level, counter))
        if counter.text(compact(new)) <= cap:
            return new
    return _note(compact(value), cap, counter)


def _note(text: str, cap: int, counter: Counter) -> Payload:
    """Returns a note of at most `cap` tokens, including the tokens for JSON escapes."""
    most = cap
    while most > 0:
        note = {"shortened": cut(text, most, counter)}
        excess = counter.text(compact(note)) - cap
        if excess <= 0:
            return note
        most -= excess
    return {"shortened": MARK}


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, depth + 1)


def _with_texts(value: Any, change: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return change(value)
    if depth < _DEEPEST and isinstance(value, dict):
        return {key: _with_texts(item, change, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list):
        return [_with_texts(item, change, depth + 1) for item in value]
    return value
