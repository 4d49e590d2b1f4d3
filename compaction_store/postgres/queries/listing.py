"""Lists all threads of which a tenant has any row, in the order of their keys, for `audit.verify()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from compaction_store.module_data import ModuleData
from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, fetch, select_of, transaction

_SQL = ModuleData(__file__).values
HAS_HEAD = _SQL["has_head"]
# With exactly the condition of the partial index, a query uses the index.
_CONDITIONS = {
    f"of_{table.name}": str(tables.condition(table, f"{table.name}_listed_idx"))
    for table in (tables.messages, tables.compactions, tables.events)
}


def stored_threads(
    connection: Connection, tenant: str, after: UUID | None, limit: int
) -> list[tuple[UUID, str | None, bool, int]]:
    """Returns a page of thread_uids, each with the name, whether there is a head, and how many others have the name.

    The queries read all five tables to find the remains of a damaged thread, with a condition on the tenant, because
    row-level security does not apply to every login. For messages, they use a partial index with a few of each thread.
    """
    with transaction(connection, tenant, read_only=True):
        page = listed(connection, tenant, after, limit)
        names = {uid: (name, namesakes) for uid, name, namesakes in of_page(connection, _SQL["names"], tenant, page)}
        heads = {row[0] for row in of_page(connection, HAS_HEAD, tenant, page)}
    nameless = (None, 0)
    return [(uid, names.get(uid, nameless)[0], uid in heads, names.get(uid, nameless)[1]) for uid in page]


def listed(connection: Connection, tenant: str, after: UUID | None, limit: int, *others: str) -> list[UUID]:
    """Returns a page of the keys that any of the tables has, and any of the other queries, in this transaction."""
    uids: set[UUID] = set()
    given = {"tenant": tenant, "after": after or UUID(int=0), "limit": limit}
    for statement in (*(_SQL[name] for name in ("heads", "threads", "messages", "compactions", "events")), *others):
        uids.update(uid for (uid,) in fetch(connection, paged(statement, after), given))
    return sorted(uids)[:limit]


def paged(statement: str, after: UUID | None) -> str:
    """Returns a query with the condition of a page."""
    # A damaged row may have any key, also the lowest one.
    return statement.format(page=_SQL["page"].format(than=">=" if after is None else ">"), **_CONDITIONS)


def of_page(connection: Connection, statement: str, tenant: str, uids: Sequence[UUID]) -> list[tuple[Any, ...]]:
    """Executes a query about a page of threads."""
    return fetch(connection, statement, {"tenant": tenant, "uids": list(uids)})


def count_heads(connection: Connection, tenant: str, after: UUID | None) -> int:
    """Returns the approximate number of threads that `stored_threads` will list."""
    return int(select_of(connection, tenant, _SQL["count"], {"tenant": tenant, "after": after})[0][0])
