"""Watches session files: keeps each complete line at once, and imports conversations as often as their size allows.

The state file only saves time. What is stored is known from the store, so a lost or an old state file does no harm.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Self

from compaction_store import Store
from compaction_store.errors import CompactionStoreError, Conflict, DatabaseError
from compaction_store.importers import ThreadImported
from compaction_store.importers.kept_lines import bytes_of, messages, place_of
from compaction_store.importers.line_files import LineFile
from compaction_store.watching import restoring
from compaction_store.watching.keeping import Erased, Keeper, batches, size_of
from compaction_store.watching.sessions import Scan, SessionFile, edges, end_of_lines, hashed
from compaction_store.watching.spool import Spool, Spooled

#: The most bytes that the spool may have.
SPOOL_BYTES = 1024**3
#: A conversation is imported again after this many times the seconds that its last import took.
REST = 20
_RETRY_SECONDS = 5.0
_SAVE_SECONDS = 60.0


class Stopped(Exception):
    """A signal ended the import of a conversation."""


class Waker:
    """The lock of a watcher, and the pipe that ends its wait: a hook writes to it, and so does a signal handler."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Conflict("another process watches for this store; `compaction-store hooks notify` wakes it") from None
        path = folder / "look"
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)
        os.close(self._lock)

    def stop(self) -> None:
        self.is_stopped = True
        with suppress(BlockingIOError):
            os.write(self._pipe, b".")

    def wait(self, seconds: float) -> bool:
        """Waits for a hook or a signal. Returns whether one came."""
        if self.is_stopped or not select.select([self._pipe], [], [], seconds)[0]:
            return False
        with suppress(BlockingIOError):
            os.read(self._pipe, 65536)
        return True


def notify(folder: Path) -> None:
    """Wakes all watchers of this user."""
    for path in folder.glob("*/look"):
        with suppress(OSError), os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as pipe:
            pipe.write(b".")


def state_folder() -> Path:
    """Returns the folder with the state of this user's watchers."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "compaction-store" / "watch"


@dataclass
class Report:
    """The counts since the last report, and the findings for a person."""

    lines: int = 0
    messages: int = 0
    spooled: int = 0
    files: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lines or self.messages or self.spooled or self.findings)


class Watcher:
    """Keeps the session files below some folders. `folder` has the state and the spool."""

    def __init__(self, open_store: Callable[[], Store], roots: Iterable[Path], folder: Path, waker: Waker) -> None:
        self._open = open_store
        self._state = folder / "state"
        self._waker = waker
        self._spool = Spool(folder / "spool", SPOOL_BYTES)
        self._saved = self._load()
        self._scan = Scan(roots, self._saved.values())
        self._keeper: Keeper | None = None
        self._is_away = False
        self._is_new = True
        self._retry = self._save_at = 0.0
        self._began = time.time_ns()
        self._suspects: set[str] = set()
        self._said: set[str] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="import")
        self._job: tuple[SessionFile, int, Future[tuple[list[ThreadImported], float, bool]]] | None = None
        self.report = Report()

    # ---- the loop

    def run(self, every: float, show: Callable[[Report], object]) -> None:
        """Looks until a signal comes."""
        woken, shown = True, 0.0
        while not self._waker.is_stopped:
            self.look(everything=woken)
            self._converse()
            if self.report and time.monotonic() >= shown:
                show(self._taken())
                shown = time.monotonic() + 60
            woken = self._waker.wait(every)
        self.close()
        if self.report:
            show(self._taken())

    def run_once(self, show: Callable[[Report], object]) -> bool:
        """Looks once, and imports all conversations. Returns whether nothing is left to be done."""
        self.look(everything=True)
        while not self._is_away and not self._waker.is_stopped and self._converse(now=True):
            pass
        self.close()
        report = self._taken()
        show(report)
        return not report.findings

    def close(self) -> None:
        self._waker.is_stopped = True
        if self._job is not None:
            self._collect(wait=True)
        self._pool.shutdown()
        self._save()
        if self._keeper is not None:
            self._keeper.store.close()

    def _taken(self) -> Report:
        report, self.report = self.report, Report()
        return report

    def _say(self, text: str) -> None:
        """Adds a finding to the report, once in the life of this watcher."""
        if text not in self._said:
            self._said.add(text)
            self.report.findings.append(text)

    # ---- the state of all files

    def _load(self) -> dict[str, SessionFile]:
        try:
            found = [SessionFile(**row) for row in map(json.loads, self._state.read_text().splitlines())]
        except (OSError, ValueError, TypeError):
            return {}
        return {file.path: file for file in found}

    def _save(self) -> None:
        self._saved |= {path: f for path, f in (self._scan.gone | self._scan.files).items() if f.source_id}
        new = self._state.with_suffix(".new")
        with new.open("w") as file:
            for each in self._saved.values():
                print(json.dumps(each.saved()), file=file)
        new.rename(self._state)
        self._save_at = time.monotonic() + _SAVE_SECONDS

    def _store_is_new(self, keeper: Keeper) -> None:
        """Compares the state with the store, which may be another one, or a restored one."""
        known = [file for file in self._scan.files.values() if file.source_id and file.seq >= 0]
        last = {t.thread_id: t.last_seq for t in keeper.store.threads(hidden=True)} if known else {}
        for file in known:
            if last.get(file.target.thread) != file.seq:
                file.seq, file.size = -1, -1
        self._is_new = False

    # ---- lines

    def look(self, *, everything: bool = False) -> None:
        """Keeps the lines that are new: in the store, or in the spool while the database is away."""
        if self._is_away and time.monotonic() >= self._retry:
            self._is_away = False
        if not self._is_away and self._try(self._connect):
            self._try(self._replay)
        changed = self._scan.changed(everything=everything)
        for path in self._scan.unknown - self._said:
            self._said.add(path)
            self._say(f"{path} is left out: it is not known as a session of Claude Code or Codex")
        changed += [f for path in self._suspects if (f := self._scan.files.get(path)) is not None and f not in changed]
        for file in changed:
            if self._waker.is_stopped:
                return
            # If the database goes away meanwhile, the lines go to the spool.
            _ = self._try(partial(self._keep, file)) or self._try(partial(self._keep, file))
        if time.monotonic() > self._save_at and changed:
            self._save()

    def _try(self, work: Callable[[], object]) -> bool:
        """Does work that may need the database. Returns False if the database is away."""
        try:
            work()
        except DatabaseError as error:
            self._is_away = True
            self._retry = time.monotonic() + _RETRY_SECONDS
            self._said.discard(text := f"the database is away, and lines are kept on disk meanwhile: {error}")
            self._say(text)
            return False
        return True

    def _connect(self) -> None:
        if self._keeper is None:
            self._keeper = Keeper(self._open())
        if self._is_new:
            self._store_is_new(self._keeper)

    def _replay(self) -> None:
        if self._spool and self._keeper is not None:
            for part, kept in self._spool.replay(self._keeper):
                self.report.lines += kept.added
                file = self._scan.files.get(part.path)
                if file is not None and file.source_id and file.target == part.target:
                    file.seq = kept.seq if file.index == kept.length else -1
                    file.size = -1

    def _keep(self, file: SessionFile) -> None:
        try:
            with open(file.path, "rb") as opened:  # noqa: PTH123 — a path of the scan is text
                self._keep_open(file, opened)
        except FileNotFoundError:
            # A vanished file changes nothing: what is kept stays.
            self._scan.forget(file.path)
        except OSError as error:
            self._say(f"{file.path} cannot be read: {error.strerror}")
        except Erased:
            file.is_left = True
            self._say(f"{file.path} is left out: its thread was erased")

    def _keep_open(self, file: SessionFile, opened: IO[bytes]) -> None:
        found = os.fstat(opened.fileno())
        is_old = found.st_mtime_ns < self._began - 60 * 10**9
        if file.is_left or (self._is_away and not file.offset and is_old):
            return
        seen = f"{found.st_dev}:{found.st_ino}"
        is_moved = seen != file.identity or (found.st_size == file.size and found.st_ctime_ns != file.changed)
        is_same = found.st_size >= file.offset and edges(opened, file.offset) == file.mark if file.offset else True
        if is_same and file.offset and (is_moved or file.hasher is None or file.path in self._suspects):
            file.hasher = hashed(opened, file.offset)
            is_same = file.hasher.hexdigest() == file.whole
        end = end_of_lines(file.path, file.offset if is_same else 0)
        if not (is_same and end == file.offset and (file.seq >= 0 or self._is_away)) and (end or file.offset):
            self._store(file, opened, end, is_same=is_same)
        self._suspects.discard(file.path)
        file.identity, file.size, file.changed = seen, found.st_size, found.st_ctime_ns

    def _store(self, file: SessionFile, opened: IO[bytes], end: int, *, is_same: bool) -> None:
        if not self._named(file):
            return
        self.report.files.add(file.path)
        if not is_same:
            self._say(f"{file.path} was rewritten: what it had is kept, and the new version too")
        if self._is_away:
            if not is_same:
                file.offset = file.index = 0
                file.seq, file.hasher = -1, None
            self._add(file, opened, end, is_rewritten=not is_same)
            return
        if is_same and file.seq >= 0:
            try:
                self._add(file, opened, end)
            except Conflict:
                # Another program has stored lines of this file: compare what is stored.
                file.seq = -1
            else:
                return
        self._settle(file, opened, end)

    def _add(self, file: SessionFile, opened: IO[bytes], end: int, *, is_rewritten: bool = False) -> None:
        """Appends the lines from the file's offset on, to the thread or to the spool."""
        file.hasher = file.hasher or hashlib.sha256()
        opened.seek(file.offset)
        try:
            for batch in batches((piece.message for piece in messages(opened, end)), size_of) if end else [[]]:
                data = b"".join(map(bytes_of, batch))
                if self._is_away:
                    if not self._spool.has_room(len(data)):
                        self._say("the spool is full: further lines wait in their files until the database is back")
                        return
                    about = {"file": place_of(LineFile(Path(file.path))), "format": file.form}
                    part = Spooled(file.path, file.target, about, file.uid, file.index, file.seq, is_rewritten)
                    self._spool.add(part, data)
                    self.report.spooled += len(batch)
                    is_rewritten = False
                    file.seq += len(batch) if file.seq >= 0 else 0
                else:
                    assert self._keeper is not None  # noqa: S101 — connected, or away
                    file.seq = self._keeper.append(file.target, file.seq, batch)
                    self.report.lines += len(batch)
                file.index += len(batch)
                file.offset += len(data)
                file.hasher.update(data)
        finally:
            file.mark, file.whole = edges(opened, file.offset), file.hasher.hexdigest()

    def _settle(self, file: SessionFile, opened: IO[bytes], end: int) -> None:
        """Compares the whole file with its thread, and appends what is missing."""
        assert self._keeper is not None  # noqa: S101 — connected, or away
        hasher = hashlib.sha256()
        opened.seek(0)

        def read() -> Iterable[dict[str, object]]:
            for piece in messages(opened, end):
                hasher.update(bytes_of(piece.message))
                yield piece.message

        file.seq = -1
        kept = self._keeper.settle(file.target, read(), uid=file.uid)
        if kept.is_rewritten:
            self._say(f"{file.path} was rewritten: what it had is kept, and the new version too")
        about = {"file": place_of(LineFile(Path(file.path))), "format": file.form}
        file.uid = self._keeper.describe(file.target.thread, file.target.subject, about)
        file.offset, file.index, file.seq, file.hasher = end, kept.length, kept.seq, hasher
        file.mark, file.whole = edges(opened, end), hasher.hexdigest()
        self.report.lines += kept.added
        if kept.is_rewritten:
            file.imported = -1

    def _named(self, file: SessionFile) -> bool:
        """Gives a file the name of its thread, if its lines say it already."""
        if not file.source_id and (source_id := file.id_in_lines()):
            place = place_of(LineFile(Path(file.path)))
            file.prefix, file.source_id = f"{file.form}:", source_id
            others = {f.path for f in self._scan.files.values() if f is not file and f.target == file.target}
            if not others and not self._is_away and self._keeper is not None:
                stored = self._keeper.thread(file.target.thread)
                its = None if stored is None else stored.metadata.get("file")
                if its != place:
                    others = {p for p in self._scan.files if p != file.path and place_of(LineFile(Path(p))) == its}
            if any(map(os.path.exists, others)):
                file.prefix = f"{file.form}:{hashlib.sha256(place.encode()).hexdigest()[:8]}:"
                self._say(f"{file.path} has the session of another file, and is kept as {file.target.thread}")
        return bool(file.source_id)

    # ---- conversations

    def _converse(self, *, now: bool = False) -> bool:
        """Imports the next conversation that is due, in another thread. Returns whether there was one."""
        if self._job is not None:
            self._collect(wait=now)
        if self._is_away or self._job is not None or self._keeper is None:
            return self._job is not None
        moment = time.monotonic()
        waiting = (f for f in self._saved_and_seen() if f.imported != f.offset and (now or f.due <= moment))
        if (file := min(waiting, key=lambda f: f.due, default=None)) is None:
            return False
        self._job = file, file.offset, self._pool.submit(self._import, file, self._keeper, file.offset, file.whole)
        return True

    def _saved_and_seen(self) -> list[SessionFile]:
        """Returns the files that are there, and those that vanished before their conversation was imported."""
        gone = [f for path, f in (self._saved | self._scan.gone).items() if path not in self._scan.files]
        return [f for f in (*self._scan.files.values(), *gone) if f.source_id and f.seq >= 0 and not f.is_left]

    def _import(
        self, file: SessionFile, keeper: Keeper, offset: int, whole: str
    ) -> tuple[list[ThreadImported], float, bool]:
        begin = time.monotonic()
        with TemporaryDirectory(prefix="compaction-store-") as folder:
            path, is_other = file.path, False
            try:
                with open(path, "rb") as opened:  # noqa: PTH123 — a path of the scan is text
                    is_other = hashed(opened, offset).hexdigest() != whole
            except FileNotFoundError:
                [restored] = restoring.restore(keeper.store, file.target.thread, Path(folder), skip_redacted=True)
                path = str(restored.path)
            subject = file.target.subject
            results = keeper.converse(lambda: file.source(path, offset), file.prefix, subject, self._check)
        return results, time.monotonic() - begin, is_other

    def _check(self, _: object) -> None:
        if self._waker.is_stopped:
            raise Stopped

    def _collect(self, *, wait: bool) -> None:
        assert self._job is not None  # noqa: S101 — the callers check
        file, offset, future = self._job
        if not wait and not future.done():
            return
        self._job = None
        file.due = time.monotonic() + _RETRY_SECONDS
        try:
            results, seconds, is_other = future.result()
        except Stopped:
            return
        except DatabaseError:
            self._try(future.result)
            return
        except (CompactionStoreError, OSError) as error:
            self._say(f"the conversation of {file.path} cannot be imported: {error}")
            file.imported = offset
            return
        file.due = time.monotonic() + REST * seconds
        file.imported = offset
        if is_other:
            self._suspects.add(file.path)
        self._tell(file, results)

    def _tell(self, file: SessionFile, results: list[ThreadImported]) -> None:
        for result in results:
            self.report.messages += result.loaded.added if result.loaded is not None else 0
            if result.refused is not None:
                self._say(f"{result.thread_id} is not imported: {result.refused}")
            if result.bad:
                where = f"{result.bad[0].where}: {result.bad[0].why}"
                self._say(f"lines of {file.path} are kept, but not understood: {where}")
            if result.unknown:
                kinds = ", ".join(sorted(repr(kind[:60]) for kind in result.unknown))
                self._say(f"lines of {file.path} are kept, but their types are not known: {kinds}")
            if not result.is_recognised:
                self._say(f"nothing in {file.path} was recognised; its lines are kept")
