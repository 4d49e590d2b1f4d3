"""Gathers what a page shows from a reader. Every list is bounded, and says how it goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple, TypeVar

from compaction_store.compaction.budget import TokenBudget
from compaction_store.display import charts
from compaction_store.display.comparing import Sources, original, replacements
from compaction_store.display.marks import Facts, Piece
from compaction_store.display.saying import said
from compaction_store.errors import CompactionNotFound
from compaction_store.models import Compaction, Element, Event, Thread
from compaction_store.rendering.view import View
from compaction_store.store import AsyncReader

T = TypeVar("T")

#: Rows of a list, elements of a view, originals of a record on one page.
ROWS = 50
#: The length of a page of one message.
MESSAGE_PAGE = 100_000
#: From how many records a sample is drawn at most.
MOST_POPULATION = 20_000
_ERASURES = ("redaction", "refusal", "hold", "release", "retention")


class Listed(NamedTuple):
    """A page of a list. `more` says whether it goes on."""

    rows: list[Any]
    more: bool


async def first(found: AsyncIterator[T], count: int = ROWS) -> Listed:
    rows: list[T] = []
    async for row in found:
        if len(rows) == count:
            return Listed(rows, more=True)
        rows.append(row)
    return Listed(rows, more=False)


async def first_within(seconds: float, found: AsyncIterator[T]) -> Listed:
    """Gathers what is found within some seconds."""
    rows: list[T] = []
    try:
        async with asyncio.timeout(seconds):
            async for row in found:
                if len(rows) == ROWS:
                    break
                rows.append(row)
            else:
                return Listed(rows, more=False)
    except TimeoutError:
        pass
    return Listed(rows, more=True)


async def threads(reader: AsyncReader, after: str, budget: TokenBudget | None) -> dict[str, Any]:
    listed = await first(reader.threads(after=after, hidden=True))
    due = None if budget is None or after else await first(reader.due(budget))
    return {"threads": listed, "due": due, "budget": budget}


async def thread(reader: AsyncReader, thread_id: str, before: int | None, after_pos: int) -> dict[str, Any]:
    """Gathers a thread's figures, a page of its records, newest first, and a page of its events."""
    found = await reader.thread(thread_id, hidden=True)
    start = None if before is None else await reader.compaction(thread_id, before)
    records = await first(reader.compactions(thread_id, newest_first=True, after=start))
    events = await first(reader.events(thread_id, after=after_pos))
    return {"thread": found, "records": records, "events": events, "marks": _marks(found, records.rows, events.rows)}


class ChartMark(NamedTuple):
    """A mark below the chart."""

    x: float
    label: str
    kind: str
    number: int | None
    pos: int


def _marks(found: Thread, records: Iterable[Compaction], events: Iterable[Event]) -> list[ChartMark]:
    marks = [
        ChartMark(charts.x(r.pos, found.last_pos), f"{r.kind} {r.number}, {r.outcome}", r.kind, r.number, r.pos)
        for r in records
        if r.outcome == "applied"
    ]
    marks += [ChartMark(charts.x(e.pos, found.last_pos), e.kind, e.kind, None, e.pos) for e in events]
    return sorted(marks, key=lambda mark: mark.pos)


async def course(reader: AsyncReader, thread_id: str) -> charts.Course:
    """Returns the course of a thread's view. What erasures took away falls where the last one was."""
    found = await reader.thread(thread_id, hidden=True)
    steps = [charts.Step(step.pos, step.change or 0) for step in await reader.token_steps(thread_id)]
    erased = found.last_pos
    async for event in reader.events(thread_id, kind="redaction"):
        erased = event.pos
    return charts.whole_course(steps, tokens=found.view_tokens, last_pos=found.last_pos, erased_pos=erased)


# ---- views


class Row(NamedTuple):
    """An element of one view and of another, side by side; the same object in both if they are equal."""

    left: Element | None
    right: Element | None


def _parts(view: View) -> dict[tuple[int, int, int | None], Element]:
    return {(e.seq, e.end_seq, e.number): e for e in view.elements}


async def view(
    reader: AsyncReader, thread_id: str, at: int | None, beside: int | None, start: int, *, only_changes: bool
) -> dict[str, Any]:
    """Gathers the view at a pos, and beside it the one at another."""
    found = await reader.thread(thread_id, hidden=True)
    at = found.last_pos if at is None else at
    left = await reader.view(thread_id, at=at)
    if beside is None:
        rows = [Row(e, None) for e in left.elements]
    else:
        before, after = _parts(left), _parts(await reader.view(thread_id, at=beside))
        keys = sorted(before.keys() | after.keys(), key=lambda key: (key[0], -key[1], key[2] or 0))
        rows = [Row(before.get(key), after.get(key)) for key in keys]
        if only_changes:
            rows = [row for row in rows if row.left is None or row.right is None]
    changed = sum(row.left is None or row.right is None for row in rows) if beside is not None else 0
    return {
        "thread": found, "at": at, "beside": beside, "tokens": left.tokens, "rows": rows[start : start + ROWS],
        "start": start, "more": len(rows) > start + ROWS, "count": len(rows), "changed": changed,
        "only_changes": only_changes, "positions": _positions(found.last_pos),
        "records": await _around(reader, found, at),
    }  # fmt: skip


def _positions(last: int) -> list[int]:
    """Returns the positions of the slider: twenty over the thread's life."""
    count = min(20, last)
    return sorted({max(1, round(last * part / count)) for part in range(1, count + 1)}) if count else []


async def _around(reader: AsyncReader, found: Thread, at: int) -> dict[str, int | None]:
    """Returns the pos just before the last record up to a pos, and of the first record after it."""
    earlier = later = None
    low, high = 1, found.last_number
    while low <= high:
        middle = (low + high) // 2
        record = await reader.compaction(found.thread_id, middle)
        if record.pos <= at:
            earlier, low = record.pos, middle + 1
        else:
            later, high = record.pos, middle - 1
    return {"earlier": None if earlier is None or earlier == 1 else earlier - 1, "later": later}


# ---- records


async def record(reader: AsyncReader, thread_id: str, number: int, after: int, *, content: bool) -> dict[str, Any]:
    """Gathers a record, the originals of its span, and what its summary kept, lost and invented."""
    found = await reader.compaction(thread_id, number)
    branch = await reader.tree(found)
    shared = {"record": found, "inside": [part.record for part in branch.inside], "content": content}
    if found.start_seq is None or found.end_seq is None:
        return shared | {"originals": None, "after": after, "replaced": [], "compared": False}
    replaced = replacements(found) if content else []
    start = max(after, found.start_seq - 1)
    originals = await first(reader.replay(thread_id, after=start, until=found.end_seq))
    kept = Facts(replaced)
    sources = await _sources(reader, found) if content else None
    return shared | {
        "originals": Listed([original(m, kept if replaced else None, content=content) for m in originals.rows],
                            originals.more),
        "last": originals.rows[-1].seq if originals.rows else 0,
        "after": after,
        "replaced": [
            sources.marked(text, missing="new") if sources is not None else [Piece(text, "")] for text in replaced
        ],
        "compared": sources is not None and bool(replaced),
    }  # fmt: skip


async def _sources(reader: AsyncReader, found: Compaction) -> Facts | None:
    sources = Sources(found)
    async for message in reader.originals(found):
        if not sources.add(message):
            break
    return sources.facts


# ---- messages and replies


async def message(reader: AsyncReader, thread_id: str, seq: int, part: int, *, content: bool) -> dict[str, Any]:
    """Gathers a message, what happened to it, and the receipt of a reply."""
    explained = await reader.explain(thread_id, seq)
    text = said(explained.message.payload) if content and not explained.message.redacted else ""
    parts = max(1, -(-len(text) // MESSAGE_PAGE))
    part = min(max(1, part), parts)
    return {
        "explained": explained, "message": explained.message, "part": part, "pages": parts, "content": content,
        "text": text[(part - 1) * MESSAGE_PAGE : part * MESSAGE_PAGE], "records": explained.records[:ROWS],
        "more_records": len(explained.records) - ROWS,
    }  # fmt: skip


async def reply(reader: AsyncReader, thread_id: str, seq: int, start: int) -> dict[str, Any]:
    """Gathers the view that a reply was written from."""
    seen = await reader.seen_by(thread_id, seq)
    rows = [Row(element, None) for element in seen.view.elements]
    return {
        "seq": seq, "evidence": seen.evidence, "rows": rows[start : start + ROWS], "start": start,
        "more": len(rows) > start + ROWS, "count": len(rows), "tokens": seen.view.tokens,
        "receipt": seen.receipt,
    }  # fmt: skip


# ---- across threads


async def records(
    reader: AsyncReader, thread_id: str | None, wanted: dict[str, Any], after: tuple[str, int] | None
) -> dict[str, Any]:
    start = None if after is None else await reader.compaction(*after)
    listed = await first(reader.compactions(thread_id, newest_first=True, after=start, **wanted))
    return {"records": listed}


async def erasures(reader: AsyncReader, thread_id: str | None, kind: str | None) -> dict[str, Any]:
    found: list[Event] = []
    more = False
    # The newest last in the store; an auditor reads the newest first.
    async for event in reader.events(thread_id, kind=kind):
        if event.kind in _ERASURES:
            found.append(event)
            if len(found) > MOST_POPULATION:
                more = True
                break
    return {"events": Listed(found[::-1][: 10 * ROWS], more or len(found) > 10 * ROWS), "kinds": _ERASURES}


async def event(reader: AsyncReader, thread_id: str, pos: int) -> Event:
    async for found in reader.events(thread_id, after=pos - 1):
        if found.pos == pos:
            return found
        break
    raise CompactionNotFound(f"no event at pos {pos} (thread {thread_id!r})")


async def sample(reader: AsyncReader, wanted: dict[str, Any], seed: int, count: int) -> dict[str, Any]:
    """Draws records at random. The same seed draws the same ones as long as the population is the same."""
    population: list[Compaction] = []
    more = False
    async for found in reader.compactions(**wanted):
        if found.revokes is None and found.start_seq is not None:
            population.append(found)
        if len(population) == MOST_POPULATION:
            more = True
            break
    drawn = random.Random(seed).sample(population, min(count, len(population)))  # noqa: S311 — repeatable
    drawn.sort(key=lambda each: (each.created_at, each.thread_id, each.number))
    return {"population": len(population), "more": more, "drawn": drawn, "seed": seed, "count": count}
