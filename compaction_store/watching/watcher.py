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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from compaction_store import Store
from compaction_store.errors import CompactionStoreError, Conflict, DatabaseError
from compaction_store.importers import ThreadImported
from compaction_store.importers.kept_lines import bytes_of, messages, place_of
from compaction_store.watching import restoring
from compaction_store.watching.keeping import ErasedSession, Keeper, Spool, Spooled, batches
from compaction_store.watching.sessions import SessionFile, SessionScan, edges, end_of_lines, hashed, state_of

# A conversation is imported again after this many times the seconds that its last import took.
_REST = 20
_AWAY = "the database is away, and lines are kept on disk meanwhile: "
_RETRY_SECONDS = 5.0
_SAVE_SECONDS = _REPORT_SECONDS = 60.0


class Stopped(Exception):
    """A signal ended the import of a conversation."""


class Waker:
    """The pipe that ends a watcher's wait: hooks and the signal handler write to it. Its lock lasts as the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict("another process watches for this store; `compaction-store hooks notify` wakes it") from None
        path = folder / "look"
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True
        with suppress(BlockingIOError):
            os.write(self._pipe, b".")

    def wait(self, seconds: float) -> bool:
        """Waits for a hook or a signal. Returns whether one came."""
        came = not self.is_stopped and bool(select.select([self._pipe], [], [], seconds)[0])
        if came:
            os.read(self._pipe, 65536)
        return came


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
class WatchReport:
    """The counts since the last report, and the findings for a person."""

    lines: int = 0
    messages: int = 0
    spooled: int = 0
    files: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)


class Watcher:
    """Keeps the session files below some folders. `folder` has the state and the spool."""

    def __init__(
        self, open_store: Callable[[], Store], roots: Iterable[Path], folder: Path, waker: Waker, every: float,
        show: Callable[[WatchReport], object],
    ) -> None:  # fmt: skip
        self._open, self._waker, self._every, self._show = open_store, waker, every, show
        self._state = folder / "state"
        self._spool = Spool(folder / "spool")
        self._saved = self._load()
        self._scan = SessionScan(roots, self._saved.values())
        self._keeper: Keeper | None = None
        self._is_away = False
        # The times of the next attempt to reach the database, look, save and report.
        self._retry = self._look_at = self._save_at = self._report_at = 0.0
        self._began = time.time_ns()
        # The files whose content must be compared, because a conversation was found to be of another version.
        self._suspects: set[str] = set()
        self._said: set[str] = set()
        self._report = WatchReport()

    def run(self) -> None:
        """Looks until a signal comes."""
        woken = True
        while not self._waker.is_stopped:
            self._look(everything=woken)
            with suppress(Stopped):
                while self._converse(time.monotonic()):
                    self._look_if_due()
            woken = self._waker.wait(self._every)
        self._close()

    def run_once(self) -> bool:
        """Looks once, and imports all conversations. Returns whether there was no finding."""
        self._report_at = float("inf")
        self._look(everything=True)
        while self._converse(float("inf")):
            pass
        has_findings = bool(self._report.findings)
        self._close()
        return not has_findings

    def _close(self) -> None:
        self._save()
        if self._keeper is not None:
            self._keeper.store.close()
        if self._report != WatchReport() or self._report_at == float("inf"):
            self._show(self._report)

    def _say(self, text: str) -> None:
        """Adds a finding to the report, once in the life of this watcher."""
        if text not in self._said:
            self._said.add(text)
            self._report.findings.append(text)

    def _load(self) -> dict[str, SessionFile]:
        try:
            return {row["path"]: SessionFile(**row) for row in map(json.loads, self._state.read_text().splitlines())}
        except (OSError, ValueError, TypeError):
            return {}

    def _save(self) -> None:
        self._saved |= {path: f for path, f in (self._scan.gone | self._scan.files).items() if f.source_id}
        new = self._state.with_suffix(".new")
        rows = [vars(file) | {"hasher": None, "due": 0} for file in self._saved.values()]
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        new.rename(self._state)
        self._save_at = time.monotonic() + _SAVE_SECONDS

    # ---- the database

    def _try(self, work: Callable[[], object]) -> bool:
        """Does work that may need the database. Returns False if the database is away."""
        try:
            work()
        except DatabaseError as error:
            self._is_away = True
            self._retry = time.monotonic() + _RETRY_SECONDS
            self._say(f"{_AWAY}{error}")
        return not self._is_away

    def _reach(self) -> None:
        """Opens the store, and stores what the spool has."""
        if self._keeper is None:
            keeper = Keeper(self._open())
            known = [file for file in self._scan.files.values() if file.seq >= 0]
            last = {t.thread_id: t.last_seq for t in keeper.store.threads(hidden=True)} if known else {}
            for file in known:
                if last.get(file.target.thread) != file.seq:
                    # It is another store, a restored one, or one to which another program has written.
                    file.seq, file.state = -1, ""
            self._keeper = keeper
        for part, kept in self._spool.replay(self._keeper) if self._spool.size else ():
            self._report.lines += kept.added
            if (found := self._scan.files.get(part.path)) is not None and found.target == part.target:
                found.seq, found.state = kept.seq if found.index == kept.length else -1, ""

    # ---- lines

    def _look_if_due(self, _: object = None) -> None:
        """Looks if it is time to. This is also called during the import of a conversation."""
        if self._waker.is_stopped:
            raise Stopped
        if time.monotonic() >= self._look_at:
            self._look()

    def _look(self, *, everything: bool = False) -> None:
        """Keeps the lines that are new: in the store, or in the spool while the database is away."""
        if not self._is_away or time.monotonic() >= self._retry:
            self._is_away = False
            if self._try(self._reach):
                self._said = {text for text in self._said if not text.startswith(_AWAY)}
        changed = self._scan.changed(everything=everything)
        for path in self._scan.unknown:
            self._say(f"{path} is left out: it is not known as a session of Claude Code or Codex")
        changed += [f for path in self._suspects if (f := self._scan.files.get(path)) is not None and f not in changed]
        for file in changed:
            # If the database goes away meanwhile, the lines go to the spool.
            _ = self._waker.is_stopped or self._try(partial(self._keep, file)) or self._try(partial(self._keep, file))
        now = time.monotonic()
        if changed and now > self._save_at:
            self._save()
        if self._report != WatchReport() and now >= self._report_at:
            self._show(self._report)
            self._report, self._report_at = WatchReport(), now + _REPORT_SECONDS
        self._look_at = now + self._every

    def _keep(self, file: SessionFile) -> None:
        try:
            with open(file.path, "rb") as opened:  # noqa: PTH123 — a path of the scan is text
                self._keep_open(file, opened)
        except FileNotFoundError:
            # A vanished file changes nothing: what is kept stays.
            self._scan.forget(file.path)
        except Conflict:
            # Another program writes to the thread: compare again at the next look.
            file.seq, file.state = -1, ""
        except OSError as error:
            self._say(f"{file.path} cannot be read: {error.strerror}")
        except ErasedSession:
            file.is_left = True
            self._say(f"{file.path} is left out: its thread was erased")

    def _keep_open(self, file: SessionFile, opened: IO[bytes]) -> None:
        found = os.fstat(opened.fileno())
        is_old = found.st_mtime_ns < self._began - 60 * 10**9
        if file.is_left or (self._is_away and not file.offset and is_old):
            return
        is_same = found.st_size >= file.offset and edges(opened, file.offset) == file.mark if file.offset else True
        before, after = file.state.split(":"), state_of(found).split(":")
        # A file that only grew in its place is not read again from its beginning.
        has_grown = before[:2] == after[:2] and (before[2] != after[2] or before == after)
        if is_same and file.offset and not (has_grown and file.hasher and file.path not in self._suspects):
            file.hasher = hashed(opened, file.offset)
            is_same = file.hasher.hexdigest() == file.whole
        end = end_of_lines(file.path, file.offset if is_same else 0)
        if not (is_same and end == file.offset and (file.seq >= 0 or self._is_away)) and (end or file.offset):
            if not self._is_named(file):
                return
            self._report.files.add(file.path)
            if not is_same:
                self._say(f"{file.path} was rewritten: what it had is kept, and the new version too")
            self._store(file, opened, end, is_same=is_same)
        self._suspects.discard(file.path)
        file.state = state_of(found)

    def _store(self, file: SessionFile, opened: IO[bytes], end: int, *, is_same: bool) -> None:
        if self._is_away and not is_same:
            file.offset = file.index = 0
            file.seq, file.imported, file.hasher = -1, -1, None
        if self._is_away or (is_same and file.seq >= 0):
            try:
                self._add(file, opened, end, is_rewritten=not is_same)
            except Conflict:
                # Another program has stored lines of this file: compare what is stored.
                pass
            else:
                return
        self._settle(file, opened, end)

    def _add(self, file: SessionFile, opened: IO[bytes], end: int, *, is_rewritten: bool) -> None:
        """Appends the lines from the file's offset on, to the thread or to the spool."""
        file.hasher = file.hasher or hashlib.sha256()
        opened.seek(file.offset)
        try:
            for batch in batches(piece.message for piece in messages(opened, end)) if end else [[]]:
                data = b"".join(map(bytes_of, batch))
                if self._is_away:
                    part = Spooled(file.path, file.target, file.about, file.uid, file.index, file.seq, is_rewritten)
                    if not self._spool.add(part, data):
                        self._say("the spool is full: further lines wait in their files until the database is back")
                        return
                    self._report.spooled += len(batch)
                    is_rewritten = False
                    file.seq += len(batch) if file.seq >= 0 else 0
                else:
                    assert self._keeper is not None  # noqa: S101 — reached, or away
                    file.seq = self._keeper.append(file.target, file.seq, batch)
                    self._report.lines += len(batch)
                file.index += len(batch)
                file.offset += len(data)
                file.hasher.update(data)
        finally:
            file.mark, file.whole = edges(opened, file.offset), file.hasher.hexdigest()

    def _settle(self, file: SessionFile, opened: IO[bytes], end: int) -> None:
        """Compares the whole file with its thread, and appends what is missing."""
        assert self._keeper is not None  # noqa: S101 — reached, or away
        hasher = hashlib.sha256()
        opened.seek(0)

        def read() -> Iterator[dict[str, Any]]:
            for piece in messages(opened, end):
                hasher.update(bytes_of(piece.message))
                yield piece.message

        file.seq = -1
        kept = self._keeper.settle(file.target, read(), uid=file.uid)
        if kept.is_rewritten:
            self._say(f"{file.path} was rewritten: what it had is kept, and the new version too")
            file.imported = -1
        file.uid = self._keeper.describe(file.target.thread, file.target.subject, file.about)
        file.offset, file.index, file.seq, file.hasher = end, kept.length, kept.seq, hasher
        file.mark, file.whole = edges(opened, end), hasher.hexdigest()
        self._report.lines += kept.added

    def _is_named(self, file: SessionFile) -> bool:
        """Gives a file the name of its thread. Returns False if its lines do not say it yet."""
        if not file.source_id and (source_id := file.id_in_lines()):
            file.prefix, file.source_id = f"{file.form}:", source_id
            files, place = self._scan.files.values(), file.about["file"]
            others = [f.path for f in files if f is not file and f.target == file.target]
            if not others and not self._is_away and self._keeper is not None:
                stored = self._keeper.thread(file.target.thread)
                its = place if stored is None else stored.metadata.get("file")
                others = [f.path for f in files if its != place and f is not file and place_of(Path(f.path)) == its]
            if any(map(os.path.exists, others)):
                file.prefix = f"{file.form}:{hashlib.sha256(place.encode()).hexdigest()[:8]}:"
                self._say(f"{file.path} has the session of another file, and is kept as {file.target.thread}")
        return bool(file.source_id)

    # ---- conversations

    def _converse(self, before: float) -> bool:
        """Imports the next conversation that is due before a time. Returns whether there was one."""
        # A file may vanish before its conversation was imported.
        gone = [f for path, f in (self._saved | self._scan.gone).items() if path not in self._scan.files]
        waiting = [
            f for f in (*self._scan.files.values(), *gone)
            if f.source_id and f.seq >= 0 and not f.is_left and f.imported != f.offset and f.due <= before
        ]  # fmt: skip
        if self._is_away or self._keeper is None or self._waker.is_stopped or not waiting:
            return False
        file = min(waiting, key=lambda f: f.due)
        offset, begin = file.offset, time.monotonic()
        try:
            if not self._try(partial(self._import, file, self._keeper)):
                return False
        except Stopped:
            return False
        except (CompactionStoreError, OSError) as error:
            self._say(f"the conversation of {file.path} cannot be imported: {error}")
        now = time.monotonic()
        file.due, file.imported = now + _REST * (now - begin), offset
        return True

    def _import(self, file: SessionFile, keeper: Keeper) -> None:
        offset, whole, path = file.offset, file.whole, file.path
        with TemporaryDirectory(prefix="compaction-store-") as folder:
            try:
                with open(path, "rb") as opened:  # noqa: PTH123 — a path of the scan is text
                    if hashed(opened, offset).hexdigest() != whole:
                        self._suspects.add(path)
            except FileNotFoundError:
                [restored] = restoring.restore(keeper.store, file.target.thread, Path(folder), skip_redacted=True)
                path = str(restored.path)
            opening, subject = partial(file.source, path, offset), file.target.subject
            # More messages than lines: the others say that the file was rewritten.
            was_rewritten = file.seq != file.index
            for result in keeper.converse(opening, file.prefix, subject, self._look_if_due, was_rewritten):
                self._tell(file, result)

    def _tell(self, file: SessionFile, result: ThreadImported) -> None:
        self._report.messages += result.loaded.added if result.loaded is not None else 0
        if result.refused is not None:
            self._say(f"{result.thread_id} is not imported: {result.refused}")
        for bad in result.bad[:1]:
            self._say(f"lines of {file.path} are kept, but not understood: {bad.where}: {bad.why}")
        if result.unknown:
            kinds = ", ".join(sorted(repr(kind[:60]) for kind in result.unknown))
            self._say(f"lines of {file.path} are kept, but their types are not known: {kinds}")
        if not result.is_recognised:
            self._say(f"nothing in {file.path} was recognised; its lines are kept")
