"""Reads how the number of tokens in a thread's view changed over time, for charts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from compaction_store.postgres import schema
from compaction_store.postgres.cursor import Connection, select, transaction
from compaction_store.postgres.queries.one_thread import ThreadKey, thread_uid


def appended_tokens(connection: Connection, key: ThreadKey, ranges: int, last_pos: int) -> list[tuple[Any, ...]]:
    """Divides a thread up to `last_pos` into ranges. Returns the last pos and the sum of the tokens of each range.

    There are at most `ranges` ranges. Ranges without messages are left out. The server reads the row of every message,
    but sends only the sums.
    """
    m, h = schema.messages.c, schema.heads.c
    found = thread_uid(key)
    width = max(1, (last_pos - 1) // ranges + 1)
    # Divide integers. div() would divide numerics, which takes longer than reading the row.
    part = (m.pos - 1) // width
    query: Any = (
        sa.select(sa.cast(sa.func.max(m.pos), sa.BigInteger), sa.cast(sa.func.sum(m.tokens), sa.BigInteger))
        .join(schema.heads, h.thread_uid == m.thread_uid)
        .where(m.thread_uid == found, h.thread_uid == found, m.seq <= h.last_seq, m.pos <= last_pos)
        .group_by(part)
        .order_by(part)
    )
    with transaction(connection, key.tenant, read_only=True):
        return select(connection, query)


def applied_tokens(connection: Connection, key: ThreadKey, last_pos: int) -> list[tuple[Any, ...]]:
    """Returns the applied records up to a pos: pos, number, revoked record, tokens before and tokens after."""
    c, h = schema.compactions.c, schema.heads.c
    found = thread_uid(key)
    query = (
        sa.select(c.pos, c.number, c.revokes, c.tokens_before, c.tokens_after)
        .join(schema.heads, h.thread_uid == c.thread_uid)
        .where(
            c.thread_uid == found,
            h.thread_uid == found,
            c.number <= h.last_number,
            c.outcome == "applied",
            c.pos <= last_pos,
        )
        .order_by(c.number)
    )
    with transaction(connection, key.tenant, read_only=True):
        return select(connection, query)
