"""Keeps a lease for the object that holds it: renews it in the background, and ends it however its holder ends.

A signal or a cancelled task can interrupt any line of the holder's code, also the lines that end the lease. So the end
does not depend on them: it runs in a thread or a task of its own, and the holder waits for it. If even the call of
`end` was lost, the keeper notices that the holder has been garbage collected, and ends the lease then.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from compaction_store import waiting

_T = TypeVar("_T")
# The seconds that the end of a lease may take whose holder is gone.
_PATIENCE = 2.0
# The keepers of this process that may have a lease.
_keepers: weakref.WeakSet[LeaseKeeper[Any]] = weakref.WeakSet()


def end_all(seconds: float) -> None:
    """Ends the leases of all threads of this process, which is about to end although their runs are under way."""
    until = time.monotonic() + seconds
    for keeper in list(_keepers):
        keeper.end(max(0.0, until - time.monotonic()))


class LeaseKeeper(Generic[_T]):
    """Renews a lease in a thread, until `renew` returns False. The thread also ends the lease.

    `renew` is called every `seconds` with the holder, for `at_most` seconds. `leave` must not refer to the holder. It
    is called with the seconds that it may take.
    """

    def __init__(
        self,
        holder: object,
        renew: Callable[[Any], bool],
        leave: Callable[[float], _T],
        seconds: float,
        *,
        at_most: float = math.inf,
    ) -> None:
        self._renew = renew
        self._leave = leave
        self._seconds = seconds
        self._at_most = at_most
        # Bare locks and no Event: a signal that interrupts an Event can leave its inner lock locked.
        self._wake, self._done = threading.Lock(), threading.Lock()
        self._wake.acquire()
        self._done.acquire()
        self._holder = weakref.ref(holder, lambda _: self._end_soon())
        self._result: _T | None = None
        self._patience = _PATIENCE
        # A daemon thread, so that it does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="compaction-store lease", daemon=True)

    def start(self) -> None:
        """Begins to renew the lease."""
        self._thread.start()
        _keepers.add(self)

    def stop(self) -> None:
        """Stops renewing a lease that has ended already."""
        _keepers.discard(self)
        self._leave = lambda _: None  # type: ignore[assignment, return-value]
        self._end_soon()

    def end(self, seconds: float) -> _T | None:
        """Ends the lease and returns the result of `leave`, or None if it takes longer than `seconds`.

        If a signal interrupts the wait, the lease is still ended before the signal's exception is raised.
        """
        self._patience = seconds
        self._end_soon()
        if self._thread.ident is None:
            self._thread.start()
        until = time.monotonic() + seconds
        interrupt: BaseException | None = None
        # In a process that was forked off, the thread does not exist.
        while self._thread.is_alive():
            try:
                self._done.acquire(timeout=max(0.0, until - time.monotonic()))
                break
            except BaseException as error:  # noqa: BLE001 — raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return self._result

    def _end_soon(self) -> None:
        # If it was called before, the lock may be free already.
        with suppress(RuntimeError):
            self._wake.release()

    def _run(self) -> None:
        is_renewing, end = True, time.monotonic() + self._at_most
        try:
            while not self._wake.acquire(timeout=self._seconds if is_renewing else -1):
                holder = self._holder()
                if holder is None:
                    break
                is_renewing = time.monotonic() < end and self._renew(holder)
                del holder
            self._result = self._leave(self._patience)
        finally:
            self._done.release()


class AsyncLeaseKeeper(Generic[_T]):
    """Renews a lease in a task, as `LeaseKeeper` does in a thread. Another task ends the lease."""

    def __init__(
        self,
        holder: object,
        renew: Callable[[Any], Awaitable[bool]],
        leave: Callable[[float], Awaitable[_T]],
        seconds: float,
        *,
        at_most: float = math.inf,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._renew = renew
        self._leave = leave
        self._seconds = seconds
        self._at_most = at_most
        self._is_renewing = False
        self._is_ended = False
        self._task: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        self._holder = weakref.ref(holder, lambda _: self._end_soon(loop))

    def start(self) -> None:
        """Begins to renew the lease."""
        self._task = asyncio.create_task(self._run(), name="compaction-store lease")

    def stop(self) -> None:
        """Stops renewing a lease that has ended already."""
        self._is_ended = True
        # Do not cancel a running call: cancelling it would close its connection.
        if self._task is not None and not self._is_renewing:
            self._task.cancel()

    async def end(self, seconds: float) -> _T | None:
        """Ends the lease and returns the result of `leave`.

        If the task is cancelled, even again and again, the lease is still ended before the cancellation is raised.
        """
        self.stop()
        return await waiting.finished(partial(self._leave, seconds), patience=seconds)

    def _end_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # The holder may be collected in any thread, and after its loop was closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._gone.set_result, None)

    async def _run(self) -> None:
        end = time.monotonic() + self._at_most
        try:
            while not self._is_ended and await self._renew_later(end):
                pass
            if not self._is_ended:
                await asyncio.wait({self._gone})
        except asyncio.CancelledError:
            # asyncio.run cancels all tasks at its end.
            if not self._is_ended and self._holder() is None:
                await self._leave(_PATIENCE)
            raise
        if not self._is_ended:
            await self._leave(_PATIENCE)

    async def _renew_later(self, end: float) -> bool:
        await asyncio.wait({self._gone}, timeout=self._seconds)
        holder = self._holder()
        if holder is None or time.monotonic() >= end:
            return False
        self._is_renewing = True
        try:
            return await self._renew(holder)
        finally:
            self._is_renewing = False
