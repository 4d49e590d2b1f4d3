"""Calls a function every few seconds in the background, in a thread or in an asyncio task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable


class Periodic:
    """Calls a function repeatedly in a thread, until it returns False or `stop` is called."""

    def __init__(self, function: Callable[[], bool], seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._stopped = threading.Event()
        # A daemon thread, so that it does not keep the process alive.
        threading.Thread(target=self._run, name="compaction-store turn", daemon=True).start()

    def stop(self) -> None:
        """Stops the calls. Does not wait for a running call."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds) and self._function():
            pass


class AsyncPeriodic:
    """Calls an async function repeatedly in a task, until it returns False or `stop` is called."""

    def __init__(self, function: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._is_calling = False
        self._is_stopped = False
        self._task = asyncio.create_task(self._run(), name="compaction-store turn")

    def stop(self) -> None:
        """Stops the calls. Does not wait for a running call."""
        self._is_stopped = True
        # Do not cancel a running call: cancelling it would close its connection.
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
