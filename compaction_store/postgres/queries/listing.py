"""Lists all threads of which a tenant has any row, in the order of their keys, for `audit.verify()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, select, select_of, transaction

_FIRST_UID = UUID(int=0)
# Valid names have at most 255 bytes. A damaged row may have any text. This many characters show that it is not a name.
LONGEST_NAME = 1000


def stored_threads(
    connection: Connection, tenant: str, after: UUID | None, limit: int
) -> list[tuple[UUID, str | None, bool, int]]:
    """Returns a page of all thread_uids of a tenant.

    Each row has the thread's name, whether it has a head, and the number of other threads with the same name. The
    queries read all five tables, so that they find the remains of a damaged thread. Every statement has a condition on
    the tenant, because row-level security does not apply to every login. For messages, the queries use a partial index,
    which has only a few messages of each thread.
    """
    with transaction(connection, tenant, read_only=True):
        uids: set[UUID] = set()
        for query in listings(tenant, after, limit):
            uids.update(row[0] for row in select(connection, query))
        page = sorted(uids)[:limit]
        names = {uid: (name, namesakes) for uid, name, namesakes in select(connection, _names(tenant, page))}
        heads = {row[0] for row in select(connection, has_head(tenant, page))}
    nameless = (None, 0)
    return [(uid, names.get(uid, nameless)[0], uid in heads, names.get(uid, nameless)[1]) for uid in page]


def listings(tenant: str, after: UUID | None, limit: int) -> list[sa.Select[Any]]:
    log = (tables.messages, tables.compactions, tables.events)
    queries = [
        *(sa.select(table.c.thread_uid) for table in (tables.heads, tables.threads)),
        # With exactly the condition of the partial index, the query uses the index.
        *(
            sa.select(table.c.thread_uid).where(tables.condition(table, f"{table.name}_listed_idx")).distinct()
            for table in log
        ),
    ]
    return [page_of(query, tenant, after, limit) for query in queries]


def page_of(query: sa.Select[Any], tenant: str, after: UUID | None, limit: int) -> sa.Select[Any]:
    """Returns a query for a page of the thread_uids that another query selects."""
    uid = query.selected_columns.thread_uid
    beyond = uid >= _FIRST_UID if after is None else uid > after
    return query.where(sa.literal_column("tenant") == tenant, beyond).order_by(uid).limit(limit)


def _names(tenant: str, uids: Sequence[UUID]) -> sa.Select[Any]:
    t, other = tables.threads.c, tables.threads.alias()
    namesakes = (
        sa.select(sa.func.count())
        .where(other.c.tenant == tenant, other.c.thread_id == t.thread_id, other.c.thread_uid != t.thread_uid)
        .scalar_subquery()
    )
    return sa.select(t.thread_uid, sa.func.left(t.thread_id, LONGEST_NAME), namesakes).where(
        t.tenant == tenant, t.thread_uid == wanted(uids)
    )


def has_head(tenant: str, uids: Sequence[UUID]) -> sa.Select[Any]:
    h = tables.heads.c
    return sa.select(h.thread_uid).where(h.tenant == tenant, h.thread_uid == wanted(uids))


def wanted(uids: Sequence[UUID]) -> sa.CollectionAggregate[Any]:
    return sa.any_(sa.bindparam("wanted", list(uids), type_=postgresql.ARRAY(sa.Uuid)))


def count_heads(connection: Connection, tenant: str, after: UUID | None) -> int:
    """Returns the approximate number of threads that `stored_threads` will list."""
    h = tables.heads.c
    query = sa.select(sa.func.count()).where(h.tenant == tenant)
    if after is not None:
        query = query.where(h.thread_uid > after)
    return int(select_of(connection, tenant, query)[0][0])
