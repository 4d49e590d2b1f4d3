"""Values about messages and about the elements of a view."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from compaction_store.jsonable import AsDict, named, plain

Payload = dict[str, Any]
ERASED = "(A message was erased here.)"


class Erased(Payload):
    """Stands in a view for a message that was erased, so that callbacks and summarizers never get None.

    It is a user's message with a text that says so, as the model gets it. `Message.payload` is None for the same
    message, and so is what `replay` yields.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(role="user", content=ERASED)


def is_erased(payload: object) -> bool:
    """Returns whether a message of a view is a stand-in for an erased message."""
    return isinstance(payload, Erased)


def shown(payload: Payload | None) -> Payload:
    """Returns a stored message as a view shows it."""
    return Erased() if payload is None else payload


class Message(NamedTuple):
    """One stored message. `text` is its JSON as stored, byte for byte, and `payload` is the parsed JSON.

    If the stored JSON of the payload or the meta cannot be parsed, the field is None and `fault` says why. `verify`
    reports it too. `actor` is who appended the message, as the caller said, and `login` is the database login that did,
    which the caller cannot choose. The class is a NamedTuple for speed, because a read may return tens of thousands of
    messages.
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
    actor: str | None = None
    login: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields except `text`, ready for `json.dumps`: times as ISO 8601."""
        found = named(self)
        del found["text"]
        return found

    def __repr__(self) -> str:
        return f"Message(seq={self.seq}, pos={self.pos}, role={self.role!r}, tokens={self.tokens}, …)"


class Appended(list[Message]):
    """The messages that one append stored, in order. `head` is the head of the thread's chain after these messages.

    `durable` is False after `append(durable=False)`, which does not wait until the messages are on disk.
    """

    def __init__(self, messages: Iterable[Message], head: bytes, *, durable: bool = True) -> None:
        super().__init__(messages)
        self.head, self.durable = head, durable

    def as_dict(self) -> dict[str, Any]:
        """Returns `messages`, `head` and `durable`, ready for `json.dumps`: times as ISO 8601, bytes in hexadecimal."""
        return {"messages": plain(list(self)), "head": self.head.hex(), "durable": self.durable}


class Element(NamedTuple):
    """One element of a view: a message, or the messages that replace the span of a compaction.

    `kind`, `number` and `callback` describe the compaction, and are None for a message. If the compaction is only
    planned, `pos` is None, and `number` is negative or None. A stand-in that says so is in place of an erased message.
    """

    seq: int
    end_seq: int
    pos: int | None
    messages: tuple[Payload, ...]
    tokens: int
    number: int | None
    created_at: datetime
    kind: str | None = None
    callback: str | None = None

    @property
    def message(self) -> Payload | None:
        """The first message of the element. None for a removal, which has no messages."""
        return self.messages[0] if self.messages else None

    @property
    def role(self) -> str | None:
        """The role of the first message. None if there is no message, or if the message was erased or has no role."""
        found = None if self.message is None or self.is_erased else self.message.get("role")
        return found if isinstance(found, str) else None

    @property
    def is_erased(self) -> bool:
        """Whether the element is a message that was erased."""
        return is_erased(self.message)

    @property
    def is_summary(self) -> bool:
        """Whether the element is a summary that replaces a span."""
        return self.kind == "summary"

    def as_dict(self) -> dict[str, Any]:
        return named(self)

    def __repr__(self) -> str:
        return f"Element(seq={self.seq}, end_seq={self.end_seq}, tokens={self.tokens}, kind={self.kind!r}, …)"


class PendingCall(NamedTuple):
    """A tool call in a view that has no result yet. `call` is the call as it is stored, in the form of its API.

    `input` is the call's input: an object, or the text of the arguments if they are no JSON.
    """

    seq: int
    id: str
    name: str
    input: Any
    call: Payload

    def as_dict(self) -> dict[str, Any]:
        return named(self)

    def __repr__(self) -> str:
        return f"PendingCall(seq={self.seq}, id={self.id!r}, name={self.name!r}, …)"


@dataclass(frozen=True, slots=True)
class Measured(AsDict):
    """The best known size of a view in tokens, and the source of this number.

    The source is `exact` if the model's API counted this view. It is `calibrated` if an earlier size is known, and the
    store's own counts give the change since then. The earlier size was counted by the API, or was reported with the
    reply that has the seq `seq`. It is `local` if only the store's own counts are known. The overhead of the budget is
    not included.
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
        """The number of tokens by which the size is larger than the store's own count."""
        return self.tokens - self.local

    def moved(self, local: int) -> Measured:
        """Returns the estimated size of the view after a change. `local` is the store's own count after the change.

        If the count changed, the result is no longer exact.
        """
        tokens = max(0, round(self.tokens + self.rate * (local - self.local)))
        if local != self.local and self.source == "exact":
            return replace(self, tokens=tokens, local=local, source="calibrated")
        return replace(self, tokens=tokens, local=local)

    def own(self, tokens: int) -> int:
        """Converts a size in the model's tokens to a size in the store's own counts."""
        return self.local + math.floor((tokens - self.tokens) / self.rate)
