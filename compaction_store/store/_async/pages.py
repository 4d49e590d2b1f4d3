"""Reads messages, threads, compaction records and events in pages, and searches them for a text."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store import arguments, models
from compaction_store.arguments import about
from compaction_store.compaction import records, size_estimate
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import InvalidInput, MessageNotFound
from compaction_store.integrity import erasure
from compaction_store.integrity.rows import ThreadHead
from compaction_store.messages import encoding
from compaction_store.models.record_filters import FILTERS, Filter, has_members
from compaction_store.models.vocabulary import EVENT_KINDS
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import CompactionFilter, CompactionKey, EventFilter, ListFilter, ThreadKey
from compaction_store.postgres.queries.functions import EventsRow
from compaction_store.rendering import receipts
from compaction_store.store.text_search import TextSearch
from compaction_store.store.threads import recency

_FIRST_PAGE = 16
_FIRST_ELEMENTS = 64
_LONGEST_PAGE = 2000
_PAGE_BYTES = 4 * 1024 * 1024
THREADS_PAGE = 500


async def messages(
    db: AsyncConnections, thread: ThreadKey, after: int, until: int | None, wanted: TextSearch | None = None
) -> AsyncIterator[models.Message]:
    """Yields the messages after one seq and up to another, oldest first; or only those that may have a wanted text."""
    limit = _FIRST_PAGE
    while True:
        rows = await db.call(queries.replay, thread, after, until, limit)
        for row in rows:
            if wanted is None or wanted.may_be_in(row.payload, row.meta):
                yield typed_rows.message(row)
        if len(rows) < limit:
            return
        # Use thread_uid from here on: the name may belong to another thread by now.
        thread = thread._replace(uid=thread.uid or rows[0].thread_uid)
        after = rows[-1].seq
        limit = _next_limit([len(row.payload or "") for row in rows], limit)


async def message(db: AsyncConnections, thread: ThreadKey, seq: int) -> models.Message:
    """Returns the message at a seq."""
    return (await message_and_erasure(db, thread, seq))[0]


async def message_and_erasure(db: AsyncConnections, thread: ThreadKey, seq: int) -> tuple[models.Message, int | None]:
    """Returns the message at a seq, and the pos of its erasure, or None if its row names no erasure."""
    rows = await db.call(queries.replay, thread, seq - 1, seq, 1)
    if not rows:
        raise MessageNotFound(f"no seq {seq}{about(thread.thread_id)}")
    return typed_rows.message(rows[0]), rows[0].redacted_pos


async def elements(
    db: AsyncConnections, thread: ThreadKey, parts: Iterable[models.Part]
) -> AsyncIterator[models.Element]:
    """Yields the elements of parts of an outline, in order. Reads messages and records together, in pages."""
    last_seq, limit = [sys.maxsize], _FIRST_ELEMENTS
    wanted = _places(parts, last_seq)
    while page := list(islice(wanted, limit)):
        seqs = [seq for seq, number in page if number is None]
        rows = await db.call(queries.elements, thread, seqs, [number for _, number in page if number is not None])
        found = {(element.seq, None) if element.number is None else (0, element.number): element
                 for element in map(typed_rows.element, rows)}  # fmt: skip
        for place in page:
            if place in found:
                yield found[place]
            elif place[1] is None:
                last_seq.append(min(last_seq[-1], place[0]))
        if rows:
            # Use thread_uid from here on: the name may belong to another thread by now.
            thread = thread._replace(uid=rows[0].thread_uid)
            limit = _next_limit([len(row.payload or "") for row in rows], limit)


def _places(parts: Iterable[models.Part], last_seq: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Yields a seq and None for a message up to the newest `last_seq`, and 0 and a number for a record."""
    for part in parts:
        if part.number is not None:
            yield 0, part.number
            continue
        for seq in range(part.seq, part.end_seq + 1):
            if seq > last_seq[-1]:
                break
            yield seq, None


async def last_messages(db: AsyncConnections, thread: ThreadKey, count: int) -> AsyncIterator[models.Message]:
    """Yields the newest messages, oldest first."""
    if count > _LONGEST_PAGE:
        found = typed_rows.thread(await db.call(queries.thread, thread))
        thread, until = thread._replace(uid=found.thread_uid), found.last_seq
        async for message in messages(db, thread, max(0, until - count), until):
            yield message
        return
    for row in reversed(await db.call(queries.newest, thread, count)):
        yield typed_rows.message(row)


async def threads(
    db: AsyncConnections, tenant: str, after: str, wanted: ListFilter, size: int = 0
) -> AsyncIterator[models.Thread]:
    """Yields threads by name, with erased ones last: one that is erased meanwhile is not missed, nor yielded again."""
    listed, size = array("Q"), size or THREADS_PAGE
    if erasure.stub_uid(after) is None:
        async for thread in _threads(db, tenant, after, wanted, size, erased=False):
            listed.append(_random_bits(thread))
            yield thread
        after = ""
    before: set[int] | None = None
    async for thread in _threads(db, tenant, after, wanted, size, erased=True):
        before = set(listed) if before is None else before
        if _random_bits(thread) not in before:
            yield thread


async def _threads(
    db: AsyncConnections, tenant: str, after: str, wanted: ListFilter, size: int, *, erased: bool
) -> AsyncIterator[models.Thread]:
    while True:
        rows = await db.call(queries.threads, tenant, after, wanted, erased, size)
        for row in rows:
            yield typed_rows.thread(row)
        if len(rows) < size:
            return
        after = rows[-1].thread_id


async def recent_threads(
    db: AsyncConnections, tenant: str, after: tuple[datetime, UUID] | None, wanted: ListFilter, size: int
) -> AsyncIterator[models.Thread]:
    """Yields threads, the one with the newest message first."""
    while True:
        rows = await db.call(queries.recent_threads, tenant, after, wanted, size)
        for row in rows:
            yield typed_rows.thread(row)
        if len(rows) < size:
            return
        after = recency(typed_rows.thread(rows[-1]))


async def chosen_threads(
    found: AsyncIterator[models.Thread], metadata: Mapping[str, Any] | None, limit: int | None
) -> AsyncIterator[models.Thread]:
    """Yields up to `limit` threads whose metadata has all members of `metadata`."""
    count = 0
    async for thread in found:
        if metadata is None or has_members(thread.metadata, metadata):
            yield thread
            count += 1
            if count == limit:
                return


def _random_bits(thread: models.Thread) -> int:
    return thread.thread_uid.int & 0xFFFFFFFFFFFFFFFF


def _next_limit(sizes: list[int], limit: int) -> int:
    """Returns how many rows to read next for a page of about four megabytes, from the sizes of the last rows."""
    return max(1, min(_LONGEST_PAGE, limit * 16, _PAGE_BYTES // (sum(sizes) // len(sizes) + 1)))


_PAGE = 100
# How many of the last messages are searched for a reply that reports its usage.
_REPORTS = 100


# ---- compaction records and events


def checked_filters(given: Mapping[str, Any], known: Iterable[str] = FILTERS) -> dict[str, Any]:
    """Returns the filters that are not None. Raises an error for a value that no record can match."""
    for name in given:
        if name not in known:
            raise InvalidInput(f"the filters must be among {', '.join(known)}; not {name!r:.80}")
    return {name: _checked(FILTERS[name], value) for name, value in given.items() if value is not None}


def _checked(row: Filter, value: Any) -> Any:
    """Checks the value of a filter. Copies an object, which the caller may change."""
    match row.form:
        case "choice":
            arguments.one_of(value, row.choices, row.name)
        case "choices":
            chosen = list(value) if isinstance(value, (list, tuple)) else [value]
            for each in chosen or [""]:
                arguments.one_of("" if each is None else each, row.choices, row.name)
            return chosen
        case "text":
            arguments.optional_name(value, row.name)
        case "number":
            arguments.number(value, row.name, least=1)
        case "range":
            arguments.bounds(value, row.name)
        case "time":
            arguments.moment(value, row.name)
        case "uuid":
            arguments.instance(value, UUID, row.name)
        case "object":
            return encoding.json_object(value, row.name)
    return value


async def compaction_log(
    db: AsyncConnections,
    tenant: str,
    wanted: CompactionFilter,
    *,
    newest_first: bool = False,
    after: CompactionKey | None = None,
) -> AsyncIterator[models.Compaction]:
    """Yields the records after `after` that match a filter. Reads them in pages."""
    while True:
        rows = await db.call(queries.compactions, tenant, wanted, after, newest_first, _PAGE)
        for row in rows:
            record = records.from_row(row)
            # The query does not check these conditions exactly.
            if all(check(record, value) for name, value in wanted.filters.items() if (check := FILTERS[name].holds)):
                yield record
        if len(rows) < _PAGE:
            return
        reached = CompactionKey(*[rows[-1][name] for name in CompactionKey._fields])
        if reached == after:
            # Forged times may not be ordered; without this check, the same page would be read forever.
            return
        after = reached


async def sample(
    db: AsyncConnections, tenant: str, wanted: CompactionFilter, seed: int, count: int, among: int
) -> models.Sample:
    """Draws a sample of record keys, then reads these records thread by thread."""
    population, keys = await db.call(queries.sample, tenant, wanted, seed, count, among + 1)
    if is_more := population > among:
        population, keys = await db.call(queries.sample, tenant, wanted, seed, count, among)
    found = {}
    for uid in dict.fromkeys(uid for uid, _ in keys):
        numbers = [number for of, number in keys if of == uid]
        async for record in compaction_log(db, tenant, CompactionFilter(uid, numbers=numbers)):
            found[uid, record.number] = record
    return models.Sample(tuple(found[key] for key in keys if key in found), population, not is_more)


def event_kinds(kind: str | Sequence[str] | None) -> list[str] | None:
    """Returns the wanted kinds as a list, or None for all kinds."""
    if kind is None or isinstance(kind, str):
        return None if kind is None else [kind]
    if not isinstance(kind, (list, tuple)) or None in kind:
        given = "a list with None" if isinstance(kind, (list, tuple)) else type(kind).__name__
        raise InvalidInput(f"kind must be one kind of event or a list of kinds, not {given}")
    return list(kind)


def check_event_filter(wanted: EventFilter) -> EventFilter:
    """Raises an error for arguments that no event can match."""
    for kind in wanted.kinds or ():
        arguments.one_of(kind, EVENT_KINDS, "kind")
    arguments.optional_name(wanted.actor, "actor")
    arguments.optional_name(wanted.subject, "subject")
    for what in ("since", "until"):
        if getattr(wanted, what) is not None:
            arguments.moment(getattr(wanted, what), what)
    return wanted


async def matching_events(
    db: AsyncConnections, thread: ThreadKey, after: int, wanted: EventFilter, *, newest_first: bool
) -> AsyncIterator[models.Event]:
    """Yields those of the events from `events` that match a filter."""
    async for event in events(db, thread, after, wanted.kinds, newest_first=newest_first):
        if (
            wanted.actor in (None, event.actor)
            and (wanted.since is None or event.created_at >= wanted.since)
            and (wanted.until is None or event.created_at <= wanted.until)
        ):
            yield event


async def tenant_events(
    db: AsyncConnections,
    tenant: str,
    wanted: EventFilter,
    *,
    newest_first: bool,
    after: tuple[datetime, UUID, int] | None = None,
) -> AsyncIterator[models.Event]:
    """Yields the matching events of all threads of a tenant, in the order of their times."""
    while True:
        rows = await db.call(queries.tenant_events, tenant, wanted, after, newest_first, _PAGE)
        for row in rows:
            yield erasure.event(row)
        if len(rows) < _PAGE:
            return
        last = rows[-1]
        if (reached := (last["created_at"], last["thread_uid"], last["pos"])) == after:
            # Forged times may not be ordered; without this check, the same page would be read forever.
            return
        after = reached


# The parts of FeedEntry.cursor: the number of a transaction, a thread_uid, a pos and the hash of an entry.
_CURSOR = re.compile(
    r"([0-9]{1,18})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{1,18})-([0-9a-f]{64})", re.ASCII
)


def check_cursor(cursor: str) -> tuple[Any, ...]:
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidInput("after must be the cursor of an entry of the feed")
    return int(found[1]), UUID(found[2]), int(found[3]), bytes.fromhex(found[4])


async def feed(
    db: AsyncConnections, tenant: str, after: tuple[Any, ...] | None, *, messages: bool, content: bool
) -> AsyncIterator[models.FeedEntry]:
    """Yields the entries of all threads of a tenant that no running transaction can still precede."""
    xid, uid, pos, entry = after or (None, None, None, None)
    limit = _FIRST_PAGE
    while True:
        rows = await db.call(queries.feed, tenant, xid, uid, pos, entry, messages, content, limit)
        for row in rows:
            yield typed_rows.feed_entry(row)
        if len(rows) < limit:
            return
        xid, uid, pos, entry, *_ = rows[-1]
        limit = _next_limit([len(row.content or "") for row in rows], limit)


async def tenants(db: AsyncConnections, after: str) -> AsyncIterator[str]:
    """Yields the tenants that have threads."""
    while True:
        names = await db.call(queries.tenants, after, _PAGE)
        for name in names:
            yield name
        if len(names) < _PAGE:
            return
        after = names[-1]


async def events(
    db: AsyncConnections, thread: ThreadKey, after: int, kinds: list[str] | None = None, *, newest_first: bool = False
) -> AsyncIterator[models.Event]:
    """Yields a thread's events after a pos; with `newest_first`, the events before the pos."""
    while True:
        rows = await db.call(queries.events, thread, kinds, after, newest_first, _PAGE)
        for row in rows:
            yield _event(thread, row)
        if len(rows) < _PAGE:
            return
        # Use thread_uid from here on: the name may belong to another thread by now.
        thread = thread._replace(uid=rows[0].thread_uid)
        after = rows[-1].pos


def _event(thread: ThreadKey, row: EventsRow) -> models.Event:
    return erasure.event({"thread_id": thread.thread_id, **row._asdict()})


async def entries(
    db: AsyncConnections, thread: ThreadKey, after: int | datetime, count: int
) -> list[models.Message | models.Compaction | models.Event]:
    """Returns the entries after a pos, or after a time, in the order of their pos."""
    if not isinstance(after, int):
        thread = thread._replace(uid=typed_rows.thread(await db.call(queries.thread, thread)).thread_uid)
        after = int(await db.call(queries.pos_at, thread, after))
    state = ThreadHead._make(await db.call(queries.thread_state, thread, after))
    thread = thread._replace(uid=state.thread_uid)
    # Every pos has one entry, so there are at most `count` of each kind.
    wanted = CompactionFilter(thread.uid, numbers=list(range(state.number_at + 1, state.number_at + count + 1)))
    seq = state.seq_at or 0
    found: list[models.Message | models.Compaction | models.Event] = [
        message async for message in messages(db, thread, seq, seq + count)
    ]
    found += [record async for record in compaction_log(db, thread.tenant, wanted)]
    async for event in events(db, thread, after):
        if event.pos > after + count:
            break
        found.append(event)
    return sorted((entry for entry in found if after < entry.pos <= after + count), key=lambda entry: entry.pos)


async def redaction_of(
    db: AsyncConnections, thread: ThreadKey, message: models.Message, redacted_pos: int | None
) -> models.Event | None:
    """Returns the event that erased a message, or None. The pos in its row may be forged, so others are searched."""
    if redacted_pos is None:
        return None
    for event in await db.call(queries.events, thread, ["redaction"], redacted_pos - 1, False, 1):
        found = _event(thread, event)
        if erasure.names(found, message.seq):
            return found
    async for found in events(db, thread, message.pos, ["redaction"]):
        if erasure.names(found, message.seq):
            return found
    return None


class WithReceipt(NamedTuple):
    """The pos of a message, its receipt, and the key of its thread."""

    pos: int
    receipt: models.Payload | None
    thread: ThreadKey


async def receipt_of(db: AsyncConnections, thread: ThreadKey, seq: int) -> WithReceipt | None:
    """Returns the pos and receipt of a message, or None if there is no such message."""
    found = await db.call(queries.receipt, thread, seq)
    if found is None:
        return None
    pos, text, uid = found
    receipt = None if text is None else receipts.read_receipt(text, seq, thread.thread_id)
    return WithReceipt(pos, receipt, thread._replace(uid=uid))


async def due(db: AsyncConnections, tenant: str, budget: TokenBudget, idle: float) -> AsyncIterator[models.Thread]:
    """Yields the threads whose view is over a budget, judged by stored counts and the newest reported usage."""
    margin = max(1, budget.trigger_tokens - budget.target_tokens)
    after = None
    while True:
        rows = await db.call(queries.due, tenant, budget.trigger_tokens, margin, after, _PAGE, idle, _REPORTS)
        for row in rows:
            measured = size_estimate.calibrated(row.thread.view_tokens, budget, size_estimate.reported(row.reported))
            if budget.is_over(measured.tokens):
                yield typed_rows.thread(row.thread)
        if len(rows) < _PAGE:
            return
        after = rows[-1].view_tokens_coarse, rows[-1].thread.thread_uid


async def calibrated(db: AsyncConnections, thread: ThreadKey, local: int, budget: TokenBudget) -> models.Measured:
    """Estimates the size of a view from the store's own count and the newest reply that reports its usage."""
    rows = await db.call(queries.reported, thread, _REPORTS)
    return size_estimate.calibrated(local, budget, size_estimate.reported(rows))


# ---- a text in all threads, or in one


async def search_all(db: AsyncConnections, tenant: str, wanted: TextSearch, after: str) -> AsyncIterator[models.Found]:
    async for thread in threads(db, tenant, after, ListFilter(hidden=True)):
        async for found in _found(db, tenant, thread, wanted):
            yield found


async def search_thread(db: AsyncConnections, thread: ThreadKey, wanted: TextSearch) -> AsyncIterator[models.Found]:
    async for found in _found(db, thread.tenant, typed_rows.thread(await db.call(queries.thread, thread)), wanted):
        yield found


async def _found(
    db: AsyncConnections, tenant: str, thread: models.Thread, wanted: TextSearch
) -> AsyncIterator[models.Found]:
    # Use thread_uid: the name may belong to another thread by now.
    key = ThreadKey(thread.thread_uid, tenant, thread.thread_id)
    if (found := wanted.in_thread(thread)) is not None:
        yield found
    if thread.erased_pos is not None:
        return
    async for message in messages(db, key, 0, None, wanted):
        if (found := wanted.in_message(thread.thread_id, message)) is not None:
            yield found
    if thread.last_number:
        async for record in compaction_log(db, tenant, CompactionFilter(thread.thread_uid)):
            if (found := wanted.in_record(record)) is not None:
                yield found
