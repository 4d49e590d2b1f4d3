"""Remembers the last seq a store was given of each thread, to notice a database that went back in time."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

_MOST = 10_000


class LastSeqCache:
    """Keeps the last seq of 10,000 threads. Threads and tasks share it without a lock: every step is atomic."""

    def __init__(self) -> None:
        self._seqs: OrderedDict[UUID, int] = OrderedDict()

    def get(self, thread_uid: UUID) -> int:
        """Returns 0 for an unknown thread."""
        return self._seqs.get(thread_uid, 0)

    def put(self, thread_uid: UUID, known: int, given: int) -> None:
        """Stores the last seq of an append that knew of seq `known` before it.

        A seq that is not after `known` replaces a later one: the thread went back.
        """
        if given <= known or given > self.get(thread_uid):
            self._seqs[thread_uid] = given
        if len(self._seqs) > _MOST:
            self._seqs.popitem(last=False)
