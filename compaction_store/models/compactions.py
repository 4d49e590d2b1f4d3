"""Compactions: spans, summaries, attempts and the records in the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from compaction_store.jsonable import AsDict, named
from compaction_store.models.messages import Payload


class Span(NamedTuple):
    """A range of seqs, inclusive at both ends."""

    start_seq: int
    end_seq: int

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for `json.dumps`."""
        return named(self)

    def __str__(self) -> str:
        return f"seqs {self.start_seq} to {self.end_seq}"


@dataclass(frozen=True, slots=True)
class Summary(AsDict):
    """The result of a summarizer: the text, and how it was made, for the audit log.

    `replacement` replaces the framed text in the view, for example with a provider's own signed block. `settings` are
    the model's parameters, such as max_tokens and temperature. If `summarizer` is None, the store records the name of
    the callable instead. `checks` is the outcome of checks, if there were any.
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


@dataclass(frozen=True, slots=True)
class Attempt(AsDict):
    """One record of a plan: what a callback tried to do with a span, and the outcome."""

    callback: str
    kind: str
    outcome: str
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

    `actor` is who the program said it was, `login` the database login that wrote the record. `body` is the part that a
    redaction erases; it is then None. It is also None if the stored JSON cannot be parsed: `fault` says why, and
    `verify` reports it too.

    `unknown_pos` is the pos of the thread's first entry that changes views and is of a kind that this release does not
    know. It may have undone any record, so nobody can say which are active.
    """

    thread_id: str
    number: int
    pos: int
    created_at: datetime
    kind: str
    outcome: str
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
    _derived: ClassVar = ("status", "authority", "summarizer", "settings", "usage", "duration", "unreadable")

    def __repr__(self) -> str:
        span = "" if self.start_seq is None else f" of seqs {self.start_seq} to {self.end_seq}"
        status = self.status or self.outcome
        return f"<Compaction {self.number} of thread {self.thread_id!r}: {self.kind}{span}, {status}>"

    @property
    def redacted(self) -> bool:
        """Whether its body was erased."""
        return self.redacted_pos is not None

    @property
    def status(self) -> str | None:
        """`active`, `superseded by N`, `revoked by N` or `redacted`; None for a record that was never applied.

        `unknown` where the thread has an `unknown_pos`.
        """
        if self.outcome != "applied" or self.kind == "revocation":
            return None
        if self.redacted:
            return "redacted"
        if self.unknown_pos is not None:
            return "unknown"
        if self.revoked_by is not None:
            return f"revoked by {self.revoked_by}"
        return "active" if self.superseded_by is None else f"superseded by {self.superseded_by}"

    def _text(self, name: str) -> str | None:
        # A body may hold anything that is JSON, so check the type here.
        part = None if self.body is None else self.body.get(name)
        return part if type(part) is str else None

    def _object(self, name: str) -> Payload | None:
        part = None if self.body is None else self.body.get(name)
        return part if type(part) is dict else None

    @property
    def summary_text(self) -> str | None:
        """The summary, as the summarizer wrote it."""
        return self._text("summary_text")

    @property
    def unreadable(self) -> bool:
        """Whether it was adopted from a provider and only the provider can read it."""
        return self.body is not None and self.body.get("unreadable") is True

    @property
    def replacement(self) -> list[Payload] | None:
        """The messages that replace the span in the view."""
        return None if self.body is None else _objects(self.body.get("replacement"))

    @property
    def reason(self) -> str | None:
        """The reason that the callback or the caller gave."""
        return self._text("reason")

    @property
    def authority(self) -> Payload | None:
        """The authority, as the caller or the callback stated it: a policy and its version, an approval, a ticket."""
        return self._object("authority")

    @property
    def error(self) -> Payload | None:
        """For a failed or rejected attempt: `type`, `text` and `at`, the place that raised it."""
        return self._object("error")

    @property
    def summarizer(self) -> str | None:
        """The name of the summarizer that wrote the text or failed; None if the callback passed a text."""
        return self._text("summarizer")

    @property
    def prompt(self) -> str | None:
        """The instructions that were sent to the model."""
        return self._text("prompt")

    @property
    def settings(self) -> Payload | None:
        """The parameters that the summary was made with, such as max_tokens and temperature."""
        return self._object("settings")

    @property
    def usage(self) -> Payload | None:
        """The tokens that the summarizer's requests used."""
        return self._object("usage")

    @property
    def duration(self) -> float | None:
        """How long the summarizer took, in seconds."""
        duration = None if self.body is None else self.body.get("duration")
        return duration if type(duration) in (int, float) else None

    @property
    def checks(self) -> Payload | None:
        """The outcome of the checks of the summary: what each asked, and what failed, was repaired or was appended."""
        return self._object("checks")

    @property
    def failed_before(self) -> list[Payload]:
        """The summarizers of a `FallbackSummarizer` that failed before one succeeded, in order.

        Each has the error's type and text and, if known, `summarizer`, `model`, `usage` and `duration`.
        """
        coverage = self._object("coverage")
        if coverage is None:
            return []
        parts = [coverage, *(_objects(coverage.get("parts")) or [])]
        return [failed for part in parts for failed in _objects(part.get("failed_before")) or []]


def _objects(value: object) -> list[Payload] | None:
    """Returns the objects in a list, or None if it is not a list."""
    return [part for part in value if type(part) is dict] if isinstance(value, list) else None


@dataclass(frozen=True, slots=True, repr=False)
class CompactionTree(AsDict):
    """A record and the records inside its span that were active when it was written."""

    record: Compaction
    inside: tuple[CompactionTree, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the record's number and a flat list of all records, each with the numbers of those inside it.

        The list is flat because a tree may be deeper than the thousand levels that `json.dumps` can nest.
        """
        listed = [
            tree.record.as_dict() | {"inside": [part.record.number for part in tree.inside]} for _, tree in self.walk()
        ]
        return {"number": self.record.number, "records": listed}

    # None of these recurses: the tree may be deeper than the recursion limit.

    def walk(self) -> Iterator[tuple[int, CompactionTree]]:
        """Yields the tree and those inside it with their depths, from outside to inside and from left to right."""
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
    """Records that were drawn at random. `population` is how many they were drawn from.

    `is_whole` is False if more match: then the population is the oldest of them.
    """

    records: tuple[Compaction, ...]
    population: int
    is_whole: bool
