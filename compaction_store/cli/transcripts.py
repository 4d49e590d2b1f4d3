"""Finds the transcripts in files and folders, imports them, and prints why a file is left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import compaction_store
from compaction_store.audit.safe_text import named
from compaction_store.cli import processes
from compaction_store.cli.output import line, note
from compaction_store.cli.progress import ProgressBar
from compaction_store.errors import InvalidSource

if TYPE_CHECKING:
    from compaction_store import Store, importers
    from compaction_store.importers.line_files import LineFile
    from compaction_store.importers.sources import Source

# With fewer bytes than this, several processes would save less time than they take to start.
_LEAST_BYTES = 48_000_000
# A process imports one part at a time. A part of at least this many bytes gets no more sessions.
_PART_BYTES = 16_000_000

Say = Callable[[str], object]


class SessionFormat(NamedTuple):
    """A program that keeps its sessions in files: how to open files, and how to tell a file's session."""

    opened: Callable[..., Source]
    session_of: Callable[[LineFile], str]


@cache
def _programs() -> dict[str, SessionFormat]:
    from compaction_store.importers import claude_code, codex

    return {
        claude_code.FORMAT: SessionFormat(claude_code.ClaudeCode, claude_code.session_of),
        codex.FORMAT: SessionFormat(codex.Codex, codex.session_of),
    }


class FileGroup(NamedTuple):
    """Files that are imported together: sessions of a program, or one file of another format."""

    form: str | None
    paths: tuple[Path, ...]
    size: int

    def source(self) -> Source | Path:
        return self.paths[0] if self.form is None else _programs()[self.form].opened(self.paths, skip_bad=True)


def parts_of(paths: Sequence[Path]) -> list[FileGroup]:
    """Returns the transcripts in files and folders. All files of one session are in the same part."""
    from compaction_store import importers

    sessions: dict[str, list[Path]] = {form: [] for form in _programs()}
    known: dict[tuple[int, int], Path] = {}
    found: list[FileGroup] = []
    for path in paths:
        for file in _files(path):
            try:
                size = _size(file, known)
                form = importers.detect(file)
            except InvalidSource as error:
                # Remove the hint, which names an option that only `import` has.
                why = str(error).removeprefix(f"{file.name}: ").partition("; name the format")[0]
                note(f"{line(str(file))} is left out: {line(why)}")
                continue
            if form in sessions:
                sessions[form].append(file)
            else:
                found.append(FileGroup(None, (file,), size))
    for form, files in sessions.items():
        found += _parts(form, files)
    return found


def _parts(form: str, files: Sequence[Path]) -> Iterator[FileGroup]:
    from compaction_store.importers.line_files import LineFile

    made: list[list[LineFile]] = []
    sizes: list[int] = []
    places: dict[str, int] = {}
    for path in files:
        file = LineFile(path)
        place = places.get(session := _programs()[form].session_of(file), len(made) - 1)
        if place < 0 or (session not in places and sizes[place] >= _PART_BYTES):
            made.append([])
            sizes.append(0)
            place = len(made) - 1
        places[session] = place
        made[place].append(file)
        sizes[place] += file.size
    for files_, size in zip(made, sizes, strict=True):
        yield FileGroup(form, tuple(file.path for file in files_), size)


def is_much(parts: Sequence[FileGroup]) -> bool:
    """Returns whether several processes take less time than one."""
    return sum(part.size for part in parts) >= _LEAST_BYTES


def imported(store: Store, url: str, tenant: str, parts: Sequence[FileGroup], wanted: int | None = None) -> list[str]:
    """Imports transcripts, and returns the names of their threads. What cannot be read is named and left out."""
    number = processes.count(wanted, len(parts))
    names: dict[str, None] = {}
    if number == 1 or (wanted is None and not is_much(parts)):
        for part in parts:
            with ProgressBar("import", "entries") as progress:
                names.update(dict.fromkeys(_load(store, part, note, progress)))
        return list(names)
    with ProgressBar("import", "bytes", sum(part.size for part in parts)) as progress:
        found = processes.run(number, _in_process, parts, _begin, url, tenant)
        for part, (loaded, said) in zip(parts, found, strict=True):
            for text in said:
                note(text)
            names.update(dict.fromkeys(loaded))
            progress.advance(part.size)
    return list(names)


def _load(store: Store, part: FileGroup, say: Say, progress: ProgressBar | None = None) -> Iterator[str]:
    from compaction_store import importers

    def report(at: importers.Progress) -> None:
        if progress is not None:
            progress.reached(at.done, at.total, at.unit)

    try:
        for thread in importers.import_into(store, part.source(), skip_bad=True, progress=report):
            _say_what_is_missing(thread, say)
            if thread.loaded is not None:
                yield thread.thread_id
    except InvalidSource as error:
        say(f"the rest is left out: {line(str(error))}")


# ---- in another process

_given: tuple[str, str] | None = None


def _begin(url: str, tenant: str) -> None:
    global _given  # noqa: PLW0603 — how a pool hands something to its processes
    _given = url, tenant


@cache
def _store() -> Store:
    assert _given is not None  # noqa: S101 — the pool has called _begin
    url, tenant = _given
    return processes.opened(compaction_store.Store.open(url, tenant=tenant, pool_size=2))


def _in_process(part: FileGroup) -> tuple[list[str], list[str]]:
    said: list[str] = []
    return list(_load(_store(), part, said.append)), said


# ----


def _say_what_is_missing(thread: importers.ThreadImported, say: Say) -> None:
    name = named(thread.thread_id)
    if thread.refused is not None:
        say(f"{name} is left out: {line(str(thread.refused))}")
    if thread.bad:
        first = thread.bad[0]
        many = "1 line is" if thread.skipped == 1 else f"{thread.skipped:,} lines are"
        say(f"{many} left out of {name}: {line(first.where)}: {line(first.why)}")


def _files(path: Path) -> Iterator[Path]:
    """Yields a file, or every file of JSON lines in a folder and its subfolders. Does not follow links to folders."""
    if not path.is_dir():
        yield path
        return
    found = False
    for folder, folders, names in os.walk(path, onerror=_say_unreadable):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".jsonl")):
            found = True
            yield Path(folder, name)
    if not found:
        note(f"{line(str(path))} is left out: there is no .jsonl file in it")


def _say_unreadable(error: OSError) -> None:
    note(f"{line(str(error.filename))} is left out: {error.strerror}")


def _size(file: Path, known: dict[tuple[int, int], Path]) -> int:
    try:
        found = file.stat()
    except OSError as error:
        raise InvalidSource(f"the file cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidSource("this is not a regular file")
    if not found.st_size:
        raise InvalidSource("the file is empty")
    other = known.setdefault((found.st_dev, found.st_ino), file)
    if other is not file:
        raise InvalidSource(f"this is the same file as {other}")
    return found.st_size
