"""Reads messages and threads in pages."""

from __future__ import annotations

import sys
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

from compaction_store.arguments import about
from compaction_store.errors import MessageNotFound
from compaction_store.integrity import erasure
from compaction_store.models import Element, Message, Part, Thread
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey

_FIRST_PAGE = 16
_FIRST_ELEMENTS = 64
_LONGEST_PAGE = 2000
_PAGE_BYTES = 4 * 1024 * 1024
_THREADS_PAGE = 500


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
        thread = thread._replace(uid=thread.uid or rows[0].thread_uid)
        after = rows[-1].seq
        limit = _next_limit([len(row.payload or "") for row in rows], limit)


async def message(db: AsyncConnections, thread: ThreadKey, seq: int) -> Message:
    """Returns the message at a seq."""
    found, _ = await message_and_erasure(db, thread, seq)
    return found


async def message_and_erasure(db: AsyncConnections, thread: ThreadKey, seq: int) -> tuple[Message, int | None]:
    """Returns the message at a seq, and the pos of its erasure, or None if its row names no erasure."""
    rows = await db.call(queries.replay, thread, seq - 1, seq, 1)
    if not rows:
        raise MessageNotFound(f"no seq {seq}{about(thread.thread_id)}")
    return typed_rows.message(rows[0]), rows[0].redacted_pos


async def elements(db: AsyncConnections, thread: ThreadKey, parts: Iterable[Part]) -> AsyncIterator[Element]:
    """Yields the elements of parts of an outline, in order. Reads messages and records together, in pages."""
    wanted = _Wanted(parts)
    limit = _FIRST_ELEMENTS
    while page := list(islice(wanted, limit)):
        seqs = [seq for seq, number in page if number is None]
        rows = await db.call(queries.elements, thread, seqs, [number for _, number in page if number is not None])
        found = {(element.seq, None) if element.number is None else (0, element.number): element
                 for element in map(typed_rows.element, rows)}  # fmt: skip
        for place in page:
            if place in found:
                yield found[place]
            elif place[1] is None:
                wanted.last_seq = min(wanted.last_seq, place[0])
        if rows:
            # Use thread_uid from here on: the name may belong to another thread by now.
            thread = thread._replace(uid=rows[0].thread_uid)
            limit = _next_limit([len(row.payload or "") for row in rows], limit)


class _Wanted:
    """Iterates over the elements of parts as pairs: a seq and None for a message, 0 and a number for a record.

    Leaves out the seqs after `last_seq`, because a part may end beyond the thread.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.last_seq = sys.maxsize
        self._places = self._iterate(parts)

    def __iter__(self) -> Iterator[tuple[int, int | None]]:
        return self._places

    def _iterate(self, parts: Iterable[Part]) -> Iterator[tuple[int, int | None]]:
        for part in parts:
            if part.number is not None:
                yield 0, part.number
                continue
            for seq in range(part.seq, part.end_seq + 1):
                if seq > self.last_seq:
                    break
                yield seq, None


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


def _next_limit(sizes: list[int], limit: int) -> int:
    """Returns how many rows to read next for a page of about four megabytes, from the sizes of the last rows."""
    size = sum(sizes) // len(sizes) + 1
    return max(1, min(_LONGEST_PAGE, limit * 16, _PAGE_BYTES // size))
