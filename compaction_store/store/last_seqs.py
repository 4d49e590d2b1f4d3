"""The last seq that a store was given of each thread: what shows it that a thread has gone back."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

_MOST = 10_000


class LastSeqs:
    """Keeps them for the last 10,000 threads. Threads and tasks share it: each step is one that Python does whole."""

    def __init__(self) -> None:
        self._of: OrderedDict[UUID, int] = OrderedDict()

    def get(self, thread_uid: UUID) -> int:
        """0 where nothing is known."""
        return self._of.get(thread_uid, 0)

    def put(self, thread_uid: UUID, known: int, given: int) -> None:
        """Notes the last seq that an append was given. One that knew a later seq has seen the thread go back."""
        if given <= known or given > self.get(thread_uid):
            self._of[thread_uid] = given
        if len(self._of) > _MOST:
            self._of.popitem(last=False)
