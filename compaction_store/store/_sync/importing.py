"""Imports the thread of a bundle."""

from __future__ import annotations

from compaction_store import arguments
from compaction_store.bundles import import_rows
from compaction_store.models import Imported
from compaction_store.postgres import queries
from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading


def import_bundle(db: Connections, tenant: str, lines: loading.Source) -> Imported:
    """Verifies the whole bundle, then sends its thread in one transaction."""
    with import_rows.Staged(tenant) as staged:
        for line in lines:
            staged.add(line)
        staged.finish()
        thread = ThreadKey(staged.thread_uid, tenant, staged.manifest["thread_id"])
        added = db.with_more_time(staged.seconds).call(
            queries.import_bundle, thread, staged, arguments.about(thread.thread_id), key=staged.head.hex()
        )
        return staged.result(added=added)
