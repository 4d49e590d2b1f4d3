"""Imports the thread of a bundle."""

from __future__ import annotations

from compaction_store import arguments
from compaction_store.bundles import import_rows
from compaction_store.models import Imported
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading


async def import_bundle(db: AsyncConnections, tenant: str, lines: loading.AsyncSource) -> Imported:
    """Verifies the whole bundle, then sends its thread in one transaction."""
    with import_rows.Staged(tenant) as staged:
        async for line in lines:
            staged.add(line)
        staged.finish()
        thread = ThreadKey(staged.thread_uid, tenant, staged.manifest["thread_id"])
        added = await db.with_more_time(staged.seconds).call(
            queries.import_bundle, thread, staged, arguments.about(thread.thread_id), key=staged.head.hex()
        )
        return staged.result(added=added)
