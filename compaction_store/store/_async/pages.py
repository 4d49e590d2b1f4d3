"""Reads messages and threads in pages."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from typing import Any

from compaction_store.arguments import about
from compaction_store.errors import MessageNotFound
from compaction_store.integrity import erasure
from compaction_store.models import Message, Thread
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey

_FIRST_PAGE = 16
_LONGEST_PAGE = 2000
_PAGE_BYTES = 4 * 1024 * 1024
_THREADS_PAGE = 500
# The index of a column in a row of `replay`.
_REDACTED_POS = 7


async def messages(db: AsyncConnections, thread: ThreadKey, after: int, until: int | None) -> AsyncIterator[Message]:
    """Yields the messages after one seq and up to another, oldest first."""
    limit = _FIRST_PAGE
    while True:
        rows = await db.call(queries.replay, thread, after, until, limit)
        for row in rows:
            yield typed_rows.message(row)
        if len(rows) < limit:
            return
        # Use thread_uid from here on: the name may belong to another thread by now.
        thread = thread._replace(uid=thread.uid or rows[0][-1])
        after = rows[-1][0]
        limit = _next_limit(rows, limit)


async def message(db: AsyncConnections, thread: ThreadKey, seq: int) -> Message:
    """Returns the message at a seq."""
    found, _ = await message_and_erasure(db, thread, seq)
    return found


async def message_and_erasure(db: AsyncConnections, thread: ThreadKey, seq: int) -> tuple[Message, int | None]:
    """Returns the message at a seq, and the pos of its erasure, or None if its row names no erasure."""
    rows = await db.call(queries.replay, thread, seq - 1, seq, 1)
    if not rows:
        raise MessageNotFound(f"no seq {seq}{about(thread.thread_id)}")
    return typed_rows.message(rows[0]), rows[0][_REDACTED_POS]


async def last_messages(db: AsyncConnections, thread: ThreadKey, count: int) -> AsyncIterator[Message]:
    """Yields the newest messages, oldest first."""
    if count > _LONGEST_PAGE:
        found = typed_rows.thread(await db.call(queries.thread, thread))
        thread, until = thread._replace(uid=found.thread_uid), found.last_seq
        async for message in messages(db, thread, max(0, until - count), until):
            yield message
        return
    rows = await db.call(queries.newest, thread, count)
    for row in reversed(rows):
        yield typed_rows.message(row)


async def threads(db: AsyncConnections, tenant: str, after: str, *, hidden: bool) -> AsyncIterator[Thread]:
    """Yields threads in the order of their names, with erased threads last.

    A thread that is erased during the iteration gets a new name. Because erased threads come last, it is not missed. If
    it was yielded before under its old name, it is not yielded again.
    """
    listed = array("Q")
    if erasure.stub_uid(after) is None:
        async for thread in _threads(db, tenant, after, hidden=hidden, erased=False):
            listed.append(_random_bits(thread))
            yield thread
        after = ""
    before: set[int] | None = None
    async for thread in _threads(db, tenant, after, hidden=hidden, erased=True):
        before = set(listed) if before is None else before
        if _random_bits(thread) not in before:
            yield thread


async def _threads(
    db: AsyncConnections, tenant: str, after: str, *, hidden: bool, erased: bool
) -> AsyncIterator[Thread]:
    while True:
        rows = await db.call(queries.threads, tenant, after, hidden, erased, _THREADS_PAGE)
        for row in rows:
            yield typed_rows.thread(row)
        if len(rows) < _THREADS_PAGE:
            return
        after = rows[-1][0]


def _random_bits(thread: Thread) -> int:
    return thread.thread_uid.int & 0xFFFFFFFFFFFFFFFF


def _next_limit(rows: list[tuple[Any, ...]], limit: int) -> int:
    """Returns how many rows to read next for a page of about four megabytes."""
    size = sum(len(row[3] or "") for row in rows) // len(rows) + 1
    return max(1, min(_LONGEST_PAGE, limit * 16, _PAGE_BYTES // size))
