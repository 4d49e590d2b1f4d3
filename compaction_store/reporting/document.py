"""The data of an audit report: everything that the page shows, and the bundles that prove it. No I/O.

A page is made from the document alone, so that everyone who has the document can make the page again and compare.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

Format = Literal["compaction-store/report/1"]
FORMAT: Format = "compaction-store/report/1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Standing(_Part):
    """The later record that superseded or revoked a record, and the type of a record's error. A bundle without content
    does not have these.
    """

    number: int
    superseded_by: int | None
    revoked_by: int | None
    error_type: str | None


class Step(_Part):
    """The change of the view's tokens at a pos; None if it is unknown."""

    pos: int
    change: int | None


class SeenPart(_Part):
    """A run of messages in a view, or the record that replaces them."""

    first: int
    last: int
    number: int | None


class Reply(_Part):
    """The view that a reply was written from, and whether a receipt proves it."""

    seq: int
    evidence: Literal["proved", "reconstructed", "differs"]
    tokens: int
    parts: list[SeenPart]


class Place(_Part):
    """A finding of the verification, with its place."""

    pos: int | None
    what: str


class Verdict(_Part):
    """The result of the verification in the database at the time of the report."""

    level: str
    entries: int
    redacted: int
    covered: int
    findings: list[Place]
    notes: list[str]


class ReportedThread(_Part):
    """A thread: its bundle, line by line, and facts that only the database had at the time of the report.

    From `unknown_pos` on, where an entry of an unknown kind changes views, there are no steps and no replies.
    """

    bundle: list[str]
    view_tokens: int | None
    unknown_pos: int | None
    verdict: Verdict
    standings: list[Standing]
    steps: list[Step]
    replies: list[Reply]


class Period(_Part):
    """The period that a report is about; everything is shown if both ends are None."""

    since: str | None
    until: str | None

    def is_since(self, moment: datetime) -> bool:
        """Returns whether a time is not before the period."""
        return self.since is None or moment >= datetime.fromisoformat(self.since)

    def has(self, moment: datetime) -> bool:
        """Returns whether a time is in the period, including both ends."""
        return self.is_since(moment) and (self.until is None or moment <= datetime.fromisoformat(self.until))


class ReportDocument(_Part):
    """The data of a report."""

    format: Format
    version: str
    build: str
    made_at: str
    made_by: str
    tenant: str
    content: bool
    period: Period
    threads: list[ReportedThread]
