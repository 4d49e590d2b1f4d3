"""Imports a bundle on a Citus cluster. The rows are staged on the node that has the thread."""

from __future__ import annotations

import json
from collections.abc import Iterator

from compaction_store.bundles import import_rows
from compaction_store.integrity import erasure
from compaction_store.postgres.driver.cursor import Connection, fetch, together
from compaction_store.postgres.queries import loads
from compaction_store.postgres.queries.cluster_forks import CLAIM
from compaction_store.postgres.queries.cluster_listing import name_uid
from compaction_store.postgres.queries.functions import BEGIN_IMPORT, FINISH_IMPORT, ThreadKey

_STAGE = "SELECT * FROM compaction_store.stage(%b::uuid, %b::text, %b::text, %b::text)"
# Rows are added to a call until its JSON has this many characters.
_MOST_CHARACTERS = 4 * 1024 * 1024


def import_cluster_bundle(connection: Connection, key: ThreadKey, staged: import_rows.Staged, about: str) -> bool:
    """Does the same as `import_bundle`, and adds the thread's name to the table of names in the same transaction."""
    with loads.importing(about):
        if loads.is_there(staged, fetch(connection, BEGIN_IMPORT, tuple(key)), about):
            return staged.sent
        staged.sent = True
        with together(connection):
            # An erased thread has no row in the table of names.
            if erasure.stub_uid(key.thread_id) is None:
                fetch(connection, CLAIM, (name_uid(key.tenant, key.thread_id), key.tenant, key.thread_id, key.uid))
            for kind in import_rows.KINDS:
                for rows in _pages(staged, kind):
                    fetch(connection, _STAGE, (key.uid, key.tenant, kind, rows))
            return not loads.is_there(staged, fetch(connection, FINISH_IMPORT, loads.finishing(key, staged)), about)


def _pages(staged: import_rows.Staged, kind: str) -> Iterator[str]:
    """Yields the rows of a kind as JSON arrays of about four megabytes. One row may be longer than that."""
    page: list[str] = []
    size = 0
    for row in staged.rows(kind):
        page.append(json.dumps(row, ensure_ascii=False))
        size += len(page[-1])
        if size >= _MOST_CHARACTERS:
            yield f"[{','.join(page)}]"
            page, size = [], 0
    if page:
        yield f"[{','.join(page)}]"
