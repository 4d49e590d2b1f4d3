"""Reads and writes the heads that a checkpoint covers, as lines of one width: a binary search finds a thread."""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self
from uuid import UUID

from compaction_store.checkpoints import tree
from compaction_store.errors import InvalidCheckpoint, InvalidInput
from compaction_store.files import sync_folder

PREFIX = b"compaction-store/head/v1\x00"
DATA = struct.Struct(f">{len(PREFIX)}s16sq32s")
_TENANT = b"compaction-store/tenant/v1\x00"
# The widths of thread_uid, hash of the tenant, pos and entry, each with the space or newline after it.
_WIDTH = 32 + 1 + 16 + 1 + 19 + 1 + 64 + 1
_READ_LINES = 4096


class Head(NamedTuple):
    """The last pos of a thread, and the hash of the entry there. `tenant` is a hash of the tenant's name."""

    thread_uid: UUID
    tenant: bytes
    pos: int
    entry: bytes

    def data(self) -> bytes:
        """Returns the bytes to hash for the thread's leaf. The tenant is left out, because the entry depends on it."""
        return DATA.pack(PREFIX, self.thread_uid.bytes, self.pos, self.entry)


def tenant_hash(tenant: str) -> bytes:
    return hashlib.sha256(_TENANT + tenant.encode()).digest()[:8]


def file_name(digest: str) -> str:
    return f"heads-{digest}"


def _line(head: Head) -> bytes:
    return f"{head.thread_uid.hex} {head.tenant.hex()} {head.pos:019d} {head.entry.hex()}\n".encode()


def _head(line: bytes) -> Head:
    with suppress(ValueError):
        uid, tenant, pos, entry = line.decode("ascii").split(" ")
        head = Head(UUID(uid), bytes.fromhex(tenant), int(pos), bytes.fromhex(entry.rstrip("\n")))
        if _line(head) == line:
            return head
    raise InvalidCheckpoint("a list of heads has a malformed line")


class HeadsFile:
    """A file of heads, which is searched on disk and never read whole into memory."""

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Head]:
        return self.between(0, self.size)

    def between(self, start: int, end: int) -> Iterator[Head]:
        """Yields the heads from index `start` up to, but not including, `end`."""
        while start < end:
            self._file.seek(start * _WIDTH)
            data = self._file.read(min(_READ_LINES, end - start) * _WIDTH)
            if not data or len(data) % _WIDTH:
                raise InvalidCheckpoint(f"the list of heads {self.path.name} is cut off")
            yield from (_head(data[at : at + _WIDTH]) for at in range(0, len(data), _WIDTH))
            start += len(data) // _WIDTH

    def _at(self, index: int) -> Head:
        return next(self.between(index, index + 1))

    def first(self, thread_uid: UUID) -> int:
        """Returns the index of the first head that has this thread_uid or a larger one."""
        low, high = 0, self.size
        while low < high:
            middle = (low + high) // 2
            if self._at(middle).thread_uid < thread_uid:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, thread_uid: UUID) -> tuple[int, Head] | None:
        """Returns the index and the head of a thread; None if the file does not list the thread."""
        low = self.first(thread_uid)
        return (low, head) if low < self.size and (head := self._at(low)).thread_uid == thread_uid else None

    def leaves(self, start: int, end: int) -> Iterator[bytes]:
        return (tree.leaf(head.data()) for head in self.between(start, end))


class HeadsWriter:
    """A writer of a file of heads. The file has a temporary name until `keep` names it after its hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        handle, name = tempfile.mkstemp(prefix=".heads", dir=folder)
        self._file: BinaryIO = os.fdopen(handle, "wb")
        self._path = Path(name)
        self._digest = hashlib.sha256()
        self._last: UUID | None = None
        self.tree = tree.Tree()

    def add(self, head: Head) -> None:
        if self._last is not None and head.thread_uid <= self._last:
            raise InvalidInput("heads must be written in the order of their thread_uid")
        self._last = head.thread_uid
        line = _line(head)
        self._digest.update(line)
        self._file.write(line)
        self.tree.add(tree.leaf(head.data()))

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()

    def keep(self) -> Path:
        """Syncs the file to disk and renames it. An earlier checkpoint's file with the same content is replaced."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._folder / file_name(self.hash)
        self._path.replace(path)
        sync_folder(self._folder)
        return path

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
