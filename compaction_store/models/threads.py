"""Values about threads: their state, their outlines, their events, their erasures, their forks, and what was loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import UUID

from compaction_store.jsonable import AsDict, named, time_text
from compaction_store.models.messages import Payload
from compaction_store.models.vocabulary import EventKind, KeptBy, ReplacingKind


@dataclass(frozen=True, slots=True)
class Thread(AsDict):
    """A thread's name, metadata and counters. Keep a copy of `head` elsewhere: `verify` can compare the chain with it.

    `thread_uid` identifies the thread. It begins with the time of the thread's first entry, and no other thread ever
    has the same one. The name of an erased thread is made from its `thread_uid`. `hidden_seq` is the last seq that
    `clear` with `hide` covered. The thread is hidden as long as this is its last seq. If the stored metadata cannot be
    parsed, `metadata` is empty and `fault` says why.

    `unknown_pos` is the pos of the first entry that changes views and whose kind this release does not know. No view
    can be made from there on, and `view_tokens` is None.

    `last_at` is the time of the newest entry of any kind. `last_message_at` is that of the newest message: a hold, a
    verdict or a compaction does not change it, so the age of a thread is measured from it. `subject` says whose
    the thread is.
    """

    thread_id: str
    metadata: Payload = field(repr=False)
    created_at: datetime
    last_seq: int
    last_number: int
    last_pos: int
    view_tokens: int | None
    last_at: datetime | None
    head: bytes
    erased_pos: int | None
    thread_uid: UUID
    hidden_seq: int | None = None
    unknown_pos: int | None = None
    last_message_at: datetime | None = None
    subject: str | None = None
    fault: str | None = None
    _derived: ClassVar = ("hidden", "cursor")

    @property
    def cursor(self) -> str:
        """The place of the thread in a list by recency, for the `after` of the next page."""
        return f"{time_text(self.last_message_at or self.created_at)}/{self.thread_uid}"

    @property
    def hidden(self) -> bool:
        """Whether the thread was cleared with `hide` and no message has been appended since."""
        return self.hidden_seq is not None and self.hidden_seq == self.last_seq


@dataclass(frozen=True, slots=True)
class Lease(AsDict):
    """A compaction of a thread that is under way: who runs it, since when, and until when its lease lasts.

    The lease is renewed while the run lives. If its process was killed, the lease is `expired` at its end, and another
    run can begin.
    """

    thread_id: str
    actor: str | None
    since: datetime
    until: datetime
    run_id: UUID
    expired: bool


@dataclass(frozen=True, slots=True)
class Event(AsDict):
    """An entry of a thread that is neither a message nor a compaction, such as a redaction, a hold or a refusal.

    `critical` says whether the event changes views. `actor` is the name that the program gave, and `login` is the
    database login that wrote the event. If the stored body cannot be parsed, `body` is empty and `fault` says why.
    """

    thread_id: str
    pos: int
    kind: EventKind
    critical: bool
    actor: str | None
    login: str
    created_at: datetime
    body: Payload = field(repr=False)
    fault: str | None = None
    _derived: ClassVar = ("authority",)

    @property
    def reason(self) -> str | None:
        """The reason that the caller gave."""
        return reason if type(reason := self.body.get("reason")) is str else None

    @property
    def authority(self) -> Payload | None:
        """The authority for the event, as the caller gave it: a policy, an approval or a ticket."""
        return authority if type(authority := self.body.get("authority")) is dict else None


@dataclass(frozen=True, slots=True)
class FeedEntry(AsDict):
    """An entry of the feed: a message, a compaction record or an event of any thread, with the cursor after it.

    `facts` says what the entry is, without content: for example the seq and role of a message, or the kind of a record
    or an event. `entry` is its hash in the chain. `content` is a message's payload, or the body of a record or event;
    it is None if the feed has no content, and if the entry is `redacted`. If the stored content cannot be parsed,
    `fault` says why.
    """

    cursor: str
    type: Literal["message", "compaction", "event"]
    thread_id: str
    thread_uid: UUID
    pos: int
    created_at: datetime
    actor: str | None
    login: str
    redacted: bool
    entry: bytes
    facts: Payload
    content: Payload | None = field(repr=False)
    meta: Payload | None = field(repr=False)
    fault: str | None = None


class TokenStep(NamedTuple):
    """A change of the view's tokens at a pos.

    Its cause is either the messages up to this pos, or the applied record with the number `number`. `change` is None if
    the record, or the record that it revokes, has no token counts. This happens only in a damaged thread.
    """

    pos: int
    change: int | None
    number: int | None

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class RedactedFork(AsDict):
    """A fork that has copies of erased messages, with the seqs and the record numbers of these copies.

    `pos` is the pos of the erasure in the fork. It is None if the copies were not erased, because the call was a dry
    run or left forks alone.
    """

    thread_id: str
    thread_uid: UUID
    pos: int | None
    seqs: tuple[int, ...]
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Redaction(AsDict):
    """The result of an erasure: the pos of its event, and the seqs and record numbers that it erased.

    In a dry run, `pos` is None, and the other fields say what would be erased. `thread_id` is the thread's name after
    the call. `erase` gives a thread a new name. If everything was erased before, the call changes nothing: `pos` is
    None, and `seqs` and `records` are empty.

    `forks` has the forks with copies of the messages, including forks of forks.
    """

    thread_id: str
    pos: int | None
    seqs: tuple[int, ...]
    records: tuple[int, ...]
    forks: tuple[RedactedFork, ...] = ()


@dataclass(frozen=True, slots=True)
class Expiry(AsDict):
    """A thread that `erase_subject` or a run of `apply_retention` was to erase, and the result for this thread.

    `kept` says why the thread was not erased: `written` if a message was appended meanwhile, `held` or `retained` if a
    hold or a retention forbids it, and `damaged` if the thread's rows contradict its head. It is None if the thread was
    erased, or would be in a dry run. `messages` and `records` are the numbers of erased entries, and `pos` is the pos
    of the erasure. `thread_id` is the name before the erasure.
    """

    thread_id: str
    thread_uid: UUID
    last_message_at: datetime | None
    kept: KeptBy | None
    messages: int = 0
    records: int = 0
    pos: int | None = None


@dataclass(frozen=True, slots=True)
class Forked(AsDict):
    """A thread that `fork` made, and its parent.

    All entries of the parent up to the pos `at` were copied. `last_seq` is the seq of the last copied message. In the
    new thread, the copies end at `pos`. The view there is equal to the parent's view at `at`. `head` is the head of the
    new thread right after the fork. `event_pos` is the pos of the fork's event in the parent. `added` is False if an
    earlier call with the same key made the thread.
    """

    thread_id: str
    thread_uid: UUID
    parent_id: str
    parent_uid: UUID
    at: int
    last_seq: int
    pos: int
    head: bytes
    event_pos: int
    created_at: datetime
    added: bool


@dataclass(frozen=True, slots=True)
class Origin(AsDict):
    """The thread in which a message of a fork was appended, with the pos and the time of the message there.

    The message has the same seq there. `thread_id` and `created_at` are None if the thread is not in this database. An
    erased thread has the name that it got when it was erased.
    """

    thread_id: str | None
    thread_uid: UUID
    pos: int
    created_at: datetime | None


class Part(NamedTuple):
    """A part of a view: consecutive messages, or one record that replaces its span."""

    seq: int
    end_seq: int
    number: int | None

    @property
    def size(self) -> int:
        """The number of elements of the view in this part."""
        return self.end_seq - self.seq + 1 if self.number is None else 1

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class Outline(AsDict):
    """The parts of a thread's view at a pos, in order, and the view's tokens."""

    thread_id: str
    pos: int
    tokens: int
    parts: tuple[Part, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """The number of elements of the view."""
        return sum(part.size for part in self.parts)


class ComparedPart(NamedTuple):
    """A part of a view, and whether it is in the first of two views (left), in the second (right) or in both."""

    part: Part
    is_left: bool
    is_right: bool

    def as_dict(self) -> dict[str, Any]:
        return named(self)


@dataclass(frozen=True, slots=True)
class Comparison(AsDict):
    """A page of the parts of two views of a thread, in order.

    A run of messages is split where only a part of it is in both views.
    """

    thread_id: str
    pos: int
    tokens: int | None
    count: int
    changed: int
    parts: tuple[ComparedPart, ...] = field(repr=False)


def outlined(last_seq: int, folds: Iterable[Part], first_seq: int = 1) -> tuple[Part, ...]:
    """Returns the parts of a view from `first_seq` on: the given active records, and the messages between them."""
    parts: list[Part] = []
    expected = first_seq
    for fold in folds:
        if fold.seq > expected:
            parts.append(Part(expected, fold.seq - 1, None))
        parts.append(fold)
        expected = fold.end_seq + 1
    if expected <= last_seq:
        parts.append(Part(expected, last_seq, None))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class ToLoad:
    """A message to load, with its own meta and its own token count."""

    message: Any = field(repr=False)
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A compaction that a provider or a framework made. Pass it to `load.messages` at its place among the messages.

    The compaction covers the messages from `first` to `last` of the load, counted from 1. By default, it covers all
    messages before its place. The record has no span if there are no such messages or if `spans` is False. A summary
    that only the provider can read has no `summary_text`.
    """

    what: str
    kind: ReplacingKind = "summary"
    summary_text: str | None = field(default=None, repr=False)
    provider: Payload | None = field(default=None, repr=False)
    model: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    occurred_at: str | None = None
    first: int = 1
    last: int | None = None
    spans: bool = True


@dataclass(frozen=True, slots=True)
class Loaded(AsDict):
    """The result of a load. The load had `count` messages, and `added` of them were new.

    Other writers may have appended messages between the chunks of the load. `observed` is the number of compactions of
    providers that the load recorded.
    """

    first_seq: int
    last_seq: int
    count: int
    added: int
    observed: int = 0


@dataclass(frozen=True, slots=True)
class ThreadLoaded(AsDict):
    """The result of `load.threads` for one thread. If it was refused, `refused` has the error, and `loaded` is None."""

    thread_id: str
    loaded: Loaded | None
    refused: Exception | None = None


@dataclass(frozen=True, slots=True)
class Imported(AsDict):
    """The thread in an imported bundle. `added` is False if the thread already existed with the same head."""

    thread_id: str
    last_seq: int
    last_number: int
    last_pos: int
    head: bytes
    added: bool
