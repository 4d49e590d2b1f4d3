"""Finds transcripts in files and folders, and prints the reason for each file that is left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compaction_store.cli.output import line, note
from compaction_store.cli.progress import Progress
from compaction_store.errors import InvalidSource

if TYPE_CHECKING:
    from compaction_store import Store, importers
    from compaction_store.importers.sources import Source


def imported(store: Store, paths: Sequence[Path]) -> Iterator[str]:
    """Imports transcripts, and yields the names of their threads. Prints a note for everything that cannot be read."""
    from compaction_store import importers

    seen: set[str] = set()
    for source in _sources(paths):
        with Progress("import", "entries") as progress:
            threads = importers.import_into(
                store, source, skip_bad=True, progress=lambda at: progress.reached(at.done, at.total, at.unit)
            )
            try:
                for thread in threads:
                    _say_what_is_missing(thread)
                    if thread.loaded is not None and thread.thread_id not in seen:
                        seen.add(thread.thread_id)
                        yield thread.thread_id
            except InvalidSource as error:
                note(f"the rest is left out: {line(str(error))}")


def _say_what_is_missing(thread: importers.ThreadImported) -> None:
    name = line(thread.thread_id)
    if thread.refused is not None:
        note(f"{name} is left out: {line(str(thread.refused))}")
    if thread.bad:
        first = thread.bad[0]
        many = "1 line is" if thread.skipped == 1 else f"{thread.skipped:,} lines are"
        note(f"{many} left out of {name}: {line(first.where)}: {line(first.why)}")


def _sources(paths: Sequence[Path]) -> Iterator[Source | Path]:
    """Yields one source for all sessions of a program, and the path of each other file."""
    from compaction_store import importers
    from compaction_store.importers import claude_code, codex

    # Formats with one file for each session. All files of such a format are imported together.
    readers: dict[str, Callable[..., Source]] = {claude_code.FORMAT: claude_code.ClaudeCode, codex.FORMAT: codex.Codex}
    sessions: dict[str, list[Path]] = {form: [] for form in readers}
    known: dict[tuple[int, int], Path] = {}
    for path in paths:
        for file in _files(path):
            try:
                _check(file, known)
                form = importers.detect(file)
            except InvalidSource as error:
                # Remove the hint, which names an option that only `import` has.
                why = str(error).removeprefix(f"{file.name}: ").partition("; name the format")[0]
                note(f"{line(str(file))} is left out: {line(why)}")
                continue
            if form in sessions:
                sessions[form].append(file)
            else:
                yield file
    for form, files in sessions.items():
        if files:
            yield readers[form](files, skip_bad=True)


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


def _check(file: Path, known: dict[tuple[int, int], Path]) -> None:
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
