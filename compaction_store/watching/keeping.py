"""Stores the lines of session files, and the conversations in them.

The thread of a file's lines is only ever compared and continued, so a process may be killed at any moment: the next one
finds which lines are stored. A line that was redacted counts as equal to whatever the file has in its place.
"""

from __future__ import annotations

import filecmp
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NamedTuple

from compaction_store import Reader, Store
from compaction_store.errors import Conflict, IdempotencyConflict, InvalidInput, ThreadNotFound
from compaction_store.files import sync_folder
from compaction_store.importers import ThreadImported, import_into
from compaction_store.importers.line_files import LINES, REWRITTEN, Files, bytes_of
from compaction_store.importers.line_files import messages as messages_in
from compaction_store.messages import encoding
from compaction_store.models import Thread

# The most messages and bytes of one append.
_MESSAGES, _BYTES = 1000, 4 * 1024 * 1024
# The reason of the record that hides what a rewritten file no longer has.
_REPLACED = "the session's file was rewritten"

Payload = dict[str, Any]


class KeptFile(NamedTuple):
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


class ErasedSession(Exception):
    """The thread of a file was erased, so nothing of the file may be stored again."""


def batches(messages: Iterable[Payload]) -> Iterator[list[Payload]]:
    """Divides messages into parts that one append can take."""
    batch, size = list[Payload](), 0
    for message in messages:
        batch.append(message)
        size += len(message.get("text") or message.get("base64") or "")
        if len(batch) == _MESSAGES or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Keeper:
    def __init__(self, store: Store) -> None:
        self.store = store

    def thread(self, name: str) -> Thread | None:
        with suppress(ThreadNotFound):
            return self.store.thread(name, hidden=True)
        return None

    def append(self, to: Target, seq: int, messages: list[Payload]) -> int:
        """Appends messages after a seq, and returns the last seq. Raises `Conflict` if the thread ends elsewhere."""
        key = f"{to.key}#{seq}" if seq else to.key
        subject = None if seq else to.subject
        done = self.store.append(to.thread, messages, key=key, expected_seq=seq, tokens=0, raw=True, subject=subject)
        return done[-1].seq

    def settle(
        self, to: Target, messages: Iterable[Payload], *, skip: int = 0, is_whole: bool = True, uid: str = ""
    ) -> KeptFile:
        """Compares the messages of a file with the stored ones, and appends those that are missing.

        `skip` is the number of the file's messages before the first one. If the file differs from what is stored, or
        `is_whole` and it ends earlier, a message says that it was rewritten.
        """
        stored, seq = self._stored(to.thread, uid)
        at = min(skip, len(stored))
        rest, new = iter(messages), list[Payload]()
        for message in rest:
            if at == len(stored) or stored[at] not in (None, _digest(message)):
                new.append(message)
                break
            at += 1
        is_rewritten = at < len(stored) and (bool(new) or is_whole)
        if is_rewritten:
            new.insert(0, {"type": REWRITTEN, "keeps": at})
        added = -is_rewritten
        for batch in batches(chain(new, rest)):
            seq = self.append(to, seq, batch)
            added += len(batch)
        return KeptFile(at + added, seq, added, is_rewritten)

    def _stored(self, thread: str, uid: str) -> tuple[list[bytes | None], int]:
        """Returns a digest of each message of the file's last generation, and the last seq."""
        stored, seq = list[bytes | None](), 0
        found = self.thread(thread)
        if uid and (found is None or str(found.thread_uid) != uid) and self.thread(f"erased:{uid}") is not None:
            raise ErasedSession
        for message in () if found is None else self.store.replay(thread):
            seq = message.seq
            if message.payload is not None and message.payload.get("type") == REWRITTEN:
                del stored[message.payload["keeps"] :]
            else:
                stored.append(None if message.payload is None else _digest(message.payload))
        return stored, seq

    def describe(self, thread: str, subject: str, about: Payload) -> str:
        """Gives a thread its metadata, and its subject unless it has another. Returns the thread's uid."""
        found = self.store.thread(thread, hidden=True)
        if about.items() - found.metadata.items():
            self.store.set_metadata(thread, {**found.metadata, **about})
        if found.subject is None:
            self.store.custody.set_subject(thread, subject)
        return str(found.thread_uid)

    def converse(
        self, open_source: Callable[[], Files], prefix: str, subject: str, progress: Callable[[Any], object],
        was_rewritten: bool,
    ) -> Iterator[ThreadImported]:  # fmt: skip
        """Imports the conversations of a file. If the file was rewritten, the views become those of the new file.

        Each version that is no continuation of the one before is loaded under a key of its own, after a rewind has
        hidden what was loaded before. The rewinds tell which version was loaded last. A thread with a redacted message
        is not loaded again, because the file may still have the message.
        """
        for source_id in [thread.source_id for thread in open_source().threads()]:
            name, number = prefix + source_id, 0
            if self.thread(name) is not None:
                number = sum(record.reason == _REPLACED for record in self.store.compactions(name, kind="rewind"))
            result = self._load(open_source(), source_id, name, number, progress)
            is_other = was_rewritten and isinstance(result.refused, IdempotencyConflict)
            if is_other and not any(message.redacted for message in self.store.replay(name)):
                self.store.rewind(name, 0, reason=_REPLACED)
                result = self._load(open_source(), source_id, name, number + 1, progress)
            if result.loaded is not None:
                self.describe(name, subject, {})
            yield result

    def _load(
        self, source: Files, source_id: str, name: str, number: int, progress: Callable[[Any], object]
    ) -> ThreadImported:
        """Imports one version of one thread. The id in the source makes the key of the load."""
        thread = next(thread for thread in source.threads() if thread.source_id == source_id)
        how: dict[str, Any] = {"prefix": name.removesuffix(source_id)}
        if number:
            thread = replace(thread, source_id=f"{source_id}@{number}")
            how = {"thread_id": name}
        one: Any = SimpleNamespace(format=source.format, unit=source.unit, total=None, done=0, close=source.close)
        one.threads = lambda: iter([thread])
        [result] = import_into(self.store, one, skip_bad=True, adopt=True, progress=progress, **how)
        return result


def _digest(message: Payload) -> bytes:
    return blake2b(encoding.encode(message).text.encode(), digest_size=16).digest()


# ---- lines that are kept on disk while the database is away, and stored in their order when it is back

# The most bytes on disk.
_LIMIT = 1024**3


class Spooled(NamedTuple):
    """A part of a file. `length` and `seq` are those of the thread before it; `seq` is -1 if that is not known."""

    path: str
    target: Target
    about: dict[str, str]
    uid: str
    length: int
    seq: int
    is_rewritten: bool


class Spool:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        names = self._names()
        self.size = sum((folder / name).stat().st_size for name in names)
        self._next = int(names[-1]) + 1 if names else 1

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if path.name.isdecimal())

    def add(self, part: Spooled, data: bytes) -> bool:
        """Writes a part, and returns when it is on the disk. Returns False if there is no room for it."""
        if self.size + len(data) > _LIMIT:
            return False
        path = self._folder / f"{self._next:012d}"
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            self.size += file.write(json.dumps(part).encode() + b"\n" + data)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        sync_folder(self._folder)
        self._next += 1
        return True

    def replay(self, keeper: Keeper) -> Iterator[tuple[Spooled, KeptFile]]:
        """Stores each part, and then removes it."""
        for name in self._names():
            path = self._folder / name
            with path.open("rb") as file:
                part = Spooled(*json.loads(file.readline()))
                data = file.read()
            part = part._replace(target=Target(*part.target))
            yield part, _store(keeper, part, data)
            path.unlink()
        self.size = 0


def _store(keeper: Keeper, part: Spooled, data: bytes) -> KeptFile:
    new = [piece.message for piece in messages_in(BytesIO(data), len(data))]
    with suppress(Conflict):
        if part.seq >= 0:
            return KeptFile(part.length + len(new), keeper.append(part.target, part.seq, new), len(new))
    try:
        found = keeper.settle(part.target, new, skip=part.length, is_whole=part.is_rewritten, uid=part.uid)
    except ErasedSession:
        return KeptFile(0, -1)
    keeper.describe(part.target.thread, part.target.subject, part.about)
    return found


class Restored(NamedTuple):
    """A file that was written, or was there already. `skipped` is the number of its redacted messages."""

    thread_id: str
    path: Path
    size: int
    skipped: int
    is_new: bool


def restore(
    store: Reader, thread: str, folder: Path, *, generation: int | None = None, skip_redacted: bool = False
) -> list[Restored]:
    """Writes the files of a session and of its subagents below a folder.

    `thread` is the session's thread, or a thread of lines, to write this file alone. With `generation`, only that
    version of the session's own file is written. A file that is there with other content is not overwritten.
    """
    names = [thread] if thread.endswith(LINES) else [thread + LINES, f"{thread}/"]
    found = [t for t in store.threads(prefix=names[-1]) if t.thread_id.endswith(LINES)]
    # The session's own file comes first.
    found.sort(key=lambda t: t.thread_id != names[0])
    if not found:
        raise ThreadNotFound(f"no lines of thread {thread!r} are kept: import or watch its file first")
    chosen = found if generation is None else found[:1]
    return [_restore(store, each, folder, generation, skip_redacted) for each in chosen]


def _seqs(store: Reader, thread: str, generation: int | None) -> list[int]:
    """Returns the seqs of the messages of one generation of a file, by default of the last."""
    found, number = list[int](), 1
    for message in store.replay(thread):
        if message.payload is None or message.payload.get("type") != REWRITTEN:
            found.append(message.seq)
        elif number == generation:
            return found
        else:
            number += 1
            del found[message.payload["keeps"] :]
    if generation not in (None, number):
        raise InvalidInput(f"generation must be 1 to {number}, not {generation}: {thread!r} has no others")
    return found


def _restore(store: Reader, thread: Thread, folder: Path, generation: int | None, skip_redacted: bool) -> Restored:
    name = thread.thread_id
    place = PurePosixPath(str(thread.metadata.get("file", "")))
    if place.is_absolute() or ".." in place.parts or not place.name or "\0" in str(place):
        raise InvalidInput(f"the metadata of thread {name!r} must name its file, below a folder")
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    wanted = frozenset(_seqs(store, name, generation))
    size = skipped = 0
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for message in store.replay(name, until=max(wanted, default=0)):
                if message.seq not in wanted:
                    continue
                if message.payload is None and not skip_redacted:
                    raise InvalidInput(
                        f"the lines of {name!r} must not be redacted, as seq {message.seq} is: --skip-redacted leaves"
                        " such lines out"
                    )
                skipped += message.payload is None
                size += 0 if message.payload is None else file.write(bytes_of(message.payload))
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, this fails if there is such a file.
        with suppress(FileExistsError):
            os.link(new, path)
        is_new = path.samefile(new)
        if not is_new and not filecmp.cmp(new, path, shallow=False):
            raise InvalidInput(f"{path} must not be there with other content: move it away, or choose another folder")
    finally:
        new.unlink(missing_ok=True)
    return Restored(name, path, size, skipped, is_new)
