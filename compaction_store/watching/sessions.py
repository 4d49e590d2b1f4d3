"""Finds the session files of coding agents, and the files among them that have changed.

A look at all files would take too long for every two seconds. So each look checks the files and folders that changed
last, and the next part of all others. A new or changed file is found at the latest when all parts had their turn.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from compaction_store.errors import InvalidSource
from compaction_store.importers import claude_code, codex, codex_traces, detecting, kept_lines
from compaction_store.importers.line_files import Files, LineFile
from compaction_store.importers.running import key_of
from compaction_store.watching.keeping import Target

#: The folders in which programs keep their sessions, relative to the home folder, with the formats.
PLACES = {".claude/projects": claude_code.FORMAT, ".codex/sessions": codex.FORMAT}
SOURCES: dict[str, type[Files]] = {claude_code.FORMAT: claude_code.ClaudeCode, codex.FORMAT: codex.Codex}
_IDS = {claude_code.FORMAT: claude_code.thread_of, codex.FORMAT: codex.session_of}
# The numbers of files and folders that each look checks: those that changed last, and others in turn.
_RECENT = 256
_IN_TURN = 768
# A file's time may be as coarse as this, so a change may leave it the same for so long.
_COARSE = 2_000_000_000
_EDGE = 4096


@dataclass(eq=False)
class SessionFile:
    """A session file, and how much of it is kept.

    `offset` is the number of bytes that are kept, and `index` the number of messages that hold them. `seq` is the last
    seq of the thread, or -1 if the thread must be compared with the file. `mark` is a hash of the first and the last of
    these bytes, `whole` one of them all, and `uid` the thread's uid. `prefix` and `source_id` make the name of the
    session's thread. `imported` is the offset up to which the conversation was imported.
    """

    path: str
    form: str
    prefix: str = ""
    source_id: str = ""
    identity: str = ""
    size: int = 0
    changed: int = 0
    offset: int = 0
    index: int = 0
    seq: int = -1
    mark: str = ""
    whole: str = ""
    uid: str = ""
    imported: int = 0
    is_left: bool = False
    #: The hash of `whole`, to go on with, once the file was read in this process.
    hasher: Any = field(default=None, repr=False)
    #: When the conversation may be imported next.
    due: float = 0.0

    @property
    def target(self) -> Target:
        """Where the lines go."""
        lines = self.source_id + kept_lines.LINES
        session = self.source_id.partition("/")[0]
        return Target(self.prefix + lines, key_of(self.form, lines), self.prefix + session)

    def saved(self) -> dict[str, Any]:
        """Returns the fields that are remembered."""
        return {name: value for name, value in vars(self).items() if name not in ("hasher", "due")}

    def id_in_lines(self) -> str | None:
        """Returns the id of the session's thread; None if the file does not say it yet."""
        file = LineFile(Path(self.path))
        file.size = end_of_lines(self.path, 0)
        return _IDS[self.form](file) if file.size else None

    def source(self, path: str, size: int) -> Files:
        """Opens the conversation in the first bytes of the file, or of a copy of it."""
        root = os.environ.get(codex_traces.ROOT, "") if self.form == codex.FORMAT else ""
        traces = {"traces": root} if Path(root).is_dir() and root else {}
        source = SOURCES[self.form](Path(path), skip_bad=True, lines=False, **traces)
        source.end_at(size)
        return source

    def has_changed(self, found: os.stat_result) -> bool:
        """Returns whether the file is not as it was at the last look, or may have changed since without a sign."""
        seen = (found.st_size, found.st_ctime_ns, f"{found.st_dev}:{found.st_ino}")
        return seen != (self.size, self.changed, self.identity) or time.time_ns() - found.st_ctime_ns < _COARSE


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
    while offset and (data := file.read(min(1 << 20, offset))):
        found.update(data)
        offset -= len(data)
    return found


def end_of_lines(path: str, start: int) -> int:
    """Returns the end of the last line of a file that ends with a newline, or `start`."""
    with open(path, "rb") as file:  # noqa: PTH123 — a path of the scan is text
        at = file.seek(0, os.SEEK_END)
        while at > start:
            begin = max(start, at - (1 << 20))
            file.seek(begin)
            if (found := file.read(at - begin).rfind(b"\n")) >= 0:
                return begin + found + 1
            at = begin
    return start


def default_roots() -> list[Path]:
    return [Path.home() / name for name in PLACES]


class Scan:
    """The files below some folders. `unknown` has files of no known format, and `gone` those that have vanished."""

    def __init__(self, roots: Iterable[Path], saved: Iterable[SessionFile] = ()) -> None:
        self._roots = [os.path.abspath(root) for root in roots]  # noqa: PTH100 — must not resolve links
        self.files = {file.path: file for file in saved if self._is_below(file.path)}
        self.gone: dict[str, SessionFile] = {}
        self.unknown: set[str] = set()
        # The folders with the times of their last change, newest last, and the files in the order of their changes.
        self._folders: dict[str, int] = {}
        self._turn: Iterator[str] = iter(())
        for path in self.files:
            self._folders.setdefault(os.path.dirname(path), 0)  # noqa: PTH120

    def changed(self, *, everything: bool = False) -> list[SessionFile]:
        """Returns the files that have changed, or may have, in the order of their changes."""
        if everything:
            self._folders.clear()
            chosen = [*self._roots, *self.files]
        else:
            recent = [*islice(reversed(self._folders), _RECENT), *islice(reversed(self.files), _RECENT)]
            chosen = [*self._roots, *recent, *self._next()]
        found: dict[str, tuple[int, SessionFile]] = {}
        for path in dict.fromkeys(chosen):
            self._look(path, found)
        changed = [file for _, file in sorted(found.values(), key=lambda pair: pair[0])]
        for file in changed:
            # The files that changed last are the last ones of the dict.
            self.files[file.path] = self.files.pop(file.path)
        return changed

    def forget(self, path: str) -> None:
        """Moves a file that has vanished to `gone`."""
        if (file := self.files.pop(path, None)) is not None:
            self.gone[path] = file

    def _is_below(self, path: str) -> bool:
        return any(Path(path).is_relative_to(root) for root in self._roots) and Path(path).exists()

    def _next(self) -> list[str]:
        part = list(islice(self._turn, _IN_TURN))
        if len(part) < _IN_TURN:
            self._turn = iter([*self._folders, *self.files])
        return part

    def _look(self, path: str, found: dict[str, tuple[int, SessionFile]]) -> None:
        file = self.files.get(path)
        try:
            state = os.stat(path)  # noqa: PTH116 — faster than a Path
            if file is not None:
                if file.has_changed(state):
                    found[path] = state.st_ctime_ns, file
            elif os.path.isdir(path):  # noqa: PTH112
                self._look_into(path, state, found)
            elif (new := self._new(path)) is not None:
                found[path] = state.st_ctime_ns, new
        except OSError:
            # It is gone, or may not be read.
            self._folders.pop(path, None)
            self.forget(path)

    def _look_into(self, path: str, state: os.stat_result, found: dict[str, tuple[int, SessionFile]]) -> None:
        if self._folders.get(path) == state.st_ctime_ns:
            return
        self._folders.pop(path, None)
        is_settled = time.time_ns() - state.st_ctime_ns > _COARSE
        self._folders[path] = state.st_ctime_ns if is_settled else 0
        with os.scandir(path) as entries:
            for entry in list(entries):
                is_folder = entry.is_dir(follow_symlinks=False)
                if (is_folder and entry.path not in self._folders) or (
                    entry.name.endswith(".jsonl") and entry.path not in self.files
                ):
                    self._look(entry.path, found)

    def _new(self, path: str) -> SessionFile | None:
        form = self._form(path)
        if form is None:
            self.unknown.add(path)
            return None
        self.unknown.discard(path)
        return self.files.setdefault(path, SessionFile(path, form))

    @staticmethod
    def _form(path: str) -> str | None:
        for place, form in PLACES.items():
            if f"/{place}/" in Path(path).as_posix():
                return form
        try:
            form = detecting.of_files(Path(path))
        except InvalidSource:
            return None
        return form if form in SOURCES else None
