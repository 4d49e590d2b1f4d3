"""Finds a text in stored messages, records and metadata, to answer requests to erase.

A match is literal, but case, Unicode normal forms, invisible characters and the length of white space do not matter.
Every string of a message is searched. The readable text of a message is also searched as a whole, to find a text that
is split into blocks. JSON escapes, as in the arguments of tool calls, are decoded. Pictures and files are not searched.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from compaction_store.errors import InvalidInput
from compaction_store.models import Compaction, Found, Message, Thread
from compaction_store.tokens.message_text import read

MOST_CHARACTERS = 1000
_BEFORE, _AFTER = 40, 80
_DEEPEST = 3
_SPACE = re.compile(r"\s+")
# Invisible characters that may split a word: soft hyphens, zero-width spaces and joiners, variation selectors.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class TextSearch:
    """A text to search for."""

    def __init__(self, text: object) -> None:
        self._wanted = folded(text).strip() if isinstance(text, str) and len(text) <= MOST_CHARACTERS else ""
        if not self._wanted:
            given = type(text).__name__
            if isinstance(text, str):
                given = f"{len(text):,}" if len(text) > MOST_CHARACTERS else "none"
            raise InvalidInput(f"text must be 1 to {MOST_CHARACTERS:,} visible characters, not {given}")

    def in_message(self, thread_id: str, message: Message) -> Found | None:
        if message.payload is None:
            return None
        # Join the blocks of the readable text, because a match may span several blocks.
        excerpt = self._excerpt(" ".join(read(message.payload)[0])) or self._in_strings((message.payload, message.meta))
        if excerpt is None:
            return None
        return Found(thread_id, "message", message.seq, None, message.created_at, excerpt)

    def in_record(self, record: Compaction) -> Found | None:
        excerpt = self._in_strings(record.body)
        if excerpt is None:
            return None
        return Found(record.thread_id, "compaction", None, record.number, record.created_at, excerpt)

    def in_thread(self, thread: Thread) -> Found | None:
        excerpt = self._in_strings(thread.metadata)
        return None if excerpt is None else Found(thread.thread_id, "metadata", None, None, thread.created_at, excerpt)

    def _in_strings(self, value: Any) -> str | None:
        return next((excerpt for text in strings(value) if (excerpt := self._excerpt(text)) is not None), None)

    def _excerpt(self, given: str) -> str | None:
        """Returns the text around the first match, or None. Also searches the text with JSON escapes decoded."""
        for written in _unescaped(given):
            text = folded(written)
            place = text.find(self._wanted)
            if place >= 0:
                low, high = max(0, place - _BEFORE), place + len(self._wanted) + _AFTER
                return ("…" if low else "") + text[low:high] + ("…" if high < len(text) else "")
        return None


def folded(text: str) -> str:
    """Removes the differences that a search ignores, such as case, normal forms and invisible characters."""
    if not text.isascii():
        # Normalize twice, because case folding may undo the normalization.
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = _UNSEEN.sub("", text)
    return _SPACE.sub(" ", text.casefold())


def strings(value: Any) -> Iterator[str]:
    """Yields every string of a JSON value, keys included."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            waiting += [*found.values(), *found.keys()]
        elif isinstance(found, list | tuple):
            waiting += found


def _unescaped(text: str) -> Iterator[str]:
    """Yields the text, then the text with one, two and three levels of JSON escapes decoded."""
    yield text
    for _ in range(_DEEPEST):
        if "\\" not in text:
            return
        undone = _ESCAPE.sub(_character, text)
        # Join the halves of surrogate pairs.
        undone = undone.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if undone == text:
            return
        yield undone
        text = undone


def _character(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _SHORT.get(found[2], found[2])
