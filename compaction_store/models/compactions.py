"""Values about compactions: spans, summaries, attempts, and the records in the compaction log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypeVar
from uuid import UUID

from compaction_store.jsonable import AsDict, named
from compaction_store.models.messages import Payload
from compaction_store.models.state import FORM, State
from compaction_store.models.vocabulary import Kind, Outcome, Status

_T = TypeVar("_T")


class Span(NamedTuple):
    """A range of seqs, inclusive at both ends."""

    start_seq: int
    end_seq: int

    def as_dict(self) -> dict[str, Any]:
        return named(self)

    def __str__(self) -> str:
        return f"seqs {self.start_seq} to {self.end_seq}"


@dataclass(frozen=True, slots=True)
class Summary(AsDict):
    """The result of a summarizer: the text, and how it was made, for the audit log.

    If `replacement` is not None, the view gets these messages in place of the framed text: for example, a message with
    a provider's signed block. `settings` are the parameters of the model, such as max_tokens and temperature. If
    `summarizer` is None, the store records the name of the callable instead. `checks` has the results of the checks, if
    the summary was checked.
    """

    text: str = field(repr=False)
    model: str | None = None
    prompt: str | None = field(default=None, repr=False)
    usage: Payload | None = None
    provider: Payload | None = field(default=None, repr=False)
    coverage: Payload | None = None
    duration: float | None = None
    replacement: tuple[Payload, ...] | None = field(default=None, repr=False)
    settings: Payload | None = None
    summarizer: str | None = None
    checks: Payload | None = None

    @property
    def unreadable(self) -> bool:
        """Whether there is no text because only the provider can read the replacement."""
        given = [message for message in self.replacement or () if isinstance(message, dict)]
        return not self.text.strip() and any(message.get("encrypted_content") for message in given)


@dataclass(frozen=True, slots=True)
class Attempt(AsDict):
    """One compaction in a plan: what the callback wants to do with a span, and the outcome."""

    callback: str
    kind: Kind
    outcome: Outcome
    start_seq: int | None
    end_seq: int | None
    tokens_before: int | None = None
    tokens_after: int | None = None
    replacement: tuple[Payload, ...] = field(default=(), repr=False)
    summary: Summary | None = field(default=None, repr=False)
    inputs: tuple[int, ...] = ()
    allow: frozenset[str] = frozenset()
    reason: str | None = field(default=None, repr=False)
    error: Payload | None = None
    authority: Payload | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class Compaction(AsDict):
    """One record of a thread's compaction log.

    `actor` is the name that the program gave, and `login` is the database login that wrote the record. `body` is the
    part that a redaction erases. It is None after a redaction. It is also None if the stored JSON cannot be parsed:
    then `fault` says why, and `verify` reports it too.

    `unknown_pos` is the pos of the thread's first entry that changes views and whose kind this release does not know.
    Such an entry may have undone any record, so this release cannot tell which records are active.
    """

    thread_id: str
    number: int
    pos: int
    created_at: datetime
    kind: Kind
    outcome: Outcome
    start_seq: int | None
    end_seq: int | None
    tokens_before: int | None
    tokens_after: int | None
    source_count: int | None
    inputs: tuple[int, ...]
    run_id: UUID
    callback: str | None
    trigger: str | None
    actor: str | None
    login: str
    model: str | None
    counter: str | None
    revokes: int | None
    redacted_pos: int | None
    superseded_by: int | None
    revoked_by: int | None
    body: Payload | None
    thread_uid: UUID
    unknown_pos: int | None = None
    fault: str | None = None
    _derived: ClassVar = ("status", "authority", "summarizer", "settings", "usage", "duration", "unreadable", "parts")

    def __repr__(self) -> str:
        span = "" if self.start_seq is None else f" of seqs {self.start_seq} to {self.end_seq}"
        return f"<Compaction {self.number} of thread {self.thread_id!r}: {self.kind}{span}, {status_in_words(self)}>"

    @property
    def redacted(self) -> bool:
        """Whether a redaction erased the body."""
        return self.redacted_pos is not None

    @property
    def status(self) -> Status:
        """The current status of the record: `active`, `superseded`, `revoked`, `redacted` or `unknown`.

        The status of a revocation, and of a record that was never applied, is its outcome. `superseded_by` and
        `revoked_by` name the later record. If the thread has an `unknown_pos`, the status of every applied record that
        is not redacted is `unknown`.
        """
        if self.outcome != "applied" or self.kind == "revocation":
            return self.outcome
        if self.redacted:
            return "redacted"
        if self.unknown_pos is not None:
            return "unknown"
        if self.revoked_by is not None:
            return "revoked"
        return "active" if self.superseded_by is None else "superseded"

    def _part(self, name: str, kind: type[_T]) -> _T | None:
        # Check the type, because a stored body may be any JSON object.
        part = None if self.body is None else self.body.get(name)
        return part if isinstance(part, kind) else None

    @property
    def summary_text(self) -> str | None:
        """The text of the summary, without its frame and with the lines that checks appended."""
        return self._part("summary_text", str)

    @property
    def parts(self) -> State | None:
        """The parts of a state summary, read from its text; None for any other summary.

        Lines that checks appended are among the orders and the facts.
        """
        known = self.coverage or {}
        is_state = any(one.get("form") == FORM for one in (known, *(_objects(known.get("parts")) or ())))
        return State.parse(self.summary_text) if is_state and self.summary_text is not None else None

    @property
    def unreadable(self) -> bool:
        """Whether a provider made the summary in a form that only the provider can read."""
        return self.body is not None and self.body.get("unreadable") is True

    @property
    def replacement(self) -> list[Payload] | None:
        """The messages that replace the span in the view."""
        return None if self.body is None else _objects(self.body.get("replacement"))

    @property
    def reason(self) -> str | None:
        """The reason that the callback or the caller gave."""
        return self._part("reason", str)

    @property
    def authority(self) -> Payload | None:
        """The authority for the compaction, as the caller or callback gave it: a policy, an approval or a ticket."""
        return self._part("authority", dict)

    @property
    def error(self) -> Payload | None:
        """The error of a failed or rejected attempt: its `type`, its `text`, and where it was raised, as `at`."""
        return self._part("error", dict)

    @property
    def summarizer(self) -> str | None:
        """The name of the summarizer that wrote the text or failed; None if the callback passed a text."""
        return self._part("summarizer", str)

    @property
    def prompt(self) -> str | None:
        """The instructions that were sent to the model."""
        return self._part("prompt", str)

    @property
    def settings(self) -> Payload | None:
        """The parameters that the summary was made with, such as max_tokens and temperature."""
        return self._part("settings", dict)

    @property
    def usage(self) -> Payload | None:
        """The tokens that the summarizer's requests used."""
        return self._part("usage", dict)

    @property
    def duration(self) -> float | None:
        """The time that the summarizer took, in seconds."""
        duration = None if self.body is None else self.body.get("duration")
        return duration if type(duration) in (int, float) else None

    @property
    def checks(self) -> Payload | None:
        """The results of the summary's checks.

        `outcomes` has the name of each check, and the numbers of its questions and failures. If missing lines were
        appended to the summary, `appended` is their number. If a repair was requested, `repair` describes it.
        """
        return self._part("checks", dict)

    @property
    def coverage(self) -> Payload | None:
        """Which parts of the source the summarizer split, left out or found erased."""
        return self._part("coverage", dict)

    @property
    def failed_before(self) -> list[Payload]:
        """The failures of the summarizers that a `FallbackSummarizer` tried before one succeeded, in order.

        Each failure has the error's type and text and, if they are known, `summarizer`, `model`, `usage` and
        `duration`.
        """
        if self.coverage is None:
            return []
        parts = [self.coverage, *(_objects(self.coverage.get("parts")) or [])]
        return [failed for part in parts for failed in _objects(part.get("failed_before")) or []]


def status_in_words(record: Compaction) -> str:
    """Returns a record's status for people, with the number of the record that revoked or superseded it."""
    by = {"revoked": record.revoked_by, "superseded": record.superseded_by}.get(record.status)
    return record.status if by is None else f"{record.status} by {by}"


def _objects(value: object) -> list[Payload] | None:
    """Returns the JSON objects in a list, or None if the value is not a list."""
    return [part for part in value if type(part) is dict] if isinstance(value, list) else None


@dataclass(frozen=True, slots=True, repr=False)
class CompactionTree(AsDict):
    """A record and the records inside its span that were active when it was written."""

    record: Compaction
    inside: tuple[CompactionTree, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the number of the record, and a flat list of all records with the numbers of those inside each.

        The list is flat, because a tree may have more levels than `json.dumps` can nest.
        """
        listed = [
            tree.record.as_dict() | {"inside": [part.record.number for part in tree.inside]} for _, tree in self.walk()
        ]
        return {"number": self.record.number, "records": listed}

    # None of the methods below recurses, because the tree may be deeper than the recursion limit.

    def walk(self) -> Iterator[tuple[int, CompactionTree]]:
        """Yields this tree and all trees inside it with their depths. A tree comes before the trees inside it."""
        waiting = [(0, self)]
        while waiting:
            depth, tree = waiting.pop()
            yield depth, tree
            waiting += [(depth + 1, part) for part in reversed(tree.inside)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompactionTree):
            return NotImplemented
        waiting = [(self, other)]
        while waiting:
            one, another = waiting.pop()
            if one.record != another.record or len(one.inside) != len(another.inside):
                return False
            waiting += zip(one.inside, another.inside, strict=True)
        return True

    def __hash__(self) -> int:
        return hash((self.record.thread_uid, self.record.number))

    def __repr__(self) -> str:
        return f"<CompactionTree of {self.record!r}: {len(self.inside)} inside>"


@dataclass(frozen=True, slots=True)
class Sample(AsDict):
    """Records that were drawn at random from a population. `population` is the number of records in it.

    If `is_whole` is False, more records match the filters, and the population has only the oldest of them.
    """

    records: tuple[Compaction, ...]
    population: int
    is_whole: bool
