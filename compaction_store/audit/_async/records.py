"""Reads the facts of records, messages and views: what a record replaced, and what a reply was written from."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from compaction_store import waiting
from compaction_store.arguments import about
from compaction_store.audit import facts
from compaction_store.audit._async import threads
from compaction_store.audit.marks import Sources, compare, differing, replacements
from compaction_store.audit.safe_text import json_shown
from compaction_store.audit.words import said
from compaction_store.errors import PositionNotFound, UnknownEntry
from compaction_store.language.names import NameReader
from compaction_store.models import Compaction, CompactionTree, Comparison, Element, Event, Message, Thread, Verdict
from compaction_store.models.vocabulary import NO_ATTEMPTS
from compaction_store.store.threads import pinned

if TYPE_CHECKING:
    from compaction_store.store import AsyncReader


# The most verdicts that are summed up.
_MOST_VERDICTS = 2000


async def view(
    reader: AsyncReader,
    thread_id: str,
    at: int | datetime | None = None,
    beside: int | datetime | None = None,
    start: int = 0,
    *,
    only_changes: bool = True,
) -> facts.ViewPage:
    """Reads one page of the view at a pos or a time, beside the view at another one if `beside` is given."""
    reader, found = await threads.resolved(reader, thread_id)
    at = found.last_pos if at is None else await _pos_of(reader, found, at)
    beside = None if beside is None else await _pos_of(reader, found, beside)
    compared = await reader.audit.compare(
        thread_id, at, beside, only_changes=only_changes and beside is not None, start=start, count=facts.ROWS
    )
    # A comparison has no figures of its two views.
    sides = [] if beside is None else [await reader.audit.compare(thread_id, pos, count=1) for pos in (at, beside)]
    earlier, later = await reader.audit.neighbours(thread_id, at)
    # Up to twenty positions from the first on, evenly distributed over the thread, for the page's links.
    begin, last, links = await threads.first_pos(reader, found), found.last_pos, min(20, found.last_pos)
    return facts.ViewPage(
        thread=found, at=at, beside=beside, only_changes=only_changes, tokens=compared.tokens, sides=sides,
        rows=await _pairs(reader, compared), start=start, more=compared.count > start + facts.ROWS,
        count=compared.count, changed=compared.changed, later=later,
        positions=sorted({max(begin, round(last * part / links)) for part in range(1, links + 1)}),
        earlier=None if earlier is None or earlier == 1 else earlier - 1,
    )  # fmt: skip


async def _pos_of(reader: AsyncReader, found: Thread, at: int | datetime) -> int:
    pos = at if isinstance(at, int) else await threads.pos_at(reader, found, at)
    if pos == 0:
        raise PositionNotFound(f"the thread has no entry up to that time{about(found.thread_id)}")
    return pos


async def _pairs(reader: AsyncReader, compared: Comparison) -> list[facts.ElementPair]:
    sides = {
        (seq, part.number): (is_left, is_right)
        for part, is_left, is_right in compared.parts
        for seq in (range(part.seq, part.end_seq + 1) if part.number is None else [part.seq])
    }
    found = []
    for element in await reader.audit.elements(compared.thread_id, [each.part for each in compared.parts]):
        is_left, is_right = sides[element.seq, element.number]
        found.append(facts.ElementPair(element if is_left else None, element if is_right else None))
    return found


async def record(
    reader: AsyncReader, thread_id: str, number: int, after: int = 0, *, content: bool
) -> facts.RecordPage:
    """Reads a record, the originals of its span, and what its summary kept, lost and invented."""
    reader, _ = await threads.resolved(reader, thread_id)
    found = await reader.compaction(thread_id, number)
    verdicts = await _verdicts(reader, thread_id)
    copy = (await threads.copied(reader, [thread_id]))[0].get(thread_id)
    within, undone = await inside(reader, found), await _undone(reader, found)
    replies, left_pos = await _replies(reader, found)
    shared: dict[str, Any] = {
        "record": found, "inside": within, "undone": undone, "lineage": await _lineage(reader, found, within, undone),
        "copied": copy if copy is not None and found.pos <= copy.pos else None,
        "verdicts": [verdict for verdict in verdicts.rows if verdict.number == number],
        "more_verdicts": verdicts.more, "content": content, "after": after, "replies": replies, "left_pos": left_pos,
    }  # fmt: skip
    if found.start_seq is None or found.end_seq is None:
        return facts.RecordPage(**shared)
    texts = await waiting.in_thread(replacements, found) if content else []
    replaced = [text[: facts.MESSAGE_PAGE] for text in texts[: facts.ROWS]]
    start = max(after, found.start_seq - 1)
    # Seqs have no gaps, so this reads one message more than the page has.
    originals = await threads.first(
        reader.replay(thread_id, after=start, until=min(found.end_seq, start + facts.ROWS + 1))
    )
    names = NameReader()
    is_whole = start < found.start_seq and not originals.more
    sources = Sources(found, replaced, names)
    if content and is_whole:
        # Do not read the originals again, because the page has all of them.
        await waiting.in_thread(sources.add_all, originals.rows)
    elif content:
        async for message in reader.audit.originals(found):
            if not await waiting.in_thread(sources.add, message):
                break
    marked = await waiting.in_thread(compare, originals.rows, replaced, sources if content else None, names)
    return facts.RecordPage(
        **shared, last=originals.rows[-1].seq if originals.rows else 0,
        originals=facts.ListPage(marked.originals, originals.more), replaced=marked.replaced, compared=marked.compared,
        cut=replaced != texts,
    )  # fmt: skip


async def _undone(reader: AsyncReader, found: Compaction) -> list[tuple[str, Compaction]]:
    """Returns the later records that undid a record, each after the word "revoked" or "superseded"."""
    later = (("revoked", found.revoked_by), ("superseded", found.superseded_by))
    return [(how, await reader.compaction(found.thread_id, by)) for how, by in later if by is not None]


async def _replies(reader: AsyncReader, found: Compaction) -> tuple[facts.ListPage | None, int | None]:
    """Returns the replies after a record, up to the entry that took it out of the view, and the pos of that entry."""
    if found.outcome != "applied" or found.kind in NO_ATTEMPTS:
        return None, None
    replies: list[int] = []
    entries = await reader.audit.entries(found.thread_id, after=found.pos, count=facts.ROWS)
    for each in entries:
        if each.pos == found.redacted_pos or (isinstance(each, Compaction) and _takes_out(each, found)):
            return facts.ListPage(replies, more=False), each.pos
        if isinstance(each, Message) and each.role == "assistant":
            replies.append(each.seq)
    return facts.ListPage(replies, more=len(entries) == facts.ROWS), None


def _takes_out(later: Compaction, found: Compaction) -> bool:
    if later.revokes is not None or later.outcome != "applied":
        return later.revokes == found.number
    return (later.start_seq or 0) <= (found.start_seq or 0) and (found.end_seq or 0) <= (later.end_seq or 0)


async def _lineage(
    reader: AsyncReader, found: Compaction, within: list[int], undone: list[tuple[str, Compaction]]
) -> list[tuple[int, Compaction]]:
    around = [by for how, by in undone if how == "superseded"]
    while around and around[-1].superseded_by is not None and len(around) < facts.MOST_AROUND:
        around.append(await reader.compaction(found.thread_id, around[-1].superseded_by))
    if not (around or within):
        return []
    tree = await reader.audit.tree(found, most=facts.MOST_INSIDE) if within else CompactionTree(found, ())
    return [*enumerate(reversed(around)), *((len(around) + depth, part.record) for depth, part in tree.walk())]


async def compared(
    reader: AsyncReader, thread_id: str, number: int, other: int, *, content: bool
) -> facts.ComparedRecords:
    """Reads two records of a thread, and compares their summaries."""
    reader, _ = await threads.resolved(reader, thread_id)
    found = await reader.compaction(thread_id, number), await reader.compaction(thread_id, other)
    left, right = ([text[: facts.MESSAGE_PAGE] for text in replacements(each)] if content else [] for each in found)
    lost = await waiting.in_thread(differing, left, right, "lost")
    return facts.ComparedRecords(found, (lost, await waiting.in_thread(differing, right, left, "new")))


async def inside(reader: AsyncReader, found: Compaction) -> list[int]:
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


async def record_list(
    reader: AsyncReader,
    thread_id: str | None,
    wanted: dict[str, Any],
    after: tuple[str, int] | None = None,
    *,
    bounded: Callable[[AsyncIterator[Compaction]], AsyncIterator[Compaction]] = lambda found: found,
    with_costs: bool = False,
    newest_first: bool = True,
    spent: Callable[[Compaction], float | None] = lambda _: 0.0,
) -> facts.RecordList:
    """Reads a page of the records that match. The records of one run are one row, unless only this run is wanted.

    The costs are summed over all matching records if all are on the page, or if `with_costs` is true. The caller may
    end the search and the sum: `bounded` is given the records, and may raise `OutOfTime` in place of the next one.
    `spent` returns what the calls for a record cost, or None if that is unknown.
    """
    start = None if after is None else await reader.compaction(*after)
    if thread_id is not None:
        reader, _ = await threads.resolved(reader, thread_id)
    found = bounded(reader.compactions(thread_id, newest_first=newest_first, after=start, **wanted))
    is_one = wanted.get("run_id") is not None
    listed = await (threads.first(found) if is_one else threads.first(found, facts.MOST_LISTED, of=facts.run_of))
    copies, more = await threads.copied(reader, [each.thread_id for each in listed.rows])
    costs = None
    if with_costs or (after is None and not listed.more):
        matching = bounded(reader.compactions(thread_id, newest_first=True, **wanted))
        costs = await threads.summed_costs(reader, matching, thread_id, spent)
    return facts.RecordList(listed, copies, more, costs)


async def sample(
    reader: AsyncReader, wanted: dict[str, Any], given: dict[str, Any], seed: int, count: int
) -> facts.SamplePage:
    """Draws a random sample of records, and reads the verdicts on them that were given for this sample."""
    found = await reader.audit.sample(seed, count, among=facts.MOST_POPULATION, **wanted)
    drawn = found.records
    name = {"seed": seed, "count": len(drawn), "population": found.population, **given}
    # An erasure changes the population, and may change the count.
    named = {"seed": seed, **given}
    numbers = {(record.thread_id, record.number) for record in drawn}
    verdicts = [
        verdict
        for thread_id, uid in dict.fromkeys((record.thread_id, record.thread_uid) for record in drawn)
        for verdict in (await _verdicts(pinned(reader, thread_id, uid), thread_id)).rows
        if {key: value for key, value in (verdict.sample or {}).items() if key not in ("count", "population")} == named
        and (thread_id, verdict.number) in numbers
    ]
    judged = facts.judged(verdicts)
    return facts.SamplePage(
        seed, count, name, found.population, not found.is_whole,
        [
            (record, {who: its[at] for who, its in judged.items() if (at := (record.thread_id, record.number)) in its})
            for record in drawn
        ],
        facts.coverage(found.population, len(drawn), verdicts), facts.Reviews.of(judged),
    )  # fmt: skip


async def reviews(reader: AsyncReader, since: datetime | None, until: datetime | None) -> tuple[facts.Reviews, bool]:
    """Sums up the verdicts of a period, or the first of them; then the second value is true."""
    found = reader.audit.events(kind="verdict", since=since, until=until)
    events = await threads.first(found, _MOST_VERDICTS)
    verdicts = (verdict for event in events.rows if (verdict := Verdict.of(event)) is not None)
    return facts.Reviews.of(facts.judged(verdicts)), events.more


async def _verdicts(reader: AsyncReader, thread_id: str) -> facts.ListPage:
    """Returns the newest verdicts on the records of a thread, oldest first."""
    events = await threads.first(reader.audit.events(thread_id, kind="verdict", newest_first=True), threads.MOST_EVENTS)
    found = [verdict for event in reversed(events.rows) if (verdict := Verdict.of(event)) is not None]
    return facts.ListPage(found, events.more)


async def message(reader: AsyncReader, thread_id: str, seq: int, part: int = 1, *, content: bool) -> facts.MessagePage:
    """Reads a message, the records that covered it, its erasure, and its receipt if it is a reply."""
    reader, found = await threads.resolved(reader, thread_id)
    explained = await reader.audit.explain(thread_id, seq, records=facts.ROWS + 1)
    is_shown = content and not explained.message.redacted
    words = await waiting.in_thread(said, explained.message.payload) if is_shown else ""
    return facts.MessagePage(
        *_part(words, part), explained.message, explained, content, found.last_seq,
        list(explained.records[::-1][:facts.ROWS]), len(explained.records) > facts.ROWS,
        await reader.audit.verify_entry(thread_id, seq=seq),
    )  # fmt: skip


def _part(words: str, part: int) -> tuple[int, int, str]:
    """Returns the number of a part of a long text, the number of all parts, and the part."""
    parts = max(1, -(-len(words) // facts.MESSAGE_PAGE))
    part = min(max(1, part), parts)
    return part, parts, words[(part - 1) * facts.MESSAGE_PAGE : part * facts.MESSAGE_PAGE]


async def text(
    reader: AsyncReader,
    thread_id: str,
    *,
    part: int = 1,
    pos: int | None = None,
    number: int | None = None,
    seq: int | None = None,
) -> facts.TextPage:
    """Reads all fields of an event, a record or a message, or of the thread itself, as JSON."""
    reader, found = await threads.resolved(reader, thread_id)
    value: Thread | Event | Compaction | Message = found
    if pos is not None:
        value = await threads.event(reader, thread_id, pos)
    elif number is not None:
        value = await reader.compaction(thread_id, number)
    elif seq is not None:
        value = (await reader.audit.explain(thread_id, seq, records=1)).message
    return facts.TextPage(*_part(await waiting.in_thread(_fields, value), part))


def _fields(value: Thread | Event | Compaction | Message) -> str:
    return "\n".join(map(json_shown, json.dumps(value.as_dict(), ensure_ascii=False, indent=1).split("\n")))


async def reply(reader: AsyncReader, thread_id: str, seq: int, start: int = 0) -> facts.ReplyPage:
    """Reads the view that a reply was written from: the whole view to compare it with a receipt, or else one page."""
    reader, _ = await threads.resolved(reader, thread_id)
    explained = await reader.audit.explain(thread_id, seq, records=1)
    role, pos = explained.message.role, explained.message.pos - 1
    if explained.receipt is None and seq > 1 and "request" not in (explained.message.meta or {}):
        before = await reader.audit.compare(thread_id, pos, start=start, count=facts.ROWS)
        more = before.count > start + facts.ROWS
        pairs = await _pairs(reader, before)
        return facts.ReplyPage(
            seq, role, "reconstructed", thread_id, pos, before.tokens, pairs, start, more, before.count
        )
    seen = await reader.seen_by(thread_id, seq)
    elements = seen.view.elements
    if seen.messages is not None:
        at = explained.message.created_at
        elements = tuple(
            Element(number, number, None, (message,), 0, None, at) for number, message in enumerate(seen.messages, 1)
        )
    pairs = [facts.ElementPair(element, None) for element in elements]
    return facts.ReplyPage(
        seq, role, seen.evidence, seen.view.thread_id, seen.view.pos, seen.view.tokens,
        pairs[start : start + facts.ROWS], start, len(pairs) > start + facts.ROWS, len(pairs), seen.receipt,
        has_erased=any(element.is_erased for element in elements), is_request=seen.messages is not None,
        where=seen.where,
    )  # fmt: skip
