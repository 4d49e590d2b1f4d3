"""Loads a stream of messages in chunks, with one transaction for each chunk."""

from __future__ import annotations

from typing import Any

from compaction_store.messages import provider_compactions
from compaction_store.models import Loaded
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading


async def run_load(
    db: AsyncConnections, thread: ThreadKey, load: loading.Load, source: loading.AsyncSource
) -> Loaded:  # fmt: skip
    """Runs a load from its first message to its last."""
    try:
        await _advance(db, thread, load, None)
        async for message in source:
            for part in load.parts(message):
                await _advance(db, thread, load, part)
        await _advance(db, thread, load, loading.End)
    except Exception as error:
        error.add_note(load.progress())
        raise
    return load.result()


async def _advance(db: AsyncConnections, thread: ThreadKey, load: loading.Load, message: Any) -> None:
    """Sends the load its next message, then answers its requests until it needs another message."""
    request = load.send(message)
    while request is not None:
        request = load.send(await _answer(db, thread, load, request))


async def _answer(db: AsyncConnections, thread: ThreadKey, load: loading.Load, request: loading.Request) -> Any:
    thread = thread._replace(uid=load.thread_uid)
    if isinstance(request, loading.CountTokens):
        return await db.run_in_thread(load.count, request.payload, request.size)
    if isinstance(request, loading.FindChunk):
        return await db.call(queries.find_load, thread, request.key, key=load.key)
    if isinstance(request, loading.ReadCommitments):
        return await db.call(queries.commitments, thread, request.first_seq, request.limit)
    if isinstance(request, provider_compactions.Record):
        return await db.call(queries.observe, thread, request.run_id, request.records, key=load.key)
    # The deadline is meant for one message; a chunk gets additional time for a slow connection.
    return await db.with_more_time(request.seconds).call(queries.load, thread, request, load.encode_ahead, key=load.key)
