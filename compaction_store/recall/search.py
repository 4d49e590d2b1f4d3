"""Searches messages for words, one message at a time. Memory use does not grow with the length of the thread."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import NamedTuple

from compaction_store.models import Compaction, Message
from compaction_store.recall.calls import without_recall
from compaction_store.recall.definitions import BadCall
from compaction_store.tokens.message_text import read

_WORD = re.compile(r'"([^"]*)"|([^\s"]+)')
_MOST_WORDS = 16
_BEFORE, _AFTER = 100, 200
# One call searches at most this much, which takes a few seconds, and then returns `next`.
_MOST_MESSAGES = 20_000
_MOST_CHARACTERS = 64 * 1024 * 1024
_MOST_RANGES = 20


def words(query: str) -> list[str]:
    """Splits a query into distinct words and quoted phrases. Raises BadCall if there are none or too many."""
    found = [(quoted or plain).strip() for quoted, plain in _WORD.findall(query)]
    listed = list({word.casefold(): word for word in found if word}.values())
    if not 1 <= len(listed) <= _MOST_WORDS:
        raise BadCall(f"query must have 1 to {_MOST_WORDS} words or quoted phrases, not {len(listed)}")
    return listed


class Withdrawn:
    """The ranges of seqs that rewinds and clears hide from the view. Searches leave these messages out by default."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._added: list[tuple[int, int]] = []

    def add(self, record: Compaction) -> bool:
        """Adds the seqs that a record hides, unless it was revoked. Returns True, so that iteration goes on."""
        if record.start_seq is not None and record.end_seq is not None and record.status != "revoked":
            self._added.append((record.start_seq, record.end_seq))
        return True

    def between(self, first: int, last: int) -> list[list[int]]:
        """Returns the hidden ranges of seqs from `first` to `last`, both inclusive."""
        self._merge()
        overlapping = ((max(s, first), min(e, last)) for s, e in zip(self._starts, self._ends, strict=True))
        return [[start, end] for start, end in overlapping if start <= end]

    def __contains__(self, seq: int) -> bool:
        self._merge()
        place = bisect_right(self._starts, seq) - 1
        return place >= 0 and seq <= self._ends[place]

    def _merge(self) -> None:
        if not self._added:
            return
        ranges = sorted([*zip(self._starts, self._ends, strict=True), *self._added])
        self._added = []
        self._starts, self._ends = [], []
        for start, end in ranges:
            if self._ends and start <= self._ends[-1] + 1:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)


class Hit(NamedTuple):
    seq: int
    role: str | None
    words: tuple[str, ...]
    excerpt: str
    withdrawn: bool = False


@dataclass
class Search:
    """The state of a search.

    `hits` are the messages with all the words. `some` are the messages with the largest number of the words, in case no
    message has all of them. `last` is the seq of the last message that was searched.
    """

    words: list[str]
    limit: int
    last: int
    withdrawn: Withdrawn = field(default_factory=Withdrawn)
    with_withdrawn: bool = False
    hits: list[Hit] = field(default_factory=list)
    erased: int = 0
    _some: list[tuple[int, int, Hit]] = field(default_factory=list)
    _erased: list[list[int]] = field(default_factory=list)
    _messages: int = 0
    _characters: int = 0

    def look(self, message: Message) -> bool:
        """Searches one message. Returns False if the search is done: enough was found or searched."""
        self.last = message.seq
        self._messages += 1
        is_withdrawn = message.seq in self.withdrawn
        if message.payload is None:
            self._note_erased(message.seq)
        elif self.with_withdrawn or not is_withdrawn:
            self._characters += len(message.text or "")
            found = self._found(message, withdrawn=is_withdrawn)
            if found is not None and len(found.words) == len(self.words):
                self.hits.append(found)
            elif found is not None and not self.hits:
                self._keep(found)
        enough = self._messages >= _MOST_MESSAGES or self._characters >= _MOST_CHARACTERS
        return len(self.hits) < self.limit and not enough

    @property
    def some(self) -> list[Hit]:
        """The messages that contain the largest number of the words, in the order of their seqs."""
        return sorted(hit for _, _, hit in self._some)

    @property
    def erased_seqs(self) -> list[list[int]]:
        """The ranges of seqs of erased messages, at most the first twenty."""
        return self._erased

    def _found(self, message: Message, *, withdrawn: bool) -> Hit | None:
        texts = read(without_recall(message.payload or {}))[0]
        best: tuple[str, ...] = ()
        anchor = ""
        there: set[str] = set()
        for text in texts:
            plain = text.casefold()
            inside = tuple(word for word in self.words if word.casefold() in plain)
            there.update(inside)
            if len(inside) > len(best):
                best, anchor = inside, text
        if not there:
            return None
        inside = tuple(word for word in self.words if word in there)
        return Hit(message.seq, message.role, inside, _excerpt(anchor, best), withdrawn)

    def _keep(self, hit: Hit) -> None:
        entry = (len(hit.words), -hit.seq, hit)
        if len(self._some) < self.limit:
            heappush(self._some, entry)
        else:
            heappushpop(self._some, entry)

    def _note_erased(self, seq: int) -> None:
        self.erased += 1
        if self._erased and self._erased[-1][1] == seq - 1:
            self._erased[-1][1] = seq
        elif len(self._erased) < _MOST_RANGES:
            self._erased.append([seq, seq])


def _excerpt(text: str, inside: tuple[str, ...]) -> str:
    """Returns the text around the longest matching word, because the longest word is probably the rarest."""
    place = re.search(re.escape(max(inside, key=len)), text, re.IGNORECASE)
    # Casefolding can match what IGNORECASE does not, such as "ß" and "ss". The excerpt is then the text's beginning.
    start, end = (0, 0) if place is None else place.span()
    low, high = max(0, start - _BEFORE), end + _AFTER
    return ("…" if low else "") + text[low:high] + ("…" if high < len(text) else "")
