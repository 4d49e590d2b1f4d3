"""Ending a statement that outlives its caller's deadline: by a cancel request, never by a setting on the server.

A setting would stay on a connection that a pooler hands to somebody else. The async face asks its event loop to send
the cancel; the synchronous one has a single thread for the whole process that looks four times a second, starts with
the first call and ends when there have been none for a while.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa

_EVERY = 0.25
_IDLE_ROUNDS = 40
# A cancel request is a connection of its own; it must not hang where the first one does.
_CANCEL_TIMEOUT = 5.0


class _Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, tuple[float, psycopg.Connection]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, connection: psycopg.Connection, end: float) -> Iterator[None]:
        number = id(connection)
        self._running[number] = (end, connection)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        try:
            yield
        finally:
            # Waits for a cancel that is being sent, so that it cannot meet the connection's next statement.
            with self._lock:
                del self._running[number]

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


@contextmanager
def limited(connection: sa.Connection, end: float) -> Iterator[None]:
    """Cancels what runs on the connection once the monotonic clock has reached `end`."""
    driver = connection.connection.driver_connection
    if isinstance(driver, psycopg.Connection):
        with _watch.over(driver, end):
            yield
        return
    assert isinstance(driver, psycopg.AsyncConnection)  # noqa: S101 — the dialect has no third kind
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    timer = loop.call_later(
        max(0.0, end - time.monotonic()), lambda: tasks.append(loop.create_task(_cancel_async(driver)))
    )
    try:
        yield
    finally:
        timer.cancel()
