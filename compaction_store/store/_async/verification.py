"""Verifies threads and the schema, and compares threads with checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from compaction_store import arguments
from compaction_store.checkpoints import Checkpoint, CheckpointLog
from compaction_store.checkpoints.compare import Known, KnownCheckpoints
from compaction_store.checkpoints.make import CheckpointRequest
from compaction_store.errors import DatabaseError, DatabaseUnavailable, InvalidInput, ThreadNotFound
from compaction_store.integrity import stored_threads
from compaction_store.integrity import thread as thread_verification
from compaction_store.integrity.entry import Kind, KnownEntry
from compaction_store.integrity.origins import Parent, parent_of
from compaction_store.integrity.rows import Rows, ThreadHead, known_entry
from compaction_store.integrity.stored_threads import StoredThread
from compaction_store.integrity.thread import verify_rows
from compaction_store.models import LEVELS, Finding, Level, Report
from compaction_store.postgres import checkpointing, queries
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.calling.error_translation import CANCELLED
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.schema import introspection, schema_check
from compaction_store.postgres.schema.schema_check import SchemaReport
from compaction_store.store._async import retention

Progress = Callable[[int, int], object]

_IS_ASYNC = True
_PAGE = 1000
# A checkpoint waits for another one, but not until the deadline, so that its error can name the holder of the lock.
_SHARE_OF_DEADLINE = 0.7
_WITHOUT_DEADLINE = 10.0
# Classes of SQLSTATE that stored data can cause: data exceptions, limits, corruption.
_DATA_CLASSES = ("22", "54", "XX")
# Nobody asks for this name: an answer of any kind shows that the server answers.
_NO_THREAD = "erased:"


@dataclass(frozen=True, slots=True)
class Verification:
    """One call of `audit.verify`."""

    db: AsyncConnections
    tenant: str
    level: Level
    log: CheckpointLog | None
    progress: Progress | None

    def __post_init__(self) -> None:
        if self.progress is not None and not callable(self.progress):
            raise InvalidInput(f"progress must be a callable, not {type(self.progress).__name__}")
        if self.level not in LEVELS:
            raise InvalidInput(f"level must be one of {', '.join(LEVELS)}{arguments.other_choice(self.level)}")
        if (self.level == "checkpoint") != (self.log is not None):
            given = "missing with level checkpoint" if self.log is None else f"given with level {self.level}"
            raise InvalidInput(f"checkpoints must be given with level checkpoint and no other level, but are {given}")
        arguments.instance(self.log, CheckpointLog, "checkpoints", optional=True)


async def verify_thread(
    verification: Verification, thread: ThreadKey, since: Report | tuple[int, bytes] | None
) -> Report:  # fmt: skip
    known = known_entry(since)
    schema_report = await _schema(verification)
    checkpoints = await verification.db.run_in_thread(KnownCheckpoints, verification.log, verification.tenant)
    try:
        report = await _compared(verification, thread, known, checkpoints, None)
    except DatabaseUnavailable as error:
        found = await _too_slow(verification, error)
        report = Report(thread.thread_id, verification.level, 0, 0, (found,), b"", thread_uid=thread.uid)
    finally:
        checkpoints.close()
    report = replace(report, findings=(*checkpoints.findings, *report.findings))
    if schema_report is None:
        return report
    findings, notes = (*schema_report.findings, *report.findings), (*schema_report.notes, *report.notes)
    return replace(report, findings=findings, notes=notes)


async def verify_all(verification: Verification, after: str | UUID | Report | None) -> AsyncIterator[Report]:
    db, tenant, progress = verification.db, verification.tenant, verification.progress
    of_thread = replace(verification, progress=None)
    if isinstance(after, str) and after:
        arguments.check_thread_id(after)
        after = (await db.call(queries.thread, ThreadKey(None, tenant, after))).thread_uid
    place = stored_threads.place(after)
    schema_report = await _schema(verification)
    if schema_report is not None:
        yield Report("", "schema", 0, 0, schema_report.findings, b"", notes=schema_report.notes)
    checkpoints = await db.run_in_thread(KnownCheckpoints, verification.log, tenant, place)
    try:
        total = await db.call(queries.count_heads, tenant, place)
        done = 0
        while page := await db.call(queries.stored_threads, tenant, place, _PAGE):
            for row in page:
                yield await _stored(of_thread, StoredThread(*row), checkpoints)
                done += 1
                if progress is not None:
                    progress(done, max(done, total))
            place = page[-1][0]
        if verification.log is not None:
            yield Report("", "checkpoint", 0, 0, await db.run_in_thread(checkpoints.end), b"", notes=checkpoints.notes)
    finally:
        checkpoints.close()


async def verify_schema(db: AsyncConnections) -> Report:
    found = schema_check.check_schema(await db.call(introspection.read))
    return Report("", "schema", 0, 0, found.findings, b"", notes=found.notes)


async def verify_entry(db: AsyncConnections, thread: ThreadKey, kind: Kind, ordinal: int) -> tuple[Finding, ...]:
    """Verifies one message, record or event against its commitment and the entry before it."""
    rows = await db.call(queries.entries, thread, kind, ordinal, True, 1)
    if not rows or (rows[0].pos if kind == "event" else rows[0].ordinal) != ordinal:
        return (Finding(None, f"there is no such {kind}"),)
    state = await db.call(queries.thread_state, thread, rows[0].pos - 1)
    return thread_verification.verify_entry(thread.tenant, ThreadHead._make(state), kind, rows[0])


async def make_checkpoint(db: AsyncConnections, request: CheckpointRequest) -> Checkpoint:
    """Makes the checkpoint of a tenant, or of all tenants."""
    request.check(is_async=_IS_ASYNC)
    return await db.call(checkpointing.make_checkpoint, request)


def patience(db: AsyncConnections) -> float:
    """Returns how many seconds a call waits for another checkpoint."""
    return _SHARE_OF_DEADLINE * (db.deadline or _WITHOUT_DEADLINE)


async def _schema(verification: Verification) -> SchemaReport | None:
    if verification.level not in {"schema", "checkpoint"}:
        return None
    return schema_check.check_schema(await verification.db.call(introspection.read))


async def _stored(verification: Verification, stored: StoredThread, checkpoints: KnownCheckpoints) -> Report:
    """Returns a report on all rows with one thread_uid. Bad data becomes a finding, never an exception."""
    name = stored.thread_id or ""
    found = stored_threads.findings(stored)
    report = Report(name, verification.level, 0, 0, (), b"", thread_uid=stored.thread_uid)
    known = checkpoints.reach(stored.thread_uid)
    if stored.is_whole:
        thread = ThreadKey(stored.thread_uid, verification.tenant, name)
        try:
            report = await _compared(verification, thread, None, checkpoints, known)
        except DatabaseUnavailable as error:
            found += (await _too_slow(verification, error),)
        except DatabaseError as error:
            if type(error) is not DatabaseError or (error.sqlstate or _DATA_CLASSES[0])[:2] not in _DATA_CLASSES:
                raise
            found += (Finding(None, f"Postgres cannot read the thread's rows: SQLSTATE {error.sqlstate}"),)
        except ThreadNotFound:
            found += (Finding(None, "the thread disappeared while it was verified"),)
    else:
        found += known.gone
    return replace(report, findings=(*found, *report.findings))


async def _too_slow(verification: Verification, error: DatabaseUnavailable) -> Finding:
    """Returns a finding if a thread, as with a huge row, cannot be read by the deadline; else raises the error."""
    if error.sqlstate != CANCELLED:
        raise error
    with suppress(ThreadNotFound):
        await verification.db.call(queries.thread, ThreadKey(None, verification.tenant, _NO_THREAD))
    return Finding(None, "the thread could not be read by the deadline: its rows were not checked")


async def _compared(
    call: Verification, thread: ThreadKey, since: KnownEntry | None, checkpoints: KnownCheckpoints, known: Known | None
) -> Report:
    """Verifies a thread and compares it with the checkpoints."""
    head = ThreadHead._make(await call.db.call(queries.thread_state, thread, None if since is None else since.pos))
    known = checkpoints.find(head.thread_uid) if known is None else known
    report = await _walk(call, thread._replace(uid=head.thread_uid), head, since, known)
    if thread.thread_id == arguments.LOG and call.level != "structure":
        report = replace(report, findings=(*report.findings, *await retention.findings(call.db, call.tenant)))
    return replace(checkpoints.annotate(report, known), thread_uid=head.thread_uid)


async def _walk(
    verification: Verification, thread: ThreadKey, head: ThreadHead, since: KnownEntry | None, known: Known
) -> Report:
    db, level, progress = verification.db, verification.level, verification.progress
    walk = verify_rows(verification.tenant, thread.thread_id, head, level, since=since, checkpointed=known.entries)
    wanted = next(walk)
    parent: Parent | None = None
    while True:
        if progress is not None:
            progress(wanted.done, wanted.total)
        rows: Rows
        if wanted.kind is None:
            rows = [await db.call(queries.thread_state, thread, None)]
        elif wanted.kind == "active":
            rows = [(row.number,) for row in await db.call(queries.outline, thread, wanted.start, None, None)]
        else:
            content = level != "structure"
            rows = found = await db.call(queries.entries, thread, wanted.kind, wanted.start, content, wanted.limit)
            if wanted.kind == "event" and found and found[0].pos == 1:
                parent = parent_of(found[0].header_columns, found[0].body)
        try:
            wanted = walk.send(rows)
        except StopIteration as stop:
            report: Report = stop.value
            if progress is not None:
                progress(report.pos, report.pos)
            return report if parent is None else await _with_parent(db, thread, report, parent)


async def _with_parent(db: AsyncConnections, thread: ThreadKey, report: Report, parent: Parent) -> Report:
    """Compares a fork's copies with their originals, if the parent is in this database."""
    try:
        state = await db.call(queries.thread_state, ThreadKey(parent.thread_uid, thread.tenant, ""), parent.pos)
    except ThreadNotFound:
        note = "the parent of this fork is not in this database: the copies were not compared with their originals"
        return replace(report, notes=(*report.notes, note))
    found = []
    if ThreadHead._make(state).entry_at != parent.entry:
        found.append(Finding(1, f"the parent of this fork has another entry at pos {parent.pos}"))
    seq, number = await db.call(queries.other_copies, thread, parent.thread_uid, parent.seq, parent.pos)
    if seq is not None:
        found.append(Finding(None, f"seq {seq} differs from its original in the parent"))
    if number is not None:
        found.append(Finding(None, f"compaction {number} differs from its original in the parent"))
    return replace(report, findings=(*report.findings, *found))
