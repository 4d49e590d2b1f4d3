"""Marks the names and quotations that a summary kept, lost or added, compared with its sources.

Pure. Names are paths, identifiers and numbers, as the probes read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from compaction_store.probes import named_at, quotations
from compaction_store.probes.names import keys
from compaction_store.probes.words import words

Mark = Literal["", "kept", "lost", "new"]


class Piece(NamedTuple):
    """A piece of a text, with its mark."""

    text: str
    mark: Mark


class Facts:
    """The names and the quotations that texts have, to compare other texts with."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._keys: set[str] = set()
        self._words: list[str] = []
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        for name, _, _ in named_at(text):
            self._keys.update(keys(name))
        # All words as one string, with a mark at both ends, in which quotations are searched.
        self._words.append(f" {' '.join(words(text))} ")

    def _has_name(self, found: Iterable[str]) -> bool:
        return not self._keys.isdisjoint(found)

    def _has_words(self, text: str) -> bool:
        wanted = f" {' '.join(words(text))} "
        return any(wanted in each for each in self._words)

    def marked(self, text: str, *, missing: Mark) -> list[Piece]:
        """Splits a text into pieces: names and quotations in these facts are marked `kept`, others `missing`."""
        pieces: list[Piece] = []
        last = 0
        for start, end, mark in self._marks(text, missing):
            if start > last:
                pieces.append(Piece(text[last:start], ""))
            pieces.append(Piece(text[start:end], mark))
            last = end
        if last < len(text):
            pieces.append(Piece(text[last:], ""))
        return pieces

    def _marks(self, text: str, missing: Mark) -> Iterator[tuple[int, int, Mark]]:
        found = [
            (start, end, self._has_words(text[start:end])) for start, end in quotations(text)
        ]  # fmt: skip
        found += [(start, end, self._has_name([name.key])) for name, start, end in named_at(text) if name.is_strong]
        last = 0
        # If two overlap, the first one counts; of two that begin at the same place, the longer one.
        for start, end, is_there in sorted(found, key=lambda each: (each[0], -each[1])):
            if start >= last:
                yield start, end, "kept" if is_there else missing
                last = end
