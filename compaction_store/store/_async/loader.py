"""The group `store.load`: stores the messages of one thread, of many threads, or of a bundle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from uuid import UUID

from compaction_store import arguments
from compaction_store.bundles import import_rows, verification
from compaction_store.errors import Conflict, InvalidInput
from compaction_store.messages import provider_compactions
from compaction_store.messages.keys import Key
from compaction_store.models import Imported, Loaded, ThreadLoaded
from compaction_store.postgres import queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.queries import ThreadKey
from compaction_store.results import AsyncResults
from compaction_store.store import loads
from compaction_store.store._async import appends
from compaction_store.store._async.scope import AsyncScope
from compaction_store.store.loads import Group, LoadOptions, ThreadToLoad


class AsyncLoader:
    """The methods of `store.load`, which store any number of messages. The login must have the loader's role."""

    def __init__(self, scope: AsyncScope) -> None:
        self._scope = scope

    async def messages(
        self,
        thread_id: str,
        messages: loads.AsyncMessages,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
        actor: str | None = None,
        raw: bool = False,
        subject: str | None = None,
    ) -> Loaded:
        """Appends any number of messages from an iterator. The login must have the loader's role.

        The messages are streamed, so memory does not grow with their number. A message is anything that `append`
        accepts, or a `ToLoad` with its own meta and tokens; `meta` and `tokens` are for all other messages. `actor` is
        stored with the messages, and `subject` is as in `append`. With `raw`, any JSON object is stored as it is, for
        threads that other programs wrote. Messages are stored in chunks of up
        to 10,000 messages or 16 MiB, each all or none. Other writers may append between two chunks. With
        `expected_seq`, the thread must end with that seq before the first chunk.

        With `key`, repeating a call adds nothing, and repeating a failed call continues where it stopped. Give the
        repeated call the same messages, starting with the first. It appends additional messages at the end; fewer or
        different messages raise an `IdempotencyConflict`. An error has a note with the number of stored messages.

        Compactions that a provider made by itself are recorded where a message reports them, as by `append`, and where
        the iterator yields an `Observed`.
        """
        thread = self._scope.writable_key(thread_id)
        key = Key(key).text
        arguments.number(expected_seq, "expected_seq", least=0, optional=True)
        arguments.optional_name(subject, "subject")
        source = loads.AsyncSource(messages)
        options = loads.LoadOptions(
            self._scope.tenant, await appends.prepared(self._scope.db, self._scope.counter), key, meta, tokens,
            self._scope.chosen_actor(actor), expected_seq=expected_seq, raw=raw, subject=subject,
        )  # fmt: skip
        load = loads.Load(options, arguments.about(thread_id), source.in_memory)
        return await run_load(self._scope.db, thread, load, source)

    def threads(
        self,
        threads: loads.AsyncThreads,
        *,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
        actor: str | None = None,
        skip_refused: bool = False,
        expected_seq: int | None = None,
        raw: bool = False,
        subject: str | None = None,
    ) -> AsyncResults[ThreadLoaded]:
        """Loads many threads from an iterator of pairs `(thread_id, messages)` or triples `(thread_id, messages, key)`.

        Each thread is loaded as by `messages`, and its result is yielded after it is stored. Short new threads share
        transactions of up to 10,000 messages or 16 MiB, so several threads may be read before the first is stored.
        Nothing is read or stored until the result is iterated over; if nobody does, the result warns when it is
        dropped. Repeating a call with the same `key` adds only new messages. With `expected_seq=0`, a thread that has
        messages of other calls is refused. All threads get the same `subject`.

        If a thread fails, the threads before it are stored before the error is raised. With `skip_refused`, a thread
        that the store refuses is reported in its result, and the other threads are loaded.
        """
        loads.check(threads)
        arguments.number(expected_seq, "expected_seq", least=0, optional=True)
        arguments.optional_name(subject, "subject")
        options = loads.LoadOptions(
            self._scope.tenant, self._scope.counter, Key(key).text, meta, tokens, self._scope.chosen_actor(actor),
            skip_refused, expected_seq, raw, subject,
        )  # fmt: skip
        return AsyncResults("load.threads(…)", load_threads(self._scope.db, threads, options))

    async def bundle(self, lines: loads.AsyncMessages) -> Imported:
        """Stores the thread of a bundle, all or nothing. The login must have the loader's role.

        `lines` are the lines of the bundle. The thread is restored byte for byte, with its times, keys, receipts,
        records, events and metadata. The whole bundle is verified before anything is sent, and an `InvalidBundle` names
        the line at fault. A bundle with withheld content is refused; erased content is accepted. The store's tenant
        must be the tenant of the bundle. If the thread exists already, nothing is added, and `ThreadExists` is raised
        if its head differs. A bundle with times more than a day ahead of the server's clock is refused.
        """
        verification.check_lines(lines)
        return await import_bundle(self._scope.db, self._scope.tenant, loads.AsyncSource(lines))


# ---- the messages of one thread, in chunks with a transaction each


async def run_load(db: AsyncConnections, thread: ThreadKey, load: loads.Load, source: loads.AsyncSource) -> Loaded:
    """Runs a load from its first message to its last."""
    try:
        await _advance(db, thread, load, None)
        async for message in source:
            for part in load.parts(message):
                await _advance(db, thread, load, part)
        await _advance(db, thread, load, loads.End)
    except Exception as error:
        error.add_note(load.progress())
        raise
    return load.result()


async def _advance(db: AsyncConnections, thread: ThreadKey, load: loads.Load, message: Any) -> None:
    """Sends the load its next message, then answers its requests until it needs another message."""
    request = load.send(message)
    while request is not None:
        request = load.send(await _answer(db, thread, load, request))


async def _answer(db: AsyncConnections, thread: ThreadKey, load: loads.Load, request: loads.Request) -> Any:
    thread = thread._replace(uid=load.thread_uid)
    if isinstance(request, loads.CountTokens):
        return await db.run_in_thread(load.count, request.payload, request.size)
    if isinstance(request, loads.FindChunk):
        return await db.call(queries.find_load, thread, request.key, key=load.key)
    if isinstance(request, loads.ReadCommitments):
        return await db.call(queries.commitments, thread, request.first_seq, request.limit)
    if isinstance(request, provider_compactions.Record):
        return await db.call(queries.observe, thread, request.run_id, request.records, key=load.key)
    # The deadline is meant for one message; a chunk gets additional time for a slow connection.
    return await db.with_more_time(request.seconds).call(queries.load, thread, request, load.encode_ahead, key=load.key)


# ---- the thread of a bundle


async def import_bundle(db: AsyncConnections, tenant: str, lines: loads.AsyncSource) -> Imported:
    """Verifies the whole bundle, then sends its thread in one transaction."""
    with import_rows.Staged(tenant) as staged:
        async for line in lines:
            staged.add(line)
        staged.finish()
        thread = ThreadKey(staged.thread_uid, tenant, staged.manifest["thread_id"])
        db, about = db.with_more_time(staged.seconds), arguments.about(thread.thread_id)
        return staged.result(added=await db.call(queries.import_bundle, thread, staged, about, key=staged.head.hex()))


# ---- many threads: groups of short ones in one transaction each, and all others one by one


async def load_threads(
    db: AsyncConnections, threads: loads.AsyncThreads, options: LoadOptions
) -> AsyncIterator[ThreadLoaded]:
    """Yields a result for each thread, in order."""
    options = options._replace(counter=await appends.prepared(db, options.counter))
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


async def _read(threads: loads.AsyncThreads, options: LoadOptions) -> AsyncIterator[ThreadToLoad | Exception]:
    """Yields the threads, with the messages that a group needs read ahead. Yields the error if reading fails."""
    try:
        async for given in loads.AsyncSource(threads):
            thread = loads.begin(given, options)
            if thread.error is None:
                await _read_ahead(thread)
            if thread.error is not None and thread.refused(options) is None:
                yield thread.error
                return
            yield thread
    except Exception as error:  # noqa: BLE001 — the caller raises it after it has stored the threads before it
        yield error


async def _read_ahead(thread: ThreadToLoad) -> None:
    try:
        thread.source = loads.AsyncSource(thread.messages)
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


async def _store(db: AsyncConnections, group: Group, options: LoadOptions) -> AsyncIterator[ThreadLoaded]:
    """Stores a group in one transaction. Threads that could not be stored with the group are loaded one by one."""
    await db.run_in_thread(group.count)
    chunks = group.chunks(options)
    made: Iterator[UUID | None] = iter(())
    if chunks:
        patient = db.with_more_time(sum(chunk.seconds for _, chunk in chunks))
        made = iter(await patient.call(queries.load_threads, options.tenant, chunks, key=group.key()))
    for thread in group.threads:
        if (refused := thread.refused(options)) is not None:
            yield refused
        elif thread.error is not None:
            raise thread.error
        elif next(made) is None:
            yield await _load_alone(db, thread, options)
        else:
            yield ThreadLoaded(thread.key.thread_id, thread.load.stored_whole())


async def _load_alone(db: AsyncConnections, thread: ThreadToLoad, options: LoadOptions) -> ThreadLoaded:
    try:
        await db.run_in_thread(thread.load.count_ahead)
        loaded = await run_load(db, thread.key, thread.load, thread.source)
    except (Conflict, InvalidInput) as refusal:
        if not options.skip_refused:
            raise
        return ThreadLoaded(thread.key.thread_id, None, refusal)
    return ThreadLoaded(thread.key.thread_id, loaded)
