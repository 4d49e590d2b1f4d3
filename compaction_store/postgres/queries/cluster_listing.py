"""Lists the threads of a tenant on a cluster, with their names in the table of names, for `audit.verify()`."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.integrity.stored_threads import StoredThread
from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, fetch, select, transaction
from compaction_store.postgres.queries.listing import LONGEST_NAME, has_head, listings, page_of, wanted

# A transaction on two nodes becomes visible on one node shortly before the other. This waits for the second node.
_PAUSE = "SELECT pg_catalog.pg_sleep(0.2)"


def name_uid(tenant: str, thread_id: str) -> UUID:
    """Computes the key of a name in the table of names, like the SQL function `name_uid`."""
    encoded = tenant.encode()
    return UUID(bytes=sha256(len(encoded).to_bytes(4) + encoded + thread_id.encode()).digest()[:16])


def stored_cluster_threads(connection: Connection, tenant: str, after: UUID | None, limit: int) -> list[StoredThread]:
    """Returns the same as `stored_threads`, and the names of each thread in the table of names.

    A thread_uid that only the table of names has is listed too. A separate query finds threads with the same name,
    because a subquery cannot read other shards.
    """
    n = tables.names.c
    with transaction(connection, tenant, read_only=True):
        uids: set[UUID] = set()
        for query in (*listings(tenant, after, limit), page_of(sa.select(n.thread_uid), tenant, after, limit)):
            uids.update(row[0] for row in select(connection, query))
        page = sorted(uids)[:limit]
        found = _read(connection, tenant, page)
        if not all(stored.is_named for stored in found):
            fetch(connection, _PAUSE)
            found = _read(connection, tenant, page)
    return found


def _read(connection: Connection, tenant: str, page: list[UUID]) -> list[StoredThread]:
    t, n = tables.threads.c, tables.names.c
    of_page = sa.select(n.thread_uid, n.thread_id, n.name_uid).where(n.tenant == tenant, n.thread_uid == wanted(page))
    leading: dict[UUID, list[str]] = {}
    for uid, name, place in select(connection, of_page):
        # A row with the wrong key is not found by its name, so it does not lead to the thread.
        leading.setdefault(uid, []).append(name if place == name_uid(tenant, name) else "")
    named = sa.select(t.thread_uid, sa.func.left(t.thread_id, LONGEST_NAME))
    names: dict[UUID, str] = dict(select(connection, named.where(t.tenant == tenant, t.thread_uid == wanted(page))))
    heads = {row[0] for row in select(connection, has_head(tenant, page))}
    same: Any = sa.bindparam("names", list(names.values()), type_=postgresql.ARRAY(sa.Text))
    counted = sa.select(t.thread_id, sa.func.count()).where(t.tenant == tenant, t.thread_id == sa.any_(same))
    counts: dict[str | None, int] = dict(select(connection, counted.group_by(t.thread_id)))
    return [
        StoredThread(uid, names.get(uid), uid in heads, counts.get(names.get(uid), 1) - 1, tuple(leading.get(uid, ())))
        for uid in page
    ]
