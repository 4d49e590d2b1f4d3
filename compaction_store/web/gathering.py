"""Reads the data of the audit pages from the store. Every list is bounded and says whether there is more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple, cast

from compaction_store.audit import charts
from compaction_store.audit.costs import Cost, Costs
from compaction_store.audit.marks import KnownFacts, MarkedPiece, ShownMessage, Sources, original, replacements
from compaction_store.audit.safe_text import json_shown
from compaction_store.audit.samples import MOST_POPULATION, coverage
from compaction_store.audit.words import KEEPING, said
from compaction_store.checkpoints import Checkpoint
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import CompactionNotFound, UnknownEntry
from compaction_store.integrity import erasure
from compaction_store.language.names import NameReader
from compaction_store.messages.encoding import canonical
from compaction_store.models import Compaction, Comparison, Element, Event, Message, Thread, Verdict
from compaction_store.models.vocabulary import EventKind
from compaction_store.store import AsyncReader
from compaction_store.store.pinning import pinned
from compaction_store.web.lists import ROWS, Listed, first, first_within
from compaction_store.web.thread_events import (
    MOST_EVENTS,
    Copied,
    copied,
    events_of,
    fork_names,
    kept_as,
    uid_of,
)

#: The most characters of a message on one page.
MESSAGE_PAGE = 100_000
# The most records whose costs are summed.
_MOST_COSTS = 5000
_ERASURES: tuple[EventKind, ...] = ("redaction", "refusal", "hold", "release", "retention")


async def resolved(reader: AsyncReader, thread_id: str) -> tuple[AsyncReader, Thread]:
    """Returns a thread, and a reader for which the name stays the name of this thread.

    A page reads a thread with several statements. Between two of them, the thread may be erased, and another thread may
    get its name.
    """
    found = await reader.thread(thread_id, hidden=True)
    return pinned(reader, thread_id, found.thread_uid), found


async def threads(reader: AsyncReader, after: str, budget: TokenBudget | None) -> dict[str, Any]:
    listed = await first(reader.threads(after=after, hidden=True))
    due = None if budget is None or after else await first(reader.due(budget))
    names = [found.thread_id for found in (*listed.rows, *(due.rows if due is not None else ()))]
    events = await events_of(reader, names, KEEPING)
    kept = {name: text for name, its in events.by_name.items() if (text := kept_as(its))}
    return {"threads": listed, "due": due, "budget": budget, "kept": kept, "more_kept": events.more}


async def thread(
    reader: AsyncReader, thread_id: str, before: int | None, before_pos: int, *, with_costs: bool = False
) -> dict[str, Any]:
    """Gathers a thread's figures, a page of its records, and a page of its events, newest first.

    The costs of its records are summed if all are on the page, or if `with_costs` is true.
    """
    reader, found = await resolved(reader, thread_id)
    start = None if before is None else await reader.compaction(thread_id, before)
    records = await first(reader.compactions(thread_id, newest_first=True, after=start))
    summed = await first(reader.compactions(thread_id), _MOST_COSTS) if with_costs else records
    events = await first(reader.audit.events(thread_id, newest_first=True, after=before_pos))
    copies, _ = await copied(reader, [thread_id])
    return {
        "thread": found, "records": records, "events": events, "marks": _marks(found, records.rows, events.rows),
        "known_pos": _known_pos(found), "names": await fork_names(reader, events.rows), "copies": copies,
        "first_pos": await _first_pos(reader, found),
        "costs": _costs(summed.rows, copies) if with_costs or (before is None and not summed.more) else None,
        "more_costs": summed.more, "kept": kept_as((await events_of(reader, [thread_id], KEEPING)).by_name[thread_id]),
    }  # fmt: skip


async def _first_pos(reader: AsyncReader, found: Thread) -> int:
    """Returns the first pos that has a view: that of the first message. In a fork, it comes after the origin."""
    async for message in reader.replay(found.thread_id, until=1):
        return message.pos
    return found.last_pos


def _costs(records: Iterable[Compaction], copies: dict[str, Copied]) -> Costs:
    """Sums the costs of records. Leaves out the copies in a fork, which cost nothing."""
    found = Costs()
    for record in records:
        if record.thread_id not in copies or record.pos > copies[record.thread_id].pos:
            found.add(record)
    return found


class ChartMark(NamedTuple):
    """A mark below a chart, for a compaction record, an event or a checkpoint."""

    x: float
    label: str
    kind: str
    number: int | None
    pos: int


def checkpoint_mark(found: Thread, checkpoint: Checkpoint, signed_pos: int) -> ChartMark | None:
    """Returns the mark of the last pos that a checkpoint covers; None if it covers nothing that the chart shows."""
    last = _known_pos(found)
    if not 0 < signed_pos <= last:
        return None
    label = f"newest checkpoint, of {checkpoint.time:%Y-%m-%d %H:%M:%S} UTC,"
    return ChartMark(charts.x(signed_pos, last), label, "checkpoint", None, signed_pos)


def _known_pos(found: Thread) -> int:
    """Returns the last pos at which the view is known."""
    return found.last_pos if found.unknown_pos is None else found.unknown_pos - 1


def _marks(found: Thread, records: Iterable[Compaction], events: Iterable[Event]) -> list[ChartMark]:
    last = _known_pos(found)
    marks = [
        ChartMark(charts.x(r.pos, last), f"{r.kind} {r.number}, {r.outcome}", r.kind, r.number, r.pos)
        for r in records
        if r.outcome == "applied"
    ]
    marks += [ChartMark(charts.x(e.pos, last), e.kind, e.kind, None, e.pos) for e in events]
    return sorted((mark for mark in marks if mark.pos <= last), key=lambda mark: mark.pos)


async def course(reader: AsyncReader, found: Thread) -> charts.Course:
    """Returns the tokens of a thread's view over time, for the chart. Subtracts erased tokens at the last erasure."""
    reader = pinned(reader, found.thread_id, found.thread_uid)
    steps = [charts.Step(step.pos, step.change or 0) for step in await reader.audit.token_steps(found.thread_id)]
    erased = found.last_pos
    async for event in reader.audit.events(found.thread_id, kind="redaction", newest_first=True):
        erased = event.pos
        break
    return charts.whole_course(steps, tokens=found.view_tokens, last_pos=found.last_pos, erased_pos=erased)


# ---- views


class Row(NamedTuple):
    """An element of one view beside an element of another view. Both are the same object if they are equal."""

    left: Element | None
    right: Element | None


async def view(
    reader: AsyncReader, thread_id: str, at: int | None, beside: int | None, start: int, *, only_changes: bool
) -> dict[str, Any]:
    """Gathers one page of the view at a pos, beside the view at another pos if `beside` is given."""
    reader, found = await resolved(reader, thread_id)
    at = found.last_pos if at is None else at
    compared = await reader.audit.compare(
        thread_id, at, beside, only_changes=only_changes and beside is not None, start=start, count=ROWS
    )
    # A comparison has no figures of its two views.
    sides = [] if beside is None else [await reader.audit.compare(thread_id, pos, count=1) for pos in (at, beside)]
    earlier, later = await reader.audit.neighbours(thread_id, at)
    return {
        "thread": found, "at": at, "beside": beside, "tokens": compared.tokens,
        "sides": sides,
        "rows": await _rows(reader, compared),
        "start": start, "more": compared.count > start + ROWS, "count": compared.count, "changed": compared.changed,
        "only_changes": only_changes, "positions": _positions(await _first_pos(reader, found), found.last_pos),
        "records": {"earlier": None if earlier is None or earlier == 1 else earlier - 1, "later": later},
    }  # fmt: skip


async def _rows(reader: AsyncReader, compared: Comparison) -> list[Row]:
    """Reads the elements of a page of one view, or of a page that compares two views."""
    sides = {
        (seq, part.number): (is_left, is_right)
        for part, is_left, is_right in compared.parts
        for seq in (range(part.seq, part.end_seq + 1) if part.number is None else [part.seq])
    }
    found = []
    for element in await reader.audit.elements(compared.thread_id, [each.part for each in compared.parts]):
        is_left, is_right = sides[element.seq, element.number]
        found.append(Row(element if is_left else None, element if is_right else None))
    return found


def _positions(first: int, last: int) -> list[int]:
    """Returns up to twenty positions from the first on, evenly distributed over the thread, for the page's links."""
    count = min(20, last)
    return sorted({max(first, round(last * part / count)) for part in range(1, count + 1)}) if count else []


# ---- records


async def record(reader: AsyncReader, thread_id: str, number: int, after: int, *, content: bool) -> dict[str, Any]:
    """Gathers a record, the originals of its span, and what its summary kept, lost and invented."""
    reader, _ = await resolved(reader, thread_id)
    found = await reader.compaction(thread_id, number)
    verdicts, more_verdicts = await _verdicts(reader, thread_id)
    shared = {
        "record": found, "inside": await _inside(reader, found), "content": content,
        "undone": await _undone(reader, found), "copied": _copy_of(found, (await copied(reader, [thread_id]))[0]),
        "verdicts": [verdict for verdict in verdicts if verdict.number == number], "more_verdicts": more_verdicts,
    }  # fmt: skip
    if found.start_seq is None or found.end_seq is None:
        return shared | {"originals": None, "after": after, "replaced": [], "compared": False, "cut": False}
    texts = await asyncio.to_thread(replacements, found) if content else []
    replaced = [text[:MESSAGE_PAGE] for text in texts[:ROWS]]
    start = max(after, found.start_seq - 1)
    # Seqs have no gaps, so this reads one message more than the page has.
    originals = await first(reader.replay(thread_id, after=start, until=min(found.end_seq, start + ROWS + 1)))
    names = NameReader()
    is_whole = start < found.start_seq and not originals.more
    sources = Sources(found, replaced, names)
    if content and is_whole:
        # Do not read the originals again, because the page has all of them.
        await asyncio.to_thread(sources.add_all, originals.rows)
    elif content:
        async for message in reader.audit.originals(found):
            if not await asyncio.to_thread(sources.add, message):
                break
    marked = await asyncio.to_thread(_marked, originals.rows, replaced, sources if content else None, names)
    return shared | {
        "last": originals.rows[-1].seq if originals.rows else 0, "after": after,
        "originals": Listed(marked.originals, originals.more), "replaced": marked.replaced,
        "compared": marked.compared, "cut": replaced != texts,
    }  # fmt: skip


class _Marked(NamedTuple):
    originals: list[ShownMessage]
    replaced: list[list[MarkedPiece]]
    compared: bool


def _marked(originals: Iterable[Message], replaced: list[str], sources: Sources | None, names: NameReader) -> _Marked:
    """Marks what a record kept, lost and added. Without `sources`, the pages show no words."""
    facts = None if sources is None else sources.facts
    kept = KnownFacts(replaced, names=names) if replaced else None
    return _Marked(
        [original(message, kept, content=sources is not None) for message in originals],
        [facts.marked(text, missing="new") if facts is not None else [MarkedPiece(text, "")] for text in replaced],
        facts is not None and bool(replaced),
    )


def _copy_of(found: Compaction, copies: dict[str, Copied]) -> Copied | None:
    copied = copies.get(found.thread_id)
    return copied if copied is not None and found.pos <= copied.pos else None


async def _undone(reader: AsyncReader, found: Compaction) -> list[tuple[str, Compaction]]:
    """Returns the later records that undid a record, each after the word "revoked" or "superseded"."""
    later = (("revoked", found.revoked_by), ("superseded", found.superseded_by))
    return [(how, await reader.compaction(found.thread_id, by)) for how, by in later if by is not None]


async def _inside(reader: AsyncReader, found: Compaction) -> list[int]:
    """Returns the numbers of the records that were active in a record's span just before it was written."""
    if found.start_seq is None or found.end_seq is None:
        return []
    try:
        # The span of an observed record may begin or end inside an element.
        span = None if found.outcome == "observed" else (found.start_seq, found.end_seq)
        before = await reader.audit.outline(found.thread_id, at=found.pos - 1, span=span)
    except UnknownEntry:
        return []
    return [
        part.number
        for part in before.parts
        if part.number is not None and found.start_seq <= part.seq and part.end_seq <= found.end_seq
    ]


# ---- messages and replies


async def message(reader: AsyncReader, thread_id: str, seq: int, part: int, *, content: bool) -> dict[str, Any]:
    """Gathers a message, the records that covered it, its erasure, and its receipt if it is a reply."""
    reader, found = await resolved(reader, thread_id)
    explained = await reader.audit.explain(thread_id, seq, records=ROWS + 1)
    is_shown = content and not explained.message.redacted
    text = await asyncio.to_thread(said, explained.message.payload) if is_shown else ""
    return {
        "explained": explained, "message": explained.message, "content": content, "last_seq": found.last_seq,
        "records": explained.records[::-1][:ROWS], "more_records": len(explained.records) > ROWS, **_part(text, part),
    }  # fmt: skip


def _part(text: str, part: int) -> dict[str, Any]:
    """Returns a part of a long text, and the number of its parts."""
    parts = max(1, -(-len(text) // MESSAGE_PAGE))
    part = min(max(1, part), parts)
    return {"part": part, "pages": parts, "text": text[(part - 1) * MESSAGE_PAGE : part * MESSAGE_PAGE]}


async def whole(
    reader: AsyncReader,
    thread_id: str,
    *,
    part: int,
    pos: int | None = None,
    number: int | None = None,
    seq: int | None = None,
) -> dict[str, Any]:
    """Gathers all fields of an event, a record or a message, or of the thread itself, as JSON."""
    reader, found = await resolved(reader, thread_id)
    value: Thread | Event | Compaction | Message = found
    if pos is not None:
        value = await event(reader, thread_id, pos)
    elif number is not None:
        value = await reader.compaction(thread_id, number)
    elif seq is not None:
        value = (await reader.audit.explain(thread_id, seq, records=1)).message
    return _part(await asyncio.to_thread(_fields, value), part)


def _fields(value: Thread | Event | Compaction | Message) -> str:
    """Returns all fields of a value as JSON for people to read."""
    fields = json.dumps(value.as_dict(), ensure_ascii=False, indent=1).split("\n")
    return "\n".join(map(json_shown, fields))


async def reply(reader: AsyncReader, thread_id: str, seq: int, start: int) -> dict[str, Any]:
    """Gathers the view that a reply was written from.

    If the reply has a receipt, the whole view is read to compare it with the receipt. Otherwise, one page is read.
    """
    reader, _ = await resolved(reader, thread_id)
    explained = await reader.audit.explain(thread_id, seq, records=1)
    if explained.receipt is None and seq > 1:
        before = await reader.audit.compare(thread_id, explained.message.pos - 1, start=start, count=ROWS)
        return {
            "seq": seq, "role": explained.message.role, "evidence": "reconstructed",
            "rows": await _rows(reader, before), "start": start,
            "more": before.count > start + ROWS, "count": before.count, "tokens": before.tokens, "receipt": None,
            "of": thread_id, "at": explained.message.pos - 1, "has_erased": False,
        }  # fmt: skip
    seen = await reader.seen_by(thread_id, seq)
    rows = [Row(element, None) for element in seen.view.elements]
    return {
        "seq": seq, "role": explained.message.role, "evidence": seen.evidence,
        "rows": rows[start : start + ROWS], "start": start,
        "more": len(rows) > start + ROWS, "count": len(rows), "tokens": seen.view.tokens,
        "receipt": seen.receipt, "of": seen.view.thread_id, "at": seen.view.pos,
        "has_erased": any(element.is_erased for element in seen.view.elements),
    }  # fmt: skip


# ---- across threads


class SummedCosts(NamedTuple):
    """The costs of records, and the newest record with a cost. `dearest` is the record whose calls took most tokens.

    If `is_cut`, the time did not suffice for all records. If `more_copies`, copies in forks may be counted a second
    time.
    """

    sums: Costs
    newest: Compaction | None
    dearest: tuple[Compaction, Cost] | None
    is_cut: bool
    more_copies: bool


async def costs_of(reader: AsyncReader, thread_id: str | None, wanted: dict[str, Any], seconds: float) -> SummedCosts:
    """Sums the costs of all records that match. Leaves out the copies in forks, which cost nothing."""
    sums, newest, is_cut = Costs(), None, False
    dearest: tuple[Compaction, Cost] | None = None
    copies, more_copies = await copied(reader, None if thread_id is None else [thread_id])
    try:
        async with asyncio.timeout(seconds):
            async for record in reader.compactions(thread_id, newest_first=True, **wanted):
                if record.thread_id not in copies or record.pos > copies[record.thread_id].pos:
                    sums.add(record)
                    cost = Costs.of(record)
                    if cost.calls:
                        newest = newest or record
                        if dearest is None or cost.tokens > dearest[1].tokens:
                            dearest = record, cost
    except TimeoutError:
        is_cut = True
    return SummedCosts(sums, newest, dearest, is_cut, more_copies)


async def records(
    reader: AsyncReader,
    thread_id: str | None,
    wanted: dict[str, Any],
    after: tuple[str, int] | None,
    *,
    seconds: float,
    with_costs: bool = False,
) -> dict[str, Any]:
    """Gathers a page of the records that match, newest first.

    The costs are summed over all matching records if all are on the page, or if `with_costs` is true. The search and
    the sum each stop after some seconds.
    """
    start = None if after is None else await reader.compaction(*after)
    if thread_id is not None:
        reader, _ = await resolved(reader, thread_id)
    listed = await first_within(seconds, reader.compactions(thread_id, newest_first=True, after=start, **wanted))
    copies, more = await copied(reader, [found.thread_id for found in listed.rows])
    costs = None
    if with_costs or (after is None and not listed.more):
        costs = await costs_of(reader, thread_id, wanted, seconds)
    return {"records": listed, "copies": copies, "more_copies": more, "costs": costs}


async def erasures(
    reader: AsyncReader, thread_id: str | None, kind: str | None, after: tuple[str, int] | None
) -> dict[str, Any]:
    """Gathers a page of erasures and holds, newest first. `after` names the last event of the previous page."""
    if thread_id is not None:
        reader, _ = await resolved(reader, thread_id)
    last = 0 if after is None else await event(reader, *after)
    # The store refuses any other kind.
    kinds = (cast("EventKind", kind),) if kind else _ERASURES
    listed = await first(reader.audit.events(thread_id, kind=kinds, newest_first=True, after=last))
    return {"events": listed, "kinds": _ERASURES}


async def certificate(reader: AsyncReader, thread_id: str, pos: int) -> dict[str, Any]:
    """Gathers an event, and the messages, records and forks that it names."""
    reader, thread = await resolved(reader, thread_id)
    found = await event(reader, thread_id, pos)
    erased = erasure.named(canonical(found.body)) if found.kind == "redaction" else None
    named = found.body.get("forks", found.body.get("spared_forks"))
    forks = named[:ROWS] if isinstance(named, list) else []
    names = await reader.audit.names_of({uid for each in forks if (uid := uid_of(each)) is not None})
    return {
        "event": found, "thread": thread, "release": await _release(reader, found),
        "seqs": _first_of(erased.seqs) if erased else [], "numbers": _first_of(erased.records) if erased else [],
        "forks": [(each, names.get(uid) if (uid := uid_of(each)) is not None else None) for each in forks],
        "names": await fork_names(reader, [found]),
    }  # fmt: skip


async def _release(reader: AsyncReader, found: Event) -> Event | None:
    """Returns the event that ended a hold, if there is one."""
    if found.kind == "hold":
        async for release in reader.audit.events(found.thread_id, kind="release", after=found.pos):
            return release
    return None


def _first_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    numbers = (number for start, end in ranges for number in range(start, end + 1))
    return list(islice(numbers, ROWS))


async def event(reader: AsyncReader, thread_id: str, pos: int) -> Event:
    async for found in reader.audit.events(thread_id, after=pos - 1):
        if found.pos == pos:
            return found
        break
    raise CompactionNotFound(f"there is no event at pos {pos} (thread {thread_id!r})")


async def sample(
    reader: AsyncReader, wanted: dict[str, Any], given: dict[str, Any], seed: int, count: int
) -> dict[str, Any]:
    """Draws a random sample of records, and gathers the verdicts on them that were given for this sample."""
    found = await reader.audit.sample(seed, count, among=MOST_POPULATION, **wanted)
    drawn = found.records
    name = {"seed": seed, "count": len(drawn), "population": found.population, **given}
    # An erasure changes the population, and may change the count.
    named = {"seed": seed, **given}
    verdicts = [
        verdict
        for thread_id, uid in dict.fromkeys((record.thread_id, record.thread_uid) for record in drawn)
        for verdict in (await _verdicts(pinned(reader, thread_id, uid), thread_id)).rows
        if {key: value for key, value in (verdict.sample or {}).items() if key not in ("count", "population")} == named
    ]
    numbers = {(record.thread_id, record.number) for record in drawn}
    verdicts = [verdict for verdict in verdicts if (verdict.thread_id, verdict.number) in numbers]
    return {
        "population": found.population, "more": not found.is_whole, "drawn": drawn, "seed": seed,
        "count": count, "name": name,
        "judged": {(verdict.thread_id, verdict.number): verdict for verdict in verdicts},
        "coverage": coverage(found.population, len(drawn), verdicts),
    }  # fmt: skip


async def _verdicts(reader: AsyncReader, thread_id: str) -> Listed:
    """Returns the newest verdicts on the records of a thread, oldest first."""
    events = await first(reader.audit.events(thread_id, kind="verdict", newest_first=True), MOST_EVENTS)
    found = [verdict for event in reversed(events.rows) if (verdict := Verdict.of(event)) is not None]
    return Listed(found, events.more)
