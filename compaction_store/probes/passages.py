"""Splits a summary into passages, for example to find out whether one of its sentences repeats a whole order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from compaction_store.language.force import mentions_force
from compaction_store.language.orders import rare_words, wanted_words
from compaction_store.language.sentences import sentences
from compaction_store.language.words import Phrases, words

# A longer sentence is split, so that the cost of a question does not depend on the length of sentences.
_LONGEST = 600
# At most this many passages are searched for an order.
_MOST_PASSAGES = 50


class Passages:
    """The sentences and lines of some texts, which can be searched by their words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts)
        self._places = [(n, *place) for n, text in enumerate(self.texts) for place in _short(text)]

    @cached_property
    def _rare(self) -> list[frozenset[str]]:
        return [rare_words(self.text(index)) for index in range(len(self._places))]

    @cached_property
    def _by_word(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for index, rare in enumerate(self._rare):
            for word in rare:
                found[word].append(index)
        return found

    def says(self, order: str) -> bool:
        """Returns whether a passage has all rare words of an order, and a word such as "never" or "must".

        The words may be spread over two neighbouring passages. In a script without spaces, seven of ten pairs of
        characters are enough.
        """
        wanted = wanted_words(order)
        if not wanted:
            return False
        least = len(wanted) if not any(map(_is_pair, wanted)) else -(-len(wanted) * 7 // 10)
        # If some words may be missing, look for so many of the rarest words that every match has at least one of them.
        starts = sorted(wanted, key=lambda word: (len(self._by_word.get(word, ())), word))[: len(wanted) - least + 1]
        for index in dict.fromkeys(islice((i for word in starts for i in self._by_word.get(word, ())), _MOST_PASSAGES)):
            for first in (index, index - 1):
                both = [at for at in (first, first + 1) if 0 <= at < len(self._places)]
                there = frozenset[str]().union(*(self._rare[at] for at in both))
                if len(wanted & there) >= least and any(mentions_force(self.text(at)) for at in both):
                    return True
        return False

    def holding(self, wanted: Iterable[str]) -> set[str]:
        """Returns those of the given texts that occur in the passages word for word."""
        phrases = Phrases((text, words(text)) for text in wanted)
        return {text for one in self.texts for text, _ in phrases.found(words(one))}

    def with_phrases(self, phrases: Iterable[str]) -> dict[str, list[int]]:
        """Returns for each phrase the indexes of the passages that have it.

        A phrase is words with spaces between them.
        """
        wanted = list(dict.fromkeys(phrases))
        found: dict[str, list[int]] = {phrase: [] for phrase in wanted}
        automaton = Phrases((phrase, phrase.split()) for phrase in wanted)
        if automaton:
            for index in range(len(self._places)):
                for phrase, _ in automaton.found(words(self.text(index))):
                    found[phrase].append(index)
        return found

    def has_words(self, index: int, wanted: Sequence[str]) -> bool:
        return all(word in self._rare[index] for word in wanted)

    def place(self, index: int) -> tuple[int, int, int]:
        """Returns the index of the text that has a passage, and the start and the end of the passage in it."""
        return self._places[index]

    def text(self, index: int) -> str:
        text, start, end = self._places[index]
        return self.texts[text][start:end]


def _short(text: str) -> Iterator[tuple[int, int]]:
    """Yields the places of the sentences in a text. Splits long sentences."""
    for start, end in sentences(text):
        while end - start > _LONGEST:
            space = text.rfind(" ", start + _LONGEST // 2, start + _LONGEST)
            cut = space if space > 0 else start + _LONGEST
            yield start, cut
            start = cut  # noqa: PLW2901 — the rest of it
        yield start, end


def _is_pair(word: str) -> bool:
    return len(word) == 2 and not word.isascii()  # noqa: PLR2004
