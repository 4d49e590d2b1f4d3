"""Keeps lines on disk while the database is away, and stores them in their order when it is back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from compaction_store.errors import Conflict
from compaction_store.importers.kept_lines import messages
from compaction_store.watching.keeping import Erased, Keeper, Kept, Target


@dataclass(frozen=True)
class Spooled:
    """A part of a file. `index` and `seq` are those of the thread before it; `seq` is -1 if that is not known."""

    path: str
    target: Target
    about: dict[str, str]
    uid: str
    index: int
    seq: int
    is_rewritten: bool


class Spool:
    """The parts in a folder, of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._limit = limit
        for unfinished in folder.glob("*.new"):
            unfinished.unlink()
        names = self._names()
        self.size = sum((folder / name).stat().st_size for name in names)
        self._next = int(names[-1]) + 1 if names else 1

    def __bool__(self) -> bool:
        return self.size > 0

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if path.name.isdecimal())

    def has_room(self, size: int) -> bool:
        return self.size + size <= self._limit

    def add(self, part: Spooled, data: bytes) -> None:
        """Writes a part to the disk, and returns when it is there."""
        head = json.dumps(asdict(part)).encode() + b"\n"
        path = self._folder / f"{self._next:012d}"
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(head + data)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        _sync(self._folder)
        self._next += 1
        self.size += len(head) + len(data)

    def replay(self, keeper: Keeper) -> Iterator[tuple[Spooled, Kept]]:
        """Stores each part, and then removes it."""
        for name in self._names():
            path = self._folder / name
            with path.open("rb") as file:
                head = json.loads(file.readline())
                data = file.read()
            part = Spooled(**head | {"target": Target(*head["target"])})
            yield part, _store(keeper, part, data)
            self.size -= path.stat().st_size
            path.unlink()
        self.size = 0


def _store(keeper: Keeper, part: Spooled, data: bytes) -> Kept:
    new = [piece.message for piece in messages(BytesIO(data), len(data))]
    if part.seq >= 0:
        try:
            return Kept(part.index + len(new), keeper.append(part.target, part.seq, new), len(new))
        except Conflict:
            pass
    try:
        found = keeper.settle(part.target, new, skip=part.index, is_whole=part.is_rewritten, uid=part.uid)
    except Erased:
        return Kept(0, -1)
    keeper.describe(part.target.thread, part.target.subject, part.about)
    return found


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
