"""Enforces the deadline of a call on the client, even if the server or the network stops responding.

Every wait on a connection checks the clock. At the deadline, the client sends one cancel request. If no answer comes
within `GRACE` seconds, it closes the connection. No setting of the server is used for this, because a pooler may give
the connection, with the setting, to another client. The state is kept for each connection, so a server that stops
responding blocks only its own callers.
"""

from __future__ import annotations

import contextvars
import queue
import selectors
import threading
import time
import weakref
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen

from compaction_store.postgres.driver.prepared import Prepared

#: Seconds to wait for the answer to a cancel request. With this, a call ends within a second after its deadline.
GRACE = 0.5
#: The interval in seconds at which a wait checks the clock.
INTERVAL = 0.05
# Seconds for a cancel request. It needs its own connection, which may hang like the first one.
_CANCEL_SECONDS = 2.0
_MOST_CANCELS = 64
# If a commit did not wait for its standby, Postgres sends this warning and reports success.
_WARNING = "01000"
_SHUTDOWN = "57P"
_RAISED_BY_A_FUNCTION = "exec_stmt_raise"
# Tells a generator of the driver that the connection is not ready, neither to read nor to write.
_NOT_READY = 0

_T = TypeVar("_T")
_end: contextvars.ContextVar[float | None] = contextvars.ContextVar("compaction_store_end", default=None)


class DeadlinePassed(psycopg.OperationalError):
    """The server answered neither the statement nor the cancel request in time, so the connection was closed."""


class until:  # noqa: N801 — used like a function; a generator would add a tenth of Postgres's own time
    """Ends every wait on a connection when the monotonic clock reaches `end`."""

    __slots__ = ("_end", "_token")

    def __init__(self, end: float) -> None:
        self._end = end

    def __enter__(self) -> None:
        self._token = _end.set(self._end)

    def __exit__(self, *_error: object) -> None:
        _end.reset(self._token)


def deadline() -> float | None:
    """Returns the deadline of the current call on the monotonic clock, or None outside a call."""
    return _end.get()


def renew(seconds: float) -> None:
    """Gives the current call `seconds` from now, for a call of many statements that each may take as long."""
    if _end.get() is not None:
        _end.set(time.monotonic() + seconds)


def left() -> float | None:
    """Returns the seconds until the deadline of the current call, or None outside a call."""
    end = _end.get()
    return None if end is None else max(0.0, end - time.monotonic())


def _resumed(steps: PQGen[Any]) -> Any:
    """Continues a generator of the driver that was interrupted, perhaps before its first step."""
    try:
        return steps.send(_NOT_READY)
    except TypeError:
        return next(steps)


class Waiter:
    """A replacement for the `wait` method of a driver's connection, with the deadline. It refers to the connection
    weakly, because in a cycle a lost connection would stay open until the garbage collector runs.
    """

    def __init__(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.pgconn = driver.pgconn
        self.driver: weakref.ref[Any] = weakref.ref(driver)
        self.prepared = Prepared()
        self._cancelled_at: float | None = None
        self._warned = False
        driver.add_notice_handler(self._on_notice)

    def begin(self) -> None:
        """Forgets the notices of earlier calls."""
        self._warned = False

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled_at is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the server may have reported a commit that its synchronous standby does not have."""
        return self._warned or self.is_cancelled

    def cancel(self) -> None:
        """Sends a cancel request from a separate thread, without waiting for it. Sends at most one."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            _send_cancel(self.pgconn)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        state = diagnostic.sqlstate or ""
        if diagnostic.severity_nonlocalized == "WARNING" and (
            state.startswith(_SHUTDOWN)
            # Ignore warnings that a function raises, such as a user's trigger.
            or (state == _WARNING and diagnostic.source_function != _RAISED_BY_A_FUNCTION)
        ):
            self._warned = True

    def timed(self, steps: PQGen[_T], end: float, *, is_interrupted: bool = False) -> PQGen[_T]:
        """Runs a generator of the driver, or the rest of one, and checks the clock at each wait."""
        try:
            wanted = _resumed(steps) if is_interrupted else next(steps)
            while True:
                ready = yield wanted
                wanted = steps.send(ready)
                now = time.monotonic()
                if now >= (end if self._cancelled_at is None else self._cancelled_at + GRACE):
                    if self._cancelled_at is not None:
                        raise DeadlinePassed("the server did not answer by the deadline")
                    self.cancel()
        except StopIteration as stop:
            result: _T = stop.value
            return result

    @property
    def is_busy(self) -> bool:
        return self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE


class Permits:
    """A semaphore without a lock in Python code. Ctrl-C can leave the lock of `threading.Semaphore` locked forever."""

    def __init__(self, number: int) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(number):
            self._queue.put(None)

    def acquire(self, seconds: float = 0.0) -> bool:
        try:
            self._queue.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        return True

    def release(self) -> None:
        self._queue.put(None)


def _send_cancel(pgconn: pq.abc.PGconn) -> None:
    """Sends a cancel request from a thread, or none if too many run. Closing the connection ends the statement too."""
    permits = _permits
    if not permits.acquire():
        return
    try:
        # The request has a copy of the server's address, because the thread must not use the connection.
        request = pgconn.cancel_conn() if psycopg.capabilities.has_cancel_safe() else pgconn.get_cancel()
        name = "compaction-store cancel"
        threading.Thread(target=_run_cancel, args=(request, permits), name=name, daemon=True).start()
    except (psycopg.Error, RuntimeError):
        # The connection is gone, or Python is shutting down.
        permits.release()


def _run_cancel(request: pq.abc.PGcancelConn | pq.abc.PGcancel, permits: Permits) -> None:
    try:
        if isinstance(request, pq.PGcancel):
            request.cancel()
        else:
            _deliver(request)
    except (psycopg.Error, OSError):
        # The server does not answer the cancel request either. Nothing more can be done here.
        return
    finally:
        permits.release()


def _deliver(request: Any) -> None:
    end = time.monotonic() + _CANCEL_SECONDS
    events = {pq.PollingStatus.READING: selectors.EVENT_READ, pq.PollingStatus.WRITING: selectors.EVENT_WRITE}
    request.start()
    while (event := events.get(request.poll())) is not None:
        with selectors.DefaultSelector() as selector:
            selector.register(request.socket, event)
            if not selector.select(max(0.0, end - time.monotonic())):
                return


_permits = Permits(_MOST_CANCELS)


def reset_after_fork() -> None:
    """Replaces the semaphore in a forked child process, because the parent's threads may hold its permits."""
    global _permits  # noqa: PLW0603 — one for the process
    _permits = Permits(_MOST_CANCELS)
