"""The async face of loading: whole threads, streamed, a chunk a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compaction_store import arguments
from compaction_store.messages import provider_compactions
from compaction_store.messages.keys import Key
from compaction_store.models import Loaded
from compaction_store.postgres import queries
from compaction_store.postgres.queries import ThreadKey
from compaction_store.store import loading
from compaction_store.store._async.writing import AsyncWriting


class AsyncLoading(AsyncWriting):
    """Reads and writes threads, and loads whole ones."""

    async def load(
        self,
        thread_id: str,
        messages: loading.AsyncMessages,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tokens: int | None = None,
    ) -> Loaded:
        """Appends messages in any number, streamed: memory does not grow with them. The login needs the loader's role.

        A message is what `append` takes, or a `ToLoad` with meta and tokens of its own; `meta` and `tokens` are for
        those that have none. Messages are stored in chunks of up to 10,000 messages or 16 MiB, each all or none, and
        appends of others may come between two chunks; `expected_seq` is the seq the thread must end with before the
        first.

        With `key`, the same call again adds nothing, and goes on where a call that failed has stopped: give it the same
        messages from the first on. With more messages than before, the new ones are added at the end; with fewer, or
        with others, it is an `IdempotencyConflict`. What fails carries a note on how many are stored.

        Compactions that a provider made by itself are recorded where a message tells of them, as by `append`, and where
        an `Observed` stands among the messages.
        """
        thread = self._own_key(thread_id)
        key = Key(key).text
        if expected_seq is not None:
            arguments.number(expected_seq, "expected_seq", least=0)
        source = loading.AsyncSource(messages)
        load = loading.Load(
            key,
            await self._ready(),
            uid=thread.uid,
            expected_seq=expected_seq,
            meta=meta,
            tokens=tokens,
            about=arguments.about(thread_id),
            in_memory=source.in_memory,
        )
        try:
            await self._advance(load, thread, thread_id, None)
            async for message in source:
                await self._advance(load, thread, thread_id, message)
            await self._advance(load, thread, thread_id, loading.End)
        except Exception as error:
            error.add_note(load.progress())
            raise
        return load.result()

    async def _advance(self, load: loading.Load, thread: ThreadKey, thread_id: str, message: Any) -> None:
        """Hands the load its next message, and then what it asks of the database until it wants another."""
        wanted = load.send(message)
        while wanted is not None:
            wanted = load.send(await self._answer(load, thread, thread_id, wanted))

    async def _answer(self, load: loading.Load, thread: ThreadKey, thread_id: str, wanted: loading.Request) -> Any:
        if isinstance(wanted, loading.Count):
            return await self._db.run_in_thread(load.count, wanted.payload, wanted.size)
        if isinstance(wanted, loading.Find):
            return await self._db.call(queries.find_load, thread, wanted.key, key=load.key)
        if isinstance(wanted, loading.Compare):
            return await self._db.call(queries.commitments, thread, wanted.first_seq, wanted.limit)
        if isinstance(wanted, provider_compactions.Record):
            return await self._db.call(queries.observe, thread, wanted.run_id, wanted.records, key=load.key)
        # The deadline is made for one message: a chunk has the time besides that a slow line would take.
        return await self._db.with_more_time(wanted.seconds).call(
            queries.load, thread, thread_id, wanted, load.meanwhile, key=load.key
        )
