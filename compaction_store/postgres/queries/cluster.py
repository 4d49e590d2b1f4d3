"""Lists, forks, erases and imports threads on a Citus cluster.

A fork is in its parent's shard. So a fork and an erasure write rows of several threads in one shard, and also a row of
the table `names`, which may be in another shard. Inside a transaction, Citus sends a function call to a node only if
the function accesses the rows of one thread. So `fork` and `erase` are called in a query of the thread's head: Citus
runs the query on the node that has the thread, and there the functions may read and write all rows of the shard. The
rows of a bundle are staged on the node that has the thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from uuid import UUID

from compaction_store.bundles import import_rows
from compaction_store.integrity import erasure
from compaction_store.integrity.stored_threads import StoredThread
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch, literal, together, transaction
from compaction_store.postgres.queries import functions, loads
from compaction_store.postgres.queries.across_threads import NESTED
from compaction_store.postgres.queries.functions import EraseRow, ForkRow, ThreadKey
from compaction_store.postgres.queries.listing import HAS_HEAD, listed, of_page

_SQL = ModuleData(__file__).values
# Rows are added to a call until its JSON has this many characters.
_MOST_CHARACTERS = 4 * 1024 * 1024


def name_uid(tenant: str, thread_id: str) -> UUID:
    """Computes the key of a name in the table of names, like the SQL function `name_uid`."""
    encoded = tenant.encode()
    return UUID(bytes=sha256(len(encoded).to_bytes(4) + encoded + thread_id.encode()).digest()[:16])


def stored_cluster_threads(connection: Connection, tenant: str, after: UUID | None, limit: int) -> list[StoredThread]:
    """Returns `stored_threads` with the names in the table of names, also those of threads that only it has."""
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


def fork_on_cluster(connection: Connection, key: ThreadKey, new_thread_id: str, *arguments: Any) -> ForkRow:
    """Does the same as `fork`, and adds the new thread's name to the table of names in the same transaction."""
    with together(connection):
        row = ForkRow._make(_on_node(connection, functions.FORK, key, (new_thread_id, *arguments)))
        if not row.replayed:
            name = key.tenant, new_thread_id
            fetch(connection, _SQL["claim"], (name_uid(*name), *name, row.child_uid))
    return row


def erase_on_cluster(connection: Connection, key: ThreadKey, *arguments: Any) -> EraseRow:
    """Does the same as `erase`. If this erases the thread, also ends the thread's turns and frees its name."""
    name = key.tenant, key.thread_id
    with together(connection):
        fetch(connection, _SQL["end_turns"], (*name, False))
        row = EraseRow._make(_on_node(connection, functions.ERASE, key, arguments))
        if row.event_pos is not None:
            fetch(connection, _SQL["end_turns"], (*name, True))
            fetch(connection, _SQL["unname"], (name_uid(*name), *name, key.uid))
    return row


def _on_node(connection: Connection, statement: str, key: ThreadKey, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Calls a function on the node that has a thread, in the current transaction."""
    fetch(connection, f"SET LOCAL compaction_store.tenant = {literal(key.tenant)}")
    fetch(connection, NESTED)
    fetch(connection, _SQL["join"], tuple(key))
    on_node = _SQL["on_node"].format(statement.removeprefix("SELECT * FROM "))
    return fetch(connection, on_node, (*key, *arguments, key.uid))[0]


def import_cluster_bundle(connection: Connection, key: ThreadKey, staged: import_rows.Staged, about: str) -> bool:
    """Does the same as `import_bundle`, and adds the thread's name to the table of names in the same transaction."""
    with loads.importing(about):
        if loads.is_there(staged, fetch(connection, functions.BEGIN_IMPORT, tuple(key)), about):
            return staged.sent
        staged.sent = True
        with together(connection):
            # An erased thread has no row in the table of names.
            if erasure.stub_uid(key.thread_id) is None:
                name = key.tenant, key.thread_id
                fetch(connection, _SQL["claim"], (name_uid(*name), *name, key.uid))
            for kind in import_rows.KINDS:
                for rows in _pages(staged, kind):
                    fetch(connection, _SQL["stage"], (key.uid, key.tenant, kind, rows))
            found = fetch(connection, functions.FINISH_IMPORT, loads.finishing(key, staged))
            return not loads.is_there(staged, found, about)


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
