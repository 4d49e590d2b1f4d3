"""An append-only log of checkpoints: a file with one JSON line for each checkpoint, and lists of heads beside the file.

`append` returns when the line is on disk. If two processes append after the same line, one of them fails. The log shows
changes in the database. So keep its folder where nobody who can write to the database can write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from compaction_store.checkpoints import notes, tree
from compaction_store.checkpoints.heads import HeadsFile, HeadsWriter, file_name
from compaction_store.checkpoints.keys import public_key
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.errors import Conflict, InvalidCheckpoint, InvalidInput
from compaction_store.files import sync_folder

_TAIL = 64 * 1024


class CheckpointLog:
    """The checkpoints in a file. Each checkpoint is checked with the given public keys when it is read.

    The first checkpoint creates the file. The lists of heads are in the same folder, and each is named after its hash.
    The lists of older checkpoints may be deleted; the notes must be kept.
    """

    def __init__(self, path: str | os.PathLike[str], *keys: bytes | str) -> None:
        self.path = Path(path)
        self.keys = tuple(map(public_key, keys))
        if not keys:
            raise InvalidInput("keys must have at least one public key that may have signed the log")

    def __repr__(self) -> str:
        return f"CheckpointLog({str(self.path)!r})"

    def __iter__(self) -> Iterator[Checkpoint]:
        """Yields every checkpoint, oldest first. If one does not follow its predecessor, raises `InvalidCheckpoint`."""
        previous: Checkpoint | None = None
        for number, line in enumerate(self._lines(), 1):
            checkpoint = self._read(line, number)
            self._check_order(number, previous, checkpoint)
            yield checkpoint
            previous = checkpoint

    def _check_order(self, number: int, previous: Checkpoint | None, checkpoint: Checkpoint) -> None:
        if checkpoint.previous != (None if previous is None else previous.digest):
            raise InvalidCheckpoint(f"line {number} of {self.path} does not follow the line before")

    def kept(self, most: int) -> list[Checkpoint]:
        """Returns up to `most` checkpoints whose lists of heads are kept, newest first.

        The newest checkpoint is the first, whether its list is kept or not. The oldest and others at even distances
        follow. Checks the order of all checkpoints, and the signature of the newest, which covers all others.
        """
        kept: list[Checkpoint] = []
        previous: Checkpoint | None = None
        for number, line in enumerate(self._lines(), 1):
            checkpoint = self._read(line, number, is_signed=False)
            self._check_order(number, previous, checkpoint)
            is_new = not kept or kept[-1].heads != checkpoint.heads
            if is_new and (self.path.parent / file_name(checkpoint.heads)).is_file():
                kept.append(checkpoint)
            previous = checkpoint
        if (newest := self.last()) is None:
            return []
        older = [checkpoint for checkpoint in reversed(kept) if checkpoint.heads != newest.heads]
        wanted = min(most - 1, len(older))
        places = [round(index * (len(older) - 1) / max(1, wanted - 1)) for index in range(wanted)]
        return [newest, *(older[place] for place in places)]

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                # Skip a last line without a newline: a crash interrupted the writing of that checkpoint.
                yield from (line for line in file if line.endswith(b"\n"))
        except FileNotFoundError:
            return

    def _read(self, line: bytes, number: int | None, *, is_signed: bool = True) -> Checkpoint:
        where = f"{'the last line' if number is None else f'line {number}'} of {self.path}"
        try:
            note = json.loads(line)["note"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidCheckpoint(f"{where} is not a checkpoint") from None
        try:
            return notes.read(note, *self.keys) if is_signed else notes.unsigned(note)
        except InvalidCheckpoint as error:
            raise InvalidCheckpoint(f"{where}: {error}") from None

    def last(self) -> Checkpoint | None:
        """Returns the newest checkpoint without reading the older ones; None if the log is empty."""
        try:
            with self.path.open("rb") as file:
                line = _last_line(file)
        except FileNotFoundError:
            return None
        return self._read(line, None) if line else None

    def heads(self, checkpoint: Checkpoint) -> HeadsFile:
        """Opens a checkpoint's list of heads, and checks that the list has not changed since it was signed."""
        heads = HeadsFile(self.path.parent / file_name(checkpoint.heads))
        try:
            if heads.size != checkpoint.size or heads.hash() != checkpoint.heads:
                raise InvalidCheckpoint(f"the list of heads {heads.path.name} has changed since it was signed")
        except BaseException:
            heads.close()
            raise
        return heads

    def proof(self, thread_uid: UUID, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
        """Returns the proof that a checkpoint, by default the newest, contains a thread.

        The proof is for `audit.export(…, checkpoint=…)`. It reveals nothing about other threads.
        """
        chosen = checkpoint or self.last()
        if chosen is None:
            raise InvalidCheckpoint(f"{self.path.name} has no checkpoint yet")
        with self.heads(chosen) as heads:
            found = heads.find(thread_uid)
            if found is None:
                raise InvalidCheckpoint("the thread is not in the checkpoint")
            index, head = found
            return notes.proof(chosen, head, index, tree.path(heads.leaves, index, 0, heads.size))

    def writer(self) -> HeadsWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return HeadsWriter(self.path.parent)

    def append(self, checkpoint: Checkpoint) -> None:
        """Appends a checkpoint. If the file's last checkpoint is not its predecessor, raises `Conflict`."""
        line = json.dumps({"note": checkpoint.note}, ensure_ascii=False).encode() + b"\n"
        with self.path.open("a+b") as file, _locked(file):
            there = _last_line(file)
            last = self._read(there, None) if there else None
            if checkpoint.previous != (None if last is None else last.digest):
                raise Conflict(f"another checkpoint was appended to {self.path.name} in the meantime")
            if (end := _end_of_lines(file)) < file.seek(0, os.SEEK_END):
                file.truncate(end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path.parent)


def _last_line(file: BinaryIO) -> bytes:
    """Returns the last complete line; empty bytes if the file has none."""
    end = _end_of_lines(file)
    size = _TAIL
    while True:
        start = max(0, end - size)
        file.seek(start)
        data = file.read(end - start)
        at = data.rfind(b"\n", 0, max(0, len(data) - 1)) + 1
        if at or not start:
            return data[at:]
        size *= 4


def _end_of_lines(file: BinaryIO) -> int:
    """Returns the offset after the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


@contextmanager
def _locked(file: BinaryIO) -> Iterator[None]:
    try:
        import fcntl  # noqa: PLC0415 — Windows has none
    except ImportError:
        yield
        return
    fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
