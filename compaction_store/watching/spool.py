"""Keeps lines on disk while the database is away, and stores them in their order when it is back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from compaction_store.errors import Conflict
from compaction_store.importers.kept_lines import messages
from compaction_store.watching.keeping import ErasedSession, Keeper, KeptFile, Target

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
    """The parts in a folder."""

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
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
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
    new = [piece.message for piece in messages(BytesIO(data), len(data))]
    try:
        if part.seq >= 0:
            return KeptFile(part.length + len(new), keeper.append(part.target, part.seq, new), len(new))
    except Conflict:
        pass
    try:
        found = keeper.settle(part.target, new, skip=part.length, is_whole=part.is_rewritten, uid=part.uid)
    except ErasedSession:
        return KeptFile(0, -1)
    keeper.describe(part.target.thread, part.target.subject, part.about)
    return found
