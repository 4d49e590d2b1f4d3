"""Runs a query on a connection of an engine within a deadline, and retries it after transient failures.

The pauses between retries have jitter. Some failures leave the outcome of a write unknown: a lost connection, a server
that stops responding, or a commit that did not wait for its standby. A write has a key, so it can be repeated until its
outcome is known. If the outcome is still unknown at the deadline, the caller gets `OutcomeUnknown` with this key.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from traceback import clear_frames
from typing import Any, Protocol, Self, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only

from compaction_store import arguments as checks
from compaction_store import errors
from compaction_store.module_data import ModuleData
from compaction_store.postgres.calling import engines, error_translation
from compaction_store.postgres.calling.error_translation import InDoubt, Verdict
from compaction_store.postgres.cluster import Server
from compaction_store.postgres.driver import prepared, timeouts, waiters
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.queries.server import SETTINGS_LOST

_T = TypeVar("_T")

#: The key of a write that can be repeated without a key.
UNKEYED = ""
# Texts of the errors by which pgbouncer refuses a connection's settings, and Postgres its role. They have no SQLSTATE.
_REFUSED_SETTINGS = "unsupported startup parameter"
_REFUSED_ROLE = re.compile('permission denied to set role (".*")')
# Texts of refusals that a retry cannot change. A server that speaks another language is retried until the deadline.
_DATA = ModuleData(__file__)
_REFUSED_URL = re.compile(_DATA.pattern("refused_url"))
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
# In seconds: the minimum time for a call, and the extra time after the deadline to find out an unknown outcome.
_LEAST_DEADLINE = 0.3
_SETTLING = 0.12
# The minimum seconds for a call that is never retried. A busy server needs this time to accept a connection.
_LEAST_WITHOUT_RETRIES = 2.0
# A call that is retried for so many seconds says so in the log, once.
_TOLD_AFTER = 1.0

_log = logging.getLogger("compaction_store")


class Statement(Protocol):
    """A running statement, as an observer sees it."""

    def retried(self, sqlstate: str | None) -> None: ...


#: A function that takes the name of a query and returns a context manager, which is open during all attempts.
Observer = Callable[[str], AbstractContextManager[Statement]]


class Caller:
    """Runs queries on the connections of an engine, in the form that `server` needs. If the server has nodes, a write
    with an unknown outcome is retried once after the deadline.
    """

    def __init__(
        self,
        engine: sa.Engine,
        sleep: Callable[[float], object],
        deadline: float,
        *,
        retries: bool = True,
        server: Server | None = None,
        observer: Observer | None = None,
    ) -> None:
        engines.prepare(engine)
        self.engine = engine
        self.deadline = deadline
        self.closed = False
        self._sleep = sleep
        self.retries = retries
        # The seconds after which a failed attempt is not repeated.
        self.patience = deadline
        self.server = Server() if server is None else server
        self._observer = observer

    def with_more_time(self, seconds: float) -> Self:
        """Returns a copy with a later deadline, for a call that is expected to take long."""
        return self._with(deadline=self.deadline + seconds, patience=self.deadline + seconds)

    def with_at_most(self, seconds: float) -> Self:
        """Returns a copy with a deadline of at most `seconds`, for a call that is not worth a longer wait."""
        least = min(self.deadline, seconds)
        return self._with(deadline=least, patience=least)

    def with_time_left_since(self, start: float) -> Self:
        """Returns a copy with the rest of a deadline that began at `start`, for the second step of a call."""
        return self.with_at_most(max(0.0, start + self.deadline - time.monotonic()))

    def with_patience(self, seconds: float) -> Self:
        """Returns a copy that retries a call for at most `seconds`. A statement may still take until the deadline."""
        return self._with(patience=seconds)

    def once(self) -> Self:
        """Returns a copy that never retries, for a call whose failure the caller handles itself."""
        return self._with(retries=False)

    def as_stored(self) -> Self:
        """Returns a copy that reads sealed content as it is stored, to verify or copy it."""
        return self._with(server=self.server.as_stored)

    def _with(self, **changed: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(changed)
        return other

    def _call(
        self, query: Callable[..., _T], arguments: tuple[Any, ...], key: str | None, *, is_in_doubt: bool
    ) -> _T:  # fmt: skip
        if self.closed:
            raise errors.StoreClosed("the store is closed")
        try:
            if self._observer is None:
                return self._call_with_retries(query, arguments, key, is_in_doubt, None)
            with self._observer(query.__name__) as statement:
                return self._call_with_retries(query, arguments, key, is_in_doubt, statement)
        except (KeyboardInterrupt, SystemExit):
            engines.replace_pool(self.engine)
            raise

    def _call_with_retries(
        self,
        query: Callable[..., _T],
        arguments: tuple[Any, ...],
        key: str | None,
        unknown: bool,
        statement: Statement | None,
    ) -> _T:
        run: Callable[..., _T] = partial(self.server.call, query)
        start = time.monotonic()
        end = start + min(self.deadline, self.patience)
        limit = start + max(self.deadline, _LEAST_DEADLINE)
        retries = self.retries
        longest, is_told = _FIRST_PAUSE, False
        while True:
            with timeouts.until(limit):
                connection, verdict = _connect(self.engine)
                if connection is not None:
                    result, error = _attempt(self.engine, connection, run, arguments, writes=key is not None)
                    if error is None:
                        return result  # type: ignore[return-value]
                    verdict = error_translation.judge(error, _thread_of(arguments), has_nodes=self.server.has_nodes)
                    if isinstance(verdict.failure, errors.ThreadErased) and _has_only_a_name(arguments):
                        # The thread was erased after its name was looked up, so the name is free now. Try again.
                        verdict = verdict._replace(again=True)
            assert verdict is not None  # noqa: S101 — there is a connection or a reason
            unknown = unknown or (verdict.unknown and key is not None)
            if not retries or not verdict.again:
                break
            if not is_told and time.monotonic() >= start + _TOLD_AFTER:
                is_told = True
                _tell(verdict, _thread_of(arguments))
            pause = random.uniform(longest / 2, longest)  # noqa: S311 — jitter, not a secret
            if time.monotonic() + pause >= end:
                if not (self.server.has_nodes and unknown) or time.monotonic() >= limit + _SETTLING:
                    break
                pause, retries, limit = 0, False, limit + 2 * _SETTLING
            if statement is not None:
                statement.retried(_sqlstate(verdict))
            self._sleep(pause)
            longest = min(longest * 2, _LONGEST_PAUSE)
        raise _failure(verdict, key if unknown else None, _thread_of(arguments))


def _tell(verdict: Verdict, thread: str) -> None:
    """Logs that a call waits, and the type of the failure. The text of the failure may quote data."""
    kind, state = type(verdict.failure).__name__, _sqlstate(verdict)
    _log.warning("a call has been retried for a second: %s%s%s", kind, f" {state}" if state else "", thread)


def _connect(engine: sa.Engine) -> tuple[Connection | None, Verdict | None]:
    """Returns a connection, or, so that it is no other error's `__context__`, the failure and whether to retry."""
    try:
        return engine.raw_connection(), None
    except sa.exc.TimeoutError:
        failure = errors.DatabaseUnavailable("no connection of the pool became free in time")
        return None, Verdict(failure, again=True, unknown=False)
    except (sa.exc.DBAPIError, psycopg.Error) as error:
        original = error_translation.original(error)
        lines = str(original).strip().splitlines()
        why = _own_fault() or (lines[0] if lines else type(original).__name__)
        return None, _refused(engines.where(engine), why, error_translation.sqlstate(original))
    except BaseException as error:
        # The task was cancelled while it connected. The error and the frames of SQLAlchemy refer to each other and to
        # the unfinished connection. Without this, the connection would stay open until the garbage collector finds the
        # cycle.
        clear_frames(error.__traceback__)
        raise


def _own_fault() -> str | None:
    """Returns the reason if this process can open nothing at all. The driver does not report its reason."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f"this process cannot open a connection: {error.strerror} ({errno.errorcode.get(error.errno or 0)})"
    return None


def _refused(where: str, why: str, sqlstate: str | None) -> Verdict:
    """Returns the failure for the server's refusal of a new connection."""
    failure: errors.DatabaseError
    if _REFUSED_SETTINGS in why:
        failure = errors.UnsupportedDatabase(f"cannot connect to {where} with settings: {SETTINGS_LOST}")
    elif role := _REFUSED_ROLE.search(why):
        failure = errors.PermissionDenied(_DATA.text("refused_role").format(role=role[1]))
    elif _REFUSED_URL.search(why):
        failure = errors.LoginRefused(f"the server at {where} refuses the connection: {why}", sqlstate=sqlstate)
    else:
        failure = errors.DatabaseUnavailable(f"cannot reach the database at {where}: {why}", sqlstate=sqlstate)
        return Verdict(failure, again=True, unknown=False)
    return Verdict(failure, again=False, unknown=False)


def _attempt(
    engine: sa.Engine, connection: Connection, query: Callable[..., _T], arguments: tuple[Any, ...], *, writes: bool
) -> tuple[_T | None, BaseException | None]:
    """Runs the query in autocommit, gives the connection back, and returns the result or the database's error."""
    given: Any = connection.dbapi_connection
    waiter = waiters.waiter(connection.driver_connection)  # type: ignore[arg-type]
    waiter.begin()
    borrowed = not given.autocommit
    try:
        if borrowed:
            given.autocommit = True
        result = query(connection, *arguments)
    # UnicodeEncodeError: a connection of the caller's own engine may have an encoding other than UTF-8.
    except (sa.exc.DBAPIError, psycopg.Error, UnicodeEncodeError) as error:
        original = error_translation.original(error)
        _discard(engine, connection, waiter.prepared, original)
        return None, error_translation.with_canceller(original, is_ours=waiter.is_cancelled)
    except Exception:
        raise
    except BaseException:
        # After a cancellation or an interrupt, the connection is in an unknown state.
        connection.invalidate()
        raise
    else:
        if writes and waiter.is_in_doubt:
            return None, InDoubt("the server committed, but may not have waited for its standby")
        return result, None
    finally:
        if waiter.is_cancelled and connection.is_valid:
            # A late cancel request must not cancel the next statement on this connection.
            connection.invalidate()
        if borrowed and connection.is_valid:
            given.autocommit = False
        connection.close()


def _discard(engine: sa.Engine, connection: Connection, own: prepared.Prepared, error: BaseException) -> None:
    """Forgets what an error has shown to be of no use: prepared statements, or connections."""
    if error_translation.is_gone(error):
        # The other connections of the pool are probably dead too. This makes the pool replace each of them when it is
        # next taken. `dispose` would not replace the connections that are in use now.
        engine.pool._invalidate(connection, error)  # noqa: SLF001 — there is no public way
    elif prepared.is_lost(error):
        own.give_up()
        if prepared.is_outdated(error):
            # A new connection can prepare the statement again.
            connection.invalidate()


def _thread_of(arguments: tuple[Any, ...]) -> str:
    """Returns the end of an error message. It names the thread if the first argument is a ThreadKey."""
    first = arguments[0] if arguments else None
    return checks.about(first.thread_id) if isinstance(first, ThreadKey) else ""


def _has_only_a_name(arguments: tuple[Any, ...]) -> bool:
    first = arguments[0] if arguments else None
    return isinstance(first, ThreadKey) and first.uid is None


def _sqlstate(verdict: Verdict) -> str | None:
    return verdict.failure.sqlstate if isinstance(verdict.failure, errors.DatabaseError) else None


def _failure(verdict: Verdict, unknown_key: str | None, thread: str) -> errors.CompactionStoreError:
    if unknown_key is None or not isinstance(verdict.failure, errors.DatabaseError):
        return verdict.failure
    how = "unchanged" if unknown_key == UNKEYED else "with the error's key"
    what = f"the outcome of the write is unknown{thread}: repeat it {how}"
    return errors.OutcomeUnknown(what, key=unknown_key or None, sqlstate=verdict.failure.sqlstate)


@contextmanager
def after_write(key: str, thread_id: str) -> Iterator[None]:
    """Raises `OutcomeUnknown` if the database cannot be used, for a read that follows the write of the same call."""
    try:
        yield
    except (errors.DatabaseUnavailable, errors.LoginRefused, errors.StoreClosed) as error:
        state = error.sqlstate
    else:
        return
    what = f"the write happened but could not be read back{checks.about(thread_id)}: look it up by the error's key"
    raise errors.OutcomeUnknown(what, key=key, sqlstate=state)


def deadline_for_opening(connect_timeout: float, deadline: float) -> float:
    """Returns the seconds for opening a store: the connect timeout, or the deadline (at least two seconds) if less."""
    return min(connect_timeout, max(deadline, _LEAST_WITHOUT_RETRIES))


def sleep_in_greenlet(seconds: float) -> None:
    """Sleeps inside SQLAlchemy's greenlet, and lets the event loop run meanwhile."""
    await_only(asyncio.sleep(seconds))
