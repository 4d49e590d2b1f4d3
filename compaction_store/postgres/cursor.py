"""A connection's own cursor: one statement, in binary both ways, on a driver of either face.

The connection is one of SQLAlchemy's pool, in autocommit, and what runs on it is the driver's own: SQLAlchemy's
execution layer costs a quarter of a single append.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import generators, sql
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.datetime import TimestamptzBinaryLoader
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import await_only

from compaction_store.postgres import timeouts

DIALECT = sa.make_url("postgresql+psycopg://").get_dialect()()

Connection = PoolProxiedConnection
# Types of values that are sent in binary, by their numbers in Postgres.
UUID_TYPE, TEXT, BYTEA, INT4, INT8, BOOL = 2950, 25, 17, 23, 20, 16
TEXTS, INT4S = 1009, 1007
# How much other work is done before the server's answer is looked for, and the event loop has its turn.
_LOOK_SECONDS = 0.001
_TURN_SECONDS = 0.005
# A day from the ends, so that no time zone leads beyond them.
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)

Parameters = Sequence[Any] | Mapping[str, Any]


def driver_of(connection: Connection) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
    driver = connection.driver_connection
    assert isinstance(driver, psycopg.Connection | psycopg.AsyncConnection)  # noqa: S101 — the dialect has no third kind
    return driver


def fetch(connection: Connection, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """The rows of one statement, in binary both ways; none if it returns none."""
    driver = driver_of(connection)
    if isinstance(driver, psycopg.AsyncConnection):
        return await_only(_fetch_async(driver, statement, parameters))
    cursor = driver.cursor(binary=True).execute(statement.encode(), parameters)
    try:
        return cursor.fetchall() if cursor.description else []
    except psycopg.DataError:
        return _clamped(cursor)


async def _fetch_async(
    driver: psycopg.AsyncConnection[Any], statement: str, parameters: Parameters
) -> list[tuple[Any, ...]]:
    cursor = await driver.cursor(binary=True).execute(statement.encode(), parameters)
    try:
        return await cursor.fetchall() if cursor.description else []
    except psycopg.DataError:
        return _clamped(cursor)


class _Moment(TimestamptzBinaryLoader):
    """A moment that Python cannot say, such as one in the year 10000, as the nearest that it can.

    Nothing of ours writes one, and `verify` finds it. It must not end a query over all threads.
    """

    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return EARLIEST if bytes(data)[0] & 0x80 else LATEST


def _clamped(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> list[tuple[Any, ...]]:
    """The rows again, with moments that can be read. Only now: this loader takes longer than the driver's own."""
    cursor.adapters.register_loader("timestamptz", _Moment)
    if (result := cursor.pgresult) is None:
        return []
    again = Transformer(cursor)
    again.set_pgresult(result)
    return again.load_rows(0, result.ntuples, tuple)


def fetch_value(connection: Connection, statement: str, parameters: Parameters) -> bytes | None:
    """The one value of one row, as the server sent it."""
    driver = driver_of(connection)
    if isinstance(driver, psycopg.AsyncConnection):
        result = await_only(driver.cursor(binary=True).execute(statement.encode(), parameters)).pgresult
    else:
        result = driver.cursor(binary=True).execute(statement.encode(), parameters).pgresult
    return None if result is None else result.get_value(0, 0)


def call(
    connection: Connection,
    statement: bytes,
    types: Sequence[int],
    values: Sequence[str | bytes | None],
    meanwhile: Iterator[None] | None = None,
) -> PGresult:
    """One statement whose values are in binary already, without a cursor, which would take a tenth of an append.

    The driver still does the waiting, so that an interrupt or a cancelled task ends it as it ends any other call.
    `meanwhile` is work in small steps, which goes on until it ends or the server answers.
    """
    driver = driver_of(connection)
    encoding = driver.info.encoding
    sent = [value.encode(encoding) if isinstance(value, str) else value for value in values]
    driver.pgconn.send_query_params(statement, sent, types, [Format.BINARY] * len(sent), Format.BINARY)
    is_async = isinstance(driver, psycopg.AsyncConnection)
    if meanwhile is not None:
        try:
            _go_on(meanwhile, driver.pgconn, is_async=is_async)
        except BaseException:
            _give_up(driver)
            raise
    waiting = generators.execute(driver.pgconn)
    waited: Any = driver.wait(waiting)
    results: list[PGresult] = await_only(waited) if is_async else waited
    # A server that goes down may say why, and libpq then adds that it is gone.
    for result in results:
        if result.status != ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result, encoding=encoding)
    if len(results) != 1:
        raise psycopg.OperationalError("the server did not answer the statement")
    return results[0]


def _go_on(steps: Iterator[None], pgconn: PGconn, *, is_async: bool) -> None:
    """Takes steps until something can be read. What the network did not take at once is sent between them."""
    unsent = pgconn.flush()
    look = turn = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        for _ in steps:
            now = time.monotonic()
            if now - look > _LOOK_SECONDS:
                look = now
                if unsent:
                    unsent = pgconn.flush()
                if selector.select(0):
                    return
            if is_async and now - turn > _TURN_SECONDS:
                await_only(asyncio.sleep(0))
                turn = time.monotonic()


def _give_up(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Cancels the statement that was sent, and waits a moment for what comes of it."""
    timeouts.line(driver).cancel()
    with suppress(psycopg.Error):
        waited: Any = driver.wait(generators.execute(driver.pgconn))
        if isinstance(driver, psycopg.AsyncConnection):
            await_only(waited)


def select(connection: Connection, query: sa.Select[Any]) -> list[tuple[Any, ...]]:
    compiled = query.compile(dialect=DIALECT)
    return fetch(connection, str(compiled), compiled.params)


def copy(connection: Connection, statement: bytes, blocks: Iterable[bytes]) -> None:
    driver = driver_of(connection)
    if isinstance(driver, psycopg.AsyncConnection):
        await_only(_copy_async(driver, statement, blocks))
        return
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)


async def _copy_async(driver: psycopg.AsyncConnection[Any], statement: bytes, blocks: Iterable[bytes]) -> None:
    async with driver.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            await copy.write(block)
            # A server that keeps up never makes us wait, and making a block is work.
            await asyncio.sleep(0)


@contextmanager
def transaction(connection: Connection, tenant: str, *, read_only: bool) -> Iterator[None]:
    """A transaction on an autocommit connection: begun by hand, with the tenant set in it and gone with it.

    An interrupt or a cancellation ends it with the connection, which nobody uses again.
    """
    fetch(connection, "BEGIN READ ONLY" if read_only else "BEGIN")
    try:
        fetch(connection, f"SET LOCAL compaction_store.tenant = {literal(tenant)}")
        yield
    except Exception:
        _roll_back(connection)
        raise
    fetch(connection, "COMMIT")


def literal(text: str) -> str:
    """For the one statement that takes no parameters; a set_config() would not reach the nodes of a cluster."""
    return sql.Literal(text).as_string().replace("%", "%%")


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """A transaction that sees one moment, and where only what Postgres itself brings is found by a bare name."""
    fetch(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        fetch(connection, "SET LOCAL search_path = pg_catalog")
        yield
    except Exception:
        _roll_back(connection)
        raise
    fetch(connection, "COMMIT")


def _roll_back(connection: Connection) -> None:
    """Ends the transaction; where the connection is lost there is none, and what lost it is what to tell."""
    with suppress(psycopg.OperationalError):
        fetch(connection, "ROLLBACK")
