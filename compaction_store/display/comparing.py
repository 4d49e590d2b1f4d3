"""Prepares a record's originals and their replacement to be shown side by side, with marks on names and quotations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compaction_store.display.marks import Facts, Piece
from compaction_store.display.saying import said
from compaction_store.display.visible import CUT
from compaction_store.language.names import NameReader
from compaction_store.models import Compaction, Element, Message, Payload
from compaction_store.models.messages import is_erased

# The maximum number of messages, and of characters, with which a summary is compared.
_MOST_COMPARED = 2000
_MOST_COMPARED_BYTES = 8_000_000


@dataclass(frozen=True)
class Said:
    """A message in a list. If its text was cut, `pieces` has its beginning, and `cut` is the length of all of it."""

    head: str
    seq: int | None
    pieces: list[Piece]
    cut: int
    erased: bool = False


def cut_text(text: str) -> tuple[str, int]:
    """Returns the beginning of a text, and the length of the whole text if it was cut, else 0."""
    return (text, 0) if len(text) <= CUT else (text[:CUT], len(text))


def replacements(record: Compaction) -> list[str]:
    """Returns the summary of a record, or the texts of the messages that replace its span."""
    if record.summary_text is not None:
        return [record.summary_text]
    return [said(payload) for payload in record.replacement or []]


def without_text(record: Compaction) -> str:
    """Returns what to show in place of a replacement's text if a record has none.

    This is the reason or, for a revocation, what the view shows again.
    """
    if record.outcome == "failed":
        return "nothing: the attempt failed, and the view stayed as it was"
    if record.outcome == "rejected":
        return "nothing: the attempt was refused, its text was not kept, and the view stayed as it was"
    if record.outcome == "observed":
        return "nothing is on record here: the provider compacted on its own side"
    if record.kind == "revocation":
        return f"what the view showed before record {record.revokes:,}" if record.revokes else "what was there before"
    return "nothing: the span was removed from the view"


def original(message: Message, kept: Facts | None, *, content: bool, whole: bool = False) -> Said:
    """Returns a message as it is shown in a list. Its text is cut unless `whole`.

    Names and quotations that `kept` lacks are marked as lost.
    """
    head = f"{message.seq:,} {message.role or '—'}, {message.tokens:,} tokens"
    if message.redacted or not content:
        return Said(head, message.seq, [], 0, erased=message.redacted)
    text, cut = (said(message.payload), 0) if whole else cut_text(said(message.payload))
    pieces = [Piece(text, "")] if kept is None else kept.marked(text, missing="lost")
    return Said(head, message.seq, pieces, cut)


def element_texts(element: Element, *, content: bool) -> list[Said]:
    """Returns the messages of one element of a view, as they are shown in a list."""
    found = []
    for payload in element.messages:
        if is_erased(payload):
            found.append(Said("", None, [], 0, erased=True))
            continue
        text, cut = cut_text(said(payload)) if content else ("", 0)
        found.append(Said(_role(payload), None, [Piece(text, "")] if text else [], cut))
    return found


def _role(payload: Payload) -> str:
    role = payload.get("role", payload.get("type"))
    return role if isinstance(role, str) else ""


class Sources:
    """The facts of a record's originals, to compare with its replacement; none if the originals are too large."""

    def __init__(self, record: Compaction, replaced: Iterable[str], names: NameReader) -> None:
        span = record.start_seq or 0, record.end_seq or 0
        self._is_too_long = span[1] - span[0] >= _MOST_COMPARED
        self._facts = Facts(only=replaced, names=names, span=span)
        self._bytes = 0

    def add(self, message: Message) -> bool:
        """Adds an original. Returns False if no more need be added: all facts are found, or there is too much text."""
        text = "" if message.payload is None or self._is_too_long else said(message.payload)
        self._bytes += len(text)
        if self._is_too_long or self._bytes > _MOST_COMPARED_BYTES:
            self._is_too_long = True
            return False
        self._facts.add(text)
        return not self._facts.is_complete

    def add_all(self, messages: Iterable[Message]) -> None:
        """Adds originals until no more need be added."""
        for message in messages:
            if not self.add(message):
                return

    @property
    def facts(self) -> Facts | None:
        """The facts of the added originals; None if these are too large."""
        return None if self._is_too_long else self._facts
