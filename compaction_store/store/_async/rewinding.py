"""Ends the view of a thread at an earlier seq."""

from __future__ import annotations

from uuid import uuid4

from compaction_store.compaction import records
from compaction_store.messages import documents
from compaction_store.models import Compaction, Payload
from compaction_store.models.vocabulary import Withdrawal
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering.view import View


async def rewind(
    db: AsyncConnections,
    thread: ThreadKey,
    kind: Withdrawal,
    seq: int,
    view: View | None,
    *,
    hide: bool,
    reason: str | None,
    actor: str | None,
    authority: Payload | None,
) -> tuple[Compaction, ...]:
    """Writes a rewind or a clear and the revocations that it needs, or nothing if the view ends at `seq` already."""
    run_id = uuid4()
    revoked = records.stated(reason=reason, authority=authority)
    head = None if view is None else view.head
    rows = await db.call(
        queries.rewind, thread, run_id, seq, kind, hide, head, actor, documents.body_text(revoked),
        documents.body_text({"replacement": [], **revoked}), key=str(run_id),
    )  # fmt: skip
    return tuple(records.from_commit(thread.thread_id, run_id, rows))
