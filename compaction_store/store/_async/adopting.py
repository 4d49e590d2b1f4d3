"""Adopts a compaction that a provider made: writes records that make the same change to the thread's view."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from compaction_store import arguments, tokens
from compaction_store.compaction import adoption, records, summary_room
from compaction_store.compaction.adoption import Made
from compaction_store.errors import CompactionNotFound, InvalidInput
from compaction_store.models import Compaction, Payload
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering.view import Rendered, View
from compaction_store.store._async.reader import AsyncReader
from compaction_store.store._async.writing import prepared


async def adopt(
    reader: AsyncReader,
    db: AsyncConnections,
    counter: tokens.Counter,
    thread: ThreadKey,
    made: Made,
    *,
    view: View | Rendered | None,
    start_seq: int | None,
    end_seq: int | None,
    reason: str | None,
    actor: str | None,
    authority: Payload | None,
) -> tuple[Compaction, ...]:
    has_span = start_seq is not None and end_seq is not None
    if made.stand_ins is None and made.record is None and not (made.is_boundary and has_span):
        made = adoption.of_record(await _observed(reader, thread.thread_id, made))
    if made.record is not None:
        # Use thread_uid: the name may belong to another thread by now.
        thread = thread._replace(uid=made.record.thread_uid)
    base = await reader.view(thread.thread_id) if view is None else view.view if isinstance(view, Rendered) else view
    first, last = _range(made, base, start_seq, end_seq)
    plan = adoption.parts(base.elements, first, last, made.stand_ins)
    if not plan:
        return ()
    counting = await prepared(db, counter)

    def count(messages: Iterable[Payload]) -> int:
        return summary_room.count_encoded(counting, messages)

    text = adoption.to_json(
        made, plan, count, counter=counter.name, reason=reason, actor=actor, authority=authority
    )  # fmt: skip
    run_id = uuid4()
    rows = await db.call(queries.commit_compactions, thread, run_id, base.pos, base.head, text, key=str(run_id))
    return tuple(records.from_commit(thread.thread_id, run_id, rows))


async def _observed(reader: AsyncReader, thread_id: str, made: Made) -> Compaction:
    """Finds the record that was written when the provider's compaction was stored."""
    async for record in reader.compactions(thread_id, outcome="observed", kind="summary", newest_first=True):
        if adoption.is_record_of(record, made):
            return record
    raise CompactionNotFound(
        "the thread has no record of this compaction; first append the reply that contains it"
        f"{arguments.about(thread_id)}"
    )


def _range(made: Made, view: View, start_seq: int | None, end_seq: int | None) -> tuple[int, int]:
    if made.record is not None:
        if start_seq is not None or end_seq is not None:
            raise InvalidInput("start_seq and end_seq must be left out: the observed compaction has its own span")
        assert made.record.start_seq is not None  # noqa: S101 — of_record refuses others
        assert made.record.end_seq is not None  # noqa: S101
        return made.record.start_seq, made.record.end_seq
    if not view.elements:
        raise InvalidInput("view must have at least one element, not none")
    first = view.elements[0].seq if start_seq is None else start_seq
    last = view.elements[-1].end_seq if end_seq is None else end_seq
    if first > last:
        raise InvalidInput(f"start_seq must be at most end_seq = {last}, not {first}")
    return first, last
