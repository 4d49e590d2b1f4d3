"""The outline of a view: which records replace which spans of the thread, without any messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        """Returns the fields, ready for `json.dumps`."""
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


def window(parts: Iterable[Part], start: int, count: int) -> Iterator[Part]:
    """Yields the parts that have `count` elements from the index `start` on. The first and last part may be cut."""
    for part in parts:
        if count <= 0:
            return
        if start >= part.size:
            start -= part.size
            continue
        end_seq = min(part.end_seq, part.seq + start + count - 1)
        piece = Part(part.seq + start, end_seq, None) if part.number is None else part
        start = 0
        count -= piece.size
        yield piece
