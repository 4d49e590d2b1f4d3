"""Queries across threads, most of them built with SQLAlchemy Core.

Each runs in a short read transaction that sets the tenant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.compaction import records
from compaction_store.integrity import erasure
from compaction_store.models import Lease
from compaction_store.models.record_filters import FILTERS, Form
from compaction_store.models.vocabulary import OUTCOMES
from compaction_store.module_data import ModuleData
from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import (
    Compiled,
    Connection,
    compiled,
    fetch,
    select,
    select_of,
    transaction,
)
from compaction_store.postgres.queries.expiring import LAST
from compaction_store.postgres.queries.functions import ReportedRow, ThreadRow
from compaction_store.postgres.queries.unknown_entries import UNKNOWN_POS_OF_HEAD, unknown_pos

_SQL = ModuleData(__file__).values
# With this setting, a function that Citus calls on a node may run statements, but only on rows of the same shard.
NESTED = "SET LOCAL citus.allow_nested_distributed_execution = on"
# JSON writes a text of only these characters either unchanged or with escapes such as \\u0041.
_PLAIN = re.compile(r"[\w .:,;@#+-]*", re.ASCII)
# The parent and the last copied pos in the body of a fork's origin, which `fork` writes.
_ORIGIN = '\'^[{]"parent":"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})","pos":([0-9]{1,18}),\''
_TEXTS = postgresql.ARRAY(sa.Text())
_ESCAPED = r"E'\\\\u00[0-7]'"


class CompactionFilter(NamedTuple):
    """Conditions on compaction records. `filters` has values for filters of FILTERS, and a None matches any value."""

    thread_uid: UUID | None = None
    number: int | None = None
    numbers: list[int] | None = None
    within: tuple[int, int] | None = None
    filters: Mapping[str, Any] = MappingProxyType({})


class CompactionKey(NamedTuple):
    """The position of a record in a listing, after which the next page begins.

    A listing of all threads is in the order of time, thread_uid and number; that of one thread is in the order of
    number.
    """

    created_at: datetime
    thread_uid: UUID
    number: int


def compactions(
    connection: Connection,
    tenant: str,
    wanted: CompactionFilter,
    after: CompactionKey | None,
    newest_first: bool,
    limit: int,
) -> list[dict[str, Any]]:
    """Returns a page of records as their columns by name.

    The page may also have records that do not match a filter with `holds`. The caller must drop them.
    """
    given = _given(wanted)
    statement = _compactions(tuple(given), after is not None, newest_first)
    values: dict[str, Any] = {"tenant": tenant, "limit": limit, **given}
    if after is not None:
        values |= {f"after_{name}": value for name, value in after._asdict().items()}
    with transaction(connection, tenant, read_only=True):
        return [dict(zip(records.COLUMNS, row, strict=True)) for row in fetch(connection, statement, values)]


def sample(
    connection: Connection, tenant: str, wanted: CompactionFilter, seed: int, count: int, among: int
) -> tuple[int, list[tuple[UUID, int]]]:
    """Draws up to `count` records at random from the first `among` records that match and can be judged.

    Erased records cannot be judged. A copy in a fork is left out if its original can be, because otherwise forks of
    good records would hide bad ones. Returns the number of records that the draw was made from, and the keys of the
    drawn records. The server sends only these keys.
    """
    c = tables.compactions.c
    head = tables.heads.alias("head")
    given = _given(wanted)
    last_number = (
        sa.select(head.c.last_number)
        .where(head.c.thread_uid == c.thread_uid)
        .correlate(tables.compactions)
        .scalar_subquery()
    )
    candidates = (
        sa.select(c.thread_uid, c.number)
        .where(c.tenant == tenant, c.number <= last_number, c.revokes.is_(None), c.start_seq.is_not(None))
        .where(c.redacted_pos.is_(None), *_conditions(tuple(given)))
    )
    with transaction(connection, tenant, read_only=True):
        copies = _copies(connection, candidates, given)
        matching = (
            candidates.where(sa.func.concat(c.thread_uid, "/", c.number) != sa.all_(sa.literal(copies, _TEXTS)))
            .order_by(c.created_at, c.thread_uid, c.number)
            .limit(among)
            .subquery("matching")
        )
        m = matching.c
        named = sa.func.concat(sa.literal(f"{seed}/", sa.Text), m.thread_uid, "/", m.number)
        rank = sa.func.sha256(sa.func.convert_to(named, "UTF8"))
        rows = select(
            connection, sa.select(m.thread_uid, m.number, sa.func.count().over()).order_by(rank).limit(count), given
        )
    return (rows[0][2] if rows else 0), [(uid, number) for uid, number, _ in rows]


def _copies(connection: Connection, candidates: sa.Select[Any], given: Mapping[str, Any]) -> list[str]:
    """Returns `thread_uid/number` of the candidates that a fork copied from a record that is there with its content.

    A copy has the number and the commitment of its original.
    """
    c, e = tables.compactions.c, tables.events.c
    origin = sa.func.regexp_match(sa.cast(e.body, sa.Text), sa.literal_column(_ORIGIN), type_=_TEXTS)
    copied = (
        candidates.add_columns(c.commitment, origin[1].label("parent"))
        .join(tables.events, e.thread_uid == c.thread_uid)
        .where(e.pos == 1, e.kind == sa.literal_column("'origin'"), c.pos <= sa.cast(origin[2], sa.BigInteger) + 1)
    )
    found = [
        (uid, number, commitment, UUID(parent)) for uid, number, commitment, parent in select(connection, copied, given)
    ]
    parents = sa.literal(list({parent for *_, parent in found}), postgresql.ARRAY(sa.Uuid()))
    head = tables.heads.c
    originals = (
        sa.select(c.thread_uid, c.number, c.commitment)
        .join(tables.heads, head.thread_uid == c.thread_uid)
        .where(c.thread_uid == sa.any_(parents), c.redacted_pos.is_(None), c.number <= head.last_number)
    )
    there = set(select(connection, originals)) if found else set()
    return [f"{uid}/{number}" for uid, number, commitment, parent in found if (parent, number, commitment) in there]


# The statements are cached, because compiling one takes longer than executing it.
@cache
def _compactions(given: tuple[str, ...], goes_on: bool, newest_first: bool) -> str:
    """Returns the statement for a set of filters."""
    c, t = tables.compactions.c, tables.threads.c
    order = [c.number] if "thread_uid" in given else [c.created_at, c.thread_uid, c.number]
    # This is a literal, because the planner uses a partial index only if it can see that the index's condition holds.
    applied: sa.ColumnElement[str] = sa.literal_column("'applied'")
    undone = tables.compactions.alias("undone")
    head = tables.heads.alias("head")

    def named(table: sa.FromClause) -> Iterator[sa.ColumnElement[bool]]:
        # In a query for one thread, every table must have this condition. Citus does not infer it from the join, and
        # would query all shards without it.
        if "thread_uid" in given:
            yield table.c.thread_uid == _value("thread_uid", c.thread_uid)

    # A row beyond the head is not a record. This is a subselect for each row, because a join would change the plan.
    last_number = (
        sa.select(head.c.last_number)
        .where(head.c.thread_uid == c.thread_uid, *named(head))
        .correlate(tables.compactions)
        .scalar_subquery()
    )
    revoked_by = (
        sa.select(sa.func.min(undone.c.number))
        .where(
            undone.c.thread_uid == c.thread_uid, *named(undone), undone.c.revokes == c.number,
            undone.c.outcome == applied, undone.c.number <= last_number,
        )
        .scalar_subquery()
    )  # fmt: skip
    computed: dict[str, Any] = {
        "thread_id": t.thread_id, "superseded_by": _superseded_by(given), "revoked_by": revoked_by,
        "body": sa.cast(c.body, sa.Text), "unknown_pos": unknown_pos(is_one="thread_uid" in given),
    }  # fmt: skip
    query = (
        sa.select(*[computed[name] if name in computed else c[name] for name in records.COLUMNS])
        .join_from(tables.compactions, tables.threads, t.thread_uid == c.thread_uid)
        .where(c.tenant == _value("tenant", c.tenant), c.number <= last_number, *_conditions(given))
    )
    if goes_on:
        at = sa.tuple_(*order)
        reached = sa.tuple_(*[_value(f"after_{column.name}", column) for column in order])
        query = query.where(at < reached if newest_first else at > reached)
    query = query.order_by(*[column.desc() if newest_first else column for column in order])
    return compiled(query.limit(_value("limit", c.number))).statement


def _superseded_by(given: tuple[str, ...]) -> sa.TextClause:
    """Returns the expression for the number of the first record in force whose span contains this record's span.

    views/audit_compactions.sql has the same expression.
    """
    named = " AND {}.thread_uid = :thread_uid" if "thread_uid" in given else ""
    of_thread = {"named_later": named.format("later"), "named_undone": named.format("undone")}
    later = {of: _SQL["later"].format(**of_thread, **_SQL[of]) for of in ("starting", "ending")}
    text = sa.text(_SQL["superseded_by"].format(named_head=named.format("h"), **later))
    return text.bindparams(sa.bindparam("thread_uid", type_=tables.compactions.c.thread_uid.type)) if named else text


def _value(name: str, like: sa.ColumnElement[Any]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=like.type)


def _given(wanted: CompactionFilter) -> dict[str, Any]:
    """Returns the parameters of a filter: one for each condition, for each bound of a range, and for each text."""
    own = {"thread_uid": wanted.thread_uid, "number": wanted.number, "numbers": wanted.numbers}
    given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    if wanted.within is not None:
        given |= {"within_from": wanted.within[0], "within_to": wanted.within[1]}
    strings: list[str] = []
    for name, value in wanted.filters.items():
        row = FILTERS[name]
        strings += row.texts(value) if row.texts is not None else []
        if name == "status":
            given[f"status_{value}"] = True
        elif row.form == "range":
            bounds = zip((f"{name}_from", f"{name}_to"), value, strict=True)
            given |= {bound: number for bound, number in bounds if number is not None}
        elif row.where:
            given[name] = value
    plain = [f'"{text}"' for text in strings if _PLAIN.fullmatch(text)]
    return given | {f"text_{i}": text for i, text in enumerate(plain)}


_TYPES: dict[Form, sa.types.TypeEngine[Any]] = {
    "text": sa.Text(), "choice": sa.Text(), "number": sa.BigInteger(), "range": sa.BigInteger(),
    "time": sa.DateTime(timezone=True), "uuid": postgresql.UUID(),
}  # fmt: skip


def _conditions(given: tuple[str, ...]) -> Iterator[sa.ColumnElement[bool]]:
    c = tables.compactions.c
    # The query searches for texts and does not parse the body, because no function of Postgres can parse every JSON
    # text that the table may have.
    body = sa.cast(c.body, sa.Text)
    if texts := [sa.bindparam(name, type_=sa.Text) for name in given if name.startswith("text_")]:
        has_them = sa.and_(*[sa.func.strpos(body, text) > sa.literal_column("0") for text in texts])
        yield sa.or_(has_them, body.op("~")(sa.literal_column(_ESCAPED)))
    for name in given:
        if name == "numbers":
            yield c.number == sa.any_(sa.bindparam(name, type_=postgresql.ARRAY(sa.BigInteger)))
        elif name == "within_from":
            yield c.start_seq >= _value(name, c.start_seq)
        elif name == "within_to":
            yield c.end_seq <= _value(name, c.end_seq)
        elif name.startswith("status_"):
            yield from _with_status(name.removeprefix("status_"), given)
        elif name in ("thread_uid", "number"):
            yield c[name] == _value(name, c[name])
        elif not name.startswith("text_"):
            yield _filter(name)


def _filter(name: str) -> sa.ColumnElement[bool]:
    """Returns the condition of a row of FILTERS, or of one bound of a range."""
    row = FILTERS.get(name) or FILTERS[name.removesuffix("_from").removesuffix("_to")]
    where = row.where
    if name not in FILTERS:
        where = f"{where} {'>=' if name.endswith('_from') else '<='} :{name}"
    text = sa.text(f"({where})").bindparams(sa.bindparam(name, type_=_TYPES[row.form]))
    return cast("sa.ColumnElement[bool]", text)


def _with_status(status: str, given: tuple[str, ...]) -> Iterator[sa.ColumnElement[bool]]:
    """Yields conditions that every record with a status meets. Records with another status may meet them too."""
    c = tables.compactions.c
    if status in OUTCOMES:
        yield c.outcome == sa.literal_column(f"'{status}'")
        return
    yield c.outcome == sa.literal_column("'applied'")
    yield c.revokes.is_(None)
    yield c.redacted_pos.is_not(None) if status == "redacted" else c.redacted_pos.is_(None)
    if status == "revoked":
        undone = tables.compactions.alias("revocation")
        of_thread = [undone.c.thread_uid == _value("thread_uid", c.thread_uid)] if "thread_uid" in given else []
        yield sa.exists().where(undone.c.thread_uid == c.thread_uid, *of_thread, undone.c.revokes == c.number)


class DueRow(NamedTuple):
    """A thread that may be due, the place of its view in the order of sizes, and its newest reported usage."""

    thread: ThreadRow
    view_tokens_coarse: int
    reported: list[ReportedRow]


def due(
    connection: Connection,
    tenant: str,
    trigger: int,
    margin: int,
    after: tuple[int, UUID] | None,
    limit: int,
    idle: float,
    among: int,
) -> list[DueRow]:
    """Returns a page of the threads whose view has more than `trigger` tokens, roughly the largest first.

    Leaves out erased threads, hidden threads, threads that a run has leased, threads with a message in the last `idle`
    seconds, and threads whose last attempt made no progress and whose view has not grown by `margin` since. Rows are
    ordered by `view_tokens_coarse` and thread_uid.
    """
    # The join is outside the page, so that the function is called only for the threads of the page.
    page = _due(tenant, trigger, margin, after, limit, idle).subquery("page")
    figures = [sa.column("seq", sa.BigInteger), sa.column("view_tokens", sa.BigInteger)]
    texts = [sa.column(name, sa.Text) for name in ("payload", "meta")]
    called = sa.func.compaction_store.reported(page.c.thread_uid, tenant, page.c.thread_id, among)
    found = called.table_valued(*figures, *texts).lateral("found")
    query = (
        sa.select(page, found)
        .select_from(page.outerjoin(found, sa.true()))
        .order_by(page.c.view_tokens_coarse.desc(), page.c.thread_uid.desc())
    )
    return [_due_row(row) for row in select_of(connection, tenant, query)]


def due_on_cluster(connection: Connection, tenant: str, *given: Any) -> list[DueRow]:
    """Does the same as `due` on a cluster. A second statement calls `reported` for each thread on the thread's node."""
    *page, among = given
    with transaction(connection, tenant, read_only=True):
        rows = [_due_row(row) for row in select(connection, _due(tenant, *page))]
        fetch(connection, NESTED)
        called = fetch(connection, _SQL["reported"], (tenant, among, [row.thread.thread_uid for row in rows]))
    found = {uid: [ReportedRow._make(figures)] for uid, *figures in called}
    return [row._replace(reported=found.get(row.thread.thread_uid, [])) for row in rows]


def _due_row(row: Sequence[Any]) -> DueRow:
    columns = iter(row)
    thread, coarse = ThreadRow._make(islice(columns, len(ThreadRow._fields))), next(columns)
    reported = [*columns]
    return DueRow(thread, coarse, [ReportedRow._make(reported)] if any(value is not None for value in reported) else [])


def leases(connection: Connection, tenant: str, trigger: int, limit: int) -> list[Lease]:
    """Returns the runs that compact a thread whose view has more than `trigger` tokens, the oldest first."""
    t, h = tables.threads.c, tables.heads.c
    query = (
        sa.select(t.thread_id, h.lease_actor, h.lease_since, h.lease_until, h.lease_run)
        .join_from(tables.heads, tables.threads, t.thread_uid == h.thread_uid)
        .where(
            h.tenant == tenant, h.view_tokens_coarse >= trigger >> 14, h.view_tokens > trigger,
            h.lease_until >= sa.func.clock_timestamp(),
        )
        .order_by(h.lease_since, h.thread_uid)
        .limit(limit)
    )  # fmt: skip
    return [Lease(*row) for row in select_of(connection, tenant, query)]


def _due(
    tenant: str, trigger: int, margin: int, after: tuple[int, UUID] | None, limit: int, idle: float
) -> sa.Select[Any]:
    t, h = tables.threads.c, tables.heads.c
    query = (
        sa.select(*_thread_columns(), h.view_tokens_coarse)
        .join_from(tables.heads, tables.threads, t.thread_uid == h.thread_uid)
        .where(
            h.tenant == tenant, h.view_tokens_coarse >= trigger >> 14, h.view_tokens > trigger, h.erased_pos.is_(None),
            sa.or_(h.stalled_tokens.is_(None), h.view_tokens >= h.stalled_tokens + margin),
            sa.or_(h.lease_until.is_(None), h.lease_until < sa.func.clock_timestamp()),
            h.hidden_seq.is_distinct_from(h.last_seq),
        )
        .order_by(h.view_tokens_coarse.desc(), h.thread_uid.desc())
        .limit(limit)
    )  # fmt: skip
    if idle:
        query = query.where(h.active_at <= sa.func.clock_timestamp() - timedelta(seconds=idle))
    return query if after is None else query.where(sa.tuple_(h.view_tokens_coarse, h.thread_uid) < sa.tuple_(*after))


def _thread_columns() -> list[sa.ColumnElement[Any]]:
    """Returns the columns that the SQL function `thread` returns."""
    t, h = tables.threads.c, tables.heads.c
    own = {
        "metadata": sa.cast(t.metadata, sa.Text), "thread_uid": h.thread_uid, "unknown_pos": UNKNOWN_POS_OF_HEAD,
        "last_message_at": sa.case((h.last_seq > 0, h.active_at)),
    }  # fmt: skip
    columns = {**dict(h), **dict(t), **own}
    return [columns[name].label(name) for name in ThreadRow._fields]


class ListFilter(NamedTuple):
    """Which threads to list. Threads that `clear` has hidden are left out unless `hidden` is set."""

    subject: str | None = None
    prefix: str = ""
    hidden: bool = False

    @property
    def form(self) -> tuple[bool, bool, bool]:
        """Which conditions a statement has. It has the values as parameters, and is compiled once for each form."""
        return self.subject is not None, bool(self.prefix), self.hidden


def threads(
    connection: Connection, tenant: str, after: str, wanted: ListFilter, erased: bool, limit: int
) -> list[ThreadRow]:
    """Returns a page of a tenant's threads in the order of their names.

    With `erased`, returns erased threads instead of the others.
    """
    given = {**_listed_values(tenant, wanted, limit), "after": after}
    # Without statistics, as after a load, Postgres expects few threads, and would read and sort all of them.
    rows = select_of(connection, tenant, _threads(wanted.form, erased), given, "enable_sort = off")
    return list(map(ThreadRow._make, rows))


@cache
def _threads(form: tuple[bool, bool, bool], erased: bool) -> Compiled:
    t, h = tables.threads.c, tables.heads.c
    query = (
        sa.select(*_thread_columns())
        .join_from(tables.threads, tables.heads, t.thread_uid == h.thread_uid)
        .where(
            t.tenant == _value("tenant", t.tenant), t.thread_id > _value("after", t.thread_id),
            sa.func.starts_with(t.thread_id, erasure.STUB) == erased, *_listed(*form),
        )
        .order_by(t.thread_id)
        .limit(_value("limit", h.last_seq))
    )  # fmt: skip
    if erased:
        query = query.where(t.thread_id >= erasure.STUB, t.thread_id < erasure.AFTER_STUBS)
    return compiled(query)


def recent_threads(
    connection: Connection, tenant: str, after: tuple[datetime, UUID] | None, wanted: ListFilter, limit: int
) -> list[ThreadRow]:
    """Returns a page of a tenant's threads, the one with the newest message first. Leaves out erased threads.

    The index has the order of the hours, so only the threads of an hour are sorted.
    """
    given = _listed_values(tenant, wanted, limit)
    if after is not None:
        at, uid = after
        hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0, tzinfo=None)
        given |= {"after_active_hour": hour, "after_active_at": at, "after_thread_uid": uid}
    rows = select_of(connection, tenant, _recent_threads(wanted.form, after is not None), given)
    return list(map(ThreadRow._make, rows))


@cache
def _recent_threads(form: tuple[bool, bool, bool], goes_on: bool) -> Compiled:
    t, h = tables.threads.c, tables.heads.c
    order = (h.active_hour, h.active_at, h.thread_uid)
    chosen = sa.select(*order).where(h.erased_pos.is_(None), *_listed(*form))
    _, has_prefix, _ = form
    if has_prefix:
        chosen = chosen.join(tables.threads, t.thread_uid == h.thread_uid)
    if goes_on:
        reached = [_value(f"after_{column.name}", column) for column in order]
        chosen = chosen.where(sa.tuple_(*order) < sa.tuple_(*reached))
    # Read the columns of this page only.
    limited = chosen.order_by(*[column.desc() for column in order]).limit(_value("limit", h.last_seq))
    page, of_tenant = limited.subquery("page"), _value("tenant", t.tenant)
    query = (
        sa.select(*_thread_columns())
        .join_from(page, tables.heads, h.thread_uid == page.c.thread_uid)
        .join(tables.threads, t.thread_uid == page.c.thread_uid)
        .where(t.tenant == of_tenant, h.tenant == of_tenant)
        .order_by(page.c.active_at.desc(), page.c.thread_uid.desc())
    )
    return compiled(query)


class OfSubject(NamedTuple):
    """A thread of a subject. One without messages is as old as its creation."""

    thread_uid: UUID
    thread_id: str
    last_pos: int
    last_message_at: datetime


def threads_of_subject(connection: Connection, tenant: str, subject: str, after: UUID, limit: int) -> list[OfSubject]:
    """Returns a page of a subject's threads in the order of their keys. Reads only what an eraser may read."""
    t, h = tables.threads.c, tables.heads.c
    query = (
        sa.select(h.thread_uid, t.thread_id, h.last_pos, h.active_at)
        .join_from(tables.heads, tables.threads, t.thread_uid == h.thread_uid)
        .where(h.tenant == tenant, t.tenant == tenant, h.subject == subject, h.thread_uid > after)
        .order_by(h.thread_uid)
        .limit(limit)
    )
    return list(map(OfSubject._make, select_of(connection, tenant, query)))


def _listed_values(tenant: str, wanted: ListFilter, limit: int) -> dict[str, Any]:
    return wanted._asdict() | {"tenant": tenant, "beyond": wanted.prefix + LAST, "limit": limit}


def _listed(has_subject: bool, has_prefix: bool, hidden: bool) -> Iterator[sa.ColumnElement[bool]]:
    t, h = tables.threads.c, tables.heads.c
    yield h.tenant == _value("tenant", h.tenant)
    yield h.is_log.is_(False)
    if has_subject:
        yield h.subject == _value("subject", h.subject)
    if has_prefix:
        yield t.thread_id >= _value("prefix", t.thread_id)
        yield t.thread_id < _value("beyond", t.thread_id)
    if not hidden:
        yield h.hidden_seq.is_distinct_from(h.last_seq)


def subjects_of(connection: Connection, tenant: str, names: Sequence[str]) -> list[tuple[UUID, str, str | None]]:
    """Returns the thread_uid, the name and the subject of each thread with one of the names."""
    t, h = tables.threads.c, tables.heads.c
    wanted: Any = sa.bindparam("wanted", list(names), type_=postgresql.ARRAY(sa.Text))
    query = (
        sa.select(t.thread_uid, t.thread_id, h.subject)
        .join_from(tables.threads, tables.heads, t.thread_uid == h.thread_uid)
        .where(t.tenant == tenant, h.tenant == tenant, t.thread_id == sa.any_(wanted))
    )
    return [(uid, name, subject) for uid, name, subject in select_of(connection, tenant, query)]


def names_of(connection: Connection, tenant: str, uids: Sequence[UUID]) -> list[tuple[UUID, str]]:
    """Returns the thread_uid and the current name of each given thread that the tenant has in this database."""
    t = tables.threads.c
    wanted: Any = sa.bindparam("wanted", list(uids), type_=postgresql.ARRAY(sa.Uuid))
    query = sa.select(t.thread_uid, t.thread_id).where(t.tenant == tenant, t.thread_uid == sa.any_(wanted))
    return [(uid, name) for uid, name in select_of(connection, tenant, query)]
