"""Every SQL statement that is ever sent, as plain functions over a connection.

A function here sends one statement, or one short transaction for the loader. It never retries, never logs, never runs
a caller's code. What is written is written by SQL functions, and so is what is read of a single thread. The connection
is one of SQLAlchemy's pool, in autocommit, and what runs on it is the driver's own cursor: SQLAlchemy's execution layer
costs a quarter of a single append. Its Core builds the queries across threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import psycopg
import sqlalchemy as sa
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only

from compaction_store import schema
from compaction_store.errors import SchemaOutOfDate, UnsupportedDatabase

OLDEST_SERVER = 150000
_DIALECT = sa.make_url("postgresql+psycopg://").get_dialect()()

Parameters = Sequence[Any] | Mapping[str, Any]


class ThreadKey(NamedTuple):
    """What names a thread in every statement."""

    uid: UUID
    tenant: str


class NewMessage(NamedTuple):
    payload: str
    salt: bytes
    role: str | None
    tokens: int
    meta: str | None


class Written(NamedTuple):
    first_seq: int
    first_pos: int
    written_at: datetime
    head: bytes
    replayed: bool


class LoadState(NamedTuple):
    last_seq: int
    last_pos: int
    head: bytes
    last_at: datetime | None
    now: datetime


class CopyRows(Protocol):
    """Makes the rows of a load from where the thread stands: called once, under the thread's lock."""

    def __call__(self, state: LoadState) -> tuple[int, Iterable[Sequence[Any]]]: ...


# One composite value: as a scan of a function, it would cost Postgres a tuple store. No casts: the function's signature
# says the types, and parsing a cast a parameter costs a twentieth of the call.
_APPEND = "SELECT compaction_store.append(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b)"
_APPEND_MANY = (
    "SELECT compaction_store.append_many"
    "(%b, %b::text, %b::text, %b::text[], %b, %b::text[], %b::int4[], %b::text, %b::text, %b::text[], %b::text,"
    " %b::int8)"
)
_COPY_MESSAGES = (
    "COPY compaction_store.messages (thread_uid, seq, pos, created_at, tokens, call_size, tenant, role, counter, key,"
    " salt, commitment, entry, meta_commitment, meta, payload) FROM STDIN (FORMAT BINARY)"
)
# json travels as text: psycopg would encode a str for json a second time.
_COPY_TYPES = (
    "uuid", "int8", "int8", "timestamptz", "int4", "int4", "text", "text", "text", "text", "bytea", "bytea", "bytea",
    "bytea", "text", "text",
)  # fmt: skip


def _driver(connection: Connection) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
    driver = connection.driver_connection
    assert isinstance(driver, psycopg.Connection | psycopg.AsyncConnection)  # noqa: S101 — the dialect has no third kind
    return driver


def _rows(connection: Connection, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """The rows of one statement, in binary both ways; none if it returns none."""
    driver = _driver(connection)
    if isinstance(driver, psycopg.AsyncConnection):
        return await_only(_rows_async(driver, statement, parameters))
    cursor = driver.cursor(binary=True).execute(statement.encode(), parameters)
    return cursor.fetchall() if cursor.description else []


async def _rows_async(
    driver: psycopg.AsyncConnection[Any], statement: str, parameters: Parameters
) -> list[tuple[Any, ...]]:
    cursor = await driver.cursor(binary=True).execute(statement.encode(), parameters)
    return await cursor.fetchall() if cursor.description else []


def _select(connection: Connection, query: sa.Select[Any]) -> list[tuple[Any, ...]]:
    compiled = query.compile(dialect=_DIALECT)
    return _rows(connection, str(compiled), compiled.params)


def _copy(connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
    driver = _driver(connection)
    if isinstance(driver, psycopg.AsyncConnection):
        await_only(_copy_async(driver, rows))
        return
    with driver.cursor() as cursor, cursor.copy(_COPY_MESSAGES) as copy:
        copy.set_types(_COPY_TYPES)
        for row in rows:
            copy.write_row(row)


async def _copy_async(driver: psycopg.AsyncConnection[Any], rows: Iterable[Sequence[Any]]) -> None:
    async with driver.cursor() as cursor, cursor.copy(_COPY_MESSAGES) as copy:
        copy.set_types(_COPY_TYPES)
        for row in rows:
            await copy.write_row(row)


def append(
    connection: Connection,
    thread: ThreadKey,
    thread_id: str,
    new: Sequence[NewMessage],
    counter: str,
    key: str,
    receipt: str | None,
    expected_seq: int | None,
) -> Written:
    """Appends one message by the door with plain parameters, several by the one with lists, which costs more."""
    if len(new) == 1:
        payload, salt, role, tokens, meta = new[0]
        parameters: tuple[Any, ...] = (
            thread.uid, thread.tenant, thread_id, payload, salt, role, tokens, counter, key, meta, receipt,
            expected_seq,
        )  # fmt: skip
        return Written._make(_rows(connection, _APPEND, parameters)[0][0])
    metas = [m.meta for m in new]
    parameters = (
        thread.uid, thread.tenant, thread_id, [m.payload for m in new], b"".join([m.salt for m in new]),
        [m.role for m in new], [m.tokens for m in new], counter, key, metas if any(metas) else None, receipt,
        expected_seq,
    )  # fmt: skip
    return Written._make(_rows(connection, _APPEND_MANY, parameters)[0][0])


def replay(
    connection: Connection, thread: ThreadKey, after: int, until: int | None, limit: int
) -> list[tuple[Any, ...]]:
    """One page of messages, oldest first."""
    return _rows(
        connection, "SELECT * FROM compaction_store.replay(%b, %b::text, %b::int8, %b::int8, %b::int4)",
        (*thread, after, until, limit),
    )  # fmt: skip


def newest(connection: Connection, thread: ThreadKey, limit: int) -> list[tuple[Any, ...]]:
    """The newest messages, newest first."""
    return _rows(
        connection, "SELECT * FROM compaction_store.newest(%b, %b::text, %b::int4)", (*thread, limit)
    )  # fmt: skip


def view(connection: Connection, thread: ThreadKey, at: int | None) -> list[tuple[Any, ...]]:
    """The rows of the view at a pos, or now."""
    return _rows(connection, "SELECT * FROM compaction_store.view(%b, %b::text, %b::int8)", (*thread, at))


def pos_at(connection: Connection, thread: ThreadKey, moment: datetime) -> int:
    """The last pos not later than a moment; 0 if there is none."""
    rows = _rows(connection, "SELECT compaction_store.pos_at(%b, %b::text, %b::timestamptz)", (*thread, moment))
    return int(rows[0][0])


def thread(connection: Connection, key: ThreadKey) -> tuple[Any, ...]:
    return _rows(connection, "SELECT * FROM compaction_store.thread(%b, %b::text)", tuple(key))[0]


def set_metadata(connection: Connection, key: ThreadKey, metadata: str) -> None:
    _rows(connection, "SELECT compaction_store.set_metadata(%b, %b::text, %b::text)", (*key, metadata))


def entries(
    connection: Connection, key: ThreadKey, kind: str, start: int, content: bool, limit: int
) -> list[tuple[Any, ...]]:
    """One page of what a verifier recomputes: the messages, compactions or events of a thread."""
    return _rows(
        connection,
        "SELECT * FROM compaction_store.entries(%b, %b::text, %b::text, %b::int8, %b::bool, %b::int4)",
        (*key, kind, start, content, limit),
    )


def threads(connection: Connection, tenant: str, after: str, limit: int) -> list[tuple[Any, ...]]:
    """A page of a tenant's threads in the order of their names: across threads, so a query in a read transaction."""
    t, h = schema.threads.c, schema.heads.c
    query = (
        sa.select(
            t.thread_id, sa.cast(t.metadata, sa.Text), t.created_at, h.last_seq, h.last_number, h.last_pos,
            h.view_tokens, h.last_at, h.head,
        )
        .join_from(schema.threads, schema.heads, t.thread_uid == h.thread_uid)
        .where(t.tenant == tenant, h.tenant == tenant, t.thread_id > after)
        .order_by(t.thread_id)
        .limit(limit)
    )  # fmt: skip
    with _transaction(connection, tenant, read_only=True):
        return _select(connection, query)


@contextmanager
def _transaction(connection: Connection, tenant: str, *, read_only: bool) -> Iterator[None]:
    """A transaction on an autocommit connection: begun by hand, with the tenant set in it and gone with it."""
    _rows(connection, "BEGIN READ ONLY" if read_only else "BEGIN")
    try:
        _rows(connection, "SELECT set_config('compaction_store.tenant', %b::text, true)", (tenant,))
        yield
    except BaseException:
        _rows(connection, "ROLLBACK")
        raise
    _rows(connection, "COMMIT")


def load(connection: Connection, key: ThreadKey, thread_id: str, make: CopyRows) -> bytes:
    """Copies messages into a thread: chained by the client under the thread's lock, checked before the head moves."""
    with _transaction(connection, key.tenant, read_only=False):
        # COPY refuses tables under row-level security; the loader's role is exempt from it.
        _rows(connection, "SET LOCAL ROLE compaction_store_loader")
        state = LoadState._make(
            _rows(
                connection, "SELECT * FROM compaction_store.begin_load(%b, %b::text, %b::text)", (*key, thread_id)
            )[0]
        )  # fmt: skip
        until, rows = make(state)
        _copy(connection, rows)
        finished = _rows(
            connection, "SELECT compaction_store.finish_load(%b, %b::text, %b::int8)", (*key, until)
        )  # fmt: skip
    return bytes(finished[0][0])


def check(connection: Connection) -> None:
    """Refuses a database this version cannot work with, naming what to do."""
    [(version, encoding)] = _rows(
        connection, "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
    )
    if version < OLDEST_SERVER:
        raise UnsupportedDatabase("Postgres 15 or newer is needed")
    if encoding != "UTF8":
        raise UnsupportedDatabase(f"the database's encoding is {encoding}; UTF8 is needed")
    found = revision(connection)
    if found != schema.REVISION:
        what = f"at revision {found}" if found else "without its schema"
        raise SchemaOutOfDate(
            f"the database is {what}, this version needs {schema.REVISION}: run python -m compaction_store.migrate URL"
        )


def revision(connection: Connection) -> str | None:
    """The revision of the database's schema; None where there is none."""
    if _rows(connection, "SELECT to_regclass('compaction_store.alembic_version')::text")[0][0] is None:
        return None
    rows = _rows(connection, "SELECT version_num FROM compaction_store.alembic_version")
    return str(rows[0][0]) if rows else None
