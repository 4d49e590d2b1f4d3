"""Exports a thread as the lines of a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from compaction_store import arguments
from compaction_store.bundles import export_rows
from compaction_store.integrity.rows import RowRequest, ThreadHead
from compaction_store.postgres import queries, tables, typed_rows
from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.queries import ThreadKey


def bundle_lines(
    db: Connections, thread: ThreadKey, bodies: export_rows.Bodies, checkpoint: Mapping[str, Any] | None
) -> Iterator[bytes]:
    row = db.call(queries.thread, thread)
    thread = thread._replace(uid=typed_rows.thread(row).thread_uid)
    state = ThreadHead._make(db.call(queries.thread_state, thread, None))
    steps = export_rows.export(
        thread.tenant, typed_rows.thread(row), (state.name_salt, state.name_commitment), row[1],
        schema=tables.REVISION, made_at=datetime.now(UTC),
        bodies=bodies, checkpoint=checkpoint, about=arguments.about(thread.thread_id),
    )  # fmt: skip
    wanted = next(steps, None)
    while wanted is not None:
        rows: list[tuple[Any, ...]] | None = None
        if not isinstance(wanted, RowRequest):
            yield wanted
        elif wanted.kind is None:
            rows = [db.call(queries.thread, thread)]
        else:
            rows = db.call(queries.entries, thread, wanted.kind, wanted.start, True, wanted.limit)
        try:
            wanted = steps.send(rows)
        except StopIteration:
            return
