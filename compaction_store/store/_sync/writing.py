"""The synchronous face of writing: append, and a thread's metadata."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast
from uuid import uuid4

from compaction_store import arguments, tokens
from compaction_store.compaction import size_estimate
from compaction_store.errors import ActorRequired, InvalidInput, ThreadErased, ThreadWentBack
from compaction_store.integrity import erasure
from compaction_store.messages import encoding, provider_compactions
from compaction_store.messages.keys import Key
from compaction_store.models import Appended, Message
from compaction_store.postgres import call, queries, typed_rows
from compaction_store.postgres.queries import ThreadKey
from compaction_store.rendering import receipts
from compaction_store.rendering.view import Rendered, View
from compaction_store.store._sync.auditing import Reader

_FIRST_PAGE = 16
_LONGEST_PAGE = 2000
_PAGE_BYTES = 4 * 1024 * 1024
_THREADS_PAGE = 500


class Writing(Reader):
    """Reads and writes threads."""

    def _own_key(self, thread_id: str) -> ThreadKey:
        """The key of a thread that is to be written to: an erased one is not, whatever its stub is called."""
        key = self._key(thread_id)
        if erasure.stub_uid(thread_id) is not None:
            raise ThreadErased(f"a thread of such a name was erased{arguments.about(thread_id)}")
        arguments.check_new_thread_id(thread_id)
        return key

    def _by(self, actor: str | None) -> str | None:
        """Who does what a call does: the actor that it names, else the store's own."""
        arguments.optional_name(actor, "actor")
        found = self._actor if actor is None else actor
        if found is None and self._require_actor:
            raise ActorRequired("actor must be given: the store was opened with require_actor=True")
        return found

    def append(
        self,
        thread_id: str,
        messages: Any,
        *,
        key: str | None = None,
        expected_seq: int | None = None,
        expected_head: bytes | None = None,
        view: View | Rendered | None = None,
        meta: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        tokens: int | Sequence[int] | None = None,
    ) -> Appended:
        """Appends one message or several, all or none; the thread appears with its first.

        A message is a dict of any JSON shape, a pydantic model or an SDK's object. With `key`, the same call again
        returns the first result. `expected_seq` is the seq the thread must end with, `expected_head` the head it must
        have: that of an earlier append, a view or `thread` (`HeadConflict`). `view` is what a reply was written from,
        or its rendering for an API, kept as the receipt; a thread that no longer has that view refuses the reply
        (`HeadConflict`). `meta` and `tokens` are one for all or one each; without any, the meta of an SDK's reply with
        a view is the `usage` that it tells of.
        """
        thread = self._own_key(thread_id)
        given = [messages] if encoding.is_one(messages) else list(islice(messages, encoding.MAX_BATCH + 1))
        encoded = encoding.encode_many(given)
        own = Key(key)
        if expected_seq is not None:
            arguments.number(expected_seq, "expected_seq", least=0)
        if view is not None and not isinstance(view, View | Rendered):
            raise InvalidInput(f"view must be a View or its rendering for an API, not {type(view).__name__}")
        if expected_head is not None:
            arguments.head(expected_head, "expected_head")
        if view is not None and view.thread_id != thread_id:
            raise InvalidInput(f"the view is one of thread {view.thread_id!r}, not of {thread_id!r}")
        if tokens is None and self._counter.takes_long(sum(e.size for e in encoded)):
            counter, counts = self._db.run_in_thread(_counted, self._counter, encoded, tokens)
        else:
            counter, counts = _counted(self._counter, encoded, tokens)
        if meta is None and view is not None:
            meta = [size_estimate.usage_of(reply) for reply in given]
        metas = _metas(meta, len(encoded))
        salts = os.urandom(16 * len(encoded))
        new = [
            queries.NewMessage(e.text, salts[16 * i : 16 * i + 16], e.role, counts[i], metas[i])
            for i, e in enumerate(encoded)
        ]
        receipt = None if view is None else receipts.receipt(view)
        expected = queries.Expected(expected_seq, expected_head, None if view is None else view.head)
        parts = (thread, thread_id, new, counter, own, receipt, expected)
        start, known = time.monotonic(), self._last_seqs.get(thread.uid)
        seen = provider_compactions.told_by(given, (e.payload for e in encoded))
        if seen is None:
            written = self._db.call(queries.append, *parts, key=own.text)
        else:
            written = self._db.call(queries.append_observed, *parts, uuid4(), seen, key=own.text)
        if written.replayed:
            # The first call's tokens and meta are what is stored, whatever this one said.
            after, count = written.first_seq - 1, len(new)
            with call.after_write(own.text, thread_id):
                rows = self._db.with_time_left_since(start).call(
                    queries.replay, thread, after, after + count, count
                )
            return Appended(map(typed_rows.message, rows), written.head)
        stored = Appended(_appended(written, encoded, new), written.head)
        self._last_seqs.put(thread.uid, known, stored[-1].seq)
        if written.first_seq <= known:
            lost = f"seq {known} was given before, and now {written.first_seq}: the thread has lost messages"
            raise ThreadWentBack(
                f"{lost}, and this append is stored{arguments.about(thread_id)}", written=stored, known_seq=known
            )
        return stored

    def _ready(self) -> tokens.Counter:
        """The counter, with what its first count would wait for done off the event loop."""
        if self._counter.takes_long(0):
            self._db.run_in_thread(self._counter.prepare)
        return self._counter

    def set_metadata(self, thread_id: str, metadata: Mapping[str, Any]) -> None:
        """Replaces the thread's metadata: one JSON object, for what is not a message."""
        key = self._own_key(thread_id)
        text = encoding.encode_meta(metadata)
        if text is None:
            raise InvalidInput("metadata must be one JSON object")
        self._db.call(queries.set_metadata, key, text, key=call.UNKEYED)


def _counted(
    counter: tokens.Counter, encoded: Sequence[encoding.Encoded], given: int | Sequence[int] | None
) -> tuple[str, list[int]]:
    if given is None:
        name, counts = counter.name, [counter.tokens(e.payload, e.size) for e in encoded]
    else:
        name = tokens.BY_CALLER
        counts = list(given) if isinstance(given, list | tuple) else [cast("int", given)] * len(encoded)
    if len(counts) != len(encoded):
        raise InvalidInput(f"{len(counts)} token counts for {len(encoded)} messages")
    if any(type(count) is not int or not 0 <= count < 2**31 for count in counts):
        raise InvalidInput("tokens must be integers from 0 to 2,147,483,647")
    return name, counts


def _metas(meta: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None, count: int) -> Sequence[str | None]:
    if meta is None or isinstance(meta, Mapping):
        return [encoding.encode_meta(meta)] * count
    if not isinstance(meta, list | tuple) or len(meta) != count:
        raise InvalidInput(f"meta must be one JSON object, or one for each of the {count} messages")
    return [encoding.encode_meta(m) for m in meta]


def _appended(
    written: queries.Written, encoded: Iterable[encoding.Encoded], new: Iterable[queries.NewMessage]
) -> Iterator[Message]:
    """What was stored, as a reader would get it; the caller's own objects are not held on to."""
    for i, (e, n) in enumerate(zip(encoded, new, strict=True)):
        meta = None if n.meta is None else encoding.decode(n.meta)
        yield Message(
            written.first_seq + i, written.first_pos + i, e.role, encoding.decode(e.text), n.tokens,
            written.written_at, meta, False, e.text,
        )  # fmt: skip
