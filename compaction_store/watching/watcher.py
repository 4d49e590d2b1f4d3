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
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from compaction_store import Store
from compaction_store.errors import CompactionStoreError, Conflict, DatabaseError, InvalidSource
from compaction_store.importers import ThreadImported, codex, formats
from compaction_store.importers.formats import SESSIONS
from compaction_store.importers.line_files import LINES, Files, LineFile, bytes_of, messages, place_of
from compaction_store.importers.running import key_of
from compaction_store.watching import keeping
from compaction_store.watching.keeping import ErasedSession, Keeper, Spool, Spooled, Target, batches

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
        lines = self.source_id + LINES
        return Target(self.prefix + lines, key_of(self.form, lines), self.prefix + self.source_id.partition("/")[0])

    @property
    def about(self) -> dict[str, str]:
        return {"file": place_of(Path(self.path)), "format": self.form}

    def id_in_lines(self) -> str:
        """Returns the id of the session's thread, or nothing if the file does not say it yet."""
        file = LineFile(Path(self.path))
        file.size = end_of_lines(self.path, 0)
        return SESSIONS[self.form].thread_of(file) if file.size else ""

    def source(self, path: str, size: int) -> Files:
        """Opens the conversation in the first bytes of the file, or of a copy of it."""
        root = os.environ.get(codex.ROOT, "") if self.form == codex.FORMAT else ""
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
            if file and (time.time_ns() - state.st_ctime_ns < _COARSE or state_of(state) != file.state):
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
            form = form or formats.of_files(Path(path))
        if form not in SESSIONS:
            self.unknown.add(path)
            return None
        return self.files.setdefault(path, SessionFile(path, form))


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
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "compaction-store" / "watch"


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
        self.spool = Spool(folder / "spool")
        self._saved = self._load()
        self._scan = SessionScan(roots, self._saved.values())
        self._keeper: Keeper | None = None
        self.is_away = False
        #: When the files were last looked at.
        self.looked_at = time.time()
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
        with suppress(OSError, ValueError, TypeError):
            return {row["path"]: SessionFile(**row) for row in map(json.loads, self._state.read_text().splitlines())}
        return {}

    def _save(self) -> None:
        self._saved |= {path: f for path, f in (self._scan.gone | self._scan.files).items() if f.source_id}
        new = self._state.with_suffix(".new")
        rows = [vars(file) | {"hasher": None, "due": 0} for file in self._saved.values()]
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        new.rename(self._state)
        self._save_at = time.monotonic() + _SAVE_SECONDS

    def _try(self, work: Callable[[], object]) -> bool:
        """Does work that may need the database. Returns False if the database is away."""
        try:
            work()
        except DatabaseError as error:
            self.is_away = True
            self._retry = time.monotonic() + _RETRY_SECONDS
            self._say(f"{_AWAY}{error}")
        return not self.is_away

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
        for part, kept in self.spool.replay(self._keeper) if self.spool.size else ():
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
        if not self.is_away or time.monotonic() >= self._retry:
            self.is_away = False
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
        self._look_at, self.looked_at = now + self._every, time.time()

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
        if file.is_left or (self.is_away and not file.offset and found.st_mtime_ns < self._began - 60 * 10**9):
            return
        is_same = found.st_size >= file.offset and edges(opened, file.offset) == file.mark if file.offset else True
        before, after = file.state.split(":"), state_of(found).split(":")
        # A file that only grew in its place is not read again from its beginning.
        has_grown = before[:2] == after[:2] and (before[2] != after[2] or before == after)
        if is_same and file.offset and not (has_grown and file.hasher and file.path not in self._suspects):
            file.hasher = hashed(opened, file.offset)
            is_same = file.hasher.hexdigest() == file.whole
        end = end_of_lines(file.path, file.offset if is_same else 0)
        if not (is_same and end == file.offset and (file.seq >= 0 or self.is_away)) and (end or file.offset):
            if not self._is_named(file):
                return
            self._report.files.add(file.path)
            if not is_same:
                self._say(f"{file.path} was rewritten: what it had is kept, and the new version too")
            self._store(file, opened, end, is_same=is_same)
        self._suspects.discard(file.path)
        file.state = state_of(found)

    def _store(self, file: SessionFile, opened: IO[bytes], end: int, *, is_same: bool) -> None:
        if self.is_away and not is_same:
            file.offset = file.index = 0
            file.seq, file.imported, file.hasher = -1, -1, None
        if self.is_away or (is_same and file.seq >= 0):
            # If another program has stored lines of this file, compare what is stored.
            with suppress(Conflict):
                self._add(file, opened, end, is_rewritten=not is_same)
                return
        self._settle(file, opened, end)

    def _add(self, file: SessionFile, opened: IO[bytes], end: int, *, is_rewritten: bool) -> None:
        """Appends the lines from the file's offset on, to the thread or to the spool."""
        file.hasher = file.hasher or hashlib.sha256()
        opened.seek(file.offset)
        try:
            for batch in batches(piece.message for piece in messages(opened, end)) if end else [[]]:
                data = b"".join(map(bytes_of, batch))
                if self.is_away:
                    part = Spooled(file.path, file.target, file.about, file.uid, file.index, file.seq, is_rewritten)
                    if not self.spool.add(part, data):
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
            if not others and not self.is_away and self._keeper is not None:
                stored = self._keeper.thread(file.target.thread)
                its = place if stored is None else stored.metadata.get("file")
                others = [f.path for f in files if its != place and f is not file and place_of(Path(f.path)) == its]
            if any(map(os.path.exists, others)):
                file.prefix = f"{file.form}:{hashlib.sha256(place.encode()).hexdigest()[:8]}:"
                self._say(f"{file.path} has the session of another file, and is kept as {file.target.thread}")
        return bool(file.source_id)

    def _converse(self, before: float) -> bool:
        """Imports the next conversation that is due before a time. Returns whether there was one."""
        # A file may vanish before its conversation was imported.
        gone = [f for path, f in (self._saved | self._scan.gone).items() if path not in self._scan.files]
        waiting = [
            f for f in (*self._scan.files.values(), *gone)
            if f.source_id and f.seq >= 0 and not f.is_left and f.imported != f.offset and f.due <= before
        ]  # fmt: skip
        if self.is_away or self._keeper is None or self._waker.is_stopped or not waiting:
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
                [restored] = keeping.restore(keeper.store, file.target.thread, Path(folder), skip_redacted=True)
                path = str(restored.path)
            opening, subject = partial(file.source, path, offset), file.target.subject
            # More messages than lines: the others say that the file was rewritten.
            for result in keeper.converse(opening, file.prefix, subject, self._look_if_due, file.seq != file.index):
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
