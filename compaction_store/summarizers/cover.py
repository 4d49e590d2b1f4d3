"""Chooses the most informative sentences that fit a number of characters, and writes them as the text of a state.

Each part has a share of the room. Within it, sentences are chosen for the names and rare words that no chosen sentence
has yet. The remaining names are listed. The same sentences always give the same choice, in O(n log n).
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from compaction_store.language.names import NameReader
from compaction_store.language.words import UNSPACED
from compaction_store.models.state import PARTS, PartName, State, StateLine
from compaction_store.probes.own_text import piece_at_cut
from compaction_store.tokens import MARK

# The parts whose lines are never joined, because each has a meaning of its own.
ITEMS = frozenset({"orders", "files", "todos"})

_WORD = re.compile(r"\w+")
# In scripts without spaces between words, pairs of characters are used as words.
_UNSPACED = re.compile(f"[{UNSPACED}]")

# The order in which the parts get their shares, after the orders: a short part comes before those that fill any room.
# Those in `_SURE` may use more than that for one sentence.
_FIRST: tuple[PartName, ...] = ("task", "next", "errors", "todos", "decisions", "facts", "files")
_SURE = frozenset({"task", "next", "errors", "decisions"})
# The share of the room that is left after the orders for the list of names. All parts compete for the room that their
# shares do not use.
_LISTED = 0.14
# The list is at most this share of the text, and a name that is longer, or looks like data, is in no list.
_MOST_LISTED = 0.15
_DATA = re.compile(r".{81,}|[0-9a-fA-F]{16,}|(?=[^\W_]*\d)(?=[^\W_]*[A-Z])(?=[^\W_]*[a-z])[^\W_]{20,}=*|\d[\d:.,-]*")
# A sentence of less weight says nothing alone. It is chosen if nothing else is.
_LEAST_WEIGHT = 0.2
# The beginning of a request may use this many characters, or this part of the whole room, but at most half of the rest.
_LEAST_LEAD, _LEAD_PART = 120, 5
_SMALL = 400
# The text between two sentences of a message if others between them are left out.
_GAP = f" {MARK} "
# The weight of a name that only results have, and of a name that a text or a call uses. The weight of a word depends on
# how few sentences have the word.
_NAME_WORTH, _USED_WORTH = 2, 5
_SCALE = 1000
# A gain of at least this part of the best gain is good enough. Waiting for the best would compute the gains of similar
# sentences again and again.
_NEARLY = 0.8
# The length of the shortest name that is listed. A shorter name means nothing without its sentence.
_SHORTEST_NAME = 3
HEAD = "named: "
_BETWEEN = ", "
# A field of a result, with its value.
_FIELD = re.compile(r"[^\s,:]+: ([^\s,]+)")


class Sentence(NamedTuple):
    """A sentence with its place in the order of all sentences, the seqs of its messages, and its part of the state.

    `kind` is who said it. `whole` is the text that `text` was cut from; its names are listed too.
    """

    place: int
    seqs: tuple[int, ...]
    part: PartName
    text: str
    kind: str
    weight: float
    whole: str | None = None

    @property
    def is_item(self) -> bool:
        """Whether it is never joined with other sentences of its message."""
        return self.part in ITEMS or self.kind in ("line", "call")


class Chosen(NamedTuple):
    """The chosen sentences, in order, and the names that no chosen sentence has, as they are listed."""

    sentences: list[Sentence]
    names: list[str]


def _names_in(text: str, reader: NameReader) -> list[str]:
    """Returns every occurrence of a name, path, identifier or figure, in order. Leaves out names that were cut."""
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
        # Use integers, because a sum of floats would depend on their order.
        self._worth = {word: round(_SCALE * math.log(1 + len(sentences) / times)) for word, times in spread.items()}
        self._first: dict[str, int] = {}
        self._times = Counter[str]()
        self._used: set[str] = set()
        # The names that somebody said, and not only code or data.
        self._told: set[str] = set()
        fields: dict[str, str] = {}
        for sentence, found in zip(sentences, self._names, strict=True):
            for name in found if sentence.whole is None else _names_in(sentence.whole, reader):
                self._first.setdefault(name, len(self._first))
                self._times[name] += 1
                if sentence.kind not in {"result", "fields", "file", "error"}:
                    self._used.add(name)
                # The name of a function says nothing without its inputs.
                if sentence.weight >= _LEAST_WEIGHT and not sentence.text.startswith(f"ran: {name}("):
                    self._told.add(name)
            for field in _FIELD.finditer(sentence.text) if sentence.kind == "fields" else ():
                fields.setdefault(field[1], field[0])
        # How a name is listed: behind the field that it had in a result, which says what it is.
        self._listed = {name: fields.get(name, name) for name in self._first}
        # Names get a space in front, so that they differ from all words.
        for name in self._first:
            self._worth[f" {name}"] = _SCALE * (_USED_WORTH if name in self._used else _NAME_WORTH)
        # An item has a mark of its own, so that it is never left out because other lines have its words.
        marks = [[f" {sentence.place}"] if sentence.is_item else [] for sentence in sentences]
        self._worth |= {mark: 1 for found in marks for mark in found}
        self._parts = [
            frozenset([*found, *(f" {name}" for name in named if name in self._first), *mark])
            for mark, found, named in zip(marks, words, self._names, strict=True)
        ]
        self.heads = [len(str(StateLine("", sentence.seqs))) for sentence in sentences]
        self.lengths = [len(sentence.text) for sentence in sentences]
        self.weights = [sentence.weight for sentence in sentences]
        self.sizes = [20 + length for length in self.lengths]
        self._with: dict[str, list[int]] = {}
        for index, parts in enumerate(self._parts):
            for part in parts:
                self._with.setdefault(part, []).append(index)
        # The sum of the weights of each sentence's words and names.
        self.worths = [sum(map(self._worth.__getitem__, parts)) for parts in self._parts]

    def choose(self, room: int) -> Chosen:
        """Chooses sentences and names that take at most `room` characters together, including the heads of lines."""
        choice = _Choice(self, room)
        found = {sentence.part for sentence in self.sentences}
        if "orders" in found:
            choice.fill(self._of("orders"), int(room * PARTS["orders"].share))
        listed = min(int(choice.left * _LISTED), sum(len(name) + len(_BETWEEN) for name in self._listed.values()))
        choice.left -= listed
        rest = choice.left
        parts = [part for part in _FIRST if part in found]
        total = sum(PARTS[part].share for part in parts)
        for part in parts:
            own = int(rest * PARTS[part].share / total) + _heading(part)
            # The beginning of a request comes first, without gaps.
            begun = choice.left
            least = max(_LEAST_LEAD, room // _LEAD_PART)
            choice.take_first(
                (i for i in self._of(part) if self.sentences[i].kind == "request"), max(own, min(least, begun // 2))
            )
            # In a small room, the assistant's other sentences have no share: they are chosen if there is room left.
            told = (i for i in self._of(part) if room > _SMALL or self.sentences[i].kind != "assistant")
            choice.fill(told, own - begun + choice.left, sure=part in _SURE and begun == choice.left)
        choice.fill(range(len(self.sentences)), choice.left)
        if not choice.chosen:
            choice.least = 0.0
            choice.fill(range(len(self.sentences)), choice.left)
        most = min(choice.left + listed, int((room - choice.left - listed) * _MOST_LISTED))
        names = self._unnamed(choice.chosen, most - choice.head_of_list)
        spent = sum(len(name) + len(_BETWEEN) for name in names) + choice.head_of_list * bool(names)
        # Use the room that the list of names does not need for more sentences.
        choice.left += listed - spent
        choice.fill(range(len(self.sentences)), choice.left)
        return Chosen([self.sentences[i] for i in sorted(choice.chosen)], names)

    def _of(self, part: PartName) -> Iterator[int]:
        return (i for i, sentence in enumerate(self.sentences) if sentence.part == part)

    def cover(self, index: int, covered: set[str], left: list[int]) -> None:
        """Adds a sentence's words and names to `covered`. Subtracts their weights from all sentences that have them."""
        for part in self._parts[index] - covered:
            worth = self._worth[part]
            for place in self._with[part]:
                left[place] -= worth
        covered.update(self._parts[index])

    def _is_worth_listing(self, name: str) -> bool:
        """Returns whether a name is worth listing, unlike short names, words, fields and figures of results."""
        if name not in self._told or name.isalpha() or _DATA.fullmatch(name) is not None:
            return False
        is_field = name not in self._used and not any(c.isdigit() or c in "/\\@" for c in name)
        return len(name) >= _SHORTEST_NAME and not is_field

    def _unnamed(self, chosen: Iterable[int], room: int) -> list[str]:
        """Returns names that no chosen sentence has, in order. Prefers used and frequent names if not all fit."""
        covered = {name for index in chosen for name in self._names[index]}
        left = [name for name in self._first if name not in covered and self._is_worth_listing(name)]
        left.sort(key=lambda name: (name not in self._used, -self._times[name], self._first[name]))
        names: list[str] = []
        for name in left:
            if (cost := len(self._listed[name]) + len(_BETWEEN)) <= room:
                room -= cost
                names.append(name)
        return [self._listed[name] for name in sorted(names, key=self._first.__getitem__)]


class _Choice:
    """The sentences chosen so far, the words and names in them, and the number of characters left."""

    def __init__(self, cover: Cover, room: int) -> None:
        self._cover = cover
        self.left = room
        self.chosen: set[int] = set()
        self._covered: set[str] = set()
        # The weights that each sentence would add.
        self._new = list(cover.worths)
        self._begun: set[PartName | tuple[PartName, tuple[int, ...]]] = set()
        self.least = _LEAST_WEIGHT

    def take_first(self, indexes: Iterable[int], room: int) -> None:
        """Chooses sentences in their order until one does not fit. The first may exceed the room."""
        room, most = min(room, self.left), self.left
        for index in indexes:
            if (cost := self._cost(index)) > most:
                return
            self._spend(index, cost)
            room -= cost
            most = room

    def fill(self, indexes: Iterable[int], room: int, *, sure: bool = False) -> None:
        """Chooses the sentences with the largest gains until the room is full. If `sure`, the first may exceed it.

        The gain of a sentence can only shrink while others are chosen. A gain that was just computed again and is near
        the best known gain is therefore near the best of all gains.
        """
        room, nothing = min(room, self.left), sure or not self.chosen
        # Compute the gains here with the formula of `_gain`, to save a call for each sentence.
        new, weights, sizes = self._new, self._cover.weights, self._cover.sizes
        heap = [
            (-(weights[i] * new[i] / sizes[i]), i) for i in indexes if i not in self.chosen and weights[i] >= self.least
        ]
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
            self._spend(index, cost)

    def _gain(self, index: int) -> float:
        """Returns the weight of the words and names that a sentence adds, relative to its length."""
        return self._cover.weights[index] * self._new[index] / self._cover.sizes[index]

    @property
    def head_of_list(self) -> int:
        """The number of characters that a list of names takes besides the names."""
        return len(HEAD) + 3 + ("facts" not in self._begun) * _heading("facts")

    def _cost(self, index: int) -> int:
        sentence = self._cover.sentences[index]
        cost = self._cover.lengths[index] + len(_GAP) + (sentence.part not in self._begun) * _heading(sentence.part)
        # The sentences of a message are one line of their part.
        joins = not sentence.is_item and (sentence.part, sentence.seqs) in self._begun
        return cost + (0 if joins else self._cover.heads[index])

    def _spend(self, index: int, cost: int) -> None:
        self.left -= cost
        self.chosen.add(index)
        sentence = self._cover.sentences[index]
        self._begun |= {sentence.part, (sentence.part, sentence.seqs)}
        self._cover.cover(index, self._covered, self._new)


def _heading(part: PartName) -> int:
    return len(PARTS[part].title) + 4


def written(chosen: Chosen) -> str:
    """Returns the text of a state with the chosen sentences, and with one line for the names."""
    lines: dict[tuple[PartName, tuple[int, ...], int], list[Sentence]] = {}
    for sentence in chosen.sentences:
        # An item keeps its own line; other sentences of a message are one line.
        lines.setdefault((sentence.part, sentence.seqs, sentence.place if sentence.is_item else 0), []).append(sentence)
    found: dict[PartName, list[StateLine]] = {}
    for (part, seqs, _), said in lines.items():
        gaps = ["", *(" " if b.place == a.place + 1 else _GAP for a, b in pairwise(said))]
        text = "".join(gap + one.text for gap, one in zip(gaps, said, strict=True))
        found.setdefault(part, []).append(StateLine(text, seqs))
    if chosen.names:
        found.setdefault("facts", []).append(StateLine(HEAD + _BETWEEN.join(chosen.names)))
    return State(found).text
