"""Forks threads, and finds where the messages of a fork were appended."""

from __future__ import annotations

import json
import os

from compaction_store import arguments
from compaction_store.errors import IdempotencyConflict, ThreadNotFound
from compaction_store.integrity import erasure
from compaction_store.integrity.origins import OriginSource, source_of
from compaction_store.models import Forked, Origin, Payload
from compaction_store.postgres import queries, typed_rows
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering import receipts
from compaction_store.rendering.view import View

# Five times the measured time for copying an entry.
_SECONDS_AN_ENTRY = 0.001


async def fork(
    db: AsyncConnections,
    thread: ThreadKey,
    new_thread_id: str,
    at: int | None,
    *,
    key: str | None,
    reason: str | None,
    actor: str | None,
    authority: Payload | None,
) -> Forked:
    """Copies a thread up to a pos into a new thread."""
    salt = os.urandom(16)
    body = erasure.body(reason=reason, authority=authority)
    count = typed_rows.thread(await db.call(queries.thread, thread)).last_pos if at is None else at
    row = await db.with_more_time(count * _SECONDS_AN_ENTRY).call(
        queries.fork, thread, new_thread_id, at, actor, salt, None if key is None else json.dumps(key), body,
        key=salt.hex() if key is None else key,
    )  # fmt: skip
    parent_uid, uid, name, at_pos, last_seq, head, event_pos, created_at, replayed = row
    if name != new_thread_id or (at is not None and at != at_pos):
        raise IdempotencyConflict(
            f"the key was used for another fork, at pos {event_pos}{arguments.about(thread.thread_id)}"
        )
    return Forked(
        name, uid, thread.thread_id, parent_uid, at_pos, last_seq, at_pos + 1, head, event_pos, created_at, not replayed
    )


async def source(db: AsyncConnections, thread: ThreadKey, pos: int) -> OriginSource | None:
    """Returns where the entry at a pos was first written, or None if it is not a copy."""
    return source_of(await db.call(queries.origins, thread), pos)


async def origin(db: AsyncConnections, thread: ThreadKey, seq: int, pos: int) -> Origin | None:
    """Returns where a message was first appended, or None if it is not a copy."""
    found = await source(db, thread, pos)
    if found is None:
        return None
    key = ThreadKey(found.thread_uid, thread.tenant, "")
    name = await db.call(queries.name_of, key)
    rows = [] if name is None else await db.call(queries.replay, key, seq - 1, seq, 1)
    return Origin(name, found.thread_uid, found.pos, typed_rows.message(rows[0]).created_at if rows else None)


async def seen_in(db: AsyncConnections, thread: ThreadKey, pos: int, receipt: Payload) -> tuple[View, bool]:
    """Returns the view that a receipt names, and whether the view has the receipt's hash.

    The receipt of a copied reply names a pos in the thread where the reply was written, so the view is read from that
    thread. If that thread is not in this database, or its view no longer has the hash, the fork's copy is used.
    """
    found = await source(db, thread, pos)
    if found is not None:
        key = ThreadKey(found.thread_uid, thread.tenant, "")
        name = await db.call(queries.name_of, key)
        if name is not None:
            try:
                view = typed_rows.view(name, await db.call(queries.view, key, receipt["pos"]))
            except ThreadNotFound:
                pass
            else:
                if receipts.matches(view, receipt):
                    return view, True
    at = receipt["pos"] + (0 if found is None else pos - found.pos)
    view = typed_rows.view(thread.thread_id, await db.call(queries.view, thread, at))
    return view, receipts.matches(view, receipt)
