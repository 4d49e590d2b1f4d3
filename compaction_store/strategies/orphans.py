"""Puts a note in place of each tool result that has no call, in a list of messages, as `rendering` does for requests.

A result belongs to the nearest earlier call with its id that has no result yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from compaction_store.messages import tool_pairs
from compaction_store.models import Payload
from compaction_store.rendering.blocks import OF_NO_CALL

_NOTE: Payload = {"type": "text", "text": OF_NO_CALL}


def without_orphans(messages: Sequence[Payload]) -> tuple[list[Payload], int]:
    """Returns the messages without orphaned results, and the number of these results.

    Unchanged messages are the same objects.
    """
    calls = _Calls()
    whole: list[Payload] = []
    left_out = noted = 0
    for message in messages:
        kept, orphans = calls.read(message)
        left_out += orphans
        if kept is None:
            noted += 1
            continue
        if noted and not _is_result(kept):
            # Put the note after all adjacent results, because nothing may come between a call and its result.
            whole.append({"role": "user", "content": OF_NO_CALL})
            noted = 0
        whole.append(kept)
    if noted:
        whole.append({"role": "user", "content": OF_NO_CALL})
    return whole, left_out


def _is_result(message: Payload) -> bool:
    return any(step.kind == "result" for step in tool_pairs.tools(message).steps)


class _Calls:
    """The calls that have no result yet."""

    def __init__(self) -> None:
        self._waiting = defaultdict[tuple[bool, str], int](int)

    def read(self, message: Payload) -> tuple[Payload | None, int]:
        """Returns the message without its orphaned results, and their number.

        Returns None for a message that is itself an orphaned result.
        """
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        bare = {name: value for name, value in message.items() if name != "content"}
        alone = self._orphans(message if not parts else {**bare, "content": []}, repeated=_calls_in(parts))
        kept = [part for part in parts if not self._orphans({"content": [part]})]
        if alone:
            return None, alone
        if len(kept) == len(parts):
            return message, 0
        # The note is last, because results must come first in their turn.
        return {**message, "content": [*kept, _NOTE]}, len(parts) - len(kept)

    def _orphans(self, message: Payload, repeated: frozenset[str] = frozenset()) -> int:
        """Reads the calls and results in order and returns the number of orphaned results."""
        orphans = 0
        for kind, form, name in tool_pairs.tools(message).steps:
            key = form == "function", name
            if kind == "call" and not (form == "tool_calls" and name in repeated):
                self._waiting[key] += 1
            elif kind == "result" and self._waiting[key]:
                self._waiting[key] -= 1
            elif kind == "result":
                orphans += 1
        return orphans


def _calls_in(parts: Sequence[Any]) -> frozenset[str]:
    """Returns the ids of the calls in content blocks. Some frameworks repeat these calls in `tool_calls`."""
    return frozenset(_ids(parts))


def _ids(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        yield from (step.id for step in tool_pairs.tools({"content": [part]}).steps if step.kind == "call")
