"""Reads the facts of threads and their events: lists, holds, forks, costs, and the chart of a thread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from compaction_store.arguments import LOG
from compaction_store.audit import charts, facts
from compaction_store.audit.facts import Cost, Costs
from compaction_store.audit.words import KEEPING, Kept, kept_by
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import CompactionNotFound, ThreadNotFound
from compaction_store.integrity import erasure
from compaction_store.messages.encoding import canonical
from compaction_store.models import Compaction, Event, Thread, TokenStep
from compaction_store.models.vocabulary import NO_ATTEMPTS, EventKind
from compaction_store.store.threads import pinned

if TYPE_CHECKING:
    from compaction_store.store import AsyncReader

T = TypeVar("T")

#: The most events that are searched on one page.
MOST_EVENTS = 500
# The most erasures that are steps of a chart.
_MOST_ERASURES = 10
#: The kinds of events on the page of erasures and holds.
ERASURES: tuple[EventKind, ...] = (
    "redaction", "refusal", "hold", "release", "retention", "policy", "rule", "removal", "shred", "grant", "ungrant",
    "migration",
)  # fmt: skip


async def resolved(reader: AsyncReader, thread_id: str) -> tuple[AsyncReader, Thread]:
    """Returns a thread, and a reader for which the name stays the name of this thread.

    A page reads a thread with several statements, between which the thread may be erased and its name be another's.
    """
    found = await reader.thread(thread_id, hidden=True)
    return pinned(reader, thread_id, found.thread_uid), found


async def first(
    found: AsyncIterator[T], count: int | None = facts.ROWS, *, of: Callable[[T], object] = lambda _: None
) -> facts.ListPage:
    """Collects one page of what is found. `OutOfTime`, by which a caller ends a search, ends the page.

    With `of`, the page ends before the row for which it returns one value more than `ROWS`.
    """
    rows: list[T] = []
    groups: set[object] = set()
    try:
        async for row in found:
            groups.add(of(row))
            if len(rows) == count or len(groups) > facts.ROWS:
                return facts.ListPage(rows, more=True)
            rows.append(row)
    except facts.OutOfTime:
        return facts.ListPage(rows, more=True)
    return facts.ListPage(rows, more=False)


async def thread_list(reader: AsyncReader, after: str = "", budget: TokenBudget | None = None) -> facts.ThreadList:
    listed = await first(reader.threads(after=after, hidden=True))
    due = None if budget is None or after else await first(reader.due(budget))
    names = [found.thread_id for found in (*listed.rows, *(due.rows if due is not None else ()))]
    kept, more = await kept_threads(reader, names)
    return facts.ThreadList(listed, due, kept, more)


async def thread(
    reader: AsyncReader, thread_id: str, at: int | datetime = 1, seq: int | None = None
) -> facts.ThreadPage:
    """Reads a thread, and a page of its entries from a pos, a time or a message on."""
    reader, found = await resolved(reader, thread_id)
    if seq is not None:
        at = (await reader.message(thread_id, seq)).pos
    start = at - 1 if isinstance(at, int) else await pos_at(reader, found, at)
    entries = await reader.audit.entries(thread_id, after=start, count=facts.ROWS)
    there = {entry.pos for entry in entries}
    expected = range(start + 1, min(start + facts.ROWS, found.last_pos) + 1)
    runs = facts.by_run(entry for entry in entries if isinstance(entry, Compaction))
    events = [entry for entry in entries if isinstance(entry, Event)]
    copies, _ = await copied(reader, [thread_id])
    kept, _ = await kept_threads(reader, [thread_id])
    return facts.ThreadPage(
        found, start, entries, [pos for pos in expected if pos not in there],
        charts.marks(found, runs, events), await fork_names(reader, events), copies,
        kept.get(thread_id, Kept()), await first_pos(reader, found), charts.known_pos(found),
    )  # fmt: skip


async def pos_at(reader: AsyncReader, found: Thread, moment: datetime) -> int:
    """Returns the last pos up to a time, or 0 if the thread is younger."""
    later = await reader.audit.entries(found.thread_id, after=moment, count=1)
    return later[0].pos - 1 if later else found.last_pos


async def first_pos(reader: AsyncReader, found: Thread) -> int:
    """Returns the first pos that has a view: that of the first message. In a fork, it comes after the origin."""
    async for message in reader.replay(found.thread_id, until=1):
        return message.pos
    return found.last_pos


async def course(reader: AsyncReader, found: Thread, *, ranges: int = 1000) -> charts.Course:
    """Returns the tokens of a thread's view over time, for the chart. `ranges` is the most points of messages."""
    steps, erased = await view_steps(reader, found, ranges=ranges)
    reader = pinned(reader, found.thread_id, found.thread_uid)
    times = {
        entry.pos: entry.created_at
        for pos in charts.places(found.last_pos)
        for entry in await reader.audit.entries(found.thread_id, after=pos - 1, count=1)
    }
    return charts.course(steps, tokens=found.view_tokens, last_pos=found.last_pos, erased_pos=erased, times=times)


async def view_steps(reader: AsyncReader, found: Thread, *, ranges: int = 1000) -> tuple[list[TokenStep], int]:
    """Returns the changes of a thread's view, and the pos of the last erasure, or of the head if there is none.

    If each step is of one entry, the earlier erasures are steps too. The chart computes the change of the last one from
    the tokens of the view now.
    """
    reader = pinned(reader, found.thread_id, found.thread_uid)
    steps = await reader.audit.token_steps(found.thread_id, ranges=ranges)
    erasures = await first(reader.audit.events(found.thread_id, kind="redaction", newest_first=True), _MOST_ERASURES)
    positions = [each.pos for each in reversed(erasures.rows)]
    for pos in (positions if found.view_tokens is None else positions[:-1]) if found.last_pos <= ranges else ():
        if pos <= charts.known_pos(found):
            before = sum(step.change or 0 for step in steps if step.pos <= pos)
            steps.append(TokenStep(pos, (await reader.audit.outline(found.thread_id, at=pos)).tokens - before, None))
    return steps, positions[-1] if positions else found.last_pos


def own(records: Iterable[Compaction], copies: dict[str, facts.Copied]) -> Iterable[Compaction]:
    """Leaves out the copies in forks, which cost nothing: their cost is counted with the parent's records."""
    return (each for each in records if each.thread_id not in copies or each.pos > copies[each.thread_id].pos)


async def summed_costs(
    reader: AsyncReader,
    found: AsyncIterator[Compaction],
    thread_id: str | None,
    spent: Callable[[Compaction], float | None],
) -> facts.SummedCosts:
    """Sums the costs of records, newest first. `OutOfTime`, by which a caller ends a search, ends the sum."""
    sums, newest, is_cut = Costs(), None, False
    actors: defaultdict[str, facts.ActorCost] = defaultdict(facts.ActorCost)
    dearest: tuple[Compaction, Cost] | None = None
    copies, more_copies = await copied(reader, None if thread_id is None else [thread_id])
    try:
        async for record in found:
            for own_record in own([record], copies):
                sums.add(own_record)
                cost = Costs.of(own_record)
                if own_record.kind not in NO_ATTEMPTS:
                    actors[own_record.actor or ""].include_attempt(cost, spent(own_record))
                if cost.calls:
                    newest = newest or own_record
                    if dearest is None or cost.tokens > dearest[1].tokens:
                        dearest = own_record, cost
    except facts.OutOfTime:
        is_cut = True
    return facts.SummedCosts(sums, newest, dearest, actors, is_cut, more_copies)


async def _events_of(
    reader: AsyncReader, names: Iterable[str] | None, kinds: tuple[EventKind, ...], most: int | None
) -> tuple[dict[str, list[Event]], bool]:
    """Returns the newest event of each kind of a thread, or the tenant's newest events for several or all threads.

    Each thread's events are newest first. The second value is true if earlier events were left out. Several threads
    take one query, because a page of a list must not send one for each of its rows.
    """
    found: defaultdict[str, list[Event]] = defaultdict(list)
    wanted = list(dict.fromkeys(names or ()))
    listed = facts.ListPage([], more=False)
    if names is None or len(wanted) > 1:
        listed = await first(reader.audit.events(kind=kinds, newest_first=True), most)
    elif wanted:
        for kind in kinds:
            listed.rows.extend((await first(reader.audit.events(wanted[0], kind=kind, newest_first=True), 1)).rows)
    for each in sorted(listed.rows, key=lambda each: each.pos, reverse=True):
        found[each.thread_id].append(each)
    return found, listed.more


async def kept_threads(
    reader: AsyncReader, names: Iterable[str] | None, most: int | None = MOST_EVENTS
) -> tuple[dict[str, Kept], bool]:
    """Returns which of these threads, or of all, are on hold or retained, and whether one may be missing."""
    events, more = await _events_of(reader, names, KEEPING, most)
    kept = {name: kept_by(its) for name, its in events.items()}
    return {name: its for name, its in kept.items() if its != Kept()}, more


async def log_of(reader: AsyncReader) -> list[Thread]:
    """Returns the log of the tenant, which no list of threads has, or an empty list if there is none."""
    try:
        return [await reader.thread(LOG)]
    except ThreadNotFound:
        return []


async def verified(reader: AsyncReader) -> Event | None:
    """Returns the newest recorded result of a verification of all threads."""
    with suppress(ThreadNotFound):
        async for found in reader.audit.events(LOG, kind="verification", newest_first=True):
            return found
    return None


async def copied(
    reader: AsyncReader, names: Iterable[str] | None, most: int | None = MOST_EVENTS
) -> tuple[dict[str, facts.Copied], bool]:
    """Returns the origins of forks' copies by fork, and whether one may be missing. For None, of all threads."""
    events, more = await _events_of(reader, names, ("origin",), most)
    origins = {name: its[-1] for name, its in events.items() if its[-1].pos == 1}
    uids = {name: _uid_of(origin.body.get("parent")) for name, origin in origins.items()}
    known = await reader.audit.names_of({uid for uid in uids.values() if uid is not None})
    found = {
        name: facts.Copied(origin.body["pos"] + 1, None if (uid := uids[name]) is None else known.get(uid), uid)
        for name, origin in origins.items()
        if type(origin.body.get("pos")) is int
    }
    return found, more


async def fork_names(reader: AsyncReader, events: Iterable[Event]) -> dict[int, str | None]:
    """Returns the name of the fork or parent that each event of a thread names, by the pos of the event."""
    named = {
        event.pos: _uid_of(event.body.get("child", event.body.get("parent")))
        for event in events
        if event.kind in ("fork", "origin")
    }
    names = await reader.audit.names_of({uid for uid in named.values() if uid is not None})
    return {pos: None if uid is None else names.get(uid) for pos, uid in named.items()}


def _uid_of(text: object) -> UUID | None:
    """Reads a thread_uid in an event's body. In an imported event, the value may be anything."""
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None


async def event(reader: AsyncReader, thread_id: str, pos: int) -> Event:
    async for found in reader.audit.events(thread_id, after=pos - 1):
        if found.pos == pos:
            return found
        break
    raise CompactionNotFound(f"there is no event at pos {pos} (thread {thread_id!r})")


async def event_list(
    reader: AsyncReader,
    thread_id: str | None = None,
    kind: str | None = None,
    after: tuple[str, int] | None = None,
    *,
    legal_basis: str | None = None,
    override: bool = False,
    oldest_first: bool = False,
    bounded: Callable[[AsyncIterator[Event]], AsyncIterator[Event]] = lambda found: found,
    **wanted: Any,
) -> facts.EventList:
    """Reads a page of erasures and holds. `after` names the last event of the previous page; only the first has counts.

    With `override`, only those that were made despite a hold or a term are read. `bounded` may end the search.
    """
    if thread_id is not None:
        reader, _ = await resolved(reader, thread_id)
    last = 0 if after is None else await event(reader, *after)
    # The store refuses any other kind.
    kinds = (cast("EventKind", kind),) if kind else ERASURES
    listed = reader.audit.events(thread_id, kind=kinds, newest_first=not oldest_first, after=last, **wanted)
    matching = (
        each
        async for each in listed
        if legal_basis in (None, _basis(each)) and (not override or each.body.get("overrides"))
    )
    found = await first(bounded(matching), MOST_EVENTS if after is None else facts.ROWS)
    page = facts.ListPage(found.rows[: facts.ROWS], found.more or len(found.rows) > facts.ROWS)
    if after is not None:
        return facts.EventList(page)
    keys = ("kind", [e.kind for e in found.rows]), ("actor", [e.actor or "" for e in found.rows])
    bases = "legal_basis", [_basis(e) or "" for e in found.rows]
    counts = {name: dict(Counter(its).most_common()) for name, its in (*keys, bases)}
    overrides = sum(bool(e.body.get("overrides")) for e in found.rows)
    return facts.EventList(page, len(found.rows), found.more, counts, overrides)


def _basis(found: Event) -> str | None:
    basis = found.body.get("legal_basis")
    return basis if isinstance(basis, str) else None


async def event_page(reader: AsyncReader, thread_id: str, pos: int) -> facts.EventPage:
    """Reads an event, and the messages, records and forks that it names."""
    reader, its_thread = await resolved(reader, thread_id)
    found = await event(reader, thread_id, pos)
    erased = erasure.named(canonical(found.body)) if found.kind == "redaction" else None
    named: Any = found.body.get("forks", found.body.get("spared_forks"))
    forks = named[: facts.ROWS] if isinstance(named, list) else []
    names = await reader.audit.names_of({uid for each in forks if (uid := _uid_of(each)) is not None})
    return facts.EventPage(
        found, its_thread, await _release(reader, found), _first_of(erased.seqs) if erased else [],
        _first_of(erased.records) if erased else [],
        [(each, names.get(uid) if (uid := _uid_of(each)) is not None else None) for each in forks],
        await fork_names(reader, [found]),
    )  # fmt: skip


async def _release(reader: AsyncReader, found: Event) -> Event | None:
    if found.kind == "hold":
        async for release in reader.audit.events(found.thread_id, kind="release", after=found.pos):
            return release
    return None


def _first_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return list(islice((number for start, end in ranges for number in range(start, end + 1)), facts.ROWS))
