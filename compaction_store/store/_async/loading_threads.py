"""Loads many threads: groups of short threads in one transaction each, and all other threads one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import UUID

from compaction_store.errors import Conflict, InvalidInput
from compaction_store.models import ThreadLoaded
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.store import loading, loading_threads
from compaction_store.store._async import writing
from compaction_store.store._async.loading import run_load
from compaction_store.store.loading_threads import Group, Options, Thread


async def load_threads(
    db: AsyncConnections, threads: loading_threads.AsyncThreads, options: Options
) -> AsyncIterator[ThreadLoaded]:
    """Yields a result for each thread, in order."""
    options = options._replace(counter=await writing.prepared(db, options.counter))
    group = Group()
    ending: Exception | None = None
    async for thread in _read(threads, options):
        if isinstance(thread, Exception):
            ending = thread
            break
        is_alone = thread.error is None and (thread.is_alone or not db.server.has_all_threads)
        if is_alone or not group.has_room(thread):
            async for result in _store(db, group, options):
                yield result
            group = Group()
        if is_alone:
            yield await _load_alone(db, thread, options)
        else:
            group.add(thread)
    async for result in _store(db, group, options):
        yield result
    if ending is not None:
        raise ending


async def _read(threads: loading_threads.AsyncThreads, options: Options) -> AsyncIterator[Thread | Exception]:
    """Yields the threads, each with as many messages read ahead as a group may need.

    If reading fails, yields the error after the threads before it.
    """
    try:
        async for given in loading.AsyncSource(threads):
            thread = loading_threads.begin(given, options)
            if thread.error is None:
                await _read_ahead(thread)
            if thread.error is not None and not thread.is_refused(options):
                yield thread.error
                return
            yield thread
    except Exception as error:  # noqa: BLE001 — the caller raises it after it has stored the threads before it
        yield error


async def _read_ahead(thread: Thread) -> None:
    try:
        thread.source = loading.AsyncSource(thread.messages)
        async for message in thread.source:
            for part in thread.load.parts(message):
                thread.size += thread.load.read_ahead(part)
            if thread.is_enough():
                return
    except Exception as error:  # noqa: BLE001 — `_store` raises it after it has stored the threads before it
        error.add_note(thread.load.progress())
        thread.error = error
    else:
        thread.is_whole = True


async def _store(db: AsyncConnections, group: Group, options: Options) -> AsyncIterator[ThreadLoaded]:
    """Stores a group in one transaction. Threads that could not be stored with the group are loaded one by one."""
    await db.run_in_thread(group.count)
    chunks = group.chunks(options)
    made: Iterator[UUID | None] = iter(())
    if chunks:
        patient = db.with_more_time(sum(chunk.seconds for _, chunk in chunks))
        made = iter(await patient.call(queries.load_threads, options.tenant, chunks, key=group.key()))
    for thread in group.threads:
        if thread.is_refused(options):
            yield thread.refused()
        elif thread.error is not None:
            raise thread.error
        elif next(made) is None:
            yield await _load_alone(db, thread, options)
        else:
            yield ThreadLoaded(thread.key.thread_id, thread.load.stored_whole())


async def _load_alone(db: AsyncConnections, thread: Thread, options: Options) -> ThreadLoaded:
    try:
        await db.run_in_thread(thread.load.count_ahead)
        loaded = await run_load(db, thread.key, thread.load, thread.source)
    except (Conflict, InvalidInput) as refusal:
        if not options.skip_refused:
            raise
        return ThreadLoaded(thread.key.thread_id, None, refusal)
    return ThreadLoaded(thread.key.thread_id, loaded)
