"""Which threads a tenant has anything stored of, by key: what `verify_all` walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.postgres import schema
from compaction_store.postgres.cursor import Connection, select, transaction

_FIRST_UID = UUID(int=0)
# Names are at most 255 bytes. A row may hold any text; this much of it shows that it is none.
_LONGEST_NAME = 1000


def stored_threads(
    connection: Connection, tenant: str, after: UUID | None, limit: int
) -> list[tuple[UUID, str | None, bool]]:
    """A page of everything stored under the tenant, by thread_uid: each key with its name and whether it has a head.

    Heads, threads and the rows of the three logs all count, so that nothing that is left of a thread goes unseen. The
    tenant is named in every statement: row-level security does not bind every login. Messages are listed from a
    partial index that holds a few of them a thread.
    """
    with transaction(connection, tenant, read_only=True):
        uids: set[UUID] = set()
        for query in _listings(tenant, after, limit):
            uids.update(row[0] for row in select(connection, query))
        page = sorted(uids)[:limit]
        names = dict(select(connection, _names(tenant, page)))
        heads = {row[0] for row in select(connection, _heads(tenant, page))}
    return [(uid, names.get(uid), uid in heads) for uid in page]


def _listings(tenant: str, after: UUID | None, limit: int) -> list[sa.Select[Any]]:
    messages, compactions, events = schema.messages.c, schema.compactions.c, schema.events.c
    queries = [
        sa.select(schema.heads.c.thread_uid),
        sa.select(schema.threads.c.thread_uid),
        # As in the indexes, word for word: else they are not used.
        sa.select(messages.thread_uid).where(sa.text(f"seq IN ({schema.LISTED})")).distinct(),
        sa.select(compactions.thread_uid).where(sa.text(schema.LISTED_RECORD)).distinct(),
        sa.select(events.thread_uid).where(sa.text(schema.LISTED_EVENT)).distinct(),
    ]
    pages = []
    for query in queries:
        uid = query.selected_columns.thread_uid
        beyond = uid >= _FIRST_UID if after is None else uid > after
        pages.append(query.where(sa.literal_column("tenant") == tenant, beyond).order_by(uid).limit(limit))
    return pages


def _names(tenant: str, uids: Sequence[UUID]) -> sa.Select[Any]:
    t = schema.threads.c
    return sa.select(t.thread_uid, sa.func.left(t.thread_id, _LONGEST_NAME)).where(
        t.tenant == tenant, t.thread_uid == sa.any_(_wanted(uids))
    )


def _heads(tenant: str, uids: Sequence[UUID]) -> sa.Select[Any]:
    h = schema.heads.c
    return sa.select(h.thread_uid).where(h.tenant == tenant, h.thread_uid == sa.any_(_wanted(uids)))


def _wanted(uids: Sequence[UUID]) -> sa.BindParameter[Any]:
    return sa.bindparam("wanted", list(uids), type_=postgresql.ARRAY(sa.Uuid))


def count_heads(connection: Connection, tenant: str, after: UUID | None) -> int:
    """About how many threads a walk will come by."""
    h = schema.heads.c
    query = sa.select(sa.func.count()).where(h.tenant == tenant)
    if after is not None:
        query = query.where(h.thread_uid > after)
    with transaction(connection, tenant, read_only=True):
        return int(select(connection, query)[0][0])
