"""Computes the seq up to which a thread is hidden, from the thread's records. Pure."""

from __future__ import annotations

from compaction_store.integrity import chain
from compaction_store.integrity.entry import Entry

_COLUMNS = chain.COLUMNS["compaction"]
_TRIGGER, _REVOKES = _COLUMNS.index("trigger"), _COLUMNS.index("revokes")
_HIDE = "hide"


class Hiding:
    """The `clear` records with the trigger `hide` that were neither revoked nor erased, by their numbers."""

    def __init__(self) -> None:
        self._clears: dict[int, int] = {}

    def record(self, entry: Entry) -> None:
        """Adds the next record. Its columns may have any type, because the row may be forged."""
        kind, outcome, _, end, *_ = entry.columns
        if outcome != "applied":
            return
        if kind == "revocation" and type(number := entry.columns[_REVOKES]) is int:
            self._clears.pop(number, None)
        elif kind == "clear" and entry.columns[_TRIGGER] == _HIDE and entry.redacted_pos is None and type(end) is int:
            self._clears[entry.ordinal] = end

    @property
    def hidden_seq(self) -> int | None:
        """The largest seq that these records cover, or None. The head's `hidden_seq` must be equal to it."""
        return max(self._clears.values(), default=None)
