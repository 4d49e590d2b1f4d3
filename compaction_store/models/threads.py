"""Threads, and what happened to them besides messages and compactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from compaction_store.jsonable import AsDict
from compaction_store.models.messages import Payload


@dataclass(frozen=True, slots=True)
class Thread(AsDict):
    """A thread's name, metadata and counters. Keep a copy of `head` elsewhere: `verify` compares the chain with it.

    `thread_uid` is the thread's key, which begins with the time of its first entry; no other thread ever has it. An
    erased thread is listed by its key instead of its name. If stored metadata cannot be parsed, `metadata` is empty and
    `fault` says why.
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
    erased_pos: int | None
    thread_uid: UUID
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Event(AsDict):
    """Something that happened to a thread besides messages and compactions: a redaction, a hold, a release and others.

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


@dataclass(frozen=True, slots=True)
class Redaction(AsDict):
    """The result of an erasure: the pos of its event, the seqs of messages and the numbers of records.

    `thread_id` is the name by which the thread is found now: after `erase` that of its stub. If all of it was erased
    before, nothing happens: `pos` is None, and the other fields are empty.
    """

    thread_id: str
    pos: int | None
    seqs: tuple[int, ...]
    records: tuple[int, ...]
