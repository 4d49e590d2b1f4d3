"""Loads a stream of messages in chunks, with one transaction for each chunk."""

from __future__ import annotations

from typing import Any

from compaction_store.messages import provider_compactions
from compaction_store.models import Loaded
from compaction_store.postgres import queries
from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading


def run_load(
    db: Connections, thread: ThreadKey, load: loading.Load, source: loading.Source
) -> Loaded:  # fmt: skip
    """Runs a load from its first message to its last."""
    try:
        _advance(db, thread, load, None)
        for message in source:
            _advance(db, thread, load, message)
        _advance(db, thread, load, loading.End)
    except Exception as error:
        error.add_note(load.progress())
        raise
    return load.result()


def _advance(db: Connections, thread: ThreadKey, load: loading.Load, message: Any) -> None:
    """Sends the load its next message, then answers its requests until it needs another message."""
    request = load.send(message)
    while request is not None:
        request = load.send(_answer(db, thread, load, request))


def _answer(db: Connections, thread: ThreadKey, load: loading.Load, request: loading.Request) -> Any:
    thread = thread._replace(uid=load.thread_uid)
    if isinstance(request, loading.CountTokens):
        return db.run_in_thread(load.count, request.payload, request.size)
    if isinstance(request, loading.FindChunk):
        return db.call(queries.find_load, thread, request.key, key=load.key)
    if isinstance(request, loading.ReadCommitments):
        return db.call(queries.commitments, thread, request.first_seq, request.limit)
    if isinstance(request, provider_compactions.Record):
        return db.call(queries.observe, thread, request.run_id, request.records, key=load.key)
    # The deadline is meant for one message; a chunk gets additional time for a slow connection.
    return db.with_more_time(request.seconds).call(queries.load, thread, request, load.encode_ahead, key=load.key)
