"""Computes from a thread's records which of them are in force, and up to which seq the thread is hidden. Pure.

The SQL functions find the same with indexes. `verify` compares them, because an index that lacks a row changes views
and leaves no other trace.
"""

from __future__ import annotations

from typing import NamedTuple

from compaction_store.integrity import chain
from compaction_store.integrity.entry import Entry

_COLUMNS = chain.COLUMNS["compaction"]
_TRIGGER, _REVOKES = _COLUMNS.index("trigger"), _COLUMNS.index("revokes")
_HIDE = "hide"


class _Span(NamedTuple):
    start: int
    end: int
    redacted_pos: int | None
    hides: bool


class RecordsInForce:
    """The applied records with a span that were not revoked, by their numbers."""

    def __init__(self) -> None:
        self._spans: dict[int, _Span] = {}

    def record(self, entry: Entry) -> None:
        """Adds the next record. Its columns may have any type, because the row may be forged."""
        kind, outcome, start, end, *_ = entry.columns
        if outcome != "applied":
            return
        if kind == "revocation" and type(number := entry.columns[_REVOKES]) is int:
            self._spans.pop(number, None)
        elif type(start) is int and type(end) is int:
            hides = kind == "clear" and entry.columns[_TRIGGER] == _HIDE
            self._spans[entry.ordinal] = _Span(start, end, entry.redacted_pos, hides)

    def erase(self, number: int, pos: int) -> None:
        """Notes that the redaction at this pos erased a record, which had its content when it was added."""
        if (span := self._spans.get(number)) is not None:
            self._spans[number] = span._replace(redacted_pos=pos)

    @property
    def hidden_seq(self) -> int | None:
        """The largest seq that clears with the trigger `hide` cover, or None. The head's must be equal to it."""
        return max((s.end for s in self._spans.values() if s.hides and s.redacted_pos is None), default=None)

    def active(self, pos: int) -> list[int]:
        """Returns the numbers of the records in the view at the end of the chain, in the order of their spans."""
        spans = [
            (s.start, -s.end, -n) for n, s in self._spans.items() if s.redacted_pos is None or s.redacted_pos > pos
        ]
        found, reached = [], 0
        for _, end, number in sorted(spans):
            if -end > reached:
                found.append(-number)
                reached = -end
        return found
