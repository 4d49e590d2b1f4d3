"""Reads the data of a report from the store: threads, their bundles, and facts that only the database has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from uuid import UUID

from compaction_store import __version__
from compaction_store.arguments import LOG
from compaction_store.audit._sync.threads import log_of, view_steps
from compaction_store.checkpoints import CheckpointLog
from compaction_store.checkpoints.compare import completeness
from compaction_store.errors import Conflict, InvalidInput
from compaction_store.jsonable import time_text
from compaction_store.models import Compaction, Element, Finding, Level, Thread
from compaction_store.reporting import document
from compaction_store.reporting.envelope import build
from compaction_store.store import Reader

#: The maximum number of threads in a report. For more threads, the caller must make several reports.
MOST_THREADS = 1000
#: A report of more threads is short, unless the caller wants the whole.
MOST_WHOLE = 5
#: The maximum number of replies of a thread in a report. If a thread has more, the report has the last ones.
MOST_REPLIES = 500
_TRIES = 3


def gather(
    reader: Reader,
    threads: Iterable[str] | None,
    *,
    tenant: str,
    made_by: str,
    since: datetime | None = None,
    until: datetime | None = None,
    content: bool = True,
    checkpoints: CheckpointLog | None = None,
    whole: bool = False,
) -> document.ReportDocument:
    """Reads the named threads, or for None those of the period. The page of many is short unless `whole` is true."""
    period = document.Period(
        since=None if since is None else time_text(since), until=None if until is None else time_text(until)
    )
    stored: list[Thread] = []

    def read() -> set[UUID]:
        stored[:] = [*reader.threads(hidden=True), *log_of(reader)]
        return {thread.thread_uid for thread in stored}

    compared = None if checkpoints is None else completeness(checkpoints, tenant, read)
    if compared is None:
        read()
    names = list(dict.fromkeys(threads if threads is not None else _changed(stored, period)))
    if len(names) > MOST_THREADS:
        raise InvalidInput(
            f"a report must have at most {MOST_THREADS:,} threads, not {len(names):,}: give a shorter period, or fewer"
            " threads"
        )
    # Each thread's verification includes the schema, but its findings are stated once.
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    if compared is not None:
        schema = reader.audit.verify_schema()
        findings, notes = (*schema.findings, *compared.findings), schema.notes
    found = [_thread(reader, name, period, content, checkpoints, findings) for name in names]
    gone = () if compared is None else compared.gone[:MOST_THREADS]
    return document.ReportDocument(
        format=document.FORMAT, version=__version__, build=build(), made_at=time_text(datetime.now(UTC)),
        made_by=made_by, tenant=tenant, content=content,
        short=len(names) > MOST_WHOLE and not whole, period=period,
        completeness=document.ReportedCompleteness(
            stored=len(stored), reported=len(found), signed=None if compared is None else compared.signed,
            gone=[document.Gone(thread_uid=str(uid), pos=pos) for uid, pos in gone],
        ),
        findings=[document.ReportedFinding(pos=each.pos, what=each.what) for each in findings],
        notes=list(notes), threads=found,
    )  # fmt: skip


def _changed(threads: list[Thread], period: document.Period) -> Iterator[str]:
    for thread in threads:
        # The thread began before the end of the period, and changed after its start.
        began_early = period.until is None or thread.created_at <= datetime.fromisoformat(period.until)
        if began_early and thread.thread_id != LOG and (thread.last_at is None or period.is_since(thread.last_at)):
            yield thread.thread_id


def _thread(
    reader: Reader,
    name: str,
    period: document.Period,
    content: bool,
    checkpoints: CheckpointLog | None,
    stated: Collection[Finding],
) -> document.ReportedThread:
    """Reads a thread, again if it was written to meanwhile. It does not repeat the `stated` findings of the store."""
    level: Level = "content" if checkpoints is None else "checkpoint"
    for _ in range(_TRIES):
        thread = reader.thread(name, hidden=True)
        report = reader.audit.verify(name, level=level, checkpoints=checkpoints)
        carried = None if checkpoints is None else checkpoints.proof(thread.thread_uid)
        lines = reader.audit.export(name, bodies=content, checkpoint=carried)
        is_known = thread.last_pos > 0 and not thread.erased_pos
        steps = view_steps(reader, thread)[0] if is_known else []
        findings = [
            document.ReportedFinding(pos=each.pos, what=each.what) for each in report.findings if each not in stated
        ]
        found = document.ReportedThread(
            bundle=[line.decode().removesuffix("\n") for line in lines],
            view_tokens=thread.view_tokens,
            unknown_pos=thread.unknown_pos,
            verdict=document.ReportedVerification(
                level=report.level, entries=report.entries, redacted=report.redacted, covered=report.covered,
                findings=findings, notes=list(report.notes),
            ),
            standings=[_standing(record) for record in reader.compactions(name)],
            steps=[document.ReportedStep(pos=each.pos, change=each.change) for each in steps],
            replies=_replies(reader, thread, period) if is_known else [],
        )  # fmt: skip
        if reader.thread(name, hidden=True).head == thread.head:
            return found
    raise Conflict(f"the thread was changed during each of {_TRIES} attempts to read it: try again (thread {name!r})")


def _standing(record: Compaction) -> document.Standing:
    kind = None if record.error is None else record.error.get("type")
    return document.Standing(
        number=record.number, superseded_by=record.superseded_by, revoked_by=record.revoked_by,
        error_type=kind if isinstance(kind, str) else None,
    )  # fmt: skip


def _replies(reader: Reader, thread: Thread, period: document.Period) -> list[document.Reply]:
    last_pos = thread.last_pos if thread.unknown_pos is None else thread.unknown_pos - 1
    wanted = [
        message.seq
        for message in reader.replay(thread.thread_id)
        if message.role == "assistant"
        and message.seq > 1
        and message.pos <= last_pos
        and period.has(message.created_at)
    ]
    return [_reply(reader, thread.thread_id, seq) for seq in wanted[-MOST_REPLIES:]]


def _reply(reader: Reader, name: str, seq: int) -> document.Reply:
    seen = reader.seen_by(name, seq)
    return document.Reply(seq=seq, evidence=seen.evidence, tokens=seen.view.tokens, parts=_parts(seen.view.elements))


def _parts(elements: Iterable[Element]) -> list[document.SeenPart]:
    """Returns the parts of a view: runs of consecutive messages, and records between them."""
    parts: list[document.SeenPart] = []
    for element in elements:
        last = parts[-1] if parts else None
        if element.number is None and last is not None and last.number is None and last.last + 1 == element.seq:
            parts[-1] = document.SeenPart(first=last.first, last=element.seq, number=None)
        else:
            parts.append(document.SeenPart(first=element.seq, last=element.end_seq, number=element.number))
    return parts
