"""Chooses the most informative sentences that fit a number of characters, and lists names that they leave out.

Each kind of text, such as users' texts, conclusions or errors, has a share of the room, so that long results cannot
take all of it. Within a share, sentences are chosen for the names, paths, figures and rare words that no chosen
sentence has yet. Some of the room is used to list the remaining names without their sentences. The same sentences
always give the same choice. The time is O(n log n).
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from compaction_store.language.names import NameReader
from compaction_store.language.words import UNSPACED
from compaction_store.probes.own_writing import piece_at_cut
from compaction_store.tokens import MARK

_WORD = re.compile(r"\w+")
# In scripts without spaces between words, pairs of characters are used as words.
_UNSPACED = re.compile(f"[{UNSPACED}]")

# The largest share of the room for standing orders. They come first, because a lost order is worse than a lost fact.
_ORDERS = 0.6
# Shares of the room that is left after the orders: first for the list of names, then for each kind of text. All kinds
# compete for the room that these shares do not use.
_LISTED = 0.35
_SHARES = {
    "error": 0.12, "user": 0.33, "decision": 0.24, "notes": 0.25, "concluding": 0.2, "assistant": 0.3, "call": 0.03,
}  # fmt: skip
# The weight of a name that only results have, and of a name that a text or a call uses. The weight of a word depends on
# how few sentences have the word.
_NAME_WORTH, _USED_WORTH = 2, 5
_SCALE = 1000
# A gain of at least this part of the best gain is good enough. Waiting for the best would compute the gains of similar
# sentences again and again.
_NEARLY = 0.8
# The length of the shortest name that is listed. A shorter name means nothing without its sentence.
_SHORTEST_NAME = 3
_HEAD = "named: "
# The beginning of a line of an earlier summary, whose seq is not a figure of the conversation.
_SEQ = re.compile(r"\A\[\d{1,19}\] ")
_BETWEEN = ", "


class Sentence(NamedTuple):
    """A sentence with its place in the order of all sentences, the seq of its message, and its speaker as the label.

    `kind` decides which share of the room the sentence uses. `whole` is the text that `text` was cut from; its names
    are listed too.
    """

    place: int
    seq: int
    label: str
    text: str
    kind: str
    weight: float
    whole: str | None = None


class Chosen(NamedTuple):
    """The chosen sentences, in order, and names that no chosen sentence has."""

    sentences: list[Sentence]
    names: list[str]


def _names_in(text: str, reader: NameReader) -> list[str]:
    """Returns every occurrence of a name, path, identifier or figure, in order. Leaves out names that were cut."""
    text = _SEQ.sub("", text) if text[:1] == "[" else text
    if MARK in text:
        return [name.text for name, start, end in reader.at(text) if piece_at_cut(text, start, end) is None]
    return [name.text for name in reader.each(text)]


def _words(text: str) -> set[str]:
    if text.isascii():
        return set(_WORD.findall(text.lower()))
    words: set[str] = set()
    for word in _WORD.findall(text.lower()):
        if _UNSPACED.search(word):
            words.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        else:
            words.add(word)
    return words


class Cover:
    """Sentences with the weights of their words and names."""

    def __init__(self, sentences: Sequence[Sentence], reader: NameReader) -> None:
        self.sentences = sentences
        self._names = [_names_in(sentence.text, reader) for sentence in sentences]
        words = [_words(sentence.text) for sentence in sentences]
        spread = Counter(word for found in words for word in found)
        count = len(sentences)
        # Use integers, because a sum of floats would depend on their order.
        self._worth = {word: round(_SCALE * math.log(1 + count / times)) for word, times in spread.items()}
        self._first: dict[str, int] = {}
        self._times = Counter[str]()
        self._used: set[str] = set()
        for sentence, found in zip(sentences, self._names, strict=True):
            for name in found if sentence.whole is None else _names_in(sentence.whole, reader):
                self._first.setdefault(name, len(self._first))
                self._times[name] += 1
                if sentence.kind not in {"result", "error"}:
                    self._used.add(name)
        # Names get a space in front, so that they differ from all words.
        for name in self._first:
            self._worth[f" {name}"] = _SCALE * (_USED_WORTH if name in self._used else _NAME_WORTH)
        self._parts = [
            frozenset([*found, *(f" {name}" for name in named if name in self._first)])
            for found, named in zip(words, self._names, strict=True)
        ]
        self.heads = [len(head(sentence)) for sentence in sentences]
        self.lengths = [len(sentence.text) for sentence in sentences]
        self.weights = [sentence.weight for sentence in sentences]
        self.sizes = [20 + length for length in self.lengths]
        self._with: dict[str, list[int]] = {}
        for index, parts in enumerate(self._parts):
            for part in parts:
                self._with.setdefault(part, []).append(index)
        self._whole = [sum(map(self._worth.__getitem__, parts)) for parts in self._parts]

    def choose(self, room: int) -> Chosen:
        """Chooses sentences and names that take at most `room` characters together, including the heads of lines."""
        choice = _Choice(self, room)
        kinds = {sentence.kind for sentence in self.sentences}
        if "order" in kinds:
            choice.fill(self._of("order"), int(room * _ORDERS))
        listed = min(int(choice.left * _LISTED), sum(len(name) + len(_BETWEEN) for name in self._first))
        choice.left -= listed
        rest = choice.left
        for kind, share in _SHARES.items():
            if kind in kinds:
                choice.fill(self._of(kind), int(rest * share))
        choice.fill(range(len(self.sentences)), choice.left)
        names = self._unnamed(choice.chosen, choice.left + listed)
        spent = sum(len(name) + len(_BETWEEN) for name in names) + len(_HEAD) * bool(names)
        # Use the room that the list of names does not need for more sentences.
        choice.left += listed - spent
        choice.fill(range(len(self.sentences)), choice.left)
        return Chosen([self.sentences[i] for i in sorted(choice.chosen)], names)

    def _of(self, kind: str) -> Iterator[int]:
        return (i for i, sentence in enumerate(self.sentences) if sentence.kind == kind)

    def worth_of_all(self) -> list[int]:
        """Returns the sum of the weights of each sentence's words and names."""
        return list(self._whole)

    def cover(self, index: int, covered: set[str], left: list[int]) -> None:
        """Adds a sentence's words and names to `covered`. Subtracts their weights from all sentences that have them."""
        for part in self._parts[index] - covered:
            worth = self._worth[part]
            for other in self._with[part]:
                left[other] -= worth
        covered.update(self._parts[index])

    def _is_worth_listing(self, name: str) -> bool:
        """Returns whether a name is worth listing. Short names, and likely names of fields in results, are not."""
        is_field = name not in self._used and not any(c.isdigit() or c in "/\\@" for c in name)
        return len(name) >= _SHORTEST_NAME and not is_field

    def _unnamed(self, chosen: Iterable[int], room: int) -> list[str]:
        """Returns names that no chosen sentence has, in order. Prefers used and frequent names if not all fit."""
        covered = {name for index in chosen for name in self._names[index]}
        left = [name for name in self._first if name not in covered and self._is_worth_listing(name)]
        left.sort(key=lambda name: (name not in self._used, -self._times[name], self._first[name]))
        room -= len(_HEAD)
        names: list[str] = []
        for name in left:
            if len(name) + len(_BETWEEN) <= room:
                room -= len(name) + len(_BETWEEN)
                names.append(name)
        return sorted(names, key=self._first.__getitem__)


class _Choice:
    """The sentences chosen so far, the words and names in them, and the number of characters left."""

    def __init__(self, cover: Cover, room: int) -> None:
        self._cover = cover
        self.left = room
        self.chosen: set[int] = set()
        self._covered: set[str] = set()
        # The weights that each sentence would add.
        self._new = cover.worth_of_all()
        self._begun: set[tuple[int, str]] = set()

    def fill(self, indexes: Iterable[int], room: int) -> None:
        """Chooses the sentences with the largest gains until the room is full.

        The gain of a sentence can only shrink while others are chosen. A gain that was just computed again and is near
        the best known gain is therefore near the best of all gains.
        """
        room, nothing = min(room, self.left), not self.chosen
        # Compute the gains here with the formula of `_gain`, to save a call for each sentence.
        new, weights, sizes = self._new, self._cover.weights, self._cover.sizes
        heap = [(-(weights[i] * new[i] / sizes[i]), i) for i in indexes if i not in self.chosen]
        heapq.heapify(heap)
        shortest = min((self._cover.lengths[i] for _, i in heap), default=0)
        # Stop when not even the shortest sentence fits. If nothing has been chosen yet, one sentence may exceed the
        # share.
        while heap and room > (0 if nothing else shortest):
            known, index = heapq.heappop(heap)
            cost = self._cost(index)
            if cost > (self.left if nothing else room):
                continue
            now = -self._gain(index)
            if heap and now > known and now > _NEARLY * heap[0][0]:
                heapq.heappush(heap, (now, index))
                continue
            if now == 0:
                continue
            nothing = False
            room -= cost
            self.left -= cost
            self._take(index)

    def _gain(self, index: int) -> float:
        """Returns the weight of the words and names that a sentence adds, relative to its length."""
        return self._cover.weights[index] * self._new[index] / self._cover.sizes[index]

    def _cost(self, index: int) -> int:
        sentence = self._cover.sentences[index]
        begins = (sentence.seq, sentence.label) not in self._begun
        return self._cover.lengths[index] + (self._cover.heads[index] if begins else 0) + 1

    def _take(self, index: int) -> None:
        sentence = self._cover.sentences[index]
        self.chosen.add(index)
        self._begun.add((sentence.seq, sentence.label))
        self._cover.cover(index, self._covered, self._new)


def head(sentence: Sentence) -> str:
    return f"[{sentence.seq}] {sentence.label}: " if sentence.label else ""


def written(chosen: Chosen) -> str:
    """Returns the chosen sentences, with one line for each speaker in a message, and a line with the names."""
    lines: list[str] = []
    last: tuple[int, str] | None = None
    for sentence in chosen.sentences:
        if sentence.label and (sentence.seq, sentence.label) == last:
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(head(sentence) + sentence.text)
        last = sentence.seq, sentence.label
    if chosen.names:
        lines.append(_HEAD + _BETWEEN.join(chosen.names))
    return "\n".join(lines)
