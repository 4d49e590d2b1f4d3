"""Getting a connection, calling the ledger on it, and deciding what its failures mean. One code for both faces.

The async face runs `call` inside SQLAlchemy's greenlet, where the same driver calls await the event loop: no thread
ever holds a database call, so a cancelled call is cancelled on the server as well.

A call is retried while the failure is transient, with jitter, until the deadline. A broken connection leaves the
outcome of a write unknown; the write carries a key, so repeating it settles the matter. At the deadline the caller
gets `OutcomeUnknown` with that key. Nothing that was sent is repeated in an error: a database's own message may quote
the row, so it is reduced to SQLSTATE and constraint.
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
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only, greenlet_spawn

from compaction_store import event_loop
from compaction_store.deadlines import limited
from compaction_store.errors import (
    CompactionNotFound,
    CompactionStoreError,
    Conflict,
    DatabaseError,
    DatabaseUnavailable,
    HeadConflict,
    Held,
    IdempotencyConflict,
    InvalidInput,
    MessageNotFound,
    OutcomeUnknown,
    PermissionDenied,
    PositionNotFound,
    SequenceConflict,
    SpanConflict,
    ThreadDamaged,
    ThreadErased,
    ThreadNotFound,
    UnsupportedDatabase,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Serialisation, deadlock, lock not available, starting up, too many connections; and a unique violation that is not
# one of the log's.
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57P03", "53300", "23505"})
# Shutdown, crash, an idle session that an administrator's timeout ended; and a server that has become read-only.
_CONNECTION_GONE = frozenset({"57P01", "57P02", "57P05", "25P03", "25006"})
_UNIQUE_VIOLATION = "23505"
# Every writer takes its place in the log under the head's lock: what is in that place already is beyond the head. On a
# cluster the shard's number follows the name.
_LOG_KEYS = ("messages_pkey", "messages_key_idx", "compactions_pkey", "events_pkey")
_CANCELLED = "57014"
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
# How long a statement gets at least; and that of a call which is tried once, on the connection that is made for it.
_LEAST_DEADLINE = 1.0
_ONCE = 10.0

_BY_SQLSTATE: dict[str, type[CompactionStoreError]] = {
    "CS001": ThreadNotFound,
    "CS002": IdempotencyConflict,
    "CS004": SpanConflict,
    "CS005": PositionNotFound,
    "CS006": Conflict,
    "CS007": InvalidInput,
    "CS012": ThreadErased,
    "CS014": MessageNotFound,
    "CS015": UnsupportedDatabase,
    "CS016": CompactionNotFound,
    "CS017": ThreadDamaged,
}


def create_engine(url: str, *, pool_size: int, connect_timeout: float) -> sa.Engine:
    return sa.create_engine(_driver_url(url), **_options(pool_size, connect_timeout))


def create_aio_engine(url: str, *, pool_size: int, connect_timeout: float) -> AsyncEngine:
    return create_async_engine(_driver_url(url), **_options(pool_size, connect_timeout))


def _driver_url(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise InvalidInput("a database URL looks like postgresql://user@host/database")
    return parsed.set(drivername="postgresql+psycopg")


def _options(pool_size: int, connect_timeout: float) -> dict[str, Any]:
    return {
        "isolation_level": "AUTOCOMMIT",
        # There is no transaction to roll back when a connection returns to the pool.
        "pool_reset_on_return": None,
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": connect_timeout,
        # A waiting caller takes the connection returned last: a small hot set behind a large limit.
        "pool_use_lifo": True,
        # Errors never carry what was sent.
        "hide_parameters": True,
        "connect_args": {
            # Behind a transaction pooler a prepared statement may be another client's.
            "prepare_threshold": None,
            "connect_timeout": max(1, round(connect_timeout)),
            "keepalives": 1,
            "keepalives_idle": 30,
            "tcp_user_timeout": 30_000,
            "application_name": "compaction-store",
            "client_encoding": "utf8",
        },
    }


def _sqlstate(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def _constraint(error: BaseException) -> str | None:
    return error.diag.constraint_name if isinstance(error, psycopg.Error) else None


def _lost(error: BaseException) -> bool:
    """Whether the connection went away, so that nobody knows how far the server got."""
    state = _sqlstate(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _CONNECTION_GONE or state.startswith("08")


def _translated(error: BaseException, about: str) -> CompactionStoreError:
    """A driver's error as ours. Only the texts of our own SQL functions, which hold numbers alone, are passed on."""
    state = _sqlstate(error)
    if not isinstance(error, psycopg.Error) or state is None:
        return DatabaseError(f"the driver failed with {type(error).__name__}{about}")
    ours = f"{error.diag.message_primary}{about}"
    if state.startswith("CS"):
        return _ours(state, ours, error.diag.message_primary or "", error.diag.message_detail or "")
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    if state == "42501":
        return PermissionDenied(
            f"Postgres refused the statement: SQLSTATE {state}; grant this login compaction_store_app{about}",
            sqlstate=state,
        )
    return DatabaseError(f"Postgres refused the statement: SQLSTATE {state}{constraint}{about}", sqlstate=state)


def _ours(state: str, text: str, said: str, detail: str) -> CompactionStoreError:
    """The error that one of our own SQL functions raised."""
    if state == "CS003":
        return SequenceConflict(text, expected=int(said.split()[2]), actual=int(detail or 0))
    if state == "CS013":
        return Held(text, pos=int(detail or 0))
    if state == "CS017":
        return HeadConflict(text, expected=bytes.fromhex(said.split()[2]), actual=bytes.fromhex(detail) or None)
    return _BY_SQLSTATE[state](text) if state in _BY_SQLSTATE else DatabaseError(text, sqlstate=state)


def _original(error: BaseException) -> BaseException:
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


def _where(engine: sa.Engine) -> str:
    url = engine.url
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port}" if url.port else str(host)


def _connect(engine: sa.Engine) -> tuple[Connection | None, CompactionStoreError | None, bool]:
    """A connection, or why there is none and whether to try again.

    Returned rather than raised, so that no error carries another inside it.
    """
    try:
        return engine.raw_connection(), None, False
    except sa.exc.TimeoutError:
        # This was a wait already.
        return None, DatabaseUnavailable("no connection of the pool came free in time"), False
    except (sa.exc.DBAPIError, psycopg.Error) as error:
        original = _original(error)
        lines = str(original).strip().splitlines()
        why = lines[0] if lines else type(original).__name__
        failure = DatabaseUnavailable(
            f"cannot reach the database at {_where(engine)}: {why}", sqlstate=_sqlstate(original)
        )
        return None, failure, True
    except BaseException as error:
        # Cancelled on the way. SQLAlchemy's frames and this error hold on to each other, and with them to a connection
        # half made, which would stay open until Python next looks for cycles.
        clear_frames(error.__traceback__)
        raise


def _attempt(
    engine: sa.Engine, connection: Connection, end: float, function: Callable[[Connection], _T]
) -> tuple[_T | None, BaseException | None]:
    """The result or the database's error. In autocommit meanwhile, on a caller's own engine too."""
    given: Any = connection.dbapi_connection
    borrowed = not given.autocommit
    try:
        if borrowed:
            given.autocommit = True
        with limited(connection, end):
            return function(connection), None
    # The last is a connection of a caller's own in an encoding that cannot say what is to be sent.
    except (sa.exc.DBAPIError, psycopg.Error, UnicodeEncodeError) as error:
        original = _original(error)
        if _lost(original):
            # Its siblings in the pool are likely as dead: each is made anew when it is next taken, as SQLAlchemy does
            # it. A pool that is disposed of leaves those open which others hold at that moment.
            engine.pool._invalidate(connection, original)  # noqa: SLF001 — there is no public way
        elif _sqlstate(original) == _CANCELLED:
            connection.invalidate()
        return None, original
    except Exception:
        raise
    except BaseException:
        # Cancelled or interrupted: what the connection is in the middle of is anyone's guess.
        connection.invalidate()
        raise
    finally:
        if borrowed and connection.is_valid:
            given.autocommit = False
        connection.close()


def call(
    engine: sa.Engine,
    pause: Callable[[float], object],
    deadline: float | None,
    key: str | None,
    about: str,
    function: Callable[[Connection], _T],
) -> _T:
    """The function's result on a connection of the engine's, tried again while that may help; once with no deadline."""
    start = time.monotonic()
    end = start + (deadline or 0)
    unknown = False
    longest = _FIRST_PAUSE
    while True:
        connection, failure, again = _connect(engine)
        if connection is not None:
            until = time.monotonic() + _ONCE if deadline is None else start + max(deadline, _LEAST_DEADLINE)
            result, error = _attempt(engine, connection, until, function)
            if error is None:
                return result  # type: ignore[return-value]
            if _lost(error):
                unknown = unknown or key is not None
            failure, again = _judged(error, about)
        if not again:
            break
        wait = random.uniform(longest / 2, longest)  # noqa: S311 — jitter, not a secret
        if time.monotonic() + wait >= end:
            break
        pause(wait)
        longest = min(longest * 2, _LONGEST_PAUSE)
    if unknown and isinstance(failure, DatabaseError):
        raise OutcomeUnknown(f"whether the write happened is unknown{about}: repeat it with the error's key", key=key)
    assert failure is not None  # noqa: S101 — the loop is left with one
    raise failure


def _judged(error: BaseException, about: str) -> tuple[CompactionStoreError, bool]:
    """The error as ours, and whether another try may help."""
    state = _sqlstate(error)
    if _lost(error):
        return DatabaseUnavailable(f"the connection was lost{about}", sqlstate=state), True
    if state == _CANCELLED:
        return DatabaseUnavailable(f"the server did not answer by the deadline{about}", sqlstate=state), False
    if state == _UNIQUE_VIOLATION and (_constraint(error) or "").startswith(_LOG_KEYS):
        what = "the thread has an entry beyond its head, where the new one belongs: run verify"
        return ThreadDamaged(f"{what}{about}", sqlstate=state), False
    if state in _TRANSIENT:
        return DatabaseUnavailable(f"the server was busy: SQLSTATE {state}{about}", sqlstate=state), True
    return _translated(error, about), False


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
    # None: every call is tried once.
    deadline: float | None
    closed: bool = False

    def check_open(self) -> None:
        if self.closed:
            raise DatabaseUnavailable("the store is closed")

    def longer(self, seconds: float) -> Self:
        """The same with a later deadline, for a call that is known to be long."""
        other = copy.copy(self)
        if other.deadline is not None:
            other.deadline += seconds
        return other


class Connections(_Patient):
    """An engine and how long a call may go on trying."""

    def __init__(self, engine: sa.Engine, deadline: float | None) -> None:
        self.engine = engine
        self.deadline = deadline

    def run(
        self,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        """A read, or a write that may be repeated as it stands."""
        return self.write(None, "", function, *arguments, **keywords)

    def write(
        self,
        key: str | None,
        about: str,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        """A call about something, with the key that makes its repetition harmless."""
        self.check_open()
        return call(
            self.engine, time.sleep, self.deadline, key, about,
            lambda connection: function(connection, *arguments, **keywords),
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

    def __init__(self, engine: AsyncEngine, deadline: float | None) -> None:
        self.engine = engine.sync_engine
        self.deadline = deadline

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
        return await greenlet_spawn(call, self.engine, pause_async, self.deadline, key, about, run)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def aside(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        return await event_loop.in_thread(function, *arguments, **keywords)

    async def close(self) -> None:
        self.closed = True
        await greenlet_spawn(self.engine.dispose)


def pause_async(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))
