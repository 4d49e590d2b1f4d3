"""The data of an audit report: the facts that the page shows, and the bundles that prove them. No I/O.

The page is made from this document alone. So anyone who has the document can make the page again and compare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, FailFast

from compaction_store.bundles import line_format
from compaction_store.bundles.line_format import Line
from compaction_store.compaction import records
from compaction_store.integrity import erasure
from compaction_store.messages import documents
from compaction_store.models import Compaction, Event, Message

Format = Literal["compaction-store/report/1"]
FORMAT: Format = "compaction-store/report/1"
_T = TypeVar("_T")
# One wrong item is enough: an error for each of millions would take all memory.
_List = Annotated[list[_T], FailFast()]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Standing(_Frozen):
    """The numbers of the later records that superseded or revoked a record, and the type of the record's error.

    A bundle does not state which record superseded another one, and a bundle without content does not have the error.
    """

    number: int
    superseded_by: int | None
    revoked_by: int | None
    error_type: str | None


class ReportedStep(_Frozen):
    """The change of the view's tokens at a pos. `change` is None if it is unknown."""

    pos: int
    change: int | None


class SeenPart(_Frozen):
    """A part of a view: the messages `first` to `last`, or the record `number` that replaces them."""

    first: int
    last: int
    number: int | None


class Reply(_Frozen):
    """The view from which a reply was written, and whether a receipt proves this."""

    seq: int
    evidence: Literal["proved", "reconstructed", "differs"]
    tokens: int
    parts: _List[SeenPart]


class ReportedFinding(_Frozen):
    """A finding of the verification, and the pos of the entry that it concerns."""

    pos: int | None
    what: str


class ReportedVerification(_Frozen):
    """The result of the verification in the database when the report was made."""

    level: str
    entries: int
    redacted: int
    covered: int
    findings: _List[ReportedFinding]
    notes: _List[str]


class ReportedThread(_Frozen):
    """A thread in a report: the lines of its bundle, and facts that only the database had when the report was made.

    At `unknown_pos`, an entry of an unknown kind changes views. There are no steps and no replies from there on.
    """

    bundle: _List[str]
    view_tokens: int | None
    unknown_pos: int | None
    verdict: ReportedVerification
    standings: _List[Standing]
    steps: _List[ReportedStep]
    replies: _List[Reply]


class Gone(_Frozen):
    """A thread that a checkpoint signed at a pos, and that the database does not have any more."""

    thread_uid: str
    pos: int


class ReportedCompleteness(_Frozen):
    """The numbers of threads in the store, the report and the newest checkpoint, and those only there (`gone`)."""

    stored: int
    reported: int
    signed: int | None
    gone: _List[Gone]


class Period(_Frozen):
    """The period of a report. If both ends are None, the report shows everything."""

    since: str | None
    until: str | None

    def is_since(self, moment: datetime) -> bool:
        """Returns whether a time is at or after the beginning of the period."""
        return self.since is None or moment >= datetime.fromisoformat(self.since)

    def has(self, moment: datetime) -> bool:
        """Returns whether a time is in the period. Both ends belong to the period."""
        return self.is_since(moment) and (self.until is None or moment <= datetime.fromisoformat(self.until))


class ReportDocument(_Frozen):
    """The data of a whole report. The page of a `short` report leaves out messages, replies and what was summarized."""

    format: Format
    version: str
    build: str
    made_at: str
    made_by: str
    tenant: str
    content: bool
    short: bool
    period: Period
    completeness: ReportedCompleteness
    #: Findings about the schema, the checkpoints and threads that are gone, and notes about the schema.
    findings: _List[ReportedFinding]
    notes: _List[str]
    threads: _List[ReportedThread]

    def finding_count(self) -> int:
        return len(self.findings) + sum(len(thread.verdict.findings) for thread in self.threads)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Contents:
    """A thread of a report, read from its bundle."""

    thread: ReportedThread
    manifest: Line
    messages: list[Message]
    records: list[Compaction]
    events: list[Event]
    #: The seqs of the messages that were stored with a receipt.
    receipts: set[int]

    @cached_property
    def checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint in the manifest of the bundle, or None."""
        found: dict[str, Any] | None = self.manifest["checkpoint"]
        return found

    @cached_property
    def by_number(self) -> dict[int | None, Compaction]:
        """The records by their numbers."""
        return {record.number: record for record in self.records}

    def span(self, record: Compaction) -> list[Message]:
        """Returns the messages in the span of a record."""
        if record.start_seq is None or record.end_seq is None:
            return []
        return self.messages[record.start_seq - 1 : record.end_seq]


def contents_of(thread: ReportedThread) -> Contents:
    """Reads a thread of a report. Raises ValueError, without quoting content, if a line is not valid in a bundle."""
    manifest, *entries = (line_format.parse(line.encode() + b"\n") for line in thread.bundle)
    if manifest["type"] != "manifest":
        raise ValueError("the first line of a bundle must be its manifest")
    found = Contents(thread, manifest, [], [], [], set())
    standings = {standing.number: standing for standing in thread.standings}
    for line in entries:
        if line["type"] == "message":
            found.messages.append(_message(line))
            if line["receipt"] is not None:
                found.receipts.add(line["seq"])
        elif line["type"] == "compaction":
            record = _record(manifest, line)
            if (standing := standings.get(record.number)) is not None:
                record = replace(
                    record, superseded_by=standing.superseded_by, revoked_by=standing.revoked_by,
                    unknown_pos=thread.unknown_pos,
                )  # fmt: skip
                if record.body is None and standing.error_type is not None:
                    record = replace(record, body={"error": {"type": standing.error_type, "text": ""}})
            found.records.append(record)
        elif line["type"] == "event":
            found.events.append(erasure.event(_entry(manifest, line)))
    return found


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _message(line: Line) -> Message:
    payload, fault = (None, None) if line["payload"] is None else documents.parsed("payload", line["payload"])
    meta = None if line["meta"] is None else documents.parsed("meta", line["meta"])[0]
    return Message(
        line["seq"], line["pos"], line["role"], payload, line["tokens"], _moment(line["microseconds"]), meta,
        line["redacted_pos"] is not None, line["payload"], fault, line["actor"], line["login"],
    )  # fmt: skip


def _entry(manifest: Line, line: Line) -> Line:
    """Returns the columns of a record or of an event by name."""
    return {**line, "thread_id": manifest["thread_id"], "created_at": _moment(line["microseconds"])}


def _record(manifest: Line, line: Line) -> Compaction:
    ids = {"run_id": UUID(line["run_id"]), "thread_uid": UUID(manifest["thread_uid"])}
    return records.from_row(
        _entry(manifest, line) | ids | dict.fromkeys(("superseded_by", "revoked_by", "unknown_pos"))
    )
