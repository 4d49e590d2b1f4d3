"""Decides which callers of a store append alone, and which appends share a commit.

Only a few callers can append at the same time: those that have a place. Further callers wait in a queue. When a caller
is done, its place goes to the first caller in the queue whose thread has fewer than two callers with a place. That
caller appends for itself and for as many others in the queue as fit into one commit. So a single caller never waits,
and no timer delays calls in order to combine them.

Ctrl-C can raise KeyboardInterrupt at any line, also in the middle of a change. So each change begins with the flag of a
caller, what is left of it is ignored later, and `forget` puts right what the interrupted caller has left behind.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from compaction_store.postgres.queries import Append, Written

# The number of places. Fewer places leave a server with several cores idle. With more, too few callers share a commit.
_PLACES = 4
# The number of places for one thread. With two, one append can travel to the server while another one is stored.
_PLACES_OF_A_THREAD = 2
#: The number of seconds after which a waiting caller takes the place of one that has had it for as long.
PATIENCE = 0.1
# The number of callers that may append to one thread at the same time, with those that have lost their place. They all
# wait for the same lock, and each occupies a connection that callers of other threads need.
_MOST_OF_A_THREAD = 4
# Postgres keeps the ids of 64 subtransactions of a transaction in shared memory. With more, every reader must look them
# up elsewhere.
_MOST_CALLS = 64
_MOST_CHARACTERS = 256 * 1024
_MOST_CHARACTERS_OF_A_CALL = 64 * 1024
_MOST_MESSAGES_OF_A_CALL = 100


class Signal:
    """Wakes one waiting OS thread. It has no lock in Python code, which Ctrl-C could leave locked."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._arrived.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits for the signal. Returns False if it did not come in time."""
        try:
            self._arrived.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        return True


class AsyncSignal:
    """Wakes one waiting task of the same event loop."""

    def __init__(self) -> None:
        self._arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        if not self._arrived.done():
            self._arrived.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Waits for the signal. Returns False if it did not come in time."""
        await asyncio.wait((self._arrived,), timeout=max(0.0, seconds))
        return self._arrived.done()


class Caller:
    """A caller that appends, or that waits for a place.

    `has_place` is set when the caller may append for itself and for others. `is_taken` is set when another caller
    appends for this caller, and `is_done` when that has ended. Then `written` is the result. If `written` is None, this
    caller must append by itself, and `is_in_doubt` says whether the shared append may have been stored.
    """

    __slots__ = (
        "append", "has_place", "is_done", "is_in_doubt", "is_late", "is_single", "is_taken", "signal", "since",
        "taken", "thread", "threads", "written",
    )  # fmt: skip

    def __init__(self, append: Append) -> None:
        self.append = append
        #: The signal that wakes the caller. None if the caller does not wait.
        self.signal: Any = None
        self.thread = append.thread[1:]
        #: The threads to which the caller appends while it has a place.
        self.threads = {self.thread}
        #: The callers for which it appends.
        self.taken: list[Caller] = []
        self.has_place = False
        self.since = 0.0
        #: Whether it has lost its place to others, while its append continues.
        self.is_late = False
        self.is_taken = False
        self.is_done = False
        #: Whether the append must have a commit of its own.
        self.is_single = False
        self.is_in_doubt = False
        self.written: Written | None = None


class AppendQueue:
    """The callers that have a place, and the callers that wait: either all OS threads, or the tasks of an event loop.

    A caller gets no free place while two callers with a place append to its thread, because the server would make it
    wait for the thread's lock. If it waits in the queue instead, its append can share a commit. No more callers append
    at the same time than there are connections.
    """

    def __init__(self, connections: int) -> None:
        self._connections = connections
        # This kind of lock can be released by a thread that does not know whether it has the lock.
        self._lock = threading.RLock()
        self._appending: list[Caller] = []
        self._queue: deque[Caller] = deque()

    def enter(self, caller: Caller, signal: type[Signal | AsyncSignal], *, is_single: bool = False) -> None:
        """Takes a free place, or puts the caller into the queue. A single caller shares no commit."""
        with self._lock:
            if is_single:
                self._remove(caller)
            caller.is_single = is_single
            caller.has_place = caller.is_taken = caller.is_done = False
            self._queue.append(caller)
            self._hand_out([caller])
            if not caller.has_place:
                caller.signal = signal()

    def push_in(self, caller: Caller) -> None:
        """Gives a place to a caller that has waited for `PATIENCE`, if the server is not busy with its thread. Callers
        that have had a place for longer, for example because their thread is locked, lose it, but their appends go on.
        """
        with self._lock:
            long_ago = time.monotonic() - PATIENCE
            for one in self._appending:
                one.is_late = one.since <= long_ago
            self._hand_out([caller])

    def take(self, leader: Caller) -> None:
        """Takes as many callers out of the queue as fit into one append of the leader.

        If another caller is appending to the leader's thread, only callers for this thread are taken, because they must
        all wait for the same lock. Otherwise, callers are taken if nobody but the leader is appending to their thread.
        """
        characters = size(leader.append)
        with self._lock:
            must_wait = self._uses(leader) > 1
            for one in () if leader.is_single else list(self._queue):
                if one.is_single or one.has_place or one.is_taken:
                    continue
                if one.thread not in leader.threads and (must_wait or self._uses(one)):
                    continue
                characters += size(one.append)
                if len(leader.taken) == _MOST_CALLS - 1 or characters > _MOST_CHARACTERS:
                    break
                leader.taken.append(one)
                leader.threads.add(one.thread)
                one.is_taken = True
                self._remove(one)

    def leave(self, caller: Caller) -> None:
        """Frees the caller's place, gives it to others, and wakes those for whom the caller has appended."""
        with self._lock:
            for one in caller.taken:
                one.is_done = True
                _wake(one)
            caller.taken = []
            caller.has_place = False
            self._remove(caller)
            self._hand_out(list(self._queue))

    def withdraw(self, caller: Caller) -> bool:
        """Removes a caller that stops waiting. Returns False if another caller already appends for it."""
        with self._lock:
            self._remove(caller)
            return not caller.is_taken

    def forget(self, caller: Caller, error: BaseException) -> None:
        """Puts right what a caller has left behind whose call was ended by an error at any line."""
        with suppress(RuntimeError):
            while True:
                self._lock.release()
        # If the task is cancelled, what it appends for others goes on.
        if not (isinstance(error, asyncio.CancelledError) and caller.taken):
            self.leave(caller)

    def _uses(self, caller: Caller) -> int:
        """Returns how many callers append to a caller's thread."""
        return sum(caller.thread in one.threads for one in self._appending)

    def _hand_out(self, callers: Iterable[Caller]) -> None:
        """Gives free places to the first of some callers that are in the queue."""
        full: set[tuple[str, str]] = set()
        for one in callers:
            if one.thread in full or one.has_place or one.is_taken:
                continue
            if len(self._appending) >= self._connections or _places(self._appending) >= _PLACES:
                break
            same = [other for other in self._appending if one.thread in other.threads]
            if len(same) >= _MOST_OF_A_THREAD or _places(same) >= _PLACES_OF_A_THREAD:
                full.add(one.thread)
            else:
                self._place(one)

    def _place(self, caller: Caller) -> None:
        caller.since, caller.is_late, caller.has_place = time.monotonic(), False, True
        self._appending.append(caller)
        self._queue.remove(caller)
        _wake(caller)

    def _remove(self, caller: Caller) -> None:
        # Ctrl-C may have left it in both lists, or in one of them twice.
        self._appending = [one for one in self._appending if one is not caller]
        if caller in self._queue:
            self._queue.remove(caller)


class AppendQueues:
    """The queues of a store: one for OS threads, and one for each event loop, which may stop at any time."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._of_os_threads = AppendQueue(self._connections)
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AppendQueue] = WeakKeyDictionary()

    def of(self, signal: type[Signal | AsyncSignal]) -> AppendQueue:
        """Returns the queue of the callers that can wake the caller with such a signal."""
        if self._process != os.getpid():
            # In a forked child process, the callers of the parent process do not continue.
            self._begin()
        if signal is Signal:
            return self._of_os_threads
        loop = asyncio.get_running_loop()
        found = self._of_loops.get(loop)
        if found is None:
            found = self._of_loops[loop] = AppendQueue(self._connections)
        return found


def may_share(append: Append) -> bool:
    """Returns whether an append may share a commit. It must be small and not part of a turn."""
    is_small = len(append.new) <= _MOST_MESSAGES_OF_A_CALL and size(append) <= _MOST_CHARACTERS_OF_A_CALL
    return append.expected.turn_id is None and is_small


def size(append: Append) -> int:
    return sum(len(m.payload) + len(m.meta or "") for m in append.new)


def _wake(caller: Caller) -> None:
    if caller.signal is not None:
        caller.signal.set()


def _places(appending: Iterable[Caller]) -> int:
    return sum(not one.is_late for one in appending)
