"""Keeping a call's deadline on the client, whatever the server and the network do.

Every wait on a connection looks at the clock. At the deadline the server is asked, once, to cancel; if no answer has
come `GRACE` seconds later, the connection is closed. No setting on the server is used, because it would stay on a
connection that a pooler hands to somebody else. Everything is kept per connection: a server that has stopped
answering holds up its own callers and nobody else.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import threading
import time
import weakref
from typing import Any, TypeVar

import psycopg
from psycopg import pq, waiting
from psycopg.abc import PQGen

#: How long the answer to a cancel is waited for. With the two looks at the clock it stays below a second.
GRACE = 0.5
# How often a wait looks at the clock.
_INTERVAL = 0.05
# A cancel is a connection of its own, and must not last where the first one does.
_CANCEL_SECONDS = 2.0
_MOST_CANCELS = 64
# A commit that did not wait for its standby: Postgres warns of it, and reports success.
_WARNING = "01000"
_SHUTDOWN = "57P"
_RAISED_BY_A_FUNCTION = "exec_stmt_raise"

_T = TypeVar("_T")
_end: contextvars.ContextVar[float | None] = contextvars.ContextVar("compaction_store_end", default=None)


class DeadlinePassed(psycopg.OperationalError):
    """The server did not answer in time, not even to a cancel. The connection is closed."""


class until:  # noqa: N801 — used like a function; a generator would cost a tenth of what Postgres does
    """Ends every wait on a connection once the monotonic clock has reached `end`."""

    __slots__ = ("_end", "_token")

    def __init__(self, end: float) -> None:
        self._end = end

    def __enter__(self) -> None:
        self._token = _end.set(self._end)

    def __exit__(self, *_error: object) -> None:
        _end.reset(self._token)


def left() -> float | None:
    """How many seconds the call that is under way has left; None outside of any."""
    end = _end.get()
    return None if end is None else max(0.0, end - time.monotonic())


class Line:
    """Waits on one connection, in place of the driver's own `wait`. Knows what came besides the answers.

    It holds the driver's connection weakly: a cycle would leave a lost connection open until Python looks for cycles.
    """

    def __init__(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._pgconn = driver.pgconn
        self._driver: weakref.ref[Any] = weakref.ref(driver)
        self._cancelled_at: float | None = None
        self._warned = False
        driver.add_notice_handler(self._noticed)

    def begin(self) -> None:
        """Forgets what came before a call."""
        self._warned = False

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled_at is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether a commit that was reported as done may be missing on the standby that it had to wait for."""
        return self._warned or self.is_cancelled

    def cancel(self) -> None:
        """Asks the server to cancel, once, in a thread of its own: nobody waits for the request itself."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            _cancels.send(self._pgconn)

    def _noticed(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        state = diagnostic.sqlstate or ""
        if diagnostic.severity_nonlocalized == "WARNING" and (
            state.startswith(_SHUTDOWN)
            # A trigger of the user's may warn of anything.
            or (state == _WARNING and diagnostic.source_function != _RAISED_BY_A_FUNCTION)
        ):
            self._warned = True

    def _timed(self, waited: PQGen[_T], end: float) -> PQGen[_T]:
        """What the driver waits for, with a look at the clock whenever it would wait on."""
        try:
            asked = next(waited)
            while True:
                ready = yield asked
                asked = waited.send(ready)
                now = time.monotonic()
                if now >= (end if self._cancelled_at is None else self._cancelled_at + GRACE):
                    if self._cancelled_at is not None:
                        raise DeadlinePassed("the server did not answer by the deadline")
                    self.cancel()
        except StopIteration as stop:
            result: _T = stop.value
            return result

    def _is_busy(self) -> bool:
        return self._pgconn.transaction_status == pq.TransactionStatus.ACTIVE

    def _hang_up(self) -> None:
        self._pgconn.finish()


class _Line(Line):
    def __call__(self, waited: PQGen[_T], interval: float = _INTERVAL, **others: Any) -> _T:
        end = _end.get()
        if end is None:
            result: _T = psycopg.Connection.wait(self._driver(), waited, interval, **others)  # type: ignore[arg-type]
            return result
        try:
            return self._wait(waited, end)
        except DeadlinePassed:
            self._hang_up()
            raise
        except KeyboardInterrupt:
            self._give_up(waited)
            raise

    def _wait(self, waited: PQGen[_T], end: float) -> _T:
        return waiting.wait(self._timed(waited, end), self._pgconn.socket, _INTERVAL)

    def _give_up(self, waited: PQGen[Any]) -> None:
        """Cancels what was interrupted, and waits a moment for what the server did of it."""
        if not self._is_busy():
            return
        self.cancel()
        try:
            self._wait(waited, 0)
        except psycopg.Error:
            if self._is_busy():
                self._hang_up()


class _AioLine(Line):
    async def __call__(self, waited: PQGen[_T], interval: float = _INTERVAL, **others: Any) -> _T:
        end = _end.get()
        if end is None:
            driver: Any = self._driver()
            result: _T = await psycopg.AsyncConnection.wait(driver, waited, interval, **others)
            return result
        try:
            return await self._wait(waited, end)
        except DeadlinePassed:
            self._hang_up()
            raise
        except asyncio.CancelledError:
            await self._give_up(waited)
            raise

    async def _wait(self, waited: PQGen[_T], end: float) -> _T:
        return await waiting.wait_async(self._timed(waited, end), self._pgconn.socket, _INTERVAL)

    async def _give_up(self, waited: PQGen[Any]) -> None:
        if not self._is_busy():
            return
        self.cancel()
        try:
            await self._wait(waited, 0)
        except psycopg.Error:
            if self._is_busy():
                self._hang_up()


def line(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Line:
    """The line of a connection, put in its place at the first call."""
    found = vars(driver).get("wait")
    if isinstance(found, Line):
        return found
    made = _Line(driver) if isinstance(driver, psycopg.Connection) else _AioLine(driver)
    driver.wait = made  # type: ignore[method-assign, assignment]
    return made


class _Cancels:
    """Sends cancel requests, each from a thread of its own, and so many at a time."""

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(_MOST_CANCELS)

    def send(self, pgconn: pq.abc.PGconn) -> None:
        """One that finds no room is left out: what it should end is ended by its connection being closed."""
        if not self._room.acquire(blocking=False):
            return
        try:
            # A copy of the address, made here: the thread never touches the connection itself.
            request = pgconn.cancel_conn() if psycopg.capabilities.has_cancel_safe() else pgconn.get_cancel()
            threading.Thread(target=self._send, args=(request,), name="compaction-store cancel", daemon=True).start()
        except (psycopg.Error, RuntimeError):
            # There is no connection any more, or Python is shutting down.
            self._room.release()

    def _send(self, request: pq.abc.PGcancelConn | pq.abc.PGcancel) -> None:
        try:
            if isinstance(request, pq.PGcancel):
                request.cancel()
            else:
                _deliver(request)
        except (psycopg.Error, OSError):
            # The server is as deaf to the cancel as to the statement; there is nothing better to send.
            return
        finally:
            self._room.release()


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


def start_anew() -> None:
    """In a child after a fork: whoever held what is here is a thread of the parent's."""
    global _cancels  # noqa: PLW0603 — one for the process
    _cancels = _Cancels()
