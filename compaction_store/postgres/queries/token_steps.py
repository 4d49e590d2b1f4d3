"""Reads how the number of tokens in a thread's view changed over time, for charts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, fetch, select_named, transaction
from compaction_store.postgres.queries.functions import ThreadKey
from compaction_store.postgres.queries.one_thread import thread_uid

# The seq at the end of a range is its last pos minus the number of records and events up to there. Each range of seqs
# is then read by the primary key, because grouping all messages by their pos would take half as much time again.
_APPENDED = """
    WITH others AS (
        SELECT (o.pos - 1) / %(width)b::bigint AS part, count(*) AS size
        FROM (
            SELECT c.pos FROM compaction_store.compactions AS c
            JOIN compaction_store.heads AS h ON h.thread_uid = c.thread_uid AND c.number <= h.last_number
            WHERE c.thread_uid = %(uid)b::uuid AND c.pos <= %(last_pos)b::bigint
            UNION ALL
            SELECT e.pos FROM compaction_store.events AS e
            WHERE e.thread_uid = %(uid)b::uuid AND e.pos <= %(last_pos)b::bigint
        ) AS o
        GROUP BY 1
    ),
    ends AS (
        SELECT p.part,
            least((p.part + 1) * %(width)b::bigint, %(last_pos)b::bigint)
                - coalesce(sum(o.size) OVER (ORDER BY p.part), 0)::bigint AS seq
        FROM generate_series(0, (%(last_pos)b::bigint - 1) / %(width)b::bigint) AS p (part)
        LEFT JOIN others AS o ON o.part = p.part
    )
    SELECT m.pos, m.tokens
    FROM (SELECT part, lag(seq, 1, 0::bigint) OVER (ORDER BY part) AS low, seq AS high FROM ends) AS r
    CROSS JOIN LATERAL (
        SELECT max(g.pos) AS pos, sum(g.tokens)::bigint AS tokens FROM compaction_store.messages AS g
        WHERE g.thread_uid = %(uid)b::uuid AND g.seq > r.low AND g.seq <= r.high
    ) AS m
    WHERE m.pos IS NOT NULL
    ORDER BY r.part
"""


def appended_tokens(connection: Connection, key: ThreadKey, ranges: int, last_pos: int) -> list[tuple[int, int]]:
    """Divides a thread up to `last_pos` into ranges. Returns the last pos and the sum of the tokens of each range.

    There are at most `ranges` ranges. Ranges without messages are left out. The server reads the row of every message,
    but sends only the sums. `key` must have the thread_uid, and `last_pos` must not be after the head.
    """
    width = max(1, (last_pos - 1) // ranges + 1)
    with transaction(connection, key.tenant, read_only=True):
        rows = fetch(connection, _APPENDED, {"uid": key.uid, "width": width, "last_pos": last_pos})
    return [(pos, tokens) for pos, tokens in rows]


def applied_tokens(connection: Connection, key: ThreadKey, last_pos: int) -> list[dict[str, Any]]:
    """Returns the applied records up to a pos: pos, number, revokes, tokens_before and tokens_after, by name."""
    c, h = tables.compactions.c, tables.heads.c
    found = thread_uid(key)
    query = (
        sa.select(c.pos, c.number, c.revokes, c.tokens_before, c.tokens_after)
        .join(tables.heads, h.thread_uid == c.thread_uid)
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
        return select_named(connection, query)
