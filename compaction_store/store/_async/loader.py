"""The group `store.load`: stores the messages of one thread, of many threads, or of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compaction_store import arguments
from compaction_store.bundles import verification
from compaction_store.messages.keys import Key
from compaction_store.models import (
    Imported,
    Loaded,
    ThreadLoaded,
)
from compaction_store.results import AsyncResults
from compaction_store.store import loading, loading_threads
from compaction_store.store._async import (
    importing,
    writing,
)
from compaction_store.store._async.loading import run_load
from compaction_store.store._async.loading_threads import load_threads
from compaction_store.store._async.scope import AsyncScope


class AsyncLoader:
    """The methods of `store.load`, which store any number of messages. The login must have the loader's role."""

    def __init__(self, scope: AsyncScope) -> None:
        self._scope = scope

    async def messages(
        self,
        thread_id: str,
        messages: loading.AsyncMessages,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
        actor: str | None = None,
        raw: bool = False,
    ) -> Loaded:
        """Appends any number of messages from an iterator. The login must have the loader's role.

        The messages are streamed, so memory does not grow with their number. A message is anything that `append`
        accepts, or a `ToLoad` with its own meta and tokens; `meta` and `tokens` are for all other messages. `actor` is
        stored with the messages. With `raw`,
        any JSON object is stored as it is, for threads that other programs wrote. Messages are stored in chunks of up
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
        if expected_seq is not None:
            arguments.number(expected_seq, "expected_seq", least=0)
        source = loading.AsyncSource(messages)
        load = loading.Load(
            key, await writing.prepared(self._scope.db, self._scope.counter), expected_seq=expected_seq, meta=meta,
            tokens=tokens, actor=self._scope.chosen_actor(actor), of_thread=arguments.about(thread_id),
            in_memory=source.in_memory, raw=raw,
        )  # fmt: skip
        return await run_load(self._scope.db, thread, load, source)

    def threads(
        self,
        threads: loading_threads.AsyncThreads,
        *,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
        actor: str | None = None,
        skip_refused: bool = False,
        expected_seq: int | None = None,
        raw: bool = False,
    ) -> AsyncResults[ThreadLoaded]:
        """Loads many threads from an iterator of pairs `(thread_id, messages)` or triples `(thread_id, messages, key)`.

        Each thread is loaded as by `messages`, and its result is yielded after it is stored. Short new threads share
        transactions of up to 10,000 messages or 16 MiB, so several threads may be read before the first is stored.
        Nothing is read or stored until the result is iterated over; if nobody does, the result warns when it is
        dropped. Repeating a call with the same `key` adds only new messages. With `expected_seq=0`, a thread that has
        messages of other calls is refused.

        If a thread fails, the threads before it are stored before the error is raised. With `skip_refused`, a thread
        that the store refuses is reported in its result, and the other threads are loaded.
        """
        loading_threads.check(threads)
        if expected_seq is not None:
            arguments.number(expected_seq, "expected_seq", least=0)
        options = loading_threads.Options(
            self._scope.tenant, self._scope.counter, Key(key).text, meta, tokens, self._scope.chosen_actor(actor),
            skip_refused, expected_seq, raw,
        )  # fmt: skip
        return AsyncResults("load.threads(…)", load_threads(self._scope.db, threads, options))

    async def bundle(self, lines: loading.AsyncMessages) -> Imported:
        """Stores the thread of a bundle, all or nothing. The login must have the loader's role.

        `lines` are the lines of the bundle. The thread is restored byte for byte, with its times, keys, receipts,
        records, events and metadata. The whole bundle is verified before anything is sent, and an `InvalidBundle` names
        the line at fault. A bundle with withheld content is refused; erased content is accepted. The store's tenant
        must be the tenant of the bundle. If the thread exists already, nothing is added, and `ThreadExists` is raised
        if its head differs. A bundle with times more than a day ahead of the server's clock is refused.
        """
        verification.check_lines(lines)
        return await importing.import_bundle(self._scope.db, self._scope.tenant, loading.AsyncSource(lines))
