"""Stores the lines of session files, and the conversations in them.

The thread of a file's lines is only ever compared and continued, so a process may be killed at any moment: the next one
finds which lines are stored. A line that was redacted counts as equal to whatever the file has in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from compaction_store import Store
from compaction_store.errors import IdempotencyConflict, ThreadNotFound
from compaction_store.importers import SourceThread, ThreadImported, import_into
from compaction_store.importers.kept_lines import REWRITTEN
from compaction_store.importers.line_files import Files
from compaction_store.messages import encoding
from compaction_store.models import Thread, ToLoad

#: The most messages and bytes of one append.
BATCH_MESSAGES, BATCH_BYTES = 1000, 4 * 1024 * 1024
#: The reason of the record that hides what a rewritten file no longer has.
REPLACED = "the session's file was rewritten"

Payload = dict[str, Any]


class Kept(NamedTuple):
    """The state of a lines thread: the messages of the file's generation, the last seq, and the added messages."""

    length: int
    seq: int
    added: int = 0
    is_rewritten: bool = False


class Target(NamedTuple):
    """The thread of a file's lines, the key of its load, and the session's thread, which is the subject of both.

    The key is that of an import of the same file, which therefore continues what a watcher has stored.
    """

    thread: str
    key: str
    subject: str


class Erased(Exception):
    """The thread of a file was erased, so nothing of the file may be stored again."""


def batches(messages: Iterable[Payload], size_of: Callable[[Payload], int]) -> Iterator[list[Payload]]:
    """Divides messages into parts that one append can take."""
    batch: list[Payload] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += size_of(message)
        if len(batch) == BATCH_MESSAGES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def size_of(message: Payload) -> int:
    return len(message.get("text") or message.get("base64") or "")


class Keeper:
    """Writes to a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def thread(self, name: str) -> Thread | None:
        try:
            return self.store.thread(name, hidden=True)
        except ThreadNotFound:
            return None

    # ---- lines

    def append(self, to: Target, seq: int, messages: list[Payload]) -> int:
        """Appends messages after a seq, and returns the last seq. Raises `Conflict` if the thread ends elsewhere."""
        done = self.store.append(
            to.thread, messages, key=f"{to.key}#{seq}" if seq else to.key, expected_seq=seq, tokens=0, raw=True,
            subject=None if seq else to.subject,
        )  # fmt: skip
        return done[-1].seq

    def settle(
        self, to: Target, messages: Iterable[Payload], *, skip: int = 0, is_whole: bool = True, uid: str = ""
    ) -> Kept:
        """Compares the messages of a file with the stored ones, and appends those that are missing.

        `skip` is the number of the file's messages before the first one. If the file differs from what is stored, or
        `is_whole` and it ends earlier, a message says that it was rewritten.
        """
        stored, seq = self._stored(to.thread, uid)
        at = min(skip, len(stored))
        rest = iter(messages)
        for message in rest:
            if at == len(stored) or stored[at] not in (None, _digest(message)):
                rest = chain([message], rest)
                break
            at += 1
        else:
            rest = iter(())
        new: list[Payload] = []
        added = 0
        differs = next(rest, None)
        is_rewritten = at < len(stored) and (differs is not None or is_whole)
        if is_rewritten:
            new.append({"type": REWRITTEN, "keeps": at})
        if differs is not None:
            rest = chain([differs], rest)
        for batch in batches(chain(new, rest), size_of):
            seq = self.append(to, seq, batch)
            added += len(batch)
        added -= is_rewritten
        return Kept(at + added, seq, added, is_rewritten)

    def _stored(self, thread: str, uid: str) -> tuple[list[bytes | None], int]:
        """Returns a digest of each message of the file's last generation, and the last seq."""
        stored: list[bytes | None] = []
        seq = 0
        found = self.thread(thread)
        if (found is None or str(found.thread_uid) != uid) and uid and self.thread(f"erased:{uid}") is not None:
            raise Erased
        if found is None:
            return stored, seq
        for message in self.store.replay(thread):
            seq = message.seq
            if message.payload is not None and message.payload.get("type") == REWRITTEN:
                del stored[message.payload["keeps"] :]
            else:
                stored.append(None if message.payload is None else _digest(message.payload))
        return stored, seq

    def describe(self, thread: str, subject: str, about: Payload) -> str:
        """Gives a thread its metadata and its subject, unless it has others. Returns the thread's uid."""
        found = self.store.thread(thread, hidden=True)
        if about.items() - found.metadata.items():
            self.store.set_metadata(thread, {**found.metadata, **about})
        if found.subject is None:
            self.store.custody.set_subject(thread, subject)
        return str(found.thread_uid)

    # ---- conversations

    def converse(
        self, open_source: Callable[[], Files], prefix: str, subject: str, progress: Callable[[Any], object]
    ) -> list[ThreadImported]:
        """Imports the conversations of a file. If the file was rewritten, the views become those of the new file.

        Each version that is no continuation of the one before is loaded under a key of its own, after a rewind has
        hidden what was loaded before. The rewinds tell which version was loaded last.
        """
        results = []
        for thread in open_source().threads():
            name, number = prefix + thread.source_id, 0
            if self.thread(name) is not None:
                number = sum(record.reason == REPLACED for record in self.store.compactions(name, kind="rewind"))
            result = self._load(open_source(), thread.source_id, name, number, progress)
            if isinstance(result.refused, IdempotencyConflict):
                self.store.rewind(name, 0, reason=REPLACED)
                result = self._load(open_source(), thread.source_id, name, number + 1, progress)
            if result.loaded is not None:
                self.describe(name, subject, {})
            results.append(result)
        return results

    def _load(
        self, source: Files, source_id: str, name: str, number: int, progress: Callable[[Any], object]
    ) -> ThreadImported:
        key_id = f"{source_id}@{number}" if number else source_id
        how: dict[str, Any] = {"thread_id": name} if number else {"prefix": name.removesuffix(source_id)}
        [result] = import_into(
            self.store, _OneThread(source, source_id, key_id), skip_bad=True, adopt=True, progress=progress, **how
        )  # fmt: skip
        return result


class _OneThread:
    """One thread of a source, under an id from which the key of its load is made."""

    def __init__(self, source: Files, source_id: str, key_id: str) -> None:
        self._source, self._ids = source, (source_id, key_id)
        self.format, self.unit, self.total, self.close = source.format, source.unit, source.total, source.close

    @property
    def done(self) -> int:
        return self._source.done

    def threads(self) -> Iterator[SourceThread]:
        source_id, key_id = self._ids
        for thread in self._source.threads():
            if thread.source_id == source_id:
                # The receipt of a request names lines by their number in the file, which is their seq if there is only
                # one version.
                items = thread.items if key_id == source_id else map(_without_receipt, thread.items)
                yield replace(thread, source_id=key_id, items=items)


def _without_receipt(item: Any) -> Any:
    if not isinstance(item, ToLoad) or item.meta is None:
        return item
    return replace(item, meta={name: value for name, value in item.meta.items() if name != "request"})


def _digest(message: Payload) -> bytes:
    return blake2b(encoding.encode(message).text.encode(), digest_size=16).digest()
