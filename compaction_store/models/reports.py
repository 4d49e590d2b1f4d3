"""Values that audits return: explanations, search results, reports of `verify`, and verdicts of reviewers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from compaction_store.jsonable import AsDict, named
from compaction_store.models.compactions import Compaction
from compaction_store.models.messages import Element, Message, Payload
from compaction_store.models.threads import Event, Origin
from compaction_store.models.vocabulary import JUDGEMENTS, Judgement

Level = Literal["structure", "content", "schema", "checkpoint"]
# The levels of verification. Each level includes the levels before it.
LEVELS: tuple[Level, ...] = ("structure", "content", "schema", "checkpoint")


@dataclass(frozen=True, slots=True)
class Explanation(AsDict):
    """A message, all records that ever covered it, in order, and the element of the current view that represents it.

    If the message was erased, `redaction` is the event of the erasure. If the message is a reply that was appended with
    its view, `receipt` is its receipt. `same_tools` and `same_system` say whether the request had the tools and the
    system prompt that were passed to `explain`. They are None if none were passed or the receipt has no hash of them.
    If a fork copied the message, `origin` says where it was appended.
    """

    message: Message
    records: tuple[Compaction, ...]
    element: Element
    redaction: Event | None = None
    receipt: Payload | None = None
    same_tools: bool | None = None
    same_system: bool | None = None
    origin: Origin | None = None


class Found(NamedTuple):
    """A place where a text was found: a message by its seq, a record by its number, or the thread's metadata."""

    thread_id: str
    kind: Literal["message", "compaction", "metadata"]
    seq: int | None
    number: int | None
    created_at: datetime
    excerpt: str

    def as_dict(self) -> dict[str, Any]:
        return named(self)

    def __repr__(self) -> str:
        place = {"message": f"seq={self.seq}", "compaction": f"number={self.number}"}.get(self.kind, "")
        return f"Found(thread_id={self.thread_id!r}, kind={self.kind!r}, {place}{', ' * bool(place)}…)"


@dataclass(frozen=True, slots=True)
class Finding(AsDict):
    """A problem that `verify` found. `pos` is None if the problem concerns the whole thread.

    In a bundle, `line` is the number of the line. If the problem is in a message, `records` has the numbers of the
    compactions that cover the message, at most the first 100.
    """

    pos: int | None
    what: str
    line: int | None = None
    records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report(AsDict):
    """The result of a verification: the level that was checked, and the findings.

    A report has no truth value, because the absence of findings means little without the level. To verify only new
    entries next time, pass `pos` and `head` as `since`. A report on the whole store has no `thread_uid`, and its `pos`
    is 0. If a thread has lost its name, `thread_id` is empty.
    """

    thread_id: str
    level: str
    entries: int
    redacted: int
    findings: tuple[Finding, ...]
    head: bytes
    redactions: int = 0
    notes: tuple[str, ...] = ()
    withheld: int = 0
    pos: int = 0
    since: int = 0
    covered: int = 0
    thread_uid: UUID | None = None

    def __bool__(self) -> bool:
        raise TypeError("a Report must not be used as a truth value: check .findings and .level")


class DayFigures(NamedTuple):
    """The compactions of one outcome on one day in UTC, and the sums of their tokens."""

    day: datetime
    outcome: str
    records: int
    tokens_before: int
    tokens_after: int

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class Figures(AsDict):
    """Counts of the threads of a tenant, without its log, and of its compactions by day and outcome."""

    threads: int
    erased: int
    messages: int
    records: int
    leased: int
    days: tuple[DayFigures, ...]


@dataclass(frozen=True, slots=True)
class Verdict(AsDict):
    """A verdict on a compaction record, stored as an event of the kind `verdict`.

    `sample` describes the sample for which the record was drawn. `actor` is the reviewer's name as the program gave it,
    and `login` is the database login that wrote the verdict.
    """

    thread_id: str
    number: int
    verdict: Judgement
    note: str | None = field(repr=False)
    sample: Payload | None
    pos: int
    actor: str | None
    login: str
    created_at: datetime

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """Returns the verdict in an event, or None if its body, which may be anything in a bundle, has no valid one."""
        number, verdict = event.body.get("number"), event.body.get("verdict")
        if event.kind != "verdict" or type(number) is not int or verdict not in JUDGEMENTS:
            return None
        note, sample = event.body.get("note"), event.body.get("sample")
        return cls(
            event.thread_id, number, verdict, note if isinstance(note, str) else None,
            sample if isinstance(sample, dict) else None, event.pos, event.actor, event.login, event.created_at,
        )  # fmt: skip
