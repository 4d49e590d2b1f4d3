"""Calling the ledger on a connection, within a deadline, and trying again where that may help. One code for both faces.

The async face runs `call` inside SQLAlchemy's greenlet, where the same driver calls await the event loop: no thread
ever holds a database call, so a cancelled call is cancelled on the server as well.

A call is retried while the failure is transient, with jitter, until the deadline. Some failures leave the outcome of a
write unknown: a broken connection, a server that stopped answering, a commit that did not wait for its standby. The
write carries a key, so repeating it settles the matter. At the deadline the caller gets `OutcomeUnknown` with that key.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only, greenlet_spawn

from compaction_store import drivers
from compaction_store.errors import DatabaseError, DatabaseUnavailable, OutcomeUnknown
from compaction_store.postgres import engines, error_translation, timeouts
from compaction_store.postgres.error_translation import InDoubt, Verdict

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: The key of a write that has none: it is repeated as it stands.
UNKEYED = ""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
# What a call gets at least, and what settling an outcome may take after the deadline.
_LEAST_DEADLINE = 0.3
_SETTLING = 0.12
# What is tried once gets at least this: making a connection takes a busy server its time.
_LEAST_ONCE = 2.0
_ONCE = 10.0


def _connect(engine: sa.Engine) -> tuple[Connection | None, Verdict | None]:
    """A connection, or why there is none and whether to try again.

    Returned rather than raised, so that no error carries another inside it.
    """
    try:
        return engine.raw_connection(), None
    except sa.exc.TimeoutError:
        # This was a wait already.
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
        # Cancelled on the way. SQLAlchemy's frames and this error hold on to each other, and with them to a connection
        # half made, which would stay open until Python next looks for cycles.
        clear_frames(error.__traceback__)
        raise


def _attempt(
    engine: sa.Engine, connection: Connection, function: Callable[[Connection], _T], *, writes: bool
) -> tuple[_T | None, BaseException | None]:
    """The result or the database's error. In autocommit meanwhile, on a caller's own engine too."""
    given: Any = connection.dbapi_connection
    line = timeouts.line(connection.driver_connection)  # type: ignore[arg-type]
    line.begin()
    borrowed = not given.autocommit
    try:
        if borrowed:
            given.autocommit = True
        result = function(connection)
    # The last is a connection of a caller's own in an encoding that cannot say what is to be sent.
    except (sa.exc.DBAPIError, psycopg.Error, UnicodeEncodeError) as error:
        original = error_translation.original(error)
        if error_translation.is_gone(original):
            # Its siblings in the pool are likely as dead: each is made anew when it is next taken, as SQLAlchemy does
            # it. A pool that is disposed of leaves those open which others hold at that moment.
            engine.pool._invalidate(connection, original)  # noqa: SLF001 — there is no public way
        return None, original
    except Exception:
        raise
    except BaseException:
        # Cancelled or interrupted: what the connection is in the middle of is anyone's guess.
        connection.invalidate()
        raise
    else:
        if writes and line.is_in_doubt:
            return None, InDoubt("the server may not have waited for its standby")
        return result, None
    finally:
        if line.is_cancelled and connection.is_valid:
            # The cancel may still be on its way, and must not meet the connection's next statement.
            connection.invalidate()
        if borrowed and connection.is_valid:
            given.autocommit = False
        connection.close()


def call(
    engine: sa.Engine,
    pause: Callable[[float], object],
    deadline: float,
    key: str | None,
    about: str,
    function: Callable[[Connection], _T],
    *,
    once: bool = False,
    spread: bool = False,
) -> _T:
    """The function's result on a connection of the engine's, tried again until the deadline while that may help.

    With a key it is a write. On a `spread` database one of unknown outcome is tried a last time after the deadline.
    """
    start = time.monotonic()
    end = start + deadline
    limit = start + max(deadline, _LEAST_DEADLINE)
    unknown = False
    longest = _FIRST_PAUSE
    while True:
        with timeouts.until(limit):
            connection, verdict = _connect(engine)
            if connection is not None:
                result, error = _attempt(engine, connection, function, writes=key is not None)
                if error is None:
                    return result  # type: ignore[return-value]
                verdict = error_translation.judge(error, about, spread=spread)
        assert verdict is not None  # noqa: S101 — there is a connection or a reason
        unknown = unknown or (verdict.unknown and key is not None)
        if once or not verdict.again:
            break
        wait = random.uniform(longest / 2, longest)  # noqa: S311 — jitter, not a secret
        if time.monotonic() + wait >= end:
            if not (spread and unknown) or time.monotonic() >= limit + _SETTLING:
                break
            wait, once, limit = 0, True, limit + 2 * _SETTLING
        pause(wait)
        longest = min(longest * 2, _LONGEST_PAUSE)
    if unknown and isinstance(verdict.failure, DatabaseError):
        how = "it as it is" if key == UNKEYED else "it with the error's key"
        raise OutcomeUnknown(
            f"whether the write happened is unknown{about}: repeat {how}",
            key=key or None,
            sqlstate=verdict.failure.sqlstate,
        )
    raise verdict.failure


def once(engine: sa.Engine, function: Callable[[Connection], _T]) -> _T:
    """The function's result, not tried again: a wrong address should not take a deadline to show."""
    return call(engine, time.sleep, _ONCE, None, "", function, once=True)


@contextmanager
def reading_back(key: str, about: str) -> Iterator[None]:
    """Around reads of what a call has just written: where they fail, nobody is told that nothing was written."""
    try:
        yield
    except DatabaseUnavailable as error:
        state = error.sqlstate
    else:
        return
    raise OutcomeUnknown(
        f"it was written, and could not be read back{about}: look it up by the error's key", key=key, sqlstate=state
    )


class _Patient:
    deadline: float
    closed: bool = False

    def check_open(self) -> None:
        if self.closed:
            raise DatabaseUnavailable("the store is closed")

    def longer(self, seconds: float) -> Self:
        """The same with a later deadline, for a call that is known to be long."""
        return self._with_deadline(self.deadline + seconds)

    def within(self, seconds: float) -> Self:
        """The same with no later a deadline than this, for what is not worth a long wait."""
        return self._with_deadline(min(self.deadline, seconds))

    def since(self, start: float) -> Self:
        """The same with what is left of the deadline, for the second step of a call."""
        return self.within(max(0.0, start + self.deadline - time.monotonic()))

    def _with_deadline(self, deadline: float) -> Self:
        other = copy.copy(self)
        other.deadline = deadline
        return other


class Connections(_Patient):
    """An engine, how long a call may go on trying, and whether the tables are spread over several servers."""

    def __init__(self, engine: sa.Engine, deadline: float, *, once: bool = False, spread: bool = False) -> None:
        engines.prepare(engine)
        self.engine = engine
        self.deadline = deadline
        self._once = once
        self._spread = spread

    def run(
        self,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        """A read."""
        return self.write(None, "", function, *arguments, **keywords)

    def write(
        self,
        key: str | None,
        about: str,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        """A call about something, with the key that makes its repetition harmless; with no key at all it is a read."""
        self.check_open()
        return call(
            self.engine, time.sleep, self.deadline, key, about,
            lambda connection: function(connection, *arguments, **keywords), once=self._once, spread=self._spread,
        )  # fmt: skip

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def aside(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        """What takes the processor for long and touches no database: the async face gives it a thread."""
        return function(*arguments, **keywords)

    def close(self) -> None:
        self.closed = True
        self.engine.dispose()


class AsyncConnections(_Patient):
    """The same over an async engine, inside SQLAlchemy's greenlet."""

    def __init__(self, engine: AsyncEngine, deadline: float, *, once: bool = False, spread: bool = False) -> None:
        engines.prepare(engine.sync_engine)
        self.engine = engine.sync_engine
        self.deadline = deadline
        self._once = once
        self._spread = spread

    async def run(
        self,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        return await self.write(None, "", function, *arguments, **keywords)

    async def write(
        self,
        key: str | None,
        about: str,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        def run(connection: Connection) -> _T:
            return function(connection, *arguments, **keywords)

        self.check_open()
        return await greenlet_spawn(
            call, self.engine, pause_async, self.deadline, key, about, run, once=self._once, spread=self._spread
        )

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def aside(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        return await drivers.in_thread(function, *arguments, **keywords)

    async def close(self) -> None:
        self.closed = True
        await greenlet_spawn(self.engine.dispose)


def first_time(connect_timeout: float, deadline: float) -> float:
    """How long opening a store may take: as long as connecting, and no longer than a call."""
    return min(connect_timeout, max(deadline, _LEAST_ONCE))


def pause_async(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))
