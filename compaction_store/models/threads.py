"""Threads, and what happened to them besides messages and compactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from compaction_store.jsonable import AsDict, named
from compaction_store.models.messages import Payload


@dataclass(frozen=True, slots=True)
class Thread(AsDict):
    """A thread's name, metadata and counters. Keep a copy of `head` elsewhere: `verify` compares the chain with it.

    `thread_uid` is the thread's key, which begins with the time of its first entry; no other thread ever has the same
    one. An erased thread is listed by its key instead of its name. `hidden_seq` is the last seq that was hidden by
    `clear`; the thread is hidden as long as that is its last seq. If stored metadata cannot be parsed, `metadata` is
    empty and `fault` says why.

    `unknown_pos` is the pos of the first entry that changes views and is of a kind that this release does not know.
    From there on no view can be made, and `view_tokens` is None.
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
    fault: str | None = None
    _derived: ClassVar = ("hidden",)

    @property
    def hidden(self) -> bool:
        """Whether the thread was cleared with `hide`, and nothing has been appended since."""
        return self.hidden_seq is not None and self.hidden_seq == self.last_seq


@dataclass(frozen=True, slots=True)
class Event(AsDict):
    """Something that happened to a thread besides messages and compactions: a redaction, a hold, a refusal and others.

    `critical` says whether it changes what a view is. `actor` is who the program said it was, `login` the database
    login that wrote it. If a stored body cannot be parsed, `body` is empty and `fault` says why.
    """

    thread_id: str
    pos: int
    kind: str
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
        reason = self.body.get("reason")
        return reason if type(reason) is str else None

    @property
    def authority(self) -> Payload | None:
        """The authority, as the caller stated it: a policy and its version, an approval, a ticket."""
        authority = self.body.get("authority")
        return authority if type(authority) is dict else None


class TokenStep(NamedTuple):
    """A change of the view's tokens at a pos: by messages up to there, or by the applied record with a number.

    `change` is None if the record does not state it, because it was adopted from elsewhere.
    """

    pos: int
    change: int | None
    number: int | None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for `json.dumps`."""
        return named(self)


@dataclass(frozen=True, slots=True)
class RedactedFork(AsDict):
    """A fork that has copies of erased messages, and what was erased there.

    `pos` is None if the copies were not erased: in a dry run, or because the call left forks alone.
    """

    thread_id: str
    thread_uid: UUID
    pos: int | None
    seqs: tuple[int, ...]
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Redaction(AsDict):
    """The result of an erasure: the pos of its event, the seqs of messages and the numbers of records.

    `thread_id` is the name by which the thread is found now: after `erase` that of its stub. If everything was erased
    before, nothing happens: `pos` is None, and the other fields are empty.

    `forks` are the forks of the thread, and the forks of those, that hold copies of the messages.
    """

    thread_id: str
    pos: int | None
    seqs: tuple[int, ...]
    records: tuple[int, ...]
    forks: tuple[RedactedFork, ...] = ()


@dataclass(frozen=True, slots=True)
class Forked(AsDict):
    """A thread that was made by `fork`, and where it comes from.

    `at` is the parent's pos up to which everything was copied, and `last_seq` the last message. In the new thread the
    copies end at `pos`: the view there equals the parent's view at `at`. `head` is the new thread's head when it was
    made, `event_pos` the pos of the event in the parent. `added` is False if an earlier call with the key made the
    thread.
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
    """Where a message of a fork was appended: the thread, the pos there, and the time.

    The seq is the same there. `thread_id` and `created_at` are None if that thread is not in this database. The name of
    an erased thread is that of its stub.
    """

    thread_id: str | None
    thread_uid: UUID
    pos: int
    created_at: datetime | None
