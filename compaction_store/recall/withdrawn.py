"""Collects the messages that rewinds and clears hide from the view. Searches leave these messages out by default."""

from __future__ import annotations

from bisect import bisect_right

from compaction_store.models import Compaction


class Withdrawn:
    """The ranges of seqs that records hide."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._added: list[tuple[int, int]] = []

    def add(self, record: Compaction) -> bool:
        """Adds the seqs that a record hides, unless it was revoked. Returns True, so that iteration goes on."""
        if record.start_seq is not None and record.end_seq is not None and record.status != "revoked":
            self._added.append((record.start_seq, record.end_seq))
        return True

    def between(self, first: int, last: int) -> list[list[int]]:
        """Returns the hidden ranges of seqs from `first` to `last`, both inclusive."""
        self._merge()
        overlapping = ((max(s, first), min(e, last)) for s, e in zip(self._starts, self._ends, strict=True))
        return [[start, end] for start, end in overlapping if start <= end]

    def __contains__(self, seq: int) -> bool:
        self._merge()
        place = bisect_right(self._starts, seq) - 1
        return place >= 0 and seq <= self._ends[place]

    def _merge(self) -> None:
        if not self._added:
            return
        ranges = sorted([*zip(self._starts, self._ends, strict=True), *self._added])
        self._added = []
        self._starts, self._ends = [], []
        for start, end in ranges:
            if self._ends and start <= self._ends[-1] + 1:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
