"""The commands `verify`, for threads of a database and for files of bundles and reports, and `checkpoint`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from compaction_store.audit.facts import Tally
from compaction_store.audit.safe_text import named
from compaction_store.checkpoints.removals import Removal
from compaction_store.cli import values
from compaction_store.cli.bundles import MISUSED, REFUSED, argument, misuse, option
from compaction_store.cli.options import ListOptions, ReadOptions, TenantOptions, TenantsOptions
from compaction_store.cli.output import Output, ProgressBar, line, note
from compaction_store.errors import InvalidCheckpoint, ThreadNotFound
from compaction_store.models import LEVELS, Report

if TYPE_CHECKING:
    from compaction_store import Reader, Store
    from compaction_store.checkpoints import CheckpointLog, SigningKey
    from compaction_store.models import Level
    from compaction_store.reporting.verification import CheckedReport

_SUFFIX = ".jsonl"
_STDIN = "-"
_LONGEST_BEGINNING = 1024


def verify(
    what: list[str] | None = argument("[THREADS|FILES]...", default=None),
    every: bool = option("--all", default=False),
    all_tenants: bool = option("--all-tenants", default=False),
    after: str = option("--after THREAD", default="", show_default=False),
    level: str = option("--level LEVEL", f"What to check: {', '.join(LEVELS)}.", "content"),
    checkpoints: LogFile = None,
    public_key: PublicKeys = None,
    findings_only: bool = option("--findings-only", default=False),
    allow_empty: AllowEmpty = False,
    *,
    db: TenantOptions,
    printed: ListOptions,
) -> None:
    if bool(what) + every + all_tenants != 1:
        raise misuse("give either threads or files, or --all, or --all-tenants", "THREADS|FILES")
    if after and not every:
        raise misuse("needs --all", "--after")
    out = printed.output()
    files = [name for name in what or () if name == _STDIN or name.endswith(_SUFFIX) or Path(name).is_file()]
    if not files:
        log = open_log(checkpoints, public_key)
        verification = _DatabaseCheck(cast("Level", level), log, names=what, after=after, all_tenants=all_tenants)
        counted, where = _threads(out, verification, db, findings_only)
        _end(out, counted)
        if not counted.verified and not after:
            refuse_empty(where, allowed=allow_empty)
        return
    if len(files) < len(what or ()):
        other = line(next(name for name in what or () if name not in files))
        raise misuse(f"{other} is not a file; threads and files must not be mixed", "THREADS|FILES")
    if level != "content" or checkpoints is not None:
        raise misuse("must not be given for files", "--level" if checkpoints is None else "--checkpoints")
    _end(out, _files(out, files, public_key or [], findings_only))


class _Counted(NamedTuple):
    """The numbers of verified items and findings, the unit for a total, if any, and the parts not compared."""

    verified: int
    findings: int
    unit: str
    unread: int = 0
    unchecked: str = ""


def _end(out: Output, counted: _Counted) -> None:
    """Prints a total if `counted` has a unit, and sets the exit code."""
    out.end()
    if not out.as_json and counted.unit:
        unread = f", {values.count(counted.unread, 'file')} not read" if counted.unread else ""
        text = f"{values.count(counted.verified, counted.unit)}, {values.count(counted.findings, 'finding')}{unread}"
        text += f"; not checked: {counted.unchecked}" if counted.unchecked else ""
        out.text(text, "bold red" if counted.findings or unread else "bold")
    if counted.unread:
        raise typer.Exit(MISUSED)
    if counted.findings or counted.unchecked:
        raise typer.Exit(REFUSED)


@dataclass(frozen=True, slots=True)
class _DatabaseCheck:
    """A verification of a database: of the named threads, or of all threads after a given one."""

    level: Level
    log: CheckpointLog | None
    names: list[str] | None
    after: str
    all_tenants: bool

    def reports(self, store: Reader, progress: ProgressBar) -> Iterator[Report]:
        if self.names:
            for name in self.names:
                try:
                    report = store.audit.verify(name, level=self.level, checkpoints=self.log, progress=progress.reached)
                except ThreadNotFound as error:
                    if "/" in name or Path(name).suffix:
                        error.add_note("There is no file of this name either.")
                    raise
                yield report
        else:
            yield from store.audit.verify(
                level=self.level, after=self.after or None, checkpoints=self.log, progress=progress.reached
            )


def _threads(
    out: Output, verification: _DatabaseCheck, given: TenantOptions, findings_only: bool
) -> tuple[_Counted, str]:
    """Verifies threads of the database. Also returns the words for where they were looked for."""
    count = findings = 0
    all_tenants, has_schema = verification.all_tenants, False
    unit = "entries" if verification.names else "threads"
    db = TenantsOptions(**vars(given), all_tenants=all_tenants)
    is_whole = not verification.names and not verification.after
    with db.store() if is_whole else db.reader() as store, ProgressBar("verify", unit) as progress:
        for name, its in db.readers(store):
            start, tally = time.monotonic(), Tally()
            for report in verification.reports(its, progress):
                tally.add(report)
                is_schema = report.thread_uid is None and report.level == "schema"
                if is_schema and has_schema:
                    # All tenants share one schema, so show its report once.
                    findings -= len(report.findings)
                    continue
                has_schema = has_schema or is_schema
                if report.findings or not findings_only:
                    _show(out, report, tenant=None if is_schema or not all_tenants else name)
            count, findings = count + tally.threads, findings + tally.findings
            if is_whole and tally.threads:
                last = None if verification.log is None else verification.log.last()
                cast("Store", its).audit.record_verification(
                    level=verification.level, **tally.as_dict(),
                    seconds=round(time.monotonic() - start, 3), checkpoint=None if last is None else last.digest,
                )  # fmt: skip
    unit = "" if verification.names and len(verification.names) == 1 else "thread"
    return _Counted(count, findings, unit), db.where


def _files(out: Output, files: list[str], keys: list[str], findings_only: bool) -> _Counted:
    """Verifies every file. If one cannot be read, continues with the next."""
    findings = unread = 0
    units = set()
    is_compared = True
    with ProgressBar("verify", "lines") as progress:
        for name in files:
            try:
                found = _checked(name, keys, progress)
            except OSError as error:
                note(f"cannot read {name}: {error.strerror}")
                unread += 1
                continue
            if isinstance(found, Removal | InvalidCheckpoint):
                units.add("statement")
                findings += _removal(out, name, found)
            elif isinstance(found, Report):
                units.add("bundle")
                findings += len(found.findings)
                if found.findings or not findings_only:
                    _show(out, found, file=name)
            else:
                units.add("report")
                findings += _report(out, name, found, findings_only)
                is_compared = is_compared and found.is_compared
    if len(files) == 1 and "report" not in units:
        return _Counted(1, findings, "", unread)
    unchecked = "" if is_compared else "whether the page shows what its bundles say"
    return _Counted(len(files) - unread, findings, units.pop() if len(units) == 1 else "file", unread, unchecked)


def _checked(name: str, keys: list[str], progress: ProgressBar) -> Report | CheckedReport | Removal | InvalidCheckpoint:
    """Verifies one file: a bundle, a report or the statement of a removal."""
    from compaction_store.bundles.verification import verify_bundle
    from compaction_store.checkpoints.removals import BEGINNING, check_removal
    from compaction_store.reporting.envelope import BEGINNINGS
    from compaction_store.reporting.verification import verify_report

    with Path(name).open("rb") if name != _STDIN else nullcontext(cast("BufferedReader", sys.stdin.buffer)) as stream:
        if stream.peek(max(map(len, BEGINNINGS))).startswith(BEGINNINGS):
            return verify_report(stream.read(), public_keys=keys)
        if BEGINNING.match(stream.peek(_LONGEST_BEGINNING)):
            if not keys:
                raise misuse("is required, to check the signature of a removal", "--public-key")
            try:
                return check_removal(stream.read().decode(errors="replace"), *keys)
            except InvalidCheckpoint as error:
                return error
        return verify_bundle(progress.over(stream), public_keys=keys)


def _report(out: Output, name: str, checked: CheckedReport, findings_only: bool) -> int:
    """Prints the verification of a report, and returns the number of findings."""
    for report in checked.threads:
        if report.findings or not findings_only:
            _show(out, report, file=name)
    if out.as_json:
        out.json({"file": name, "report": True, "findings": checked.findings, "notes": checked.notes})
    else:
        count = len(checked.findings)
        result = "no findings" if not count else values.count(count, "finding")
        out.text(f"{line(name)}: the report itself: {result}", "bold red" if count else None)
        for finding in checked.findings:
            out.text(f"  {line(finding)}")
        for text in checked.notes:
            out.text(f"  note: {line(text)}")
    return len(checked.findings) + sum(len(report.findings) for report in checked.threads)


def _removal(out: Output, name: str, found: Removal | InvalidCheckpoint) -> int:
    """Prints what a signed statement of a removal says, and returns the number of findings."""
    said = found.as_dict() if isinstance(found, Removal) else None
    if out.as_json:
        out.json({"file": name, "removal": said, "findings": [str(found)] if said is None else []})
    else:
        text = f"{values.removal(found)}, signed by {line(found.name)}" if isinstance(found, Removal) else str(found)
        out.text(f"{line(name)}: {text}", "bold red" if said is None else None)
    return said is None


def _show(out: Output, report: Report, *, file: str | None = None, tenant: str | None = None) -> None:
    if out.as_json:
        where = {name: value for name, value in (("file", file), ("tenant", tenant)) if value is not None}
        out.json({**where, **_parts(report)})
        return
    count = len(report.findings)
    result = "no findings" if not count else values.count(count, "finding")
    of_tenant = "" if tenant is None else f"{named(tenant)}: "
    out.text(f"{of_tenant}{_title(report, file)}: {result}", "bold red" if count else None)
    for finding in report.findings:
        places = [f"{place} {at:,}" for place, at in (("line", finding.line), ("pos", finding.pos)) if at is not None]
        out.text(f"  {', '.join(places)}{': ' if places else ''}{finding.what}")
    for text in report.notes:
        out.text(f"  note: {text}")
    if report.head:
        out.text(f"  head {report.head.hex()}", "dim")


def _title(report: Report, file: str | None) -> str:
    erased = f", {report.redacted:,} of them erased" if report.redacted else ""
    by = ", none checked" if report.level == "none" else f" by {report.level}{erased}"
    walked = f"{report.entries:,} entries{by}"
    if file is not None:
        # A line break in the name of a file or a thread must not start a new line.
        thread = f"{named(report.thread_id)}, " if report.thread_id else ""
        return f"{line(file)}: {thread}{walked}"
    if report.thread_uid is not None:
        return f"{named(report.thread_id) or f'thread_uid {report.thread_uid}'}: {walked}"
    return "the schema" if report.level == "schema" else "the checkpoints, and their threads that were not read"


def _parts(report: Report) -> dict[str, object]:
    return {
        "thread_id": report.thread_id or None, "thread_uid": report.thread_uid, "level": report.level,
        "entries": report.entries, "redacted": report.redacted, "redactions": report.redactions,
        "covered": report.covered,
        "findings": [
            {"pos": finding.pos, "what": finding.what} | ({} if finding.line is None else {"line": finding.line})
            for finding in report.findings
        ],
        "notes": report.notes, "head": report.head or None,
    }  # fmt: skip


_PARTS = 2

LogFile = Annotated[Path | None, option("--checkpoints FILE")]
PublicKeys = Annotated[list[str] | None, option("--public-key HEX")]
AllowEmpty = Annotated[bool, option("--allow-empty")]


def refuse_empty(where: str, *, allowed: bool) -> None:
    """Ends the command with an error if there are no threads. A mistyped tenant must not look like a good one."""
    if not allowed:
        note(f"no threads of {where}; if this is right, give --allow-empty")
        raise typer.Exit(REFUSED)


def checkpoint(
    log: Path = argument("FILE"),
    key: Path = option("--key FILE"),
    new_key: str | None = option("--new-key NAME", default=None),
    all_tenants: bool = option("--all-tenants", default=False),
    public_key: list[str] | None = option("--public-key HEX", default=None),
    allow_empty: AllowEmpty = False,
    *,
    call: ReadOptions,
) -> None:
    from compaction_store.checkpoints import CheckpointLog

    signer = read_key(key) if new_key is None else _make(key, new_key)
    out = call.output()
    try:
        opened = CheckpointLog(log, signer.key, *(public_key or ()))
        with call.reader() as store:
            made = store.audit.checkpoint(signer, opened, all_tenants=all_tenants, allow_empty=allow_empty)
    except BaseException:
        # A new key that has signed nothing is removed, so that the command can be repeated.
        if new_key is not None and not _has_signed(log, signer):
            key.unlink()
        raise
    if new_key is not None:
        note(f"created {key}: keep it secret, it can sign checkpoints; its public key is {signer.key.hex()}")
    if out.as_json:
        out.json({
            "origin": made.origin, "threads": made.size, "root": made.root, "time": made.time, "heads": made.heads,
            "previous": made.previous, "digest": made.digest, "public_key": signer.key, "note": made.note,
        })  # fmt: skip
    else:
        out.text(f"{made.origin}: {made.size:,} threads, {made.digest}")
        out.text(f"  public key {signer.key.hex()}", "dim")


def open_log(log: Path | None, keys: list[str] | None) -> CheckpointLog | None:
    """Opens the log that the options name; returns None if they name none."""
    from compaction_store.checkpoints import CheckpointLog

    if log is None:
        if keys:
            raise misuse("needs --checkpoints", "--public-key")
        return None
    if not keys:
        raise misuse("needs --public-key, to check its signatures", "--checkpoints")
    if not log.is_file():
        raise misuse(f"file {log} does not exist", "--checkpoints")
    return CheckpointLog(log, *keys)


def _make(file: Path, name: str) -> SigningKey:
    from compaction_store.checkpoints import SigningKey

    made = SigningKey.generate(name)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise misuse(f"cannot create {file}: {error.strerror}", "--new-key") from None
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{name} {made.private_bytes().hex()}\n")
    return made


def _has_signed(log: Path, signer: SigningKey) -> bool:
    """Returns whether the last checkpoint of a file is by this signer."""
    from compaction_store.checkpoints import CheckpointLog

    with suppress(InvalidCheckpoint, OSError):
        return CheckpointLog(log, signer.key).last() is not None
    return False


def read_key(file: Path) -> SigningKey:
    from compaction_store.checkpoints import SigningKey

    try:
        parts = file.read_text(encoding="ascii").split()
        private = bytes.fromhex(parts[1] if len(parts) == _PARTS else "")
    except OSError as error:
        raise misuse(f"cannot read {file}: {error.strerror}; --new-key creates one", "--key") from None
    except ValueError:
        private = b""
    if not private:
        raise misuse(f"{file} must contain a key: a name, a space and 64 hexadecimal digits", "--key")
    return SigningKey.from_bytes(parts[0], private)
