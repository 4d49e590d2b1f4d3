"""The values that come out: immutable, and with a repr that shows no content."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import UUID

from compaction_store.jsonable import AsDict, plain

Payload = dict[str, Any]


class Message(NamedTuple):
    """One appended JSON object. `text` is its JSON as stored, byte for byte; `payload` is that text, parsed.

    Where what is stored cannot be read, `payload` or `meta` is None and `fault` says why; `verify` finds it too. A
    tuple, because a thread may be read by the ten thousand.
    """

    seq: int
    pos: int
    role: str | None
    payload: Payload | None
    tokens: int
    created_at: datetime
    meta: Payload | None
    redacted: bool
    text: str | None
    fault: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields but `text` as `json.dumps` takes them: times as ISO 8601."""
        found: dict[str, Any] = plain(self._asdict())
        del found["text"]
        return found

    def __repr__(self) -> str:
        return f"Message(seq={self.seq}, pos={self.pos}, role={self.role!r}, tokens={self.tokens}, …)"


class Appended(list[Message]):
    """The messages that one append stored, in order. `head` is the thread's head right after it."""

    def __init__(self, messages: Iterable[Message], head: bytes) -> None:
        super().__init__(messages)
        self.head = head


class Element(NamedTuple):
    """One piece of a view: a message, or the messages that stand for the span of a compaction.

    `kind`, `number` and `callback` are those of the compaction, None for a message. A compaction that is only planned
    has no number and no pos yet. A message that was erased is None.
    """

    seq: int
    end_seq: int
    pos: int | None
    messages: tuple[Payload | None, ...]
    tokens: int
    number: int | None
    created_at: datetime
    kind: str | None = None
    callback: str | None = None

    @property
    def message(self) -> Payload | None:
        """The first of its messages; None for a removal."""
        return self.messages[0] if self.messages else None

    @property
    def role(self) -> str | None:
        """The role of the first of its messages; None where that has none, is erased, or there is no message."""
        found = None if self.message is None else self.message.get("role")
        return found if isinstance(found, str) else None

    @property
    def is_summary(self) -> bool:
        return self.kind == "summary"

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as `json.dumps` takes them: times as ISO 8601."""
        found: dict[str, Any] = plain(self._asdict())
        return found

    def __repr__(self) -> str:
        return f"Element(seq={self.seq}, end_seq={self.end_seq}, tokens={self.tokens}, kind={self.kind!r}, …)"


@dataclass(frozen=True, slots=True)
class Measured(AsDict):
    """What a view takes by the best figure known, and which that is.

    `exact`: the model's API counted this view. `calibrated`: it reported what the request of the reply at `seq` took,
    and what was added or folded since is in proportion. `local`: nothing is known but `local`, the sum of the store's
    own figures for the messages. `rate` is how many tokens one of those is taken for, `counter` who counted exactly,
    `error` why there is no exact count where one was wanted. The budget's overhead is not in `tokens`.
    """

    tokens: int
    local: int
    source: Literal["local", "calibrated", "exact"] = "local"
    rate: float = 1.0
    counter: str | None = None
    seq: int | None = None
    error: str | None = None

    @property
    def difference(self) -> int:
        """By how much the store's own figures are too low."""
        return self.tokens - self.local

    def moved(self, local: int) -> Measured:
        """What the view takes once it is so many of the store's own tokens. It is then no longer exact."""
        tokens = max(0, round(self.tokens + self.rate * (local - self.local)))
        if local != self.local and self.source == "exact":
            return replace(self, tokens=tokens, local=local, source="calibrated")
        return replace(self, tokens=tokens, local=local)

    def own(self, tokens: int) -> int:
        """How many of the store's own tokens a view may be to take so many."""
        return self.local + math.floor((tokens - self.tokens) / self.rate)


@dataclass(frozen=True, slots=True)
class Thread(AsDict):
    """Where a thread stands. `head` is the last link of its chain; keep a copy elsewhere to hold us to it.

    `erased_pos` is the pos of the erasure of a thread that was erased; it is then named by its thread_uid. `fault` says
    why metadata that are stored cannot be read; they are then empty.
    """

    thread_id: str
    metadata: Payload = field(repr=False)
    created_at: datetime
    last_seq: int
    last_number: int
    last_pos: int
    view_tokens: int
    last_at: datetime | None
    head: bytes
    erased_pos: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Summary(AsDict):
    """What a summarizer returns: the text, and what an auditor will ask about how it came to be.

    `replacement` is what stands in the view where it is not the framed text, such as a provider's own signed block.
    `settings` are the parameters that the model was called with, such as max_tokens and temperature. `summarizer` is
    the name of the summarizer; where it is None, the store records the name of the callable that it called.
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


@dataclass(frozen=True, slots=True, repr=False)
class Compaction(AsDict):
    """One record of a thread's compaction log. `body` is its erasable part; None once it is redacted.

    It is None as well where what is stored cannot be read; `fault` then says why, and `verify` finds it too.
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
    model: str | None
    counter: str | None
    revokes: int | None
    redacted_pos: int | None
    superseded_by: int | None
    revoked_by: int | None
    body: Payload | None
    fault: str | None = None
    _derived: ClassVar = ("status",)

    def __repr__(self) -> str:
        span = "" if self.start_seq is None else f" of seqs {self.start_seq} to {self.end_seq}"
        status = self.status or self.outcome
        return f"<Compaction {self.number} of thread {self.thread_id!r}: {self.kind}{span}, {status}>"

    @property
    def redacted(self) -> bool:
        return self.redacted_pos is not None

    @property
    def status(self) -> str | None:
        """How it stands now; None for what never came into force."""
        if self.outcome != "applied" or self.kind == "revocation":
            return None
        if self.redacted:
            return "redacted"
        if self.revoked_by is not None:
            return f"revoked by {self.revoked_by}"
        return "active" if self.superseded_by is None else f"superseded by {self.superseded_by}"

    def _text(self, name: str) -> str | None:
        # Whatever a body holds, a property has its type.
        part = None if self.body is None else self.body.get(name)
        return part if type(part) is str else None

    def _object(self, name: str) -> Payload | None:
        part = None if self.body is None else self.body.get(name)
        return part if type(part) is dict else None

    @property
    def summary_text(self) -> str | None:
        return self._text("summary_text")

    @property
    def replacement(self) -> list[Payload] | None:
        """The messages that stand in the view for the span."""
        return None if self.body is None else _objects(self.body.get("replacement"))

    @property
    def reason(self) -> str | None:
        return self._text("reason")

    @property
    def error(self) -> Payload | None:
        """Of a failed or rejected attempt: the error's type, a text of ours, and `at`, where it was raised."""
        return self._object("error")

    @property
    def summarizer(self) -> str | None:
        """The name of the summarizer that wrote the text, or failed to; None where a callback gave the text itself."""
        return self._text("summarizer")

    @property
    def prompt(self) -> str | None:
        """The instructions that the model was given."""
        return self._text("prompt")

    @property
    def settings(self) -> Payload | None:
        """The parameters that the model was called with, such as max_tokens and temperature."""
        return self._object("settings")

    @property
    def usage(self) -> Payload | None:
        """The tokens that the summarizer's requests took."""
        return self._object("usage")

    @property
    def failed_before(self) -> list[Payload]:
        """The summarizers of a `FallbackSummarizer` that failed before another wrote the summary, in order.

        Each with the error's type and text, and as far as known `summarizer`, `model`, `usage` and `duration`.
        """
        coverage = self._object("coverage")
        if coverage is None:
            return []
        parts = [coverage, *(_objects(coverage.get("parts")) or [])]
        return [failed for part in parts for failed in _objects(part.get("failed_before")) or []]


def _objects(value: object) -> list[Payload] | None:
    """The objects of a list; None where it is no list."""
    return [part for part in value if type(part) is dict] if isinstance(value, list) else None


@dataclass(frozen=True, slots=True)
class Event(AsDict):
    """What happened to a thread besides messages and compactions: redaction, hold, release, retention and others.

    `fault` says why a body that is stored cannot be read; it is then empty.
    """

    thread_id: str
    pos: int
    kind: str
    actor: str | None
    created_at: datetime
    body: Payload = field(repr=False)
    fault: str | None = None

    @property
    def reason(self) -> str | None:
        reason = self.body.get("reason")
        return reason if type(reason) is str else None


@dataclass(frozen=True, slots=True)
class Redaction(AsDict):
    """What a call erased: the pos of its event, the seqs of messages and the numbers of records.

    Where everything was erased before, there is no event: the pos is None, and nothing is listed.
    """

    pos: int | None
    seqs: tuple[int, ...]
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Explanation(AsDict):
    """A message, every record that ever covered it, in order, and the element of the view that stands for it now.

    `redaction` is the event by which the message was erased.
    """

    message: Message
    records: tuple[Compaction, ...]
    element: Element
    redaction: Event | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CompactionTree(AsDict):
    """A record and what its span was made of: the records that were active inside it when it was written."""

    record: Compaction
    inside: tuple[CompactionTree, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the record's number, and all records as a list, each with the numbers of those inside it.

        A list and no tree: it may be as deep as there are records, and JSON takes a thousand levels at most.
        """
        listed: list[dict[str, Any]] = []
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            listed.append(tree.record.as_dict() | {"inside": [part.record.number for part in tree.inside]})
            waiting += reversed(tree.inside)
        return {"number": self.record.number, "records": listed}

    def __repr__(self) -> str:
        # Without what is inside: a tree may be as deep as there are records.
        return f"<CompactionTree of {self.record!r}: {len(self.inside)} inside>"


@dataclass(frozen=True, slots=True)
class Finding(AsDict):
    """Something that is not as it was written. `pos` is None where it concerns the whole thread.

    `line` is that of a bundle, where one was looked at. `records` are the numbers of the compactions that stand for the
    message it is in.
    """

    pos: int | None
    what: str
    line: int | None = None
    records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report(AsDict):
    """What a verification looked at and what it found. `level` is the deepest level it reached.

    `redacted` counts the messages and records whose content is erased, `redactions` the events that ordered it. `notes`
    say what could not be looked at. `withheld` counts the entries that a bundle carries without their content.

    `pos` is the thread's last pos, `head` the entry there: the next verification may go on from both. `since` is the
    pos from which this one went on, 0 if it began at the beginning, and `covered` the pos up to which a checkpoint
    holds. `thread_uid` is the thread's key, by which `verify_all` walks and `after=` goes on; where rows are left of a
    thread whose name is gone, `thread_id` is empty. A report on the whole store has neither.
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
        raise TypeError("a report is not a yes or a no: look at .findings and .level")
