"""Messages, and the elements of a view that are made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from compaction_store.jsonable import AsDict, named, plain

Payload = dict[str, Any]


class Message(NamedTuple):
    """One appended JSON object. `text` is its JSON as stored, byte for byte; `payload` is that text, parsed.

    If the stored JSON cannot be parsed, `payload` or `meta` is None and `fault` says why; `verify` reports it too. A
    NamedTuple, because a read may return tens of thousands of them.
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
        """Returns all fields except `text`, ready for `json.dumps`: times as ISO 8601."""
        found = named(self)
        del found["text"]
        return found

    def __repr__(self) -> str:
        return f"Message(seq={self.seq}, pos={self.pos}, role={self.role!r}, tokens={self.tokens}, …)"


class Appended(list[Message]):
    """The messages that one append stored, in order. `head` is the thread's chain head right after them.

    `durable` is False for `append(durable=False)`, which does not wait for the disk.
    """

    def __init__(self, messages: Iterable[Message], head: bytes, *, durable: bool = True) -> None:
        super().__init__(messages)
        self.head = head
        self.durable = durable

    def as_dict(self) -> dict[str, Any]:
        """Returns `messages`, `head` and `durable`, ready for `json.dumps`: times as ISO 8601, bytes in hexadecimal."""
        return {"messages": plain(list(self)), "head": self.head.hex(), "durable": self.durable}


class Element(NamedTuple):
    """One piece of a view: a message, or the messages that replace the span of a compaction.

    `kind`, `number` and `callback` describe the compaction; they are None for a message. A compaction that is only
    planned has no number and no pos yet. An erased message is None.
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
        """The role of its first message; None if there is no message, it is erased, or it has no role."""
        found = None if self.message is None else self.message.get("role")
        return found if isinstance(found, str) else None

    @property
    def is_summary(self) -> bool:
        """Whether a summary replaces the span."""
        return self.kind == "summary"

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for `json.dumps`: times as ISO 8601."""
        return named(self)

    def __repr__(self) -> str:
        return f"Element(seq={self.seq}, end_seq={self.end_seq}, tokens={self.tokens}, kind={self.kind!r}, …)"


@dataclass(frozen=True, slots=True)
class Measured(AsDict):
    """The best known size of a view in tokens, and where that figure comes from.

    The sources: `exact` if the model's API counted this view; `calibrated` if the API reported the input tokens of the
    request behind the reply at `seq`, scaled by what was added or folded since; `local` if only the store's own counts
    are known. The budget's overhead is not included.
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
        """How many tokens the store's own counts fall short by."""
        return self.tokens - self.local

    def moved(self, local: int) -> Measured:
        """Returns the size of the view once its own counts add up to `local`. The result is no longer exact."""
        tokens = max(0, round(self.tokens + self.rate * (local - self.local)))
        if local != self.local and self.source == "exact":
            return replace(self, tokens=tokens, local=local, source="calibrated")
        return replace(self, tokens=tokens, local=local)

    def own(self, tokens: int) -> int:
        """Converts a size in the model's tokens into the store's own tokens."""
        return self.local + math.floor((tokens - self.tokens) / self.rate)
