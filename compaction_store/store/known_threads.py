"""Remembers the last seq that a store received for each thread, to detect a database that went back in time."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from uuid import UUID

_MOST = 10_000


class KnownThread(NamedTuple):
    """A thread's key at the last append to its name, and the last seq of that append."""

    thread_uid: UUID
    last_seq: int


class KnownThreads:
    """Keeps 10,000 threads by their names. Threads and tasks share it without a lock: every step is atomic."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, KnownThread] = OrderedDict()

    def get(self, thread_id: str) -> KnownThread | None:
        return self._threads.get(thread_id)

    def put(self, thread_id: str, before: KnownThread | None, now: KnownThread) -> None:
        """Stores the last seq of an append; `before` is the known seq when it began.

        A seq that is not after `before` replaces a later known seq, because the thread went back.
        """
        there = self._threads.get(thread_id)
        is_same = there is not None and there.thread_uid == now.thread_uid
        went_back = before is not None and now.last_seq <= before.last_seq
        if there is None or not is_same or went_back or now.last_seq > there.last_seq:
            self._threads[thread_id] = now
        if len(self._threads) > _MOST:
            self._threads.popitem(last=False)
