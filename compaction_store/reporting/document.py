"""The data of an audit report: the facts that the page shows, and the bundles that prove them. No I/O.

The page is made from this document alone. So anyone who has the document can make the page again and compare.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast

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
    """The numbers of the tenant's threads in the store, in this report, and in the newest checkpoint, if there is one.

    `gone` are the threads that only the checkpoint has.
    """

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
    """The data of a whole report."""

    format: Format
    version: str
    build: str
    made_at: str
    made_by: str
    tenant: str
    content: bool
    period: Period
    completeness: ReportedCompleteness
    #: Findings about the schema, the checkpoints and threads that are gone, and notes about the schema.
    findings: _List[ReportedFinding]
    notes: _List[str]
    threads: _List[ReportedThread]

    def finding_count(self) -> int:
        return len(self.findings) + sum(len(thread.verdict.findings) for thread in self.threads)
