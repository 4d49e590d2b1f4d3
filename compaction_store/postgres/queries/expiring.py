"""Finds the threads that a retention policy may erase."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from compaction_store.integrity.erasure import AFTER_STUBS, STUB
from compaction_store.postgres.driver.cursor import Connection, fetch, transaction

# The names with a prefix are before the prefix with this ending, because names have at most 255 bytes.
LAST = "\U0010ffff" * 64
_RESERVED = (("compaction-store:", "compaction-store;"), (STUB, AFTER_STUBS))
# The inner page is limited, so that the statement reads a bounded number of threads, whether they are old or not. The
# last row of a full page is returned in any case, because the next page begins there. A thread without messages is as
# old as its creation; a thread whose last message is missing is damaged, and must not be passed over in silence.
EXPIRING = """
    SELECT p.thread_id, p.thread_uid, p.last_pos, p.last_message_at, p.is_wanted, p.row = %b
    FROM (
        SELECT page.*, row_number() OVER (ORDER BY page.thread_id) AS row,
            (page.last_message_at >= %b) IS NOT TRUE AND (%b::text IS NULL OR page.subject = %b::text) AS is_wanted
        FROM (
            SELECT t.thread_id, t.thread_uid, h.last_pos, h.subject, CASE WHEN h.last_seq = 0 THEN t.created_at ELSE (
                SELECT m.created_at FROM compaction_store.messages AS m
                WHERE m.thread_uid = h.thread_uid AND m.seq = h.last_seq
            ) END AS last_message_at
            FROM compaction_store.threads AS t
            JOIN compaction_store.heads AS h ON h.thread_uid = t.thread_uid
            WHERE t.tenant = %b AND t.thread_id >= %b AND t.thread_id > %b AND t.thread_id < %b
            ORDER BY t.thread_id LIMIT %b
        ) AS page
    ) AS p
    WHERE p.is_wanted OR p.row = %b
    ORDER BY p.thread_id
"""


class Expiring(NamedTuple):
    """A thread whose last message is older than a policy allows, or, if not `is_old`, the last one of a full page."""

    thread_id: str
    thread_uid: UUID
    last_pos: int
    last_message_at: datetime | None
    is_old: bool
    ends_page: bool


def ranges(prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the ranges of the names with a prefix, without the names that are reserved. The end is exclusive."""
    low, end = prefix, prefix + LAST
    for first, after in _RESERVED:
        if low < (high := min(first, end)):
            yield low, high
        low = max(low, after)
    if low < end:
        yield low, end


def expiring(
    connection: Connection,
    tenant: str,
    before: datetime,
    subject: str | None,
    low: str,
    after: str,
    end: str,
    limit: int,
) -> list[Expiring]:
    """Looks at up to `limit` threads in the order of their names, and returns those that are old enough.

    With `subject`, returns only threads of this subject. If it has looked at `limit` threads, it also returns the last
    of them.
    """
    given = (limit, before, subject, subject, tenant, low, after, end, limit, limit)
    with transaction(connection, tenant, read_only=True):
        return [Expiring(*row) for row in fetch(connection, EXPIRING, given)]


def clock(connection: Connection) -> datetime:
    """Returns the time of the database's clock."""
    [(now,)] = fetch(connection, "SELECT clock_timestamp()")
    found: datetime = now
    return found
