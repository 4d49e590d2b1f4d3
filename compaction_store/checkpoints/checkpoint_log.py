"""Checkpoints in files: one JSON line each, only ever appended to, and beside them where the threads stood.

A line is on disk before a checkpoint is said to be made, and two processes never append after the same line. Keep the
folder where nobody who may write to the database may write: it is what their changes show against.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from uuid import UUID

from compaction_store.checkpoints import signed_heads
from compaction_store.checkpoints.signed_heads import Checkpoint, Head
from compaction_store.errors import Conflict, InvalidCheckpoint, InvalidInput
from compaction_store.integrity import erasure

_TAIL = 64 * 1024
# thread_uid, hash of the tenant, pos, entry: as wide in every line, so that one is found without reading the others.
_WIDTH = 32 + 1 + 16 + 1 + 19 + 1 + 64 + 1
_READ_LINES = 4096


def _line(head: Head) -> bytes:
    return f"{head.thread_uid.hex} {head.tenant.hex()} {head.pos:019d} {head.entry.hex()}\n".encode()


def _head(line: bytes) -> Head:
    try:
        uid, tenant, pos, entry = line.decode("ascii").split(" ")
        head = Head(UUID(uid), bytes.fromhex(tenant), int(pos), bytes.fromhex(entry.rstrip("\n")))
    except ValueError:
        raise InvalidCheckpoint("a list of heads has a line that is none") from None
    if _line(head) != line:
        raise InvalidCheckpoint("a list of heads has a line that is none")
    return head


class Heads:
    """A file of heads in the order of their thread_uid. Of any size: it is searched where it lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError:
            raise InvalidCheckpoint(f"the list of heads {path.name} cannot be read") from None
        size = os.fstat(self._file.fileno()).st_size
        if size % _WIDTH:
            self._file.close()
            raise InvalidCheckpoint(f"the list of heads {path.name} is cut off")
        self.size = size // _WIDTH

    def hash(self) -> str:
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Head]:
        return self.between(0, self.size)

    def between(self, start: int, end: int) -> Iterator[Head]:
        """The heads from one index to before another."""
        while start < end:
            self._file.seek(start * _WIDTH)
            data = self._file.read(min(_READ_LINES, end - start) * _WIDTH)
            if not data or len(data) % _WIDTH:
                raise InvalidCheckpoint(f"the list of heads {self.path.name} is cut off")
            yield from (_head(data[at : at + _WIDTH]) for at in range(0, len(data), _WIDTH))
            start += len(data) // _WIDTH

    def _at(self, index: int) -> Head:
        return next(self.between(index, index + 1))

    def find(self, thread_uid: UUID) -> tuple[int, Head] | None:
        """The index and the head of a thread."""
        low, high = 0, self.size
        while low < high:
            middle = (low + high) // 2
            if self._at(middle).thread_uid < thread_uid:
                low = middle + 1
            else:
                high = middle
        if low < self.size and (head := self._at(low)).thread_uid == thread_uid:
            return low, head
        return None

    def leaves(self, start: int, end: int) -> Iterator[bytes]:
        return (signed_heads.leaf(head.data()) for head in self.between(start, end))


class HeadsWriter:
    """Writes a file of heads under a temporary name; what it is called is its hash, which is known at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        handle, name = tempfile.mkstemp(prefix=".heads", dir=folder)
        self._file: BinaryIO = os.fdopen(handle, "wb")
        self._path = Path(name)
        self._digest = hashlib.sha256()
        self._last: UUID | None = None
        self.tree = signed_heads.Tree()

    def add(self, head: Head) -> None:
        if self._last is not None and head.thread_uid <= self._last:
            raise InvalidInput("heads are written in the order of their thread_uid")
        self._last = head.thread_uid
        line = _line(head)
        self._digest.update(line)
        self._file.write(line)
        self.tree.add(signed_heads.leaf(head.data()))

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()

    def keep(self) -> Path:
        """The file under its name. Threads that stood still are listed in the file that is there already."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._folder / _heads_name(self.hash)
        self._path.replace(path)
        _sync_folder(self._folder)
        return path

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _heads_name(digest: str) -> str:
    return f"heads-{digest}"


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class CheckpointLog:
    """The checkpoints in a file, each checked with the public keys given before it is believed.

    The file is made by the first checkpoint. The lists of heads lie in the same folder, each named by its hash; those
    of older checkpoints may be removed, their notes may not.
    """

    def __init__(self, path: str | os.PathLike[str], *keys: bytes | str) -> None:
        self.path = Path(path)
        self.keys = tuple(map(signed_heads.public_key, keys))
        if not keys:
            raise InvalidInput("a checkpoint log is read with the public keys that may have signed it")

    def __repr__(self) -> str:
        return f"CheckpointLog({str(self.path)!r})"

    def __iter__(self) -> Iterator[Checkpoint]:
        """Every checkpoint, oldest first, each seen to follow from the one before."""
        previous: Checkpoint | None = None
        for number, line in enumerate(self._lines(), 1):
            checkpoint = self._read(line, number)
            if checkpoint.previous != (None if previous is None else previous.digest):
                raise InvalidCheckpoint(f"checkpoint {number} of {self.path.name} does not follow from the one before")
            yield checkpoint
            previous = checkpoint

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                # The last line without its end was never finished: that checkpoint was not made.
                yield from (line for line in file if line.endswith(b"\n"))
        except FileNotFoundError:
            return

    def _read(self, line: bytes, number: int | str) -> Checkpoint:
        try:
            note = json.loads(line)["note"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidCheckpoint(f"line {number} of {self.path.name} is no checkpoint") from None
        return signed_heads.read(note, *self.keys)

    def last(self) -> Checkpoint | None:
        """The newest checkpoint, without reading those before it."""
        try:
            with self.path.open("rb") as file:
                line = _last_line(file)
        except FileNotFoundError:
            return None
        return self._read(line, "last") if line else None

    def heads(self, checkpoint: Checkpoint) -> Heads:
        """The heads that a checkpoint was made over, once they are seen to be those."""
        heads = Heads(self.path.parent / _heads_name(checkpoint.heads))
        try:
            if heads.size != checkpoint.size or heads.hash() != checkpoint.heads:
                raise InvalidCheckpoint(f"the list of heads {heads.path.name} is not the one that was signed")
        except BaseException:
            heads.close()
            raise
        return heads

    def proof(self, tenant: str, thread_id: str, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
        """That a thread is in a checkpoint, in the newest if none is given: for `export(…, checkpoint=…)`.

        It names no other thread, and none can be made out from it.
        """
        chosen = checkpoint or self.last()
        if chosen is None:
            raise InvalidCheckpoint(f"{self.path.name} has no checkpoint yet")
        with self.heads(chosen) as heads:
            found = heads.find(erasure.thread_uid(tenant, thread_id))
            if found is None:
                raise InvalidCheckpoint("the thread is not in the checkpoint")
            index, head = found
            return signed_heads.proof(chosen, head, index, signed_heads.path(heads.leaves, index, 0, heads.size))

    def writer(self) -> HeadsWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return HeadsWriter(self.path.parent)

    def append(self, checkpoint: Checkpoint) -> None:
        """Adds a checkpoint after the one it names; refused where another came between."""
        line = json.dumps({"note": checkpoint.note}, ensure_ascii=False).encode() + b"\n"
        with self.path.open("a+b") as file, _locked(file):
            there = _last_line(file)
            last = self._read(there, "last") if there else None
            if checkpoint.previous != (None if last is None else last.digest):
                raise Conflict(f"another checkpoint was appended to {self.path.name} meanwhile")
            if (end := _end_of_lines(file)) < file.seek(0, os.SEEK_END):
                file.truncate(end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.path.parent)


def _last_line(file: BinaryIO) -> bytes:
    """The last line that was finished; nothing where there is none."""
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
    """Where the last finished line ends."""
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
