"""Why an API would refuse a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compaction_store.jsonable import AsDict
from compaction_store.models import Payload


@dataclass(frozen=True, slots=True)
class Problem(AsDict):
    """What is refused and where: `index` is that of the message, None where it is no message's."""

    index: int | None
    rule: str
    text: str


class Problems:
    def __init__(self, messages: object) -> None:
        self._found: list[Problem] = []
        if not messages:
            self.add(None, "no_messages", "there is no message")

    def add(self, index: int | None, rule: str, text: str) -> None:
        self._found.append(Problem(index, rule, text))

    def require(self, index: int, part: Payload, fields: Iterable[str]) -> None:
        for field in fields:
            if part.get(field) is None:
                self.add(index, "missing_field", f"{field} is missing")

    def role(self, index: int, message: Payload | None, known: frozenset[str]) -> str | None:
        """The message's role, if it is a message at all and has one that is known."""
        if not isinstance(message, dict):
            self.add(index, "no_object", "an erased message, or no object at all")
            return None
        role = message.get("role")
        if not isinstance(role, str) or role not in known:
            self.add(index, "role", "the role is none of " + ", ".join(sorted(known)))
            return None
        return role

    def in_order(self) -> list[Problem]:
        return sorted(self._found, key=lambda problem: -1 if problem.index is None else problem.index)


def text_of(name: Any) -> str:
    """An id, or the empty text for one that is none, which is told elsewhere."""
    return name if isinstance(name, str) else ""


def type_of(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None
