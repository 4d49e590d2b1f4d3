"""Finds the session files of coding agents, and the files among them that have changed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from compaction_store.errors import InvalidSource
from compaction_store.importers import codex, codex_traces, detecting
from compaction_store.importers.formats import SESSIONS
from compaction_store.importers.kept_lines import LINES, place_of
from compaction_store.importers.line_files import Files, LineFile
from compaction_store.importers.running import key_of
from compaction_store.watching.keeping import Target

# Each look checks so many of the files that changed last. All files are checked so rarely that it takes this part of
# the processor's time.
_RECENT, _SHARE = 256, 0.005
# A file's time may be as coarse as this, so a change may leave it the same for so long.
_COARSE = 2_000_000_000
_EDGE, _BLOCK = 4096, 1 << 20


@dataclass(eq=False)
class SessionFile:
    """A session file, and how much of it is kept.

    `offset` is the number of bytes that are kept, and `index` the number of messages that hold them. `seq` is the last
    seq of the thread, or -1 if the thread must be compared with the file. `mark` is a hash of the first and the last of
    these bytes, `whole` one of them all, and `uid` the thread's uid. `prefix` and `source_id` make the name of the
    session's thread. `imported` is the offset up to which the conversation was imported, and `due` says when it may be
    imported again. `hasher` goes on with `whole`, once this process has read the file.
    """

    path: str
    form: str
    prefix: str = ""
    source_id: str = ""
    state: str = ""
    offset: int = 0
    index: int = 0
    seq: int = -1
    mark: str = ""
    whole: str = ""
    uid: str = ""
    imported: int = 0
    is_left: bool = False
    due: float = 0.0
    hasher: Any = field(default=None, repr=False)

    @property
    def target(self) -> Target:
        """Where the lines go."""
        lines = self.source_id + LINES
        session = self.source_id.partition("/")[0]
        return Target(self.prefix + lines, key_of(self.form, lines), self.prefix + session)

    @property
    def about(self) -> dict[str, str]:
        """The metadata of the lines."""
        return {"file": place_of(Path(self.path)), "format": self.form}

    def id_in_lines(self) -> str:
        """Returns the id of the session's thread, or nothing if the file does not say it yet."""
        file = LineFile(Path(self.path))
        file.size = end_of_lines(self.path, 0)
        return SESSIONS[self.form].thread_of(file) if file.size else ""

    def source(self, path: str, size: int) -> Files:
        """Opens the conversation in the first bytes of the file, or of a copy of it."""
        root = os.environ.get(codex_traces.ROOT, "") if self.form == codex.FORMAT else ""
        traces = {"traces": root} if Path(root).is_dir() and root else {}
        source = SESSIONS[self.form].opened(Path(path), skip_bad=True, lines=False, **traces)
        source.end_at(size)
        return source


def state_of(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_ctime_ns}"


def edges(file: IO[bytes], offset: int) -> str:
    """Returns a hash of the first and the last of the bytes before an offset."""
    file.seek(0)
    data = file.read(min(_EDGE, offset))
    file.seek(max(0, offset - _EDGE))
    return hashlib.sha256(data + file.read(min(_EDGE, offset))).hexdigest()


def hashed(file: IO[bytes], offset: int) -> Any:
    """Returns the hash of the bytes before an offset."""
    found = hashlib.sha256()
    file.seek(0)
    while offset and (data := file.read(min(_BLOCK, offset))):
        found.update(data)
        offset -= len(data)
    return found


def end_of_lines(path: str, start: int) -> int:
    """Returns the end of the last line of a file that ends with a newline, or `start`."""
    with open(path, "rb") as file:  # noqa: PTH123 — a path of the scan is text
        at = file.seek(0, os.SEEK_END)
        while at > start:
            begin = max(start, at - _BLOCK)
            file.seek(begin)
            if (found := file.read(at - begin).rfind(b"\n")) >= 0:
                return begin + found + 1
            at = begin
    return start


class SessionScan:
    """The files below some folders, and those that have vanished (`gone`) or are of no known format (`unknown`)."""

    def __init__(self, roots: Iterable[Path], saved: Iterable[SessionFile]) -> None:
        self._roots = [os.path.abspath(root) for root in roots]  # noqa: PTH100 — must not resolve links
        self._walk_at = 0.0
        # The files that changed last are the last ones.
        self.files = {file.path: file for file in saved if any(Path(file.path).is_relative_to(r) for r in self._roots)}
        self.gone: dict[str, SessionFile] = {}
        self.unknown: set[str] = set()

    def changed(self, *, everything: bool) -> list[SessionFile]:
        """Returns the files that have changed, or may have, in the order of their changes."""
        begin = time.process_time()
        is_walk = everything or time.monotonic() >= self._walk_at
        paths = dict.fromkeys([*self.files, *self._walk()] if is_walk else islice(reversed(self.files), _RECENT))
        found: list[tuple[int, SessionFile]] = []
        for path in paths:
            try:
                state = os.stat(path)  # noqa: PTH116 — faster than a Path
                file = self.files.get(path) or self._new(path)
            except OSError:
                self.forget(path)
                continue
            is_fresh = time.time_ns() - state.st_ctime_ns < _COARSE
            if file is not None and (is_fresh or state_of(state) != file.state):
                found.append((state.st_ctime_ns, file))
        if is_walk:
            self._walk_at = time.monotonic() + (time.process_time() - begin) / _SHARE
        found.sort(key=lambda pair: pair[0])
        for _, file in found:
            self.files[file.path] = self.files.pop(file.path)
        return [file for _, file in found]

    def forget(self, path: str) -> None:
        if (file := self.files.pop(path, None)) is not None:
            self.gone[path] = file

    def _walk(self) -> Iterator[str]:
        for root in self._roots:
            if os.path.isfile(root):  # noqa: PTH113
                yield root
            for folder, _, names in os.walk(root):
                yield from (os.path.join(folder, name) for name in names if name.endswith(".jsonl"))  # noqa: PTH118

    def _new(self, path: str) -> SessionFile | None:
        form = next((form for form, program in SESSIONS.items() if f"/{program.folder}/" in path), None)
        with suppress(InvalidSource):
            form = form or detecting.of_files(Path(path))
        if form not in SESSIONS:
            self.unknown.add(path)
            return None
        return self.files.setdefault(path, SessionFile(path, form))
