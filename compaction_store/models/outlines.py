"""The outline of a view: which records replace which spans of the thread, without any messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compaction_store.jsonable import AsDict, named


class Part(NamedTuple):
    """A part of a view: consecutive messages, or one record that replaces its span."""

    seq: int
    end_seq: int
    number: int | None

    @property
    def size(self) -> int:
        """The number of elements of the view in this part."""
        return self.end_seq - self.seq + 1 if self.number is None else 1

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class Outline(AsDict):
    """The parts of a thread's view at a pos, in order, and the view's tokens."""

    thread_id: str
    pos: int
    tokens: int
    parts: tuple[Part, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """The number of elements of the view."""
        return sum(part.size for part in self.parts)


class ComparedPart(NamedTuple):
    """A part of a view, and whether it is in the first of two views (left), in the second (right) or in both."""

    part: Part
    is_left: bool
    is_right: bool

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class Comparison(AsDict):
    """A page of the parts of two views of a thread, in order.

    A run of messages is split where only a part of it is in both views.
    """

    thread_id: str
    pos: int
    tokens: int | None
    count: int
    changed: int
    parts: tuple[ComparedPart, ...] = field(repr=False)


def outlined(last_seq: int, folds: Iterable[Part], first_seq: int = 1) -> tuple[Part, ...]:
    """Returns the parts of a view from `first_seq` on: the given active records, and the messages between them."""
    parts: list[Part] = []
    expected = first_seq
    for fold in folds:
        if fold.seq > expected:
            parts.append(Part(expected, fold.seq - 1, None))
        parts.append(fold)
        expected = fold.end_seq + 1
    if expected <= last_seq:
        parts.append(Part(expected, last_seq, None))
    return tuple(parts)
