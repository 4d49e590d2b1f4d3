"""Decides which callers of a store append alone, and which appends share a commit.

Only a few callers can append at the same time: those that have a place. Further callers wait in a queue. When a caller
is done, its place goes to the first caller in the queue whose thread has fewer than two callers with a place. That
caller appends for itself and for as many others in the queue as fit into one commit. So a single caller never waits,
and no timer delays calls in order to combine them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from typing import Any

from compaction_store.postgres.queries import Append, Written

# The number of places. Fewer places leave a server with several cores idle. With more, too few callers share a commit.
_PLACES = 4
# The number of places for one thread. With two, one append can travel to the server while another one is stored.
_PLACES_OF_A_THREAD = 2
#: The number of seconds after which a waiting caller takes a place even if none is free.
PATIENCE = 0.1
# Postgres keeps the ids of 64 subtransactions of a transaction in shared memory. With more, every reader must look them
# up elsewhere.
_MOST_CALLS = 64
_MOST_CHARACTERS = 256 * 1024
_MOST_CHARACTERS_OF_A_CALL = 64 * 1024
_MOST_MESSAGES_OF_A_CALL = 100


class Signal:
    """Wakes one waiting OS thread, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> bool:
        """Wakes the OS thread. Always returns True."""
        self._lock.release()
        return True

    def wait(self, seconds: float) -> bool:
        """Waits for the signal. Returns False if it did not come in time."""
        return self._lock.acquire(timeout=max(0.0, seconds))


class AsyncSignal:
    """Wakes one waiting task, once. The task may run on another event loop than the caller of `set`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_set = False
        self._wake: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> bool:
        """Wakes the task. Returns False if the event loop of the task is closed."""
        try:
            if asyncio.get_running_loop() is self._loop:
                self._arrive()
            else:
                self._loop.call_soon_threadsafe(self._arrive)
        except RuntimeError:
            return False
        return True

    async def wait(self, seconds: float) -> bool:
        """Waits for the signal. Returns False if it did not come in time."""
        if self._is_set:
            return True
        self._wake = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, seconds), self._end_wait)
        try:
            await self._wake
        finally:
            timer.cancel()
        return self._is_set

    def _arrive(self) -> None:
        self._is_set = True
        self._end_wait()

    def _end_wait(self) -> None:
        if not self._wake.done():
            self._wake.set_result(None)


class Waiting:
    """A caller that appends, or that waits for a place.

    `has_place` is set when the caller may append for itself and for others. `is_taken` is set when another caller
    appends for this caller. Then `written` is the result. If `written` is None, this caller must append alone, and
    `is_in_doubt` says whether the shared append may have been stored.
    """

    __slots__ = ("append", "has_place", "is_in_doubt", "is_taken", "signal", "since", "thread", "threads", "written")

    def __init__(self, append: Append) -> None:
        self.append = append
        #: The signal that wakes the caller. None if the caller does not wait.
        self.signal: Any = None
        self.thread = append.thread[1:]
        #: The threads to which the caller appends while it has a place.
        self.threads = {self.thread}
        self.has_place = False
        self.since = 0.0
        self.is_taken = False
        self.is_in_doubt = False
        self.written: Written | None = None


class AppendQueue:
    """The callers that have a place, and the callers that wait, in all OS threads and event loops that use a store.

    A caller gets no free place while two callers with a place append to its thread, because the server would make it
    wait for the thread's lock. If it waits in the queue instead, its append can share a commit.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._appending: list[Waiting] = []
        self._queue: deque[Waiting] = deque()

    def enter(self, append: Append, signal: type[Signal | AsyncSignal]) -> Waiting:
        """Takes a free place, or puts the caller into the queue."""
        if self._process != os.getpid():
            # In a forked child process, the callers of the parent process do not continue.
            self._begin()
        caller = Waiting(append)
        with self._lock:
            if len(self._appending) < _PLACES and self._uses(caller) < _PLACES_OF_A_THREAD:
                self._place(caller)
            else:
                caller.signal = signal()
                self._queue.append(caller)
        return caller

    def leave(self, caller: Waiting) -> None:
        """Frees the caller's place, and gives free places to the first callers in the queue."""
        with self._lock:
            if caller in self._appending:
                self._appending.remove(caller)
            for first in list(self._queue):
                if len(self._appending) >= _PLACES:
                    break
                if self._uses(first) < _PLACES_OF_A_THREAD:
                    self._queue.remove(first)
                    if first.signal.set():
                        self._place(first)

    def push_in(self, caller: Waiting) -> None:
        """Gives a place to a caller that has waited for `PATIENCE`, unless another caller appends for it already.

        Every caller that has had a place for longer than `PATIENCE`, for example because its thread is locked, loses
        the place. Its append continues nevertheless.
        """
        with self._lock:
            if not (caller.has_place or caller.is_taken):
                long_ago = time.monotonic() - PATIENCE
                self._appending = [one for one in self._appending if one.since > long_ago]
                self._queue.remove(caller)
                self._place(caller)

    def withdraw(self, caller: Waiting) -> bool:
        """Removes a caller that stops waiting. Returns False if another caller already appends for it."""
        with self._lock:
            if caller.is_taken:
                return False
            if not caller.has_place:
                self._queue.remove(caller)
        if caller.has_place:
            self.leave(caller)
        return True

    def take(self, leader: Waiting) -> list[Waiting]:
        """Removes from the queue as many callers as fit into one append of the leader. Returns the leader and them.

        If another caller is appending to the leader's thread, only callers for this thread are taken, because they must
        all wait for the same lock. Otherwise, callers are taken if nobody but the leader is appending to their thread.
        """
        taken, characters = [leader], size(leader.append)
        with self._lock:
            must_wait = self._uses(leader) > 1
            for one in list(self._queue):
                if one.thread not in leader.threads and (must_wait or self._uses(one)):
                    continue
                characters += size(one.append)
                if len(taken) == _MOST_CALLS or characters > _MOST_CHARACTERS:
                    break
                self._queue.remove(one)
                leader.threads.add(one.thread)
                taken.append(one)
            for one in taken[1:]:
                one.is_taken = True
        return taken

    def _uses(self, caller: Waiting) -> int:
        """Returns how many callers with a place append to a caller's thread."""
        return sum(caller.thread in one.threads for one in self._appending)

    def _place(self, caller: Waiting) -> None:
        caller.has_place, caller.since = True, time.monotonic()
        self._appending.append(caller)


def may_share(append: Append) -> bool:
    """Returns whether an append may share a commit. It must be small and not part of a turn."""
    is_small = len(append.new) <= _MOST_MESSAGES_OF_A_CALL and size(append) <= _MOST_CHARACTERS_OF_A_CALL
    return append.expected.turn_id is None and is_small


def size(append: Append) -> int:
    return sum(len(m.payload) + len(m.meta or "") for m in append.new)
