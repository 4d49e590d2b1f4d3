"""Collects the reasons why an API would refuse messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compaction_store.jsonable import AsDict
from compaction_store.models import Payload


@dataclass(frozen=True, slots=True)
class Problem(AsDict):
    """A reason to refuse messages. `index` is the index of the message, or None for the whole request."""

    index: int | None
    rule: str
    text: str


class Problems:
    def __init__(self, messages: object) -> None:
        self._found: list[Problem] = []
        if not messages:
            self.add(None, "no_messages", "there are no messages")

    def add(self, index: int | None, rule: str, text: str) -> None:
        self._found.append(Problem(index, rule, text))

    def require(self, index: int, part: Payload, fields: Iterable[str]) -> None:
        for field in fields:
            if part.get(field) is None:
                self.add(index, "missing_field", f"{field} is missing")

    def unanswered(self, calls: dict[str, int], text: str) -> None:
        """Adds a problem for each call that has no result. `calls` has the indexes of their messages."""
        for index in calls.values():
            self.add(index, "unanswered_call", text)

    def role(self, index: int, message: Payload | None, known: frozenset[str]) -> str | None:
        """Returns the role of a message. If the role is not known, adds a problem and returns None."""
        if not isinstance(message, dict):
            self.add(index, "no_object", "the message is erased, or is not an object")
            return None
        role = message.get("role")
        if not isinstance(role, str) or role not in known:
            self.add(index, "role", "the role is not one of " + ", ".join(sorted(known)))
            return None
        return role

    def in_order(self) -> list[Problem]:
        return sorted(self._found, key=lambda problem: -1 if problem.index is None else problem.index)


def text_of(name: Any) -> str:
    """Returns an id; an empty text if the id is not text, which another rule reports."""
    return name if isinstance(name, str) else ""


def type_of(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None
