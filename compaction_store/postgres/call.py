"""Calls a query on a connection of an engine, within a deadline, and retries where that may help.

A call is retried while its failure is transient, with jitter, until the deadline. Some failures leave the outcome of a
write unknown: a broken connection, a server that stopped answering, a commit that did not wait for its standby. A write
carries a key, so repeating it settles the outcome. At the deadline the caller gets `OutcomeUnknown` with that key.
"""

from __future__ import annotations

import asyncio
import copy
import random
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
from compaction_store.errors import (
    CompactionStoreError,
    DatabaseError,
    DatabaseUnavailable,
    OutcomeUnknown,
    ThreadErased,
)
from compaction_store.postgres import engines, error_translation, timeouts, waiters
from compaction_store.postgres.error_translation import InDoubt, Verdict
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.thread_names import ThreadNames

_T = TypeVar("_T")

#: Passed as the key of a write that needs none: repeating it does no harm.
UNKEYED = ""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
# The minimum time for a statement, and the extra time for settling an unknown outcome after the deadline.
_LEAST_DEADLINE = 0.3
_SETTLING = 0.12
# The minimum time for a call that is never retried: a busy server needs it to accept a connection.
_LEAST_WITHOUT_RETRIES = 2.0


class Statement(Protocol):
    """A statement under way, as an observer sees it."""

    def retried(self, sqlstate: str | None) -> None: ...


#: Called with a query's name; returns a context manager that is open during all attempts.
Observer = Callable[[str], AbstractContextManager[Statement]]


class Caller:
    """Calls queries on an engine's connections.

    On a `spread` database, one of several servers, a write of unknown outcome is retried once after the deadline. With
    `names`, which only a cluster needs, every query gets the key of its thread.
    """

    def __init__(
        self,
        engine: sa.Engine,
        sleep: Callable[[float], object],
        deadline: float,
        *,
        retries: bool = True,
        spread: bool = False,
        names: ThreadNames | None = None,
        observer: Observer | None = None,
    ) -> None:
        engines.prepare(engine)
        self.engine = engine
        self.deadline = deadline
        self.closed = False
        self._sleep = sleep
        self.retries = retries
        self._spread = spread
        self._names = names
        self._observer = observer

    @property
    def is_cluster(self) -> bool:
        return self._names is not None

    def with_more_time(self, seconds: float) -> Self:
        """Returns a copy with a later deadline, for a call that is known to take long."""
        return self._with_deadline(self.deadline + seconds)

    def with_at_most(self, seconds: float) -> Self:
        """Returns a copy whose deadline is at most this, for a call that is not worth a long wait."""
        return self._with_deadline(min(self.deadline, seconds))

    def with_time_left_since(self, start: float) -> Self:
        """Returns a copy with the rest of a deadline that began at `start`, for the second step of a call."""
        return self.with_at_most(max(0.0, start + self.deadline - time.monotonic()))

    def once(self) -> Self:
        """Returns a copy that never retries, for a call whose failure the caller handles itself."""
        other = copy.copy(self)
        other.retries = False
        return other

    def _with_deadline(self, deadline: float) -> Self:
        other = copy.copy(self)
        other.deadline = deadline
        return other

    def _call(
        self, query: Callable[..., _T], arguments: tuple[Any, ...], key: str | None, *, is_in_doubt: bool
    ) -> _T:  # fmt: skip
        if self.closed:
            raise DatabaseUnavailable("the store is closed")
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
        run = query if self._names is None else partial(self._names.call, query)
        start = time.monotonic()
        end = start + self.deadline
        limit = start + max(self.deadline, _LEAST_DEADLINE)
        retries = self.retries
        longest = _FIRST_PAUSE
        while True:
            with timeouts.until(limit):
                connection, verdict = _connect(self.engine)
                if connection is not None:
                    result, error = _attempt(self.engine, connection, run, arguments, writes=key is not None)
                    if error is None:
                        return result  # type: ignore[return-value]
                    verdict = error_translation.judge(error, _thread_of(arguments), spread=self._spread)
                    if isinstance(verdict.failure, ThreadErased) and _has_only_a_name(arguments):
                        # Erased after the name was looked up. The name is free now.
                        verdict = verdict._replace(again=True)
            assert verdict is not None  # noqa: S101 — there is a connection or a reason
            unknown = unknown or (verdict.unknown and key is not None)
            if not retries or not verdict.again:
                break
            pause = random.uniform(longest / 2, longest)  # noqa: S311 — jitter, not a secret
            if time.monotonic() + pause >= end:
                if not (self._spread and unknown) or time.monotonic() >= limit + _SETTLING:
                    break
                pause, retries, limit = 0, False, limit + 2 * _SETTLING
            if statement is not None:
                statement.retried(_sqlstate(verdict))
            self._sleep(pause)
            longest = min(longest * 2, _LONGEST_PAUSE)
        raise _failure(verdict, key if unknown else None, _thread_of(arguments))


def _connect(engine: sa.Engine) -> tuple[Connection | None, Verdict | None]:
    """Returns a connection, or else the failure and whether to retry.

    The failure is returned rather than raised, so that no error carries another as its context.
    """
    try:
        return engine.raw_connection(), None
    except sa.exc.TimeoutError:
        # No retry: the deadline was already spent waiting.
        failure = DatabaseUnavailable("no connection of the pool came free in time")
        return None, Verdict(failure, again=False, unknown=False)
    except (sa.exc.DBAPIError, psycopg.Error) as error:
        original = error_translation.original(error)
        lines = str(original).strip().splitlines()
        why = lines[0] if lines else type(original).__name__
        failure = DatabaseUnavailable(
            f"cannot reach the database at {engines.where(engine)}: {why}",
            sqlstate=error_translation.sqlstate(original),
        )
        return None, Verdict(failure, again=True, unknown=False)
    except BaseException as error:
        # Cancelled while connecting. SQLAlchemy's frames and this error refer to each other and to the half-made
        # connection, which would stay open until the garbage collector finds the cycle.
        clear_frames(error.__traceback__)
        raise


def _attempt(
    engine: sa.Engine, connection: Connection, query: Callable[..., _T], arguments: tuple[Any, ...], *, writes: bool
) -> tuple[_T | None, BaseException | None]:
    """Runs the query in autocommit, on a caller's own engine too; returns the result or the database's error."""
    given: Any = connection.dbapi_connection
    waiter = waiters.waiter(connection.driver_connection)  # type: ignore[arg-type]
    waiter.begin()
    borrowed = not given.autocommit
    try:
        if borrowed:
            given.autocommit = True
        result = query(connection, *arguments)
    # UnicodeEncodeError: a caller's own connection may have an encoding that cannot express what is to be sent.
    except (sa.exc.DBAPIError, psycopg.Error, UnicodeEncodeError) as error:
        original = error_translation.original(error)
        if error_translation.is_gone(original):
            # The other connections of the pool are likely dead too: each is replaced when it is next taken. Disposing
            # of the pool instead would leave those open that are in use at this moment.
            engine.pool._invalidate(connection, original)  # noqa: SLF001 — there is no public way
        return None, original
    except Exception:
        raise
    except BaseException:
        # Cancelled or interrupted: the connection is in an unknown state.
        connection.invalidate()
        raise
    else:
        if writes and waiter.is_in_doubt:
            return None, InDoubt("the server may not have waited for its standby")
        return result, None
    finally:
        if waiter.is_cancelled and connection.is_valid:
            # The cancel request may arrive late, and must not hit the connection's next statement.
            connection.invalidate()
        if borrowed and connection.is_valid:
            given.autocommit = False
        connection.close()


def _thread_of(arguments: tuple[Any, ...]) -> str:
    """Returns the end of an error message: the thread of a query whose first argument is a ThreadKey."""
    first = arguments[0] if arguments else None
    return checks.about(first.thread_id) if isinstance(first, ThreadKey) else ""


def _has_only_a_name(arguments: tuple[Any, ...]) -> bool:
    first = arguments[0] if arguments else None
    return isinstance(first, ThreadKey) and first.uid is None


def _sqlstate(verdict: Verdict) -> str | None:
    return verdict.failure.sqlstate if isinstance(verdict.failure, DatabaseError) else None


def _failure(verdict: Verdict, unknown_key: str | None, thread: str) -> CompactionStoreError:
    if unknown_key is None or not isinstance(verdict.failure, DatabaseError):
        return verdict.failure
    how = "unchanged" if unknown_key == UNKEYED else "with the error's key"
    return OutcomeUnknown(
        f"whether the write happened is unknown{thread}: repeat it {how}",
        key=unknown_key or None,
        sqlstate=verdict.failure.sqlstate,
    )


@contextmanager
def after_write(key: str, thread_id: str) -> Iterator[None]:
    """Turns a read that fails after the write of the same call into `OutcomeUnknown`: the write did happen."""
    try:
        yield
    except DatabaseUnavailable as error:
        state = error.sqlstate
    else:
        return
    raise OutcomeUnknown(
        f"the write happened but could not be read back{checks.about(thread_id)}: look it up by the error's key",
        key=key,
        sqlstate=state,
    )


def deadline_for_opening(connect_timeout: float, deadline: float) -> float:
    """Returns how long opening a store may take: the connect timeout, within a call's deadline or 2 s if that is
    shorter.
    """
    return min(connect_timeout, max(deadline, _LEAST_WITHOUT_RETRIES))


def sleep_in_greenlet(seconds: float) -> None:
    """Sleeps while the event loop runs, from code inside SQLAlchemy's greenlet."""
    await_only(asyncio.sleep(seconds))
