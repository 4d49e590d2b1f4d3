"""Exports a thread as the lines of a bundle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from compaction_store import arguments
from compaction_store.bundles import export_rows
from compaction_store.integrity.rows import RowRequest, Rows, ThreadHead
from compaction_store.postgres import queries, tables, typed_rows
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey


async def bundle_lines(
    db: AsyncConnections, thread: ThreadKey, bodies: export_rows.Bodies, checkpoint: Mapping[str, Any] | None
) -> AsyncIterator[bytes]:
    row = await db.call(queries.thread, thread)
    thread = thread._replace(uid=typed_rows.thread(row).thread_uid)
    state = ThreadHead._make(await db.call(queries.thread_state, thread, None))
    steps = export_rows.export(
        thread.tenant, typed_rows.thread(row), (state.name_salt, state.name_commitment), row.metadata,
        schema=tables.REVISION, made_at=datetime.now(UTC),
        bodies=bodies, checkpoint=checkpoint, about=arguments.about(thread.thread_id),
    )  # fmt: skip
    wanted = next(steps, None)
    while wanted is not None:
        rows: Rows | None = None
        if not isinstance(wanted, RowRequest):
            yield wanted
        elif wanted.kind is None:
            rows = [await db.call(queries.thread, thread)]
        else:
            rows = await db.call(queries.entries, thread, wanted.kind, wanted.start, True, wanted.limit)
        try:
            wanted = steps.send(rows)
        except StopIteration:
            return
