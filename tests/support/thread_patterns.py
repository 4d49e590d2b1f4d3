"""Threads written as patterns of letters: s for system, u for user, a for assistant, t for a call, r for a result.

A result belongs to the oldest call without a result. If there is none, the last message with a call gets another call.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

Payload = dict[str, Any]
# Property tests have no deadline, because their time depends on the machine.
calm = settings(deadline=None)
ROLES = {"s": "system", "u": "user", "a": "assistant"}


def chat(pattern: str, text: str = "Message {}") -> list[Payload]:
    """Writes the pattern as OpenAI's chat messages."""
    found: list[Payload] = []
    waiting: list[str] = []
    last: Payload | None = None
    for place, letter in enumerate(pattern, 1):
        content = text.format(place)
        if letter == "t":
            last = {"role": "assistant", "content": content, "tool_calls": []}
            waiting.append(_call(last, f"call_{place}"))
            found.append(last)
        elif letter == "r":
            if not waiting:
                more = f"call_{place}_more"
                waiting.append(more if last is None else _call(last, more))
            found.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": content})
        else:
            found.append({"role": ROLES[letter], "content": content})
    return found


def _call(message: Payload, name: str) -> str:
    function = {"name": "look", "arguments": "{}"}
    message["tool_calls"].append({"id": name, "type": "function", "function": function})
    return name


class Said:
    """An object that knows its speaker and has no ids."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def is_user(self) -> bool:
        return self.letter == "u"

    def is_assistant(self) -> bool:
        return self.letter in "at"

    def is_system(self) -> bool:
        return self.letter == "s"

    def is_toolcall(self) -> bool:
        return self.letter == "t"

    def is_toolcall_result(self) -> bool:
        return self.letter == "r"


def said(pattern: str) -> list[Said]:
    return [Said(letter) for letter in pattern]


def shown(items: list[Said]) -> str:
    return "".join(item.letter for item in items)


def literal_runs(pattern: str) -> list[tuple[int, int]]:
    """Returns the runs of two or more adjacent messages of the assistant, as documented. Positions start at 1."""
    found: list[tuple[int, int]] = []
    start: int | None = None
    for place, letter in enumerate([*pattern, "end"], 1):
        if letter in ("a", "t"):
            start = place if start is None else start
        elif start is not None:
            if place - start > 1:
                found.append((start, place - 1))
            start = None
    return found
