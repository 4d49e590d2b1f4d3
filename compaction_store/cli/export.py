"""Exports threads as bundles, which can be verified without a database, and writes audit reports.

An interrupted export can be repeated: a second export to the same folder writes only threads that have changed. With a
checkpoint to include, it writes all of them.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import typer

import compaction_store
from compaction_store.audit import safe_text
from compaction_store.audit.csv_rows import csv_cell, csv_line
from compaction_store.audit.transcript import markdown
from compaction_store.cli import options, output, values, verify
from compaction_store.cli.bundles import REFUSED, argument, misuse, option
from compaction_store.cli.options import Subject, TenantOptions, naming
from compaction_store.cli.output import ProgressBar, note, private, without_bars
from compaction_store.cli.verify import AllowEmpty, LogFile, PublicKeys, open_log, refuse_empty
from compaction_store.errors import Conflict, InvalidBundle
from compaction_store.models import Compaction, Event, Message, Thread
from compaction_store.store.threads import pinned

if TYPE_CHECKING:
    from compaction_store import Reader
    from compaction_store.checkpoints import CheckpointLog

_SUFFIX = ".jsonl"
# Bundles without content have their own suffix, so that a folder may contain both bundles of a thread.
_WITHHELD = ".withheld.jsonl"
INDEX = "index.csv"
_COLUMNS = ("tenant", "thread", "thread_uid", "messages", "compactions", "entries", "head", "bytes", "sha256", "file")
# Names that Windows reserves for devices, with any suffix.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
# Characters that some systems do not allow in file names.
_UNFIT = re.compile(r"[^\w.-]+", re.ASCII)
_NAME_CHARACTERS = 60
_END_BYTES = 4096
_PIECE_BYTES = 1024 * 1024
_LONGEST_MANIFEST = 1024 * 1024
_BEGINNING = b'{"type":"manifest","format":"compaction-store/bundle/'


def export(
    threads: list[str] | None = argument("[THREADS]...", default=None),
    every: bool = option("--all", default=False),
    every_tenant: bool = option("--all-tenants", default=False),
    subject: Subject = None,
    to: Path | None = option("--to FOLDER", default=None),
    no_bodies: bool = option("--no-bodies", default=False),
    form: Literal["markdown"] | None = option("--format", default=None),
    checkpoints: LogFile = None,
    public_key: PublicKeys = None,
    allow_empty: AllowEmpty = False,
    *,
    db: TenantOptions,
) -> None:
    from compaction_store.deploy import doctor

    if sum((bool(threads), every, every_tenant, subject is not None)) != 1:
        raise misuse("give either thread names, or --subject, or --all, or --all-tenants", "THREADS")
    if to is None and len(threads or ()) != 1:
        raise misuse("is required for more than one thread", "--to")
    if form is not None and (no_bodies or checkpoints is not None):
        raise misuse("must not be given with --format markdown", "--no-bodies" if no_bodies else "--checkpoints")
    log = verify.open_log(checkpoints, public_key)
    written: list[dict[str, str]] = []
    findings = 0
    with db.reachable() as address, ProgressBar("export", "entries") as progress:
        for name in doctor.tenants(address) if every_tenant else [db.tenant]:
            with naming(name), compaction_store.Reader.open(address, tenant=name) as store:
                run = _Export(store, name, to or Path(), log, progress, not no_bodies, written, subject)
                if form is not None:
                    _transcripts(run, to, threads)
                    continue
                (_export_all if to else _print_all)(run, threads)
                if log is not None and not threads and subject is None:
                    findings += _name_missing(log, name, store)
    if to is not None and not written:
        verify.refuse_empty("any tenant" if every_tenant else f"tenant {db.tenant!r}", allowed=allow_empty)
    if findings:
        raise typer.Exit(REFUSED)


def _wanted(run: _Export, threads: list[str] | None) -> Iterable[Thread]:
    if threads:
        return [run.store.thread(name, hidden=True) for name in threads]
    return run.store.threads(subject=run.subject, hidden=True)


def _transcripts(run: _Export, to: Path | None, threads: list[str] | None) -> None:
    for given in _wanted(run, threads):
        # The name may belong to another thread by now.
        its, name = pinned(run.store, given.thread_id, given.thread_uid), given.thread_id
        kinds: list[Iterable[Message | Compaction | Event]] = [
            its.replay(name), its.compactions(name), its.audit.events(name)
        ]  # fmt: skip
        entries = run.progress.over(heapq.merge(*kinds, key=attrgetter("pos")))
        parts = (part.encode() for part in markdown(given, entries))
        if to is None:
            _write(sys.stdout.buffer, parts)
            continue
        try:
            to.mkdir(parents=True, exist_ok=True)
            with private(to / f"{_readable(name)}{given.thread_uid}.md").open("wb") as stream:
                _write(stream, parts)
        except OSError as error:
            raise misuse(f"cannot write to {to}: {error.strerror}", "--to") from None
        run.written.append({})


def _name_missing(log: CheckpointLog, tenant: str, store: Reader) -> int:
    """Prints what the newest checkpoint has and the store does not have. Returns how many findings there are."""
    from compaction_store.checkpoints.compare import completeness

    found = completeness(log, tenant, lambda: {thread.thread_uid for thread in _everything(store)})
    for finding in found.findings:
        note(finding.what)
    return len(found.findings)


def _everything(store: Reader) -> Iterator[Thread]:
    """Yields all threads of a tenant, and its log if there are threads."""
    from compaction_store.audit._sync.threads import log_of

    there = False
    for thread in store.threads(hidden=True):
        there = True
        yield thread
    yield from log_of(store) if there else ()


@dataclass(frozen=True)
class _Export:
    store: Reader
    tenant: str
    to: Path
    log: CheckpointLog | None
    progress: ProgressBar
    bodies: bool
    written: list[dict[str, str]]
    subject: str | None


def _print_all(run: _Export, threads: list[str] | None) -> None:
    for thread in threads or ():
        carried = None if run.log is None else run.log.proof(run.store.thread(thread, hidden=True).thread_uid)
        lines = run.store.audit.export(thread, bodies=run.bodies, checkpoint=carried)
        if sys.stdout.isatty():
            # Only a file or a pipe gets the exact bytes.
            lines = (safe_text.json_shown(line.decode().rstrip("\n")).encode() + b"\n" for line in lines)
        _write(sys.stdout.buffer, run.progress.over(lines))


def _export_all(run: _Export, threads: list[str] | None) -> None:
    try:
        run.to.mkdir(parents=True, exist_ok=True)
        for thread in _everything(run.store) if not threads and run.subject is None else _wanted(run, threads):
            _export_one(run, thread)
        _write_index(run.to, run.written)
    except OSError as error:
        raise misuse(f"cannot write to {run.to}: {error.strerror}", "--to") from None


def _export_one(run: _Export, thread: Thread) -> None:
    # The valid characters of the thread's name, then the end that identifies the thread.
    end = f"{thread.thread_uid}{_SUFFIX if run.bodies else _WITHHELD}"
    target = run.to / f"{_readable(thread.thread_id)}{end}"
    # With a log, always write the file: the log may contain a newer checkpoint than the file.
    if run.log is None and _is_up_to_date(target, thread.head):
        run.progress.advance(thread.last_pos)
        run.written.append(_index_row(target))
        return
    carried = None if run.log is None else run.log.proof(thread.thread_uid)
    part = target.with_name(f"{target.name}.part")
    for last in (False, True):
        try:
            with private(part).open("wb") as stream:
                lines = run.store.audit.export(thread.thread_id, bodies=run.bodies, checkpoint=carried)
                _write(stream, run.progress.over(lines))
                os.fsync(stream.fileno())
            break
        except Conflict:
            # A message was erased during the export: the part that is already written must not remain.
            part.unlink()
            if last:
                raise
    part.replace(target)
    run.written.append(_index_row(target))
    # An erased thread has another name: the file with its former name must not remain.
    for file in run.to.glob(f"*{end}"):
        if file != target:
            file.unlink()


def _readable(name: str) -> str:
    from compaction_store.integrity import erasure

    readable = "erased" if erasure.stub_uid(name) is not None else _UNFIT.sub("-", name).strip("-.")[:_NAME_CHARACTERS]
    if _DEVICES.match(readable):
        readable = f"_{readable}"
    return f"{readable}{'.' * bool(readable)}"


def _index_row(file: Path) -> dict[str, str]:
    """Returns the index row of a bundle. Reads the file, because the thread may have grown since it was listed."""
    from compaction_store.bundles import line_format

    with file.open("rb") as stream:
        manifest = line_format.parse(stream.readline(_LONGEST_MANIFEST))
        stream.seek(0)
        digest = hashlib.sha256()
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
        size = stream.tell()
    values = (
        manifest["tenant"], manifest["thread_id"], manifest["thread_uid"], manifest["last_seq"],
        manifest["last_number"], manifest["last_pos"], manifest["head"], size, digest.hexdigest(), file.name,
    )  # fmt: skip
    return {name: csv_cell(value) for name, value in zip(_COLUMNS, values, strict=True)}


def _write_index(to: Path, written: list[dict[str, str]]) -> None:
    """Writes the index. Rows of earlier exports stay in it as long as their files exist."""
    index = to / INDEX
    listed: dict[str, dict[str, str]] = {}
    if index.exists():
        with index.open(encoding="utf-8", newline="") as stream:
            listed = {row["file"]: row for row in csv.DictReader(stream) if row.get("file")}
    listed |= {row["file"]: row for row in written}
    rows = [[row.get(name) or "" for name in _COLUMNS] for file, row in listed.items() if (to / file).exists()]
    part = to / f"{INDEX}.part"
    with private(part).open("wb") as stream:
        stream.writelines(map(csv_line, [_COLUMNS, *sorted(rows)]))
    part.replace(index)


def _is_up_to_date(file: Path, head: bytes) -> bool:
    """Returns whether the file is a complete bundle of the thread's current head."""
    from compaction_store.bundles import line_format

    with suppress(OSError, ValueError), file.open("rb") as stream:
        manifest = line_format.parse(stream.readline(_LONGEST_MANIFEST))
        stream.seek(max(0, file.stat().st_size - _END_BYTES))
        end = line_format.parse(stream.read().splitlines(keepends=True)[-1])
        is_whole: bool = manifest["type"] == "manifest" and end["type"] == "end" and manifest["head"] == end["head"]
        return is_whole and manifest["head"] == head.hex()
    return False


def _write(stream: IO[bytes], lines: Iterable[bytes]) -> None:
    is_terminal = stream.isatty()
    for line in lines:
        with without_bars(terminal=is_terminal):
            stream.write(line)
            if is_terminal:
                stream.flush()
    stream.flush()


def _is_bundle(file: Path) -> bool | None:
    """Returns whether a file begins like a bundle; None if it cannot be read."""
    with suppress(OSError), file.open("rb") as stream:
        return stream.readline(_LONGEST_MANIFEST).startswith(_BEGINNING)
    return None


def found_in(source: Path) -> list[Path]:
    """Returns a folder's bundles, or the file if it may be one. Unreadable files count, as the import says why."""
    if not source.is_dir():
        return [] if _is_bundle(source) is False else [source]
    found = {file: _is_bundle(file) for file in sorted(source.glob(f"*{_SUFFIX}")) if not file.is_dir()}
    return [file for file, is_one in found.items() if is_one is not False] if True in found.values() else []


def tenant_of(file: Path) -> str:
    from compaction_store.bundles import line_format

    with file.open("rb") as stream:
        first = stream.readline(_LONGEST_MANIFEST)
    try:
        return str(line_format.parse(first)["tenant"])
    except (ValueError, KeyError):
        raise InvalidBundle(f"{file} is not a bundle: its first line is not a manifest") from None


_STDOUT = "-"


def report(
    threads: list[str] | None = argument("[THREADS]...", default=None),
    since: str | None = option("--since WHEN", default=None),
    until: str | None = option("--until WHEN", default=None),
    subject: Subject = None,
    to: str = option("--to FILE", default="report.html"),
    as_json: bool = option("--json", default=False),
    whole: bool = option("--all", default=False),
    content: bool = option("--content/--no-content", default=True),
    checkpoints: LogFile = None,
    public_key: PublicKeys = None,
    allow_empty: AllowEmpty = False,
    *,
    db: TenantOptions,
) -> None:
    if (threads and subject is not None) or not (threads or since or subject is not None):
        raise misuse("give thread names, or --since for all threads that changed, or --subject", "THREADS")
    log = open_log(checkpoints, public_key)
    # Imported here, because the page needs an extra.
    from compaction_store.reporting import envelope, gather, page

    with db.reader() as reader:
        if subject is not None:
            threads = [thread.thread_id for thread in reader.threads(subject=subject, hidden=True)]
        document = gather(
            reader, threads if threads or subject else None, tenant=db.tenant, made_by=options.user_at_host(),
            since=options.moment(since, "--since"), until=options.moment(until, "--until"),
            content=content, checkpoints=log, whole=whole,
        )  # fmt: skip
    data = envelope.sealed(document) if as_json else page.render(document)
    if to == _STDOUT:
        sys.stdout.buffer.write(data)
    else:
        try:
            private(Path(to)).write_bytes(data)
        except OSError as error:
            raise misuse(f"cannot write {output.line(to)}: {error.strerror}", "--to") from None
    findings = document.finding_count()
    found = values.count(findings, "finding") if findings else "no findings"
    note(f"{values.count(len(document.threads), 'thread')}, {found}; SHA-256 {envelope.hash_of(data)}")
    if findings:
        raise typer.Exit(REFUSED)
    if not document.completeness.stored or (subject and not document.threads):
        refuse_empty(f"subject {subject!r}" if subject else f"tenant {db.tenant!r}", allowed=allow_empty)
