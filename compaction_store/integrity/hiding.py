"""Derives from a thread's records up to which seq it is hidden. Pure."""

from __future__ import annotations

from compaction_store.integrity import chain
from compaction_store.integrity.entry import Entry

_COLUMNS = chain.COLUMNS["compaction"]
_TRIGGER, _REVOKES = _COLUMNS.index("trigger"), _COLUMNS.index("revokes")
_HIDE = "hide"


class Hiding:
    """The clears in force that have the trigger `hide`, by their numbers."""

    def __init__(self) -> None:
        self._clears: dict[int, int] = {}

    def record(self, entry: Entry) -> None:
        """Takes the next record. Its columns may be of any type: they come from rows that may be forged."""
        kind, outcome, _, end, *_ = entry.columns
        if outcome != "applied":
            return
        if kind == "revocation" and type(number := entry.columns[_REVOKES]) is int:
            self._clears.pop(number, None)
        elif kind == "clear" and entry.columns[_TRIGGER] == _HIDE and entry.redacted_pos is None and type(end) is int:
            self._clears[entry.ordinal] = end

    @property
    def hidden_seq(self) -> int | None:
        """The last seq that such a clear covers. The head must have it as its hidden_seq."""
        return max(self._clears.values(), default=None)
