"""Ending a statement that outlives its caller's deadline: by a cancel request, never by a setting on the server.

A setting would stay on a connection that a pooler hands to somebody else. The async face asks its event loop to send
the cancel; the synchronous one has a single thread for the whole process that looks four times a second, starts with
the first call and ends when there have been none for a while.
"""

from __future__ import annotations

import asyncio
import threading
import time

import psycopg
from sqlalchemy.pool import PoolProxiedConnection as Connection

_EVERY = 0.25
_IDLE_ROUNDS = 40
# A cancel request is a connection of its own; it must not hang where the first one does.
_CANCEL_TIMEOUT = 5.0


class _Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, tuple[float, psycopg.Connection]] = {}
        self._thread: threading.Thread | None = None

    def add(self, connection: psycopg.Connection, end: float) -> None:
        self._running[id(connection)] = (end, connection)
        if self._thread is None or not self._thread.is_alive():
            self._start()

    def remove(self, connection: psycopg.Connection) -> None:
        # Waits for a cancel that is being sent, so that it cannot meet the connection's next statement.
        with self._lock:
            del self._running[id(connection)]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="compaction-store deadlines", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        idle = 0
        while idle < _IDLE_ROUNDS:
            time.sleep(_EVERY)
            idle = 0 if self._running else idle + 1
            now = time.monotonic()
            with self._lock:
                for end, connection in list(self._running.values()):
                    if now >= end:
                        _cancel(connection)


def _cancel(connection: psycopg.Connection) -> None:
    try:
        connection.cancel_safe(timeout=_CANCEL_TIMEOUT)
    except psycopg.Error:
        # The server is as deaf to the cancel as to the statement; there is nothing better to send.
        return


async def _cancel_async(connection: psycopg.AsyncConnection) -> None:
    try:
        await connection.cancel_safe(timeout=_CANCEL_TIMEOUT)
    except psycopg.Error:
        return


_watch = _Watch()


class limited:  # noqa: N801 — used like a function; a generator would cost a tenth of what Postgres does
    """Cancels what runs on the connection once the monotonic clock has reached `end`."""

    def __init__(self, connection: Connection, end: float) -> None:
        driver = connection.driver_connection
        assert isinstance(driver, psycopg.Connection | psycopg.AsyncConnection)  # noqa: S101 — there is no third kind
        self._driver = driver
        self._end = end

    def __enter__(self) -> None:
        driver = self._driver
        if isinstance(driver, psycopg.Connection):
            _watch.add(driver, self._end)
            return
        loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._timer = loop.call_later(
            max(0.0, self._end - time.monotonic()),
            lambda: self._tasks.append(loop.create_task(_cancel_async(driver))),
        )

    def __exit__(self, *_error: object) -> None:
        if isinstance(self._driver, psycopg.Connection):
            _watch.remove(self._driver)
        else:
            self._timer.cancel()
