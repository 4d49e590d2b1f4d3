"""Reads how the number of tokens in a thread's view changed over time, for charts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from compaction_store.module_data import ModuleData
from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, fetch, select_named, transaction
from compaction_store.postgres.queries.functions import ThreadKey
from compaction_store.postgres.queries.one_thread import thread_uid

_SQL = ModuleData(__file__).values


def appended_tokens(connection: Connection, key: ThreadKey, ranges: int, last_pos: int) -> list[tuple[int, int]]:
    """Divides a thread up to `last_pos` into ranges. Returns the last pos and the sum of the tokens of each range.

    There are at most `ranges` ranges. Ranges without messages are left out. The server reads the row of every message,
    but sends only the sums. `key` must have the thread_uid, and `last_pos` must not be after the head.
    """
    width = max(1, (last_pos - 1) // ranges + 1)
    with transaction(connection, key.tenant, read_only=True):
        rows = fetch(connection, _SQL["appended"], {"uid": key.uid, "width": width, "last_pos": last_pos})
    return [(pos, tokens) for pos, tokens in rows]


def applied_tokens(connection: Connection, key: ThreadKey, last_pos: int) -> list[dict[str, Any]]:
    """Returns the applied records up to a pos: pos, number, revokes, tokens_before and tokens_after, by name."""
    c, h = tables.compactions.c, tables.heads.c
    found = thread_uid(key)
    query = (
        sa.select(c.pos, c.number, c.revokes, c.tokens_before, c.tokens_after)
        .join(tables.heads, h.thread_uid == c.thread_uid)
        .where(c.thread_uid == found, h.thread_uid == found, c.number <= h.last_number)
        .where(c.outcome == "applied", c.pos <= last_pos)
        .order_by(c.number)
    )
    return select_named(connection, key.tenant, query)
