"""Calls a function every few seconds in the background: in a thread, or in a task of the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable


class Periodic:
    """Calls a function in a thread until it returns False or the calls are stopped."""

    def __init__(self, function: Callable[[], bool], seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._stopped = threading.Event()
        # A daemon, so that a process can end in the middle of a turn.
        threading.Thread(target=self._run, name="compaction-store turn", daemon=True).start()

    def stop(self) -> None:
        """Starts no other call, and does not wait for one under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds) and self._function():
            pass


class AsyncPeriodic:
    """Calls an async function in a task until it returns False or the calls are stopped."""

    def __init__(self, function: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._is_calling = False
        self._is_stopped = False
        self._task = asyncio.create_task(self._run(), name="compaction-store turn")

    def stop(self) -> None:
        """Starts no other call, and does not wait for one under way."""
        self._is_stopped = True
        # Do not cancel a call under way: that would close its connection.
        if not self._is_calling:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._is_stopped:
            await asyncio.sleep(self._seconds)
            self._is_calling = True
            try:
                if not await self._function():
                    return
            finally:
                self._is_calling = False
