"""Queries across threads. Each runs in a short read transaction that sets the tenant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store.compaction import records
from compaction_store.integrity import erasure
from compaction_store.models import DayFigures, Figures, Lease
from compaction_store.models.record_filters import FILTERS, Form
from compaction_store.models.vocabulary import CRITICAL_EVENTS, KINDS, NO_ATTEMPTS, OUTCOMES, sql_list
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch, select_of, transaction
from compaction_store.postgres.queries.functions import ReportedRow, ThreadRow

_SQL = ModuleData(__file__).values
# With this setting, a function that Citus calls on a node may run statements, but only on rows of the same shard.
NESTED = "SET LOCAL citus.allow_nested_distributed_execution = on"
# JSON writes a text of only these characters either unchanged or with escapes such as \\u0041.
_PLAIN = re.compile(r"[\w .:,;@#+-]*", re.ASCII)
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_TYPES: dict[Form, str] = _SQL["types"]
# The names with a prefix are before the prefix with this ending, because names have at most 255 bytes.
LAST = "\U0010ffff" * 64
EXPIRING: str = _SQL["expiring"]
_DAYS: str = _SQL["days"].format(no_attempts=sql_list(NO_ATTEMPTS))
_RESERVED = (("compaction-store:", "compaction-store;"), (erasure.STUB, erasure.AFTER_STUBS))


class Expiring(NamedTuple):
    """A thread whose last message is older than a policy allows, or, if not `is_old`, the last one of a full page."""

    thread_id: str
    thread_uid: UUID
    last_pos: int
    last_message_at: datetime | None
    is_old: bool
    ends_page: bool


def ranges(prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the ranges of the names with a prefix, without the names that are reserved. The end is exclusive."""
    low, end = prefix, prefix + LAST
    for first, after in _RESERVED:
        if low < (high := min(first, end)):
            yield low, high
        low = max(low, after)
    if low < end:
        yield low, end


def expiring(
    connection: Connection,
    tenant: str,
    before: datetime,
    subject: str | None,
    low: str,
    after: str,
    end: str,
    limit: int,
) -> list[Expiring]:
    """Looks at up to `limit` threads by name. Returns those that are old enough, and the last of a full page."""
    given = (limit, before, subject, subject, tenant, low, after, end, limit, limit)
    with transaction(connection, tenant, read_only=True):
        return [Expiring(*row) for row in fetch(connection, EXPIRING, given)]


def clock(connection: Connection) -> datetime:
    """Returns the time of the database's clock."""
    [(now,)] = fetch(connection, "SELECT clock_timestamp()")
    found: datetime = now
    return found


class CompactionFilter(NamedTuple):
    """Conditions on compaction records. `filters` has values for filters of FILTERS, and a None matches any value."""

    thread_uid: UUID | None = None
    number: int | None = None
    numbers: list[int] | None = None
    within: tuple[int, int] | None = None
    filters: Mapping[str, Any] = MappingProxyType({})


class CompactionKey(NamedTuple):
    """The position of a record in a listing: of all threads in the order of these fields, of one thread by number."""

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
    """Returns a page of records as their columns by name. The caller must drop those that `holds` refuses."""
    given = _given(wanted)
    values: dict[str, Any] = {"tenant": tenant, "limit": limit, **given}
    if after is not None:
        values |= {f"after_{name}": value for name, value in after._asdict().items()}
    rows = select_of(connection, tenant, _compactions(tuple(given), after is not None, newest_first), values)
    return [dict(zip(records.COLUMNS, row, strict=True)) for row in rows]


def counts(connection: Connection, tenant: str, wanted: CompactionFilter, among: int) -> dict[str, dict[str, int]]:
    """Counts the newest `among` records that match, as `all`, and the most frequent values of some columns."""
    given = _given(wanted)
    of_h, order = "", "compactions.created_at DESC, compactions.thread_uid DESC, compactions.number DESC"
    if wanted.thread_uid is not None:
        of_h, order = " AND h.thread_uid = %(thread_uid)s::uuid", "compactions.number DESC"
    statement: str = _SQL["counts"].format(
        last_number=_SQL["last_number"].format(of_h=of_h), conditions=_conditions(tuple(given)), order=order
    )
    found: dict[str, dict[str, int]] = {"all": {}}
    for name, value, records_ in select_of(connection, tenant, statement, given | {"tenant": tenant, "among": among}):
        found.setdefault(name, {})[value] = records_
    return found


def sample(
    connection: Connection, tenant: str, wanted: CompactionFilter, seed: int, count: int, among: int
) -> tuple[int, list[tuple[UUID, int]]]:
    """Draws up to `count` records at random from the first `among` records that match and are not erased.

    A copy in a fork is left out if its original can be drawn, because otherwise forks of good records would hide bad
    ones. Returns the number of records that the draw was made from, and the keys of the drawn records.
    """
    given = {**_given(wanted), "tenant": tenant, "seed": f"{seed}/", "count": count, "among": among}
    candidate = _SQL["candidate"] + _conditions(tuple(given))
    with transaction(connection, tenant, read_only=True):
        given["copies"] = _copies(connection, candidate, given)
        rows = fetch(connection, _SQL["drawn"].format(candidate=candidate), given)
    return (rows[0][2] if rows else 0), [(uid, number) for uid, number, _ in rows]


def _copies(connection: Connection, candidate: str, given: Mapping[str, Any]) -> list[str]:
    """Returns `thread_uid/number` of the candidates that are copies in a fork, with the original's commitment."""
    copied = _SQL["copied"].format(candidate=candidate, origin=_SQL["origin"])
    found = [(*row, UUID(parent)) for *row, parent in fetch(connection, copied, given)]
    parents = list({parent for *_, parent in found})
    there = set(fetch(connection, _SQL["originals"], {"parents": parents})) if found else set()
    return [f"{uid}/{number}" for uid, number, commitment, parent in found if (parent, number, commitment) in there]


def _compactions(given: tuple[str, ...], goes_on: bool, newest_first: bool) -> str:
    """Returns the statement for a set of filters."""
    is_one = "thread_uid" in given
    # In a query for one thread, every table must have this condition. Citus does not infer it from the join, and would
    # query all shards without it.
    of = {
        f"of_{alias}": f" AND {alias}.thread_uid = %(thread_uid)s::uuid" if is_one else ""
        for alias in ("h", "its", "later", "undone")
    }
    # views/audit_compactions.sql has the same expression.
    later = {part: _SQL["later"].format(**_SQL[part], **of) for part in ("starting", "ending")}
    computed = {
        "thread_id": "threads.thread_id",
        "body": "compactions.body::text",
        "superseded_by": _SQL["superseded_by"].format(**later, **of),
        "revoked_by": _SQL["revoked_by"].format(last_number=_SQL["last_number"].format(**of), **of),
        "unknown_pos": _unknown_pos("%(thread_uid)s::uuid" if is_one else "compactions.thread_uid", **of),
    }
    order = ["number"] if is_one else ["created_at", "thread_uid", "number"]
    conditions = _conditions(given)
    if goes_on:
        reached = ", ".join(f"%(after_{name})s" for name in order)
        at = ", ".join(f"compactions.{name}" for name in order)
        conditions += f" AND ({at}) {'<' if newest_first else '>'} ({reached})"
    statement: str = _SQL["compactions"].format(
        columns=", ".join(computed.get(name, f"compactions.{name}") for name in records.COLUMNS),
        last_number=_SQL["last_number"].format(**of),
        conditions=conditions,
        order=", ".join(f"compactions.{name}{' DESC' if newest_first else ''}" for name in order),
    )
    return statement


def _unknown_pos(uid: str, of_its: str = "", **_of: str) -> str:
    """Returns the expression for the pos of a thread's first entry that changes views and that is unknown here."""
    kinds, events = sql_list(KINDS), sql_list(sorted(CRITICAL_EVENTS))
    expression: str = _SQL["unknown_pos"].format(uid=uid, of_its=of_its, kinds=kinds, events=events)
    return expression


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


def _conditions(given: tuple[str, ...]) -> str:
    """Returns the conditions of a filter, each with AND before it."""
    return "".join(f" AND {condition}" for condition in _each_condition(given))


def _each_condition(given: tuple[str, ...]) -> Iterator[str]:
    if texts := [name for name in given if name.startswith("text_")]:
        has_them = " AND ".join(f"strpos(compactions.body::text, %({name})s::text) > 0" for name in texts)
        has_escapes = _SQL["has_escapes"]
        yield f"({has_them} OR {has_escapes})"
    for name in given:
        if name in _SQL["own"]:
            yield _SQL["own"][name]
        elif name.startswith("status_"):
            yield from _with_status(name.removeprefix("status_"), is_one="thread_uid" in given)
        elif row := FILTERS.get(name.removesuffix("_from").removesuffix("_to")) or FILTERS.get(name):
            where = row.where
            if row.form == "range":
                where = f"{where} {'>=' if name.endswith('_from') else '<='} :{name}"
            yield "(" + _PARAMETER.sub(rf"%(\1)s::{_TYPES[row.form]}", where) + ")"


def _with_status(status: str, *, is_one: bool) -> Iterator[str]:
    """Yields conditions that every record with a status meets. Records with another status may meet them too."""
    if status in OUTCOMES:
        yield f"compactions.outcome = '{status}'"
        return
    # The outcome is a literal, because the planner uses a partial index only if it sees that its condition holds.
    yield "compactions.outcome = 'applied' AND compactions.revokes IS NULL"
    yield f"compactions.redacted_pos IS {'NOT ' if status == 'redacted' else ''}NULL"
    if status == "revoked":
        yield _SQL["revoked"].format(of_thread=" AND revocation.thread_uid = %(thread_uid)s::uuid" if is_one else "")


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
    statement, given = _due(tenant, trigger, margin, after, limit, idle)
    rows = select_of(connection, tenant, _SQL["due_reported"].format(page=statement), given | {"among": among})
    return list(map(_due_row, rows))


def due_on_cluster(connection: Connection, tenant: str, *given: Any) -> list[DueRow]:
    """Does the same as `due` on a cluster. A second statement calls `reported` for each thread on the thread's node."""
    *page, among = given
    with transaction(connection, tenant, read_only=True):
        rows = [_due_row(row) for row in fetch(connection, *_due(tenant, *page))]
        fetch(connection, NESTED)
        called = fetch(connection, _SQL["reported"], (tenant, among, [row.thread.thread_uid for row in rows]))
    found = {uid: [ReportedRow._make(figures)] for uid, *figures in called}
    return [row._replace(reported=found.get(row.thread.thread_uid, [])) for row in rows]


def _due_row(row: Sequence[Any]) -> DueRow:
    columns = iter(row)
    thread, coarse = ThreadRow._make(islice(columns, len(ThreadRow._fields))), next(columns)
    reported = [*columns]
    return DueRow(thread, coarse, [ReportedRow._make(reported)] if any(value is not None for value in reported) else [])


def leases(connection: Connection, tenant: str, trigger: int | None, limit: int) -> list[Lease]:
    """Returns the runs that compact a thread whose view has more than `trigger` tokens, or all, the oldest first."""
    given = {"tenant": tenant, "limit": limit}
    given |= {} if trigger is None else {"coarse": trigger >> 14, "trigger": trigger}
    statement = _SQL["leases"].format(conditions="" if trigger is None else _SQL["leases_above"])
    return [Lease(*row) for row in select_of(connection, tenant, statement, given)]


def _due(
    tenant: str, trigger: int, margin: int, after: tuple[int, UUID] | None, limit: int, idle: float
) -> tuple[str, dict[str, Any]]:
    given = {"tenant": tenant, "coarse": trigger >> 14, "trigger": trigger, "margin": margin, "limit": limit}
    conditions = ""
    if idle:
        given |= {"idle": idle}
        conditions += _SQL["idle"]
    if after is not None:
        given |= {"after_coarse": after[0], "after_uid": after[1]}
        conditions += _SQL["after_due"]
    return _of_threads("due", conditions), given


def _of_threads(name: str, conditions: str, join: str = "") -> str:
    """Returns a statement whose first columns are those of the SQL function `thread`."""
    columns = _SQL["thread"].format(unknown_pos=_unknown_pos("h.thread_uid"))
    statement: str = _SQL[name].format(thread=columns, conditions=conditions, join=join)
    return statement


class ListFilter(NamedTuple):
    """Which threads to list. Threads that `clear` has hidden are left out unless `hidden` is set."""

    subject: str | None = None
    prefix: str = ""
    hidden: bool = False

    def values(self, tenant: str, limit: int) -> dict[str, Any]:
        return self._asdict() | {"tenant": tenant, "beyond": self.prefix + LAST, "limit": limit}

    @property
    def conditions(self) -> str:
        has = {"subject": self.subject is not None, "prefix": self.prefix, "shown": not self.hidden}
        return "".join(_SQL["listed"][name] for name, is_set in has.items() if is_set)


def threads(
    connection: Connection, tenant: str, after: str, wanted: ListFilter, erased: bool, limit: int
) -> list[ThreadRow]:
    """Returns a page of a tenant's threads, or of its erased ones, in the order of their names."""
    given = wanted.values(tenant, limit) | {"after": after, "erased": erased}
    given |= {"stub": erasure.STUB, "after_stubs": erasure.AFTER_STUBS}
    statement = _of_threads("threads", wanted.conditions + (_SQL["listed"]["erased"] if erased else ""))
    # Without statistics, as after a load, Postgres expects few threads, and would read and sort all of them. Those of a
    # subject are found by its index, and sorted.
    setting = "enable_sort = off" if wanted.subject is None else ""
    return list(map(ThreadRow._make, select_of(connection, tenant, statement, given, setting)))


def recent_threads(
    connection: Connection, tenant: str, after: tuple[datetime, UUID] | None, wanted: ListFilter, limit: int
) -> list[ThreadRow]:
    """Returns a page of unerased threads, newest message first. The index orders by hour, so few are sorted."""
    given, conditions = wanted.values(tenant, limit), wanted.conditions
    if after is not None:
        at, uid = after
        hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0, tzinfo=None)
        given |= {"after_hour": hour, "after_at": at, "after_uid": uid}
        conditions += _SQL["after_recent"]
    statement = _of_threads("recent", conditions, _SQL["join_names"] if wanted.prefix else "")
    return list(map(ThreadRow._make, select_of(connection, tenant, statement, given)))


class OfSubject(NamedTuple):
    """A thread of a subject. One without messages is as old as its creation."""

    thread_uid: UUID
    thread_id: str
    last_pos: int
    last_message_at: datetime


def threads_of_subject(connection: Connection, tenant: str, subject: str, after: UUID, limit: int) -> list[OfSubject]:
    """Returns a page of a subject's threads in the order of their keys. Reads only what an eraser may read."""
    given = {"tenant": tenant, "subject": subject, "after": after, "limit": limit}
    return list(map(OfSubject._make, select_of(connection, tenant, _SQL["of_subject"], given)))


def subjects_of(connection: Connection, tenant: str, names: Sequence[str]) -> list[Any]:
    """Returns the thread_uid, the name and the subject of each thread with one of the names."""
    return select_of(connection, tenant, _SQL["subjects"], {"tenant": tenant, "names": list(names)})


def names_of(connection: Connection, tenant: str, uids: Sequence[UUID]) -> list[Any]:
    """Returns the thread_uid and the current name of each given thread that the tenant has in this database."""
    return select_of(connection, tenant, _SQL["names"], {"tenant": tenant, "uids": list(uids)})


_EVENT = ("thread_id", "pos", "kind", "critical", "actor", "login", "created_at", "thread_uid", "body")


class EventFilter(NamedTuple):
    """Conditions on events. A condition that is None matches any value."""

    kinds: list[str] | None = None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    subject: str | None = None


def tenant_events(
    connection: Connection,
    tenant: str,
    wanted: EventFilter,
    after: tuple[datetime, UUID, int] | None,
    newest_first: bool,
    limit: int,
) -> list[dict[str, Any]]:
    """Returns a page of events, in the order of their times, as their columns by name."""
    given = {name: value for name, value in wanted._asdict().items() if value is not None}
    conditions = [_SQL["where"][name] for name in given]
    given |= {"tenant": tenant, "limit": limit}
    if after is not None:
        given |= dict(zip(("after_at", "after_uid", "after_pos"), after, strict=True))
        conditions.append(_SQL["after"].format(than="<" if newest_first else ">"))
    where = "".join(f" AND {condition}" for condition in conditions)
    statement = _SQL["events"].format(conditions=where, desc=" DESC" if newest_first else "")
    return [dict(zip(_EVENT, row, strict=True)) for row in select_of(connection, tenant, statement, given)]


def figures(connection: Connection, tenant: str, since: datetime) -> Figures:
    """Counts with two statements: one reads the records since a time by their index, the other one all heads."""
    with transaction(connection, tenant, read_only=True):
        [(threads, erased, messages, records, leased)] = fetch(connection, _SQL["heads"], {"tenant": tenant})
        days = fetch(connection, _DAYS, {"tenant": tenant, "since": since})
    return Figures(threads, erased, messages, records, leased, tuple(DayFigures(*row) for row in days))
