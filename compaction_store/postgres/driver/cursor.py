"""Executes statements directly on the driver's connection, sync or async, with binary parameters and results, in
autocommit. SQLAlchemy's execution layer is left out, because it would take a quarter of the time of a single append.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg import generators, sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.datetime import TimestamptzBinaryLoader
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import await_only

from compaction_store.postgres.driver import prepared, waiters

DIALECT = sa.make_url("postgresql+psycopg://").get_dialect()()

Connection = PoolProxiedConnection
# The OIDs of the types of binary parameters.
_OIDS = {"uuid": 2950, "text": 25, "bytea": 17, "int4": 23, "int8": 20, "bool": 16, "text[]": 1009, "int4[]": 1007}
# The intervals at which `_work_until_answer` polls for the server's answer, and lets the event loop run.
_POLL_SECONDS = 0.001
_YIELD_SECONDS = 0.005
# One day inside the limits of Python's datetime, so that a conversion to another time zone does not exceed them.
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)

_DRIVERS = psycopg.Connection, psycopg.AsyncConnection
_FINE = {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}

Driver = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
Parameters = Sequence[Any] | Mapping[str, Any]
_T = TypeVar("_T", bound=tuple[Any, ...])


def types_of(names: str) -> tuple[int, ...]:
    """Returns the types of binary parameters by their names, for `execute_binary`."""
    return tuple(map(_OIDS.__getitem__, names.split()))


def driver_of(connection: Connection) -> Driver:
    driver = connection.driver_connection
    assert isinstance(driver, _DRIVERS)  # noqa: S101 — the dialect has no third kind
    return driver


def fetch(connection: Connection, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """Executes one statement and returns its rows; an empty list if it returns no rows."""
    driver = driver_of(connection)
    executed: Any = driver.cursor(binary=True).execute(statement.encode(), parameters)
    result = (await_only(executed) if isinstance(driver, psycopg.AsyncConnection) else executed).pgresult
    return _rows(driver, result, tuple) if result.nfields else []


def call(connection: Connection, statement: str, values: Sequence[Any], row: type[_T]) -> list[_T]:
    """Executes a statement that calls a SQL function, without a cursor, and returns its rows as tuples of a type."""
    return _rows(driver_of(connection), _called(connection, statement, values), row)


def call_value(connection: Connection, statement: str, values: Sequence[Any]) -> bytes | None:
    """Does the same for a function that returns one value, and returns it as the server sent it."""
    return _called(connection, statement, values).get_value(0, 0)


def _called(connection: Connection, statement: str, values: Sequence[Any]) -> PGresult:
    driver = driver_of(connection)
    adapted = Transformer(driver)
    sent = adapted.dump_sequence(values, [PyFormat.BINARY] * len(values))
    # The driver sends a list of only NULLs as text.
    _send(driver, _numbered(statement), adapted.types or (), sent, adapted.formats or ())
    return _result(driver)


@cache
def _numbered(statement: str) -> bytes:
    """Converts the driver's placeholders in a statement to those of Postgres, which are numbered."""
    first, *others = statement.split("%b")
    return (first + "".join(f"${number}{other}" for number, other in enumerate(others, 1))).encode()


def _rows(driver: Driver, result: PGresult, row: type[_T]) -> list[_T]:
    # The method `_make` of a NamedTuple does the same, but in Python.
    make: Any = partial(tuple.__new__, row)
    loaded = Transformer(driver)
    loaded.set_pgresult(result)
    try:
        return loaded.load_rows(0, result.ntuples, make)
    except psycopg.DataError:
        # Load the rows again with clamped times. The driver's own loader is faster.
        cursor = driver.cursor()
        cursor.adapters.register_loader("timestamptz", _ClampedTimes)
        again = Transformer(cursor)
        again.set_pgresult(result)
        return again.load_rows(0, result.ntuples, make)


class _ClampedTimes(TimestamptzBinaryLoader):
    """Loads a time beyond Python's range as its first or last, so that a forged row does not break a query."""

    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return EARLIEST if bytes(data)[0] & 0x80 else LATEST


def execute_binary(
    connection: Connection,
    statement: bytes,
    types: Sequence[int],
    values: Sequence[str | bytes | None],
    work: Iterator[None] | None = None,
) -> PGresult:
    """Executes a statement with binary values, without a cursor, which would take a tenth of the time of an append.
    While the driver waits, so that an interrupt ends this call like any other, does `work` step by step.
    """
    driver = driver_of(connection)
    encoding = driver.info.encoding
    sent = [value.encode(encoding) if isinstance(value, str) else value for value in values]
    _send(driver, statement, types, sent, [Format.BINARY] * len(sent))
    is_async = isinstance(driver, psycopg.AsyncConnection)
    if work is not None:
        try:
            _work_until_answer(work, driver.pgconn, is_async=is_async)
        except BaseException:
            _cancel(driver)
            raise
    return _result(driver)


def _send(
    driver: Driver, statement: bytes, types: Sequence[int], values: Sequence[Any], formats: Sequence[Format]
) -> None:
    name = _prepared(driver, (statement, tuple(types)))
    if name is None:
        driver.pgconn.send_query_params(statement, values, types, formats, Format.BINARY)
    else:
        driver.pgconn.send_query_prepared(name, values, formats, Format.BINARY)


def _prepared(driver: Driver, key: prepared.Key) -> bytes | None:
    """Returns the name of a prepared statement, or None if it is to be executed unprepared. Prepares it at its turn."""
    here = waiters.waiter(driver).prepared
    name = here.names.get(key)
    if name is None and here.is_wanted(key):
        if here.is_possible is None:
            pid = driver.pgconn.backend_pid.to_bytes(4, signed=True)
            driver.pgconn.send_query_params(prepared.IS_DIRECT, [pid], types_of("int4"), [Format.BINARY], Format.BINARY)
            here.is_possible = _result(driver).get_value(0, 0) == b"\1"
        if here.is_possible:
            name = prepared.name_of(key)
            driver.pgconn.send_prepare(name, *key)
            _result(driver)
            here.names[key] = name
    return name


def _result(driver: Driver) -> PGresult:
    results = _results(driver)
    if len(results) != 1:
        raise psycopg.OperationalError("the server did not answer the statement")
    return results[0]


def _results(driver: Driver) -> list[PGresult]:
    """Waits for the results of what was sent."""
    waited: Any = driver.wait(generators.execute(driver.pgconn))
    results: list[PGresult] = await_only(waited) if isinstance(driver, psycopg.AsyncConnection) else waited
    # A server that shuts down sends the reason as one result. libpq adds a second result for the lost connection.
    for result in results:
        if result.status not in _FINE:
            raise psycopg.errors.error_from_result(result, encoding=driver.info.encoding)
    return results


def _command(connection: Connection, statements: str) -> None:
    """Executes statements without results in one round trip."""
    driver = driver_of(connection)
    driver.pgconn.send_query(statements.encode(driver.info.encoding))
    if not _results(driver):
        raise psycopg.OperationalError("the server did not answer the statement")


def _work_until_answer(work: Iterator[None], pgconn: PGconn, *, is_async: bool) -> None:
    """Does work step by step until the socket is readable. After each step, sends what libpq still buffers."""
    unsent = pgconn.flush()
    polled = yielded = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        for _ in work:
            now = time.monotonic()
            if unsent or now - polled > _POLL_SECONDS:
                polled = now
                if unsent:
                    unsent = pgconn.flush()
                if selector.select(0):
                    return
            if is_async and now - yielded > _YIELD_SECONDS:
                await_only(asyncio.sleep(0))
                yielded = time.monotonic()


def _cancel(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Cancels the running statement, and waits briefly for its result."""
    waiters.waiter(driver).cancel()
    with suppress(psycopg.Error):
        waited: Any = driver.wait(generators.execute(driver.pgconn))
        if isinstance(driver, psycopg.AsyncConnection):
            await_only(waited)


def select_of(
    connection: Connection, tenant: str, statement: str, values: Parameters, setting: str = ""
) -> list[tuple[Any, ...]]:
    """Executes a query of a tenant in a transaction of its own, with a setting for the planner."""
    with transaction(connection, tenant, read_only=True, setting=setting):
        return fetch(connection, statement, values)


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
            # With a fast server, no write waits, so other tasks would not run until all blocks are written.
            await asyncio.sleep(0)


@contextmanager
def transaction(connection: Connection, tenant: str, *, read_only: bool, setting: str = "") -> Iterator[None]:
    """Opens a transaction with a tenant. After an interrupt it does not roll back: the caller closes the connection."""
    begin = "BEGIN READ ONLY" if read_only else "BEGIN"
    tenant_is = f"SET LOCAL compaction_store.tenant = {sql.Literal(tenant).as_string()}"
    with _begun(connection, f"{begin}; {tenant_is}" + (f"; SET LOCAL {setting}" if setting else "")):
        yield


@contextmanager
def together(connection: Connection) -> Iterator[None]:
    """Opens a transaction for functions that set the tenant themselves. A cluster commits it on all nodes or none."""
    with _begun(connection, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"):
        yield


def literal(text: str) -> str:
    """Quotes a text for SET, which takes no parameters. The function set_config() would not reach a cluster's nodes."""
    return sql.Literal(text).as_string().replace("%", "%%")


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """Opens a REPEATABLE READ transaction with search_path = pg_catalog."""
    with _begun(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = pg_catalog"):
        yield


@contextmanager
def _begun(connection: Connection, begin: str) -> Iterator[None]:
    try:
        _command(connection, begin)
        yield
    except Exception:
        # Ignore a lost connection, so that the caller raises the first error.
        with suppress(psycopg.OperationalError):
            _command(connection, "ROLLBACK")
        raise
    _command(connection, "COMMIT")
