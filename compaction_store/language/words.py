"""Splits text into words, and finds many phrases in a text in one pass.

Two texts have the same words if they differ only in case, spaces, punctuation and markup. Text in a script without
spaces, such as Chinese, is split into characters.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from compaction_store.module_data import ModuleData

#: The characters of scripts without spaces between words, as ranges for a character class of a regular expression.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"\\d{{1,3}}(?:,\\d{{3}})+(?!\\d)|[{UNSPACED}]|[^\\W{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Signs outside ASCII that are in no word and no name: quotation marks, dashes, bullets, arrows, lines and boxes.
SIGNS = (
    "\u00ab\u00b4\u00b7\u00bb\u2013\u2014\u2018-\u201a\u201c-\u201e\u2022\u2026\u2039\u203a\u2190-\u21ff\u2500-\u25ff"
)
_OTHER = re.compile(f"[^\x00-\x7f{SIGNS}]")
_ASCII_WORD = re.compile("[a-z0-9_]+")
_THOUSANDS = re.compile(r",\d{3}")

Words = Sequence[str]
Key = TypeVar("Key", bound=Hashable)


def is_simple(text: str) -> bool:
    """Returns whether a text has only ASCII and `SIGNS`: simpler patterns find the same words and names in it."""
    return text.isascii() or _OTHER.search(text) is None


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case. Removes separators of thousands, so `1,200` becomes `1200`."""
    has_thousands = _THOUSANDS.search(text) is not None
    if is_simple(text):
        found = (_WORD if has_thousands else _ASCII_WORD).findall(text.lower())
    else:
        # Word by word, because lower-casing a whole text may split words differently: "İ" gets a combining dot.
        found = [word.casefold() for word in _WORD.findall(text)]
    return [word.replace(",", "") for word in found] if has_thousands else found


def word_places(text: str) -> list[tuple[int, int]]:
    """Returns the start and the end of each word in `words(text)`."""
    return [word.span() for word in _WORD.finditer(text)]


def is_unspaced(word: str) -> bool:
    """Returns whether a word is a character of a script without spaces."""
    return _UNSPACED.match(word) is not None


class Phrases(Generic[Key]):
    """Finds many phrases in one pass over the words of a text, with the Aho-Corasick algorithm."""

    def __init__(self, phrases: Iterable[tuple[Key, Words]]) -> None:
        # A state is a prefix of a phrase. State 0 is the empty prefix.
        self._next: list[dict[str, int]] = [{}]
        self._keys: list[list[Key]] = [[]]
        for key, phrase in phrases:
            state = 0
            for word in phrase:
                state = self._next[state].setdefault(word, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._keys.append([])
            if state:
                self._keys[state].append(key)
        self._link()

    def _link(self) -> None:
        """Links each state to its longest suffix that is a state, and to its longest suffix that is a whole phrase."""
        self._end = array("q", [0]) * len(self._next)
        self._whole = array("q", [0]) * len(self._next)
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            end = self._end[state]
            self._whole[state] = state if self._keys[state] else self._whole[end]
            for word, following in self._next[state].items():
                self._end[following] = self._following(end, word)
                waiting.append(following)

    def _following(self, state: int, word: str) -> int:
        steps = self._next
        while state and word not in steps[state]:
            state = self._end[state]
        return steps[state].get(word, 0)

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def found(self, text: Iterable[str]) -> Iterator[tuple[Key, int]]:
        """Yields each phrase in a sequence of words, with the index of the last word of its first occurrence."""
        if not self:
            return
        steps, ends, wholes = self._next, self._end, self._whole
        firsts = steps[0]
        seen: set[int] = set()
        state = 0
        for index, word in enumerate(text):
            if not state and word not in firsts:
                continue
            while state and word not in steps[state]:
                state = ends[state]
            state = steps[state].get(word, 0)
            whole = wholes[state]
            # If a phrase was found before, its suffixes were found too.
            while whole and whole not in seen:
                seen.add(whole)
                for key in self._keys[whole]:
                    yield key, index
                whole = wholes[ends[whole]]


_QUOTED = re.compile(ModuleData(__file__).pattern("quoted"), re.MULTILINE)
_EDGES = re.compile(r"[\w<({\[@#$/.~+*-].*[^\s,:=(\[{]", re.DOTALL)
_LEFT_OUT = re.compile(r"\.{3}|\u2026|\[[^\]\n]{0,40}\]")
# A text without spaces, such as a path, is a name and not a quotation.
_IS_NAME = re.compile(r"[!-~]+").fullmatch
# A shorter quotation is a name or a figure of speech.
_LEAST_WORDS = 3
_MOST_WORDS = 60


def quotations(text: str) -> Iterator[tuple[int, int]]:
    """Yields the places of quotations, and of their parts between ellipses, that have 3 to 60 words and are no name."""
    for quoted in _QUOTED.finditer(text):
        start, end = quoted.span(quoted.lastindex or 0)
        if text[start - 1] == "\u00ab":
            # French has spaces between the quotation marks and the text.
            start, end = end - len(text[start:end].lstrip()), start + len(text[start:end].rstrip())
        if _EDGES.fullmatch(text, start, end) is None:
            continue
        last = start
        for gap in (*_LEFT_OUT.finditer(text, start, end), None):
            until = end if gap is None else gap.start()
            part = text[last:until]
            if _LEAST_WORDS <= len(words(part)) <= _MOST_WORDS and not _IS_NAME(part):
                yield last, until
            last = end if gap is None else gap.end()
