"""Reads the facts of the first page of an audit: what a tenant has, what was done in the last days, and what is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from compaction_store.audit import facts
from compaction_store.audit._async.threads import MOST_EVENTS, copied, first, kept_threads, own
from compaction_store.audit.facts import Costs
from compaction_store.compaction.budget import TokenBudget

if TYPE_CHECKING:
    from compaction_store.models import Compaction
    from compaction_store.store import AsyncReader

_DAYS = 30


async def overview(
    reader: AsyncReader, budget: TokenBudget | None, spent: Callable[[Compaction], float | None]
) -> facts.Overview:
    """Reads the figures of the last 30 days, and the newest records, erasures, holds and terms.

    `spent` returns what the calls for a record cost, or None if that is unknown.
    """
    start = _day(datetime.now(UTC)) - timedelta(days=_DAYS - 1)
    figures = await reader.audit.figures(since=start)
    days = {at: facts.Day(at) for at in (start + timedelta(days=n) for n in range(_DAYS))}
    for each in figures.days:
        # A day may have begun since.
        day = days.setdefault(each.day, facts.Day(each.day))
        day.failed += each.records * (each.outcome in ("failed", "rejected"))
        day.done += each.records * (each.outcome not in ("failed", "rejected"))
        day.saved += (each.tokens_before - each.tokens_after) * (each.outcome == "applied")
    newest = await first(reader.compactions(newest_first=True), MOST_EVENTS)
    copies, _ = await copied(reader, dict.fromkeys(record.thread_id for record in newest.rows))
    costs, unpriced = Costs(), 0
    mine = list(costs.over(own(newest.rows, copies)))
    for record in mine:
        price = spent(record)
        unpriced += price is None
        if price and (at := _day(record.created_at)) in days:
            days[at].spent += price
    kept, more_kept = await kept_threads(reader, None)
    erasures = await first(reader.audit.events(kind="redaction", newest_first=True))
    due = None if budget is None else await first(reader.due(budget))
    records = facts.ListPage(mine, newest.more)
    return facts.Overview(figures, list(days.values()), due, kept, more_kept, erasures, records, costs, unpriced)


def _day(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
