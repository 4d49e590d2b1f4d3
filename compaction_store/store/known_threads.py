"""Remembers the last seq that a store received for each thread, to detect a database that has lost messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from uuid import UUID

_MOST = 10_000


class KnownThread(NamedTuple):
    """The thread that had a name at the last append, and the last seq of this append."""

    thread_uid: UUID
    last_seq: int


class KnownThreads:
    """Up to 10,000 known threads by name. Several OS threads may use it without a lock: every step is atomic."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, KnownThread] = OrderedDict()

    def get(self, thread_id: str) -> KnownThread | None:
        return self._threads.get(thread_id)

    def put(self, thread_id: str, before: KnownThread | None, now: KnownThread) -> None:
        """Stores the last seq of an append. `before` is the entry that was known when the append began.

        A seq that is lower than the thread's known one is ignored, because concurrent appends may end in any order. But
        a seq that is not above that of `before` is stored: the thread has lost messages.
        """
        there = self._threads.get(thread_id)
        is_same = there is not None and there.thread_uid == now.thread_uid
        went_back = before is not None and now.last_seq <= before.last_seq
        if there is None or not is_same or went_back or now.last_seq > there.last_seq:
            self._threads[thread_id] = now
        if len(self._threads) > _MOST:
            self._threads.popitem(last=False)
