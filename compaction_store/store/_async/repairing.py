"""Repairs a compaction: revokes it and summarizes its span again, in one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compaction_store.arguments import about
from compaction_store.compaction.asks import Summarize
from compaction_store.compaction.plan import CompactionRun
from compaction_store.compaction.repair import Repair, check_repairable
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.errors import Conflict
from compaction_store.models import Compaction
from compaction_store.rendering.view import View
from compaction_store.store._async import compacting
from compaction_store.store._async.compacting import Compacting, Revoked


async def repair(
    work: Compacting, number: int, summarize: SummaryResult | Summarize, *, reason: str | None, **options: Any
) -> CompactionRun:
    reader = work.reader
    record = await reader.compaction(work.thread_id, number)
    check_repairable(record)
    view = await reader.view(work.thread_id)
    if not any((element.number, element.created_at) == (number, record.created_at) for element in view.elements):
        raise Conflict(f"compaction {number} is not active: run the repair again{about(work.thread_id)}")
    inside = await reader.view(work.thread_id, at=record.pos - 1)
    callback: Any = Repair(record, summarize, reason=reason, **options)
    work = replace(work, callbacks=(callback,), revoked=Revoked(number, reason))
    return await compacting.run_and_commit(work, _without(view, record, inside), "repair", shown=view)


def _without(view: View, record: Compaction, inside: View) -> View:
    """Returns the view as if a record were revoked: its span has the elements from just before the record was written.

    Nothing in the span was erased since then, because such an erasure would have erased the record as well.
    """
    span = [e for e in inside.elements if (record.start_seq or 0) <= e.seq <= (record.end_seq or 0)]
    elements = []
    for element in view.elements:
        elements += span if element.number == record.number else [element]
    return replace(view, elements=tuple(elements))
