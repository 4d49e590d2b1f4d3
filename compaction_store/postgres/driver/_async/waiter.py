"""Waits for the server on one connection, at most until the deadline."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.waiting import wait_async

from compaction_store.postgres.driver import timeouts

_T = TypeVar("_T")


class AsyncWaiter(timeouts.Waiter):
    """A replacement for the `wait` method of an AsyncConnection."""

    async def __call__(self, steps: PQGen[_T], interval: float = timeouts.INTERVAL, **others: Any) -> _T:
        end = timeouts.deadline()
        if end is None:
            driver: Any = self.driver()
            result: _T = await AsyncConnection.wait(driver, steps, interval, **others)
            return result
        try:
            return await self._wait(steps, end)
        except timeouts.DeadlinePassed:
            self.pgconn.finish()
            raise
        except CancelledError:
            await self._cancel_and_wait(steps)
            raise

    async def _wait(self, steps: PQGen[_T], end: float, *, is_interrupted: bool = False) -> _T:
        timed = self.timed(steps, end, is_interrupted=is_interrupted)
        return await wait_async(timed, self.pgconn.socket, timeouts.INTERVAL)

    async def _cancel_and_wait(self, steps: PQGen[Any]) -> None:
        """Cancels the interrupted statement and waits briefly for the result. Closes the connection if none comes."""
        if not self.is_busy:
            return
        self.cancel()
        try:
            await self._wait(steps, 0, is_interrupted=True)
        except psycopg.Error:
            if self.is_busy:
                self.pgconn.finish()
