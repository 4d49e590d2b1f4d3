"""Finds the threads that a retention policy may erase."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from compaction_store.integrity.erasure import AFTER_STUBS, STUB
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch, transaction

# The names with a prefix are before the prefix with this ending, because names have at most 255 bytes.
LAST = "\U0010ffff" * 64
EXPIRING = ModuleData(__file__).text("expiring")
_RESERVED = (("compaction-store:", "compaction-store;"), (STUB, AFTER_STUBS))


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
