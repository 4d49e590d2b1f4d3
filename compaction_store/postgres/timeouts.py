"""Enforces a call's deadline on the client, whatever the server and the network do.

Every wait on a connection checks the clock. At the deadline one cancel request is sent; if there is no answer within
`GRACE` seconds, the connection is closed. No server setting is used, because it would stay on a connection that a
pooler gives to another client. The state is kept per connection: a server that stops answering blocks only its own
callers.
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

#: How long to wait for the answer to a cancel request. A call ends less than a second after its deadline.
GRACE = 0.5
#: How often a wait checks the clock.
INTERVAL = 0.05
# A cancel request is a connection of its own, which may hang like the first one.
_CANCEL_SECONDS = 2.0
_MOST_CANCELS = 64
# Postgres warns of a commit that did not wait for its standby, and reports success.
_WARNING = "01000"
_SHUTDOWN = "57P"
_RAISED_BY_A_FUNCTION = "exec_stmt_raise"

_T = TypeVar("_T")
_end: contextvars.ContextVar[float | None] = contextvars.ContextVar("compaction_store_end", default=None)


class DeadlinePassed(psycopg.OperationalError):
    """The server answered neither the statement nor the cancel request in time. The connection is closed."""


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
    """Returns the end of the present call by the monotonic clock; None outside of a call."""
    return _end.get()


def left() -> float | None:
    """Returns the seconds left until the deadline of the present call; None outside of a call."""
    end = _end.get()
    return None if end is None else max(0.0, end - time.monotonic())


class Waiter:
    """Replaces the `wait` method of a driver's connection: enforces the deadline and listens to notices.

    Its reference to the connection is weak: in a reference cycle, a lost connection would stay open until the garbage
    collector runs.
    """

    def __init__(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.pgconn = driver.pgconn
        self.driver: weakref.ref[Any] = weakref.ref(driver)
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
        """Whether a reported commit may be missing on the synchronous standby."""
        return self._warned or self.is_cancelled

    def cancel(self) -> None:
        """Sends one cancel request from a separate thread, and does not wait for it."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            _cancels.send(self.pgconn)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        state = diagnostic.sqlstate or ""
        if diagnostic.severity_nonlocalized == "WARNING" and (
            state.startswith(_SHUTDOWN)
            # A user's trigger may raise any warning.
            or (state == _WARNING and diagnostic.source_function != _RAISED_BY_A_FUNCTION)
        ):
            self._warned = True

    def timed(self, steps: PQGen[_T], end: float) -> PQGen[_T]:
        """Runs the driver's generator and checks the clock at each of its waits."""
        try:
            wanted = next(steps)
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
    """A semaphore without a lock in Python code: Ctrl-C can leave the lock of `threading.Semaphore` held forever."""

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


class _Cancels:
    """Sends cancel requests from threads, up to a maximum number at a time."""

    def __init__(self) -> None:
        self._permits = Permits(_MOST_CANCELS)

    def send(self, pgconn: pq.abc.PGconn) -> None:
        """Sends a request. If too many are under way, skips it: closing the connection ends the statement too."""
        if not self._permits.acquire():
            return
        try:
            # The request has a copy of the address: the thread must not touch the connection.
            request = pgconn.cancel_conn() if psycopg.capabilities.has_cancel_safe() else pgconn.get_cancel()
            threading.Thread(target=self._send, args=(request,), name="compaction-store cancel", daemon=True).start()
        except (psycopg.Error, RuntimeError):
            # The connection is gone, or Python is shutting down.
            self._permits.release()

    def _send(self, request: pq.abc.PGcancelConn | pq.abc.PGcancel) -> None:
        try:
            if isinstance(request, pq.PGcancel):
                request.cancel()
            else:
                _deliver(request)
        except (psycopg.Error, OSError):
            # The server does not answer the cancel request either; nothing else can be sent.
            return
        finally:
            self._permits.release()


def _deliver(request: Any) -> None:
    end = time.monotonic() + _CANCEL_SECONDS
    events = {pq.PollingStatus.READING: selectors.EVENT_READ, pq.PollingStatus.WRITING: selectors.EVENT_WRITE}
    request.start()
    while (event := events.get(request.poll())) is not None:
        with selectors.DefaultSelector() as selector:
            selector.register(request.socket, event)
            if not selector.select(max(0.0, end - time.monotonic())):
                return


_cancels = _Cancels()


def reset_after_fork() -> None:
    """Replaces the semaphore in a forked child: threads of the parent hold the old one."""
    global _cancels  # noqa: PLW0603 — one for the process
    _cancels = _Cancels()
