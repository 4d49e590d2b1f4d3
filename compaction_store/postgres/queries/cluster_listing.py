"""Lists the threads of a tenant on a cluster, with their names in the table of names, for `audit.verify()`."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

from compaction_store.integrity.stored_threads import StoredThread
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch, transaction
from compaction_store.postgres.queries.listing import HAS_HEAD, listed, of_page

_SQL = ModuleData(__file__).values


def name_uid(tenant: str, thread_id: str) -> UUID:
    """Computes the key of a name in the table of names, like the SQL function `name_uid`."""
    encoded = tenant.encode()
    return UUID(bytes=sha256(len(encoded).to_bytes(4) + encoded + thread_id.encode()).digest()[:16])


def stored_cluster_threads(connection: Connection, tenant: str, after: UUID | None, limit: int) -> list[StoredThread]:
    """Returns the same as `stored_threads`, and the names of each thread in the table of names.

    A thread_uid that only the table of names has is listed too. A separate query finds threads with the same name,
    because a subquery cannot read other shards.
    """
    with transaction(connection, tenant, read_only=True):
        page = listed(connection, tenant, after, limit, _SQL["named"])
        found = _read(connection, tenant, page)
        if not all(stored.is_named for stored in found):
            fetch(connection, _SQL["pause"])
            found = _read(connection, tenant, page)
    return found


def _read(connection: Connection, tenant: str, page: list[UUID]) -> list[StoredThread]:
    leading: dict[UUID, list[str]] = {}
    for uid, name, place in of_page(connection, _SQL["leading"], tenant, page):
        # A row with the wrong key is not found by its name, so it does not lead to the thread.
        leading.setdefault(uid, []).append(name if place == name_uid(tenant, name) else "")
    names: dict[UUID, str] = dict(of_page(connection, _SQL["names"], tenant, page))
    heads = {row[0] for row in of_page(connection, HAS_HEAD, tenant, page)}
    same = fetch(connection, _SQL["same_names"], {"tenant": tenant, "names": list(names.values())})
    counts: dict[str | None, int] = dict(same)
    return [
        StoredThread(uid, names.get(uid), uid in heads, counts.get(names.get(uid), 1) - 1, tuple(leading.get(uid, ())))
        for uid in page
    ]
