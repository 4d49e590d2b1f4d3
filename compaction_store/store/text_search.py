"""Finds a text in stored messages, records and metadata, to answer requests to erase.

A match is literal, but case, Unicode normal forms, invisible characters and the length of white space do not matter.
Every string of a message is searched. The readable text of a message is also searched as a whole, to find a text that
is split into blocks. JSON escapes, as in the arguments of tool calls, are decoded. Pictures and files are not searched.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
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
_WORD = re.compile("[a-z0-9]+")
_ASCII = bytes(range(128))
# A number that is read and written again may have other digits, such as 1e3, which becomes 1000.0.
_FRACTION = re.compile(r"[:,\[]\s*-?[0-9]+[.eE]")


class TextSearch:
    """A text to search for."""

    def __init__(self, text: object) -> None:
        self._wanted = folded(text).strip() if isinstance(text, str) and len(text) <= MOST_CHARACTERS else ""
        if not self._wanted:
            given = type(text).__name__
            if isinstance(text, str):
                given = f"{len(text):,}" if len(text) > MOST_CHARACTERS else "none"
            raise InvalidInput(f"text must be 1 to {MOST_CHARACTERS:,} visible characters, not {given}")
        # The longest word of ASCII letters and digits. A document without it has no match.
        self._word = max(_WORD.findall(self._wanted), key=len, default="").encode()

    def may_be_in(self, *documents: str | None) -> bool:
        """Returns whether the text of a document may have a match. Most documents are refused without parsing them."""
        return any(text is not None and self._may_be_in(text) for text in documents)

    def _may_be_in(self, text: str) -> bool:
        # Case, escapes such as \n, and most characters that are not ASCII leave a word of ASCII as it is.
        data = text.encode()  # str.lower() is slow for text that is not ASCII
        return (
            self._word in data.lower()
            or b"\\u" in data
            or any(map(_may_change_words, set(data.translate(None, _ASCII).decode())))
            or (not self._word.isalpha() and _FRACTION.search(text) is not None)
        )

    def in_message(self, thread_id: str, message: Message) -> Found | None:
        if message.payload is None:
            return None
        # Join the blocks of the readable text, because a match may span several blocks.
        excerpt = self._excerpt(" ".join(read(message.payload)[0])) or self._in_strings((message.payload, message.meta))
        return None if excerpt is None else Found(thread_id, "message", message.seq, None, message.created_at, excerpt)

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


@cache
def _may_change_words(character: str) -> bool:
    """Returns whether a character becomes letters or digits of ASCII, or vanishes, when text is folded."""
    kept = folded(character)
    return not kept or _WORD.search(kept) is not None


def _unescaped(text: str) -> Iterator[str]:
    """Yields the text, then the text with one, two and three levels of JSON escapes decoded."""
    yield text
    for _ in range(_DEEPEST):
        if "\\" not in text:
            return
        undone = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _SHORT.get(found[2], found[2]), text)
        # Join the halves of surrogate pairs.
        undone = undone.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if undone == text:
            return
        yield undone
        text = undone
