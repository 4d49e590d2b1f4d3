"""Every SQL statement that is ever sent, as plain functions over a connection.

A function here sends one statement, or one short transaction for the loader. It never retries, never logs, never runs
a caller's code. What is written is written by SQL functions, and so is what is read of a single thread. The connection
is one of SQLAlchemy's pool, in autocommit, and what runs on it is the driver's own cursor: SQLAlchemy's execution layer
costs a quarter of a single append. Its Core builds the queries across threads.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only

from compaction_store import bulk, schema, staging
from compaction_store.errors import (
    InvalidBundle,
    NotPrimary,
    PermissionDenied,
    SchemaOutOfDate,
    ThreadExists,
    UnsupportedDatabase,
)

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


# One composite value: as a scan of a function, it would cost Postgres a tuple store. No casts: the function's signature
# says the types, and parsing a cast a parameter costs a twentieth of the call.
_APPEND = "SELECT compaction_store.append(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b)"
_APPEND_MANY = (
    "SELECT compaction_store.append_many"
    "(%b, %b::text, %b::text, %b::text[], %b, %b::text[], %b::int4[], %b::text, %b::text, %b::text[], %b::text,"
    " %b::int8)"
)
_APPEND_OBSERVED = (
    "SELECT compaction_store.append_observed"
    "(%b, %b::text, %b::text, %b::text[], %b, %b::text[], %b::int4[], %b::text, %b::text, %b::text[], %b::text,"
    " %b::int8, %b, %b::text)"
)
# That value as Postgres sends it: how many fields, and each after its type and its length. The driver makes its loader
# of such values anew at every call, which takes a tenth of the call in Python.
_WRITTEN = struct.Struct(">i 2iq 2iq 2iq 2i32s 2i?")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# The columns come as bytes made in `bulk`.
_COPY_MESSAGES = f"COPY compaction_store.messages ({', '.join(bulk.COLUMNS)}) FROM STDIN (FORMAT BINARY)".encode()
_LOADER = "grant this login compaction_store_loader"
# Any number will do, as long as it is always the same.
_CHECKPOINT_LOCK = 0x636865636B706F69
_ALL_HEADS = (
    "DECLARE heads NO SCROLL CURSOR FOR SELECT h.thread_uid, h.tenant, h.last_pos, h.head"
    " FROM compaction_store.heads AS h WHERE h.last_pos > 0 ORDER BY h.thread_uid"
)
_HEADS = _ALL_HEADS.replace("ORDER", "AND h.tenant = (SELECT compaction_store.tenant()) ORDER")
# By way of the heads: what joins the other tables is a column of each thread's shard, wherever it is.
_ENTRIES_AT = """
    SELECT w.i, coalesce(
        (
            SELECT c.entry FROM compaction_store.compactions AS c
            WHERE c.thread_uid = h.thread_uid AND c.pos = w.pos LIMIT 1
        ),
        (SELECT e.entry FROM compaction_store.events AS e WHERE e.thread_uid = h.thread_uid AND e.pos = w.pos),
        (
            SELECT m.entry FROM compaction_store.messages AS m
            WHERE m.thread_uid = h.thread_uid AND m.pos = w.pos AND m.seq = w.pos
                - (SELECT count(*) FROM compaction_store.compactions AS c
                    WHERE c.thread_uid = h.thread_uid AND c.pos <= w.pos)
                - (SELECT count(*) FROM compaction_store.events AS e
                    WHERE e.thread_uid = h.thread_uid AND e.pos <= w.pos)
        )
    )
    FROM unnest(%b::uuid[], %b::int8[]) WITH ORDINALITY AS w (uid, pos, i)
    JOIN compaction_store.heads AS h ON h.thread_uid = w.uid
"""


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


def _written(connection: Connection, statement: str, parameters: Parameters) -> Written:
    """What one call of a function that appends returns."""
    driver = _driver(connection)
    if isinstance(driver, psycopg.AsyncConnection):
        result = await_only(driver.cursor(binary=True).execute(statement.encode(), parameters)).pgresult
    else:
        result = driver.cursor(binary=True).execute(statement.encode(), parameters).pgresult
    value = None if result is None else result.get_value(0, 0)
    assert value is not None  # noqa: S101 — the functions return a row, or raise
    _, _, _, seq, _, _, pos, _, _, microseconds, _, _, head, _, _, replayed = _WRITTEN.unpack(value)
    written_at = (_EPOCH + timedelta(microseconds=microseconds)).astimezone(driver.info.timezone)
    return Written(seq, pos, written_at, head, replayed)


def _select(connection: Connection, query: sa.Select[Any]) -> list[tuple[Any, ...]]:
    compiled = query.compile(dialect=_DIALECT)
    return _rows(connection, str(compiled), compiled.params)


def _copy(connection: Connection, statement: bytes, blocks: Iterable[bytes]) -> None:
    driver = _driver(connection)
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
        return _written(connection, _APPEND, parameters)
    parameters = _lists(thread, thread_id, new, counter, key, receipt, expected_seq)
    return _written(connection, _APPEND_MANY, parameters)


def append_observed(
    connection: Connection,
    thread: ThreadKey,
    thread_id: str,
    new: Sequence[NewMessage],
    counter: str,
    key: str,
    receipt: str | None,
    expected_seq: int | None,
    run_id: UUID,
    observed: str,
) -> Written:
    """Appends messages and the records of what a provider did by itself, which they tell of."""
    parameters = (*_lists(thread, thread_id, new, counter, key, receipt, expected_seq), run_id, observed)
    return _written(connection, _APPEND_OBSERVED, parameters)


def _lists(
    thread: ThreadKey,
    thread_id: str,
    new: Sequence[NewMessage],
    counter: str,
    key: str,
    receipt: str | None,
    expected_seq: int | None,
) -> tuple[Any, ...]:
    metas = [m.meta for m in new]
    return (
        thread.uid, thread.tenant, thread_id, [m.payload for m in new], b"".join([m.salt for m in new]),
        [m.role for m in new], [m.tokens for m in new], counter, key, metas if any(metas) else None, receipt,
        expected_seq,
    )  # fmt: skip


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


def standing(connection: Connection, key: ThreadKey, pos: int | None) -> tuple[Any, ...]:
    """Where a thread stands, and how it stood at a pos, as a verifier reads it."""
    return _rows(connection, "SELECT * FROM compaction_store.standing(%b, %b::text, %b::int8)", (*key, pos))[0]


def events(connection: Connection, key: ThreadKey, after: int, limit: int) -> list[tuple[Any, ...]]:
    """A page of a thread's events after a pos, oldest first."""
    return _rows(
        connection, "SELECT * FROM compaction_store.events(%b, %b::text, %b::int8, %b::int4)", (*key, after, limit)
    )


def record_event(
    connection: Connection, key: ThreadKey, kind: str, actor: str | None, salt: bytes, body: str
) -> tuple[Any, ...]:
    """Records a hold, a release or a retention; returns its pos and its time."""
    return _rows(
        connection, "SELECT * FROM compaction_store.record_event(%b, %b::text, %b::text, %b::text, %b, %b::text)",
        (*key, kind, actor, salt, body),
    )[0]  # fmt: skip


def redact(
    connection: Connection,
    key: ThreadKey,
    ranges: Sequence[tuple[int, int]],
    actor: str | None,
    salt: bytes,
    body: str,
    insist: bool,
) -> tuple[Any, ...]:
    """Erases messages and every record made from them; returns the event's pos, the seqs and the numbers erased."""
    starts, ends = [r[0] for r in ranges], [r[1] for r in ranges]
    return _rows(
        connection,
        "SELECT * FROM compaction_store.redact(%b, %b::text, %b::int8[], %b::int8[], %b::text, %b, %b::text, %b::bool)",
        (*key, starts, ends, actor, salt, body, insist),
    )[0]


def erase(
    connection: Connection, key: ThreadKey, actor: str | None, salt: bytes, body: str, insist: bool
) -> tuple[Any, ...]:
    """Erases a whole thread; returns the same."""
    return _rows(
        connection, "SELECT * FROM compaction_store.erase(%b, %b::text, %b::text, %b, %b::text, %b::bool)",
        (*key, actor, salt, body, insist),
    )[0]  # fmt: skip


def lease(connection: Connection, key: ThreadKey, run_id: UUID, seconds: float) -> datetime | None:
    """None when the run has the thread now, else until when another has it."""
    rows = _rows(
        connection, "SELECT compaction_store.lease(%b, %b::text, %b, %b::float8)", (*key, run_id, seconds)
    )  # fmt: skip
    until: datetime | None = rows[0][0]
    return until


def release(connection: Connection, key: ThreadKey, run_id: UUID, stalled: bool) -> None:
    _rows(connection, "SELECT compaction_store.release(%b, %b::text, %b, %b::bool)", (*key, run_id, stalled))


def stalled(connection: Connection, key: ThreadKey, limit: int) -> list[tuple[Any, ...]]:
    """The newest records, where they are attempts that came to nothing and nothing has happened since."""
    return _rows(
        connection, "SELECT * FROM compaction_store.stalled(%b, %b::text, %b::int4)", (*key, limit)
    )  # fmt: skip


def commit_compactions(connection: Connection, key: ThreadKey, run_id: UUID, base_pos: int, records: str) -> list[int]:
    """Writes what a run decided, all or nothing; the same run again writes nothing. Returns the records' numbers."""
    rows = _rows(
        connection,
        "SELECT number FROM compaction_store.commit_compactions(%b, %b::text, %b, %b::int8, %b::text)",
        (*key, run_id, base_pos, records),
    )
    return [row[0] for row in rows]


def reported(connection: Connection, key: ThreadKey, among: int) -> list[tuple[Any, ...]]:
    """The newest of the last messages with a receipt and a usage: its seq, the tokens of its view, payload, meta."""
    return _rows(
        connection, "SELECT * FROM compaction_store.reported(%b, %b::text, %b::int4)", (*key, among)
    )  # fmt: skip


def receipt(connection: Connection, key: ThreadKey, seq: int) -> tuple[int, str | None] | None:
    """The pos of a message and the receipt stored with it."""
    m = schema.messages.c
    query = sa.select(m.pos, m.receipt).where(m.thread_uid == key.uid, m.seq == seq)
    with _transaction(connection, key.tenant, read_only=True):
        rows = _select(connection, query)
    return (rows[0][0], rows[0][1]) if rows else None


class CompactionFilter(NamedTuple):
    """Which records; None is any."""

    thread_uid: UUID | None = None
    number: int | None = None
    numbers: list[int] | None = None
    within: tuple[int, int] | None = None
    covering: int | None = None
    kind: str | None = None
    outcome: str | None = None
    actor: str | None = None
    model: str | None = None
    callback: str | None = None
    run_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None


class CompactionKey(NamedTuple):
    """A record's place in the order in which pages are read: across threads by time, within one by number."""

    created_at: datetime
    thread_uid: UUID
    number: int


def compactions(
    connection: Connection,
    tenant: str,
    wanted: CompactionFilter,
    *,
    after: CompactionKey | None,
    newest_first: bool,
    limit: int,
) -> list[tuple[Any, ...]]:
    """A page of records, and what was made of each since. The last column is the thread_uid, for the next page."""
    given = {name: value for name, value in wanted._asdict().items() if value is not None}
    statement = _compactions(tuple(given), after is not None, newest_first)
    values: dict[str, Any] = {"tenant": tenant, "limit": limit, **given}
    if wanted.within is not None:
        values["within_start"], values["within_end"] = wanted.within
    if after is not None:
        values |= {f"after_{name}": value for name, value in after._asdict().items()}
    with _transaction(connection, tenant, read_only=True):
        return _rows(connection, statement, values)


# Writing the statement out takes longer than running it.
@cache
def _compactions(given: tuple[str, ...], goes_on: bool, newest_first: bool) -> str:
    """The statement for the filters that are given."""
    c, t = schema.compactions.c, schema.threads.c
    order = [c.number] if "thread_uid" in given else [c.created_at, c.thread_uid, c.number]
    # Literals, because a partial index is only used where its condition is seen to hold.
    applied: sa.ColumnElement[str] = sa.literal_column("'applied'")
    undone = schema.compactions.alias("undone")
    later = schema.compactions.alias("later")
    revoked_by = (
        sa.select(sa.func.min(undone.c.number))
        .where(undone.c.thread_uid == c.thread_uid, undone.c.revokes == c.number, undone.c.outcome == applied)
        .scalar_subquery()
    )
    # Spans in force are nested or disjoint: of those that hold this one, the nearest is the first that came. Thread and
    # start are compared as one, so that whatever the planner takes a thread for, they are looked up in one index; that
    # the threads are equal is said for a cluster, which has one of them in one place.
    place = sa.tuple_(later.c.thread_uid, later.c.start_seq)
    superseded_by = (
        sa.select(later.c.number)
        .where(
            c.outcome == applied, later.c.outcome == applied, later.c.revokes.is_(None),
            later.c.thread_uid == c.thread_uid,
            place >= sa.tuple_(c.thread_uid, sa.literal_column("1")), place <= sa.tuple_(c.thread_uid, c.start_seq),
            later.c.redacted_pos.is_(None), later.c.number > c.number, later.c.end_seq >= c.end_seq,
            ~sa.exists().where(
                undone.c.thread_uid == later.c.thread_uid, undone.c.revokes == later.c.number,
                undone.c.outcome == applied,
            ),
        )
        .order_by(later.c.thread_uid.desc(), later.c.start_seq.desc(), later.c.end_seq, later.c.number)
        .limit(sa.literal_column("1"))
        .scalar_subquery()
    )  # fmt: skip
    query = sa.select(
        t.thread_id, c.number, c.pos, c.created_at, c.kind, c.outcome, c.start_seq, c.end_seq, c.tokens_before,
        c.tokens_after, c.source_count, c.inputs, c.run_id, c.callback, c.trigger, c.actor, c.model, c.counter,
        c.revokes, c.redacted_pos, superseded_by, revoked_by, sa.cast(c.body, sa.Text), c.thread_uid,
    ).join(schema.threads, t.thread_uid == c.thread_uid)  # fmt: skip
    query = query.where(c.tenant == _value("tenant", c.tenant), *_conditions(given))
    if goes_on:
        at = sa.tuple_(*order)
        reached = sa.tuple_(*[_value(f"after_{column.name}", column) for column in order])
        query = query.where(at < reached if newest_first else at > reached)
    query = query.order_by(*[column.desc() if newest_first else column for column in order])
    return str(query.limit(_value("limit", c.number)).compile(dialect=_DIALECT))


def _value(name: str, like: sa.ColumnElement[Any]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=like.type)


def _conditions(given: tuple[str, ...]) -> Iterator[sa.ColumnElement[bool]]:
    c = schema.compactions.c
    for name in given:
        if name == "numbers":
            yield c.number == sa.any_(sa.bindparam(name, type_=postgresql.ARRAY(sa.BigInteger)))
        elif name == "within":
            yield c.start_seq >= _value("within_start", c.start_seq)
            yield c.end_seq <= _value("within_end", c.end_seq)
        elif name == "covering":
            yield c.start_seq <= _value(name, c.start_seq)
            yield c.end_seq >= _value(name, c.end_seq)
        elif name == "since":
            yield c.created_at >= _value(name, c.created_at)
        elif name == "until":
            yield c.created_at <= _value(name, c.created_at)
        else:
            yield c[name] == _value(name, c[name])


def due(
    connection: Connection, tenant: str, trigger: int, margin: int, after: tuple[int, UUID] | None, limit: int
) -> list[tuple[Any, ...]]:
    """A page of the threads whose view takes more than `trigger`, the largest first, each with its place in the order.

    Left out: one that was erased, one that a run holds now, and one whose last attempt made no progress and whose view
    has not grown by `margin` since.
    """
    t, h = schema.threads.c, schema.heads.c
    query = (
        sa.select(*_thread_columns(), h.view_tokens_coarse, h.thread_uid)
        .join_from(schema.heads, schema.threads, t.thread_uid == h.thread_uid)
        .where(
            h.tenant == tenant, h.view_tokens_coarse >= trigger >> 14, h.view_tokens > trigger, h.erased_pos.is_(None),
            sa.or_(h.stalled_tokens.is_(None), h.view_tokens >= h.stalled_tokens + margin),
            sa.or_(h.lease_until.is_(None), h.lease_until < sa.func.clock_timestamp()),
        )
        .order_by(h.view_tokens_coarse.desc(), h.thread_uid.desc())
        .limit(limit)
    )  # fmt: skip
    if after is not None:
        query = query.where(sa.tuple_(h.view_tokens_coarse, h.thread_uid) < sa.tuple_(*after))
    with _transaction(connection, tenant, read_only=True):
        return _select(connection, query)


def _thread_columns() -> tuple[sa.ColumnElement[Any], ...]:
    t, h = schema.threads.c, schema.heads.c
    return (
        t.thread_id, sa.cast(t.metadata, sa.Text), t.created_at, h.last_seq, h.last_number, h.last_pos, h.view_tokens,
        h.last_at, h.head, h.erased_pos,
    )  # fmt: skip


def threads(connection: Connection, tenant: str, after: str, limit: int) -> list[tuple[Any, ...]]:
    """A page of a tenant's threads in the order of their names: across threads, so a query in a read transaction."""
    t, h = schema.threads.c, schema.heads.c
    query = (
        sa.select(*_thread_columns())
        .join_from(schema.threads, schema.heads, t.thread_uid == h.thread_uid)
        .where(t.tenant == tenant, h.tenant == tenant, t.thread_id > after)
        .order_by(t.thread_id)
        .limit(limit)
    )
    with _transaction(connection, tenant, read_only=True):
        return _select(connection, query)


@contextmanager
def _transaction(connection: Connection, tenant: str, *, read_only: bool) -> Iterator[None]:
    """A transaction on an autocommit connection: begun by hand, with the tenant set in it and gone with it."""
    _rows(connection, "BEGIN READ ONLY" if read_only else "BEGIN")
    try:
        _rows(connection, f"SET LOCAL compaction_store.tenant = {_literal(tenant)}")
        yield
    except BaseException:
        _rows(connection, "ROLLBACK")
        raise
    _rows(connection, "COMMIT")


def _literal(text: str) -> str:
    """For the one statement that takes no parameters; a set_config() would not reach the nodes of a cluster."""
    return sql.Literal(text).as_string().replace("%", "%%")


def rows(connection: Connection, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """The rows of a statement of `catalog`, which has too many to stand here."""
    return _rows(connection, statement, parameters)


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """A transaction that sees one moment, and where only what Postgres itself brings is found by a bare name."""
    _rows(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        _rows(connection, "SET LOCAL search_path = pg_catalog")
        yield
    except BaseException:
        _rows(connection, "ROLLBACK")
        raise
    _rows(connection, "COMMIT")


@contextmanager
def checkpointing(connection: Connection, tenant: str | None) -> Iterator[None]:
    """A transaction on the primary in which nobody else makes a checkpoint, over one tenant or over all.

    Every statement in it sees what was committed before it: a snapshot taken before the wait for the lock would be
    older than the checkpoint that was waited for.
    """
    _rows(connection, "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
    try:
        if _rows(connection, "SELECT pg_is_in_recovery()")[0][0]:
            raise NotPrimary("a checkpoint is made on the primary: this server is a standby")
        if tenant is None:
            # A policy that applies is then an error, and never a list with tenants missing.
            _rows(connection, "SET LOCAL row_security = off")
        else:
            _rows(connection, f"SET LOCAL compaction_store.tenant = {_literal(tenant)}")
        _rows(connection, f"SELECT pg_advisory_xact_lock({_CHECKPOINT_LOCK})")
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        _rows(connection, "ROLLBACK")
        what = (
            "a checkpoint over all tenants needs a login that may read every table and that policies do not bind: "
            "ALTER ROLE … BYPASSRLS" if tenant is None else "grant this login compaction_store_auditor"
        )  # fmt: skip
        raise PermissionDenied(what, sqlstate=error.sqlstate) from None
    except BaseException:
        _rows(connection, "ROLLBACK")
        raise
    _rows(connection, "COMMIT")


def heads(connection: Connection, *, all_tenants: bool, page: int) -> Iterator[list[tuple[Any, ...]]]:
    """Where every thread stands, as of one moment, in the order of their thread_uid, in pages."""
    _rows(connection, _ALL_HEADS if all_tenants else _HEADS)
    while rows := _rows(connection, f"FETCH {page:d} FROM heads"):
        yield rows
    _rows(connection, "CLOSE heads")


def entries_at(connection: Connection, places: Sequence[tuple[UUID, int]]) -> list[bytes | None]:
    """The entry of each thread at a pos, in the order given; None where there is none."""
    found = dict(_rows(connection, _ENTRIES_AT, ([uid for uid, _ in places], [pos for _, pos in places])))
    return [found.get(i) for i in range(1, len(places) + 1)]


def present(connection: Connection, tenant: str, thread_uids: Sequence[UUID]) -> set[UUID]:
    """Which of the threads there are."""
    h, t = schema.heads.c, schema.threads.c
    wanted = sa.bindparam("wanted", list(thread_uids), type_=postgresql.ARRAY(sa.Uuid))
    query = (
        sa.select(h.thread_uid)
        .join(schema.threads, t.thread_uid == h.thread_uid)
        .where(h.tenant == tenant, h.thread_uid == sa.any_(wanted))
    )
    with _transaction(connection, tenant, read_only=True):
        return {row[0] for row in _select(connection, query)}


def thread_names(connection: Connection, tenant: str, after: str, limit: int) -> list[str]:
    """A page of the names of a tenant's threads, those without a head too."""
    t = schema.threads.c
    query = sa.select(t.thread_id).where(t.tenant == tenant, t.thread_id > after).order_by(t.thread_id).limit(limit)
    with _transaction(connection, tenant, read_only=True):
        return [row[0] for row in _select(connection, query)]


def count_threads(connection: Connection, tenant: str, after: str) -> int:
    t = schema.threads.c
    query = sa.select(sa.func.count()).where(t.tenant == tenant, t.thread_id > after)
    with _transaction(connection, tenant, read_only=True):
        return int(_select(connection, query)[0][0])


@contextmanager
def _loading(what: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue) as error:
        # The second is what SET ROLE says where the migration could make no roles.
        raise PermissionDenied(f"{what} needs a role: {_LOADER}", sqlstate=error.sqlstate) from None
    except psycopg.errors.FeatureNotSupported as error:
        raise PermissionDenied(
            "COPY is refused under row-level security: a superuser must ALTER ROLE compaction_store_loader BYPASSRLS",
            sqlstate=error.sqlstate,
        ) from None


def find_load(connection: Connection, key: ThreadKey, chunk_key: str) -> tuple[int, int] | None:
    """The first seq and the number of the messages stored under a chunk's key."""
    with _loading("a load"):
        rows = _rows(
            connection, "SELECT * FROM compaction_store.find_load(%b, %b::text, %b::text)", (*key, chunk_key)
        )  # fmt: skip
    return (rows[0][0], rows[0][1]) if rows else None


def commitments(connection: Connection, key: ThreadKey, start: int, limit: int) -> list[tuple[Any, ...]]:
    """The seq, salt and commitment of messages, from a seq on."""
    return [(row[1], row[5], row[6]) for row in entries(connection, key, "message", start, False, limit)]


def observe(connection: Connection, key: ThreadKey, run_id: UUID, records: str) -> bool:
    """Records a compaction of others, once; False where it was on record."""
    with _loading("a load"):
        return bool(
            _rows(
                connection, "SELECT compaction_store.observe(%b, %b::text, %b, %b::text)", (*key, run_id, records)
            )[0][0]
        )  # fmt: skip


def load(
    connection: Connection, key: ThreadKey, thread_id: str, chunk: bulk.Chunk, place: bulk.Place = bulk.blocks
) -> bulk.Placed:
    """Copies a chunk into a thread: chained by the client under the thread's lock, checked before the head moves."""
    count = len(chunk.rows)
    with _loading("a load"), _transaction(connection, key.tenant, read_only=False):
        # COPY refuses tables under row-level security; the loader's role is exempt from it.
        _rows(connection, "SET LOCAL ROLE compaction_store_loader")
        begun = _rows(
            connection, "SELECT * FROM compaction_store.begin_load(%b, %b::text, %b::text, %b::text, %b::int8)",
            (*key, thread_id, chunk.key, chunk.expected_seq),
        )  # fmt: skip
        standing = bulk.Standing._make(begun[0])
        if standing.found_seq is not None:
            return bulk.Placed(standing.found_seq, standing.found_size or 0, replayed=True)
        _copy(connection, _COPY_MESSAGES, place(key.uid, key.tenant, chunk, standing))
        _rows(
            connection, "SELECT compaction_store.finish_load(%b, %b::text, %b::int8)",
            (*key, standing.last_seq + count),
        )  # fmt: skip
    return bulk.Placed(standing.last_seq + 1, count, replayed=False)


def import_bundle(connection: Connection, key: ThreadKey, staged: staging.Staged, about: str) -> bool:
    """Stores the thread of a bundle, all or nothing; False where it is there with the same head already."""
    said = staged.manifest
    with _loading("an import"), _stored(about), _transaction(connection, key.tenant, read_only=False):
        _rows(connection, "SET LOCAL ROLE compaction_store_loader")
        [(found_pos, found_head)] = _rows(
            connection,
            "SELECT * FROM compaction_store.begin_import(%b, %b::text, %b::text, %b, %b::text, %b::timestamptz)",
            (*key, said["thread_id"], staged.genesis, said["metadata"], staged.created_at),
        )
        if found_head is not None:
            if found_head == staged.head:
                return False
            raise ThreadExists(f"the thread is there already, and stands at pos {found_pos} with another head{about}")
        for kind, table in staging.TABLES.items():
            columns = ", ".join(staging.COLUMNS[kind])
            statement = f"COPY compaction_store.{table} ({columns}) FROM STDIN (FORMAT BINARY)"
            _copy(connection, statement.encode(), staged.blocks(kind))
        _rows(
            connection,
            "SELECT compaction_store.finish_import(%b, %b::text, %b::int8, %b::int8, %b::int8, %b)",
            (*key, said["last_seq"], said["last_number"], said["last_pos"], staged.head),
        )
    return True


@contextmanager
def _stored(about: str) -> Iterator[None]:
    """What a table refuses of rows that were proved is the bundle's: no store of ours would have written it."""
    try:
        yield
    except psycopg.errors.InvalidParameterValue:
        # What SET ROLE says where there are no roles.
        raise
    except (psycopg.errors.DataError, psycopg.errors.IntegrityError) as error:
        raise InvalidBundle(f"Postgres refuses an entry of the bundle: SQLSTATE {error.sqlstate}{about}") from None
    except psycopg.Error as error:
        if error.sqlstate != "CS010":
            raise
        raise InvalidBundle(f"{error.diag.message_primary}{about}") from None


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
            f"the database is {what}, this version needs {schema.REVISION}: run compaction-store migrate --url URL"
        )


def revision(connection: Connection) -> str | None:
    """The revision of the database's schema; None where there is none."""
    if _rows(connection, "SELECT to_regclass('compaction_store.alembic_version')::text")[0][0] is None:
        return None
    rows = _rows(connection, "SELECT version_num FROM compaction_store.alembic_version")
    return str(rows[0][0]) if rows else None
