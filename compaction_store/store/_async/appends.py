"""Appends messages: counts their tokens, writes them, and detects a database that lost earlier messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from compaction_store import arguments, tokens
from compaction_store.errors import InvalidInput, ThreadErased, ThreadNotFound, ThreadWentBack
from compaction_store.integrity import erasure
from compaction_store.messages import encoding, provider_compactions
from compaction_store.messages.keys import Key
from compaction_store.models import Appended, Message
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling import call
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.calling._async.shared_commits import AsyncSharedCommits
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering import receipts
from compaction_store.rendering.acceptance import Given
from compaction_store.rendering.view import Rendered, View
from compaction_store.store.threads import KnownThread, KnownThreads

Metas = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
Counts = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages to append, with their token counts and metas."""

    given: Given
    new: Sequence[queries.NewMessage]
    counter: str


async def batch(
    db: AsyncConnections, counter: tokens.Counter, given: Given, *, meta: Metas, count: Counts, has_view: bool
) -> Batch:
    """Counts the messages' tokens and encodes their metas."""
    encoded = given.encoded
    if count is None and counter.takes_long(sum(e.size for e in encoded)):
        name, counts = await db.run_in_thread(_counted, counter, encoded, count)
    else:
        name, counts = _counted(counter, encoded, count)
    if meta is None and has_view:
        meta = list(map(given.usage, range(len(encoded))))
    metas = _metas(meta, len(encoded))
    salts, rows = os.urandom(16 * len(encoded)), enumerate(zip(encoded, counts, metas, strict=True))
    new = [queries.NewMessage(e.text, salts[16 * i : 16 * i + 16], e.role, n, m) for i, (e, n, m) in rows]
    return Batch(given, new, name)


async def append(
    db: AsyncConnections,
    shared_commits: AsyncSharedCommits,
    known_threads: KnownThreads,
    thread: ThreadKey,
    batch: Batch,
    *,
    key: Key,
    expected: queries.Expected,
    view: View | Rendered | None,
    actor: str | None,
    durable: bool,
) -> Appended:
    """Appends a batch. Raises `ThreadWentBack` if the thread has lost messages that this store saw stored."""
    receipt = None if view is None else receipts.receipt(view, durable=durable)
    start, known = time.monotonic(), known_threads.get(thread.thread_id)
    is_known = known is not None and db.server.has_all_threads
    of = ThreadKey(known.thread_uid if known is not None and is_known else thread.uid, thread.tenant, thread.thread_id)
    new = queries.Append(of, batch.new, batch.counter, key, receipt, actor, expected, durable)
    seen = provider_compactions.records_for(batch.given.replies, (e.payload for e in batch.given.encoded))
    try:
        written = await _write(db, shared_commits, new, seen)
    except (ThreadErased, ThreadNotFound):
        if not is_known:
            raise
        # The thread was erased, or a backup from before its creation was restored. The name may now belong to a new
        # thread.
        written = await _write(db.with_time_left_since(start), shared_commits, new._replace(thread=thread), seen)
    if written.replayed:
        # Read the stored messages, because their tokens and metas are those of the first call.
        found = thread._replace(uid=written.thread_uid)
        after, count = written.first_seq - 1, len(batch.new)
        with call.after_write(key.text, thread.thread_id):
            rows = await db.with_time_left_since(start).call(queries.replay, found, after, after + count, count)
        return Appended(map(typed_rows.message, rows), written.head, durable=durable)
    stored = Appended(_appended(written, batch, actor), written.head, durable=durable)
    known_threads.put(thread.thread_id, known, KnownThread(written.thread_uid, stored[-1].seq))
    if known is not None and written.first_seq <= known.last_seq:
        with call.after_write(key.text, thread.thread_id):
            lost = known.thread_uid == written.thread_uid or not await _is_stored(
                db.with_time_left_since(start), thread.tenant, erasure.stub_name(known.thread_uid)
            )
        if lost:
            what = f"an earlier append reached seq {known.last_seq}, and this one begins at seq {written.first_seq}"
            raise ThreadWentBack(
                f"{what}: the thread has lost messages; this append was stored{arguments.about(thread.thread_id)}",
                written=stored, known_seq=known.last_seq,
            )  # fmt: skip
    return stored


async def _write(
    db: AsyncConnections, shared_commits: AsyncSharedCommits, new: queries.Append, seen: str | None
) -> queries.Written:
    if seen is None:
        return await shared_commits.append(db, new)
    return await db.call(queries.append_observed, *new, uuid4(), seen, key=new.key.text)


async def _is_stored(db: AsyncConnections, tenant: str, thread_id: str) -> bool:
    try:
        await db.call(queries.thread, ThreadKey(None, tenant, thread_id))
    except ThreadNotFound:
        return False
    return True


async def prepared(db: AsyncConnections, counter: tokens.Counter) -> tokens.Counter:
    """Returns the counter after its slow preparation, so that its first count does not block the event loop."""
    if counter.takes_long(0):
        await db.run_in_thread(counter.prepare)
    return counter


def _counted(counter: tokens.Counter, encoded: Sequence[encoding.Encoded], given: Counts) -> tuple[str, list[int]]:
    if given is None:
        name, counts = counter.name, [counter.tokens(e.payload, e.size) for e in encoded]
    else:
        name = tokens.BY_CALLER
        counts = list(given) if isinstance(given, list | tuple) else [cast("int", given)] * len(encoded)
    if len(counts) != len(encoded):
        raise InvalidInput(f"tokens must be one count for each of the {len(encoded)} messages, not {len(counts)}")
    for count in counts:
        if type(count) is not int or not 0 <= count < 2**31:
            raise InvalidInput(f"tokens must be integers from 0 to 2,147,483,647{arguments.other(count)}")
    return name, counts


def _metas(meta: Metas, count: int) -> Sequence[str | None]:
    if meta is None or isinstance(meta, Mapping):
        return [encoding.encode_meta(meta)] * count
    if not isinstance(meta, list | tuple) or len(meta) != count:
        found = f"{len(meta)}" if isinstance(meta, list | tuple) else type(meta).__name__
        raise InvalidInput(f"meta must be one JSON object, or one for each of the {count} messages, not {found}")
    return [encoding.encode_meta(m) for m in meta]


def _appended(written: queries.Written, batch: Batch, actor: str | None) -> Iterator[Message]:
    """Yields the messages as a reader would get them. Decodes them again, to share no object with the caller."""
    for i, (e, n) in enumerate(zip(batch.given.encoded, batch.new, strict=True)):
        meta = None if n.meta is None else encoding.decode(n.meta)
        yield Message(
            written.first_seq + i, written.first_pos + i, e.role, encoding.decode(e.text), n.tokens,
            written.written_at, meta, False, e.text, None, actor, written.login,
        )  # fmt: skip
