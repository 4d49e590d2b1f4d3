"""The values that come out: immutable, and with a repr that shows no content."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

Payload = dict[str, Any]


class Message(NamedTuple):
    """One appended JSON object. `text` is its JSON as stored, byte for byte; `payload` is that text, parsed.

    A tuple, because a thread may be read by the ten thousand.
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

    def __repr__(self) -> str:
        return f"Message(seq={self.seq}, pos={self.pos}, role={self.role!r}, tokens={self.tokens}, …)"


class Element(NamedTuple):
    """One piece of a view: a message, or the messages that stand for the span of a compaction."""

    seq: int
    end_seq: int
    pos: int
    messages: tuple[Payload | None, ...]
    tokens: int
    number: int | None
    created_at: datetime

    @property
    def is_summary(self) -> bool:
        return self.number is not None

    def __repr__(self) -> str:
        return f"Element(seq={self.seq}, end_seq={self.end_seq}, tokens={self.tokens}, number={self.number}, …)"


@dataclass(frozen=True, slots=True)
class View:
    """What the model should see of a thread at a pos."""

    thread_id: str
    pos: int
    elements: tuple[Element, ...] = field(repr=False)

    @property
    def messages(self) -> list[Payload | None]:
        """In order, every active span folded. A redacted message is None."""
        return [message for element in self.elements for message in element.messages]

    @property
    def tokens(self) -> int:
        return sum(element.tokens for element in self.elements)


@dataclass(frozen=True, slots=True)
class Thread:
    """Where a thread stands. `head` is the last link of its chain; keep a copy elsewhere to hold us to it."""

    thread_id: str
    metadata: Payload = field(repr=False)
    created_at: datetime
    last_seq: int
    last_number: int
    last_pos: int
    view_tokens: int
    last_at: datetime | None
    head: bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written. `pos` is None where it concerns the whole thread."""

    pos: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a verification looked at and what it found. `level` is the deepest level it reached."""

    thread_id: str
    level: str
    entries: int
    redacted: int
    findings: tuple[Finding, ...]
    head: bytes

    def __bool__(self) -> bool:
        raise TypeError("a report is not a yes or a no: look at .findings and .level")
