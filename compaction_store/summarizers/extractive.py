"""Summarizes without a model: copies the most informative sentences in order, and lists names.

Sentences are chosen by features that every language has: their speaker, whether the user's next message follows,
whether they belong to a call or a result, and the names, paths, figures and rare words that no other chosen sentence
has. The same elements always give the same text, and the text is always shorter than the elements.
"""

from __future__ import annotations

import heapq
import json
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from compaction_store.arguments import number, other
from compaction_store.compaction.checked_summary import checked
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.summary_request import Request
from compaction_store.errors import InvalidInput, SummaryTooLong
from compaction_store.language.decisions import decides
from compaction_store.language.force import mentions_force
from compaction_store.language.names import NameReader
from compaction_store.language.orders import orders
from compaction_store.language.sentences import sentences
from compaction_store.language.words import UNSPACED
from compaction_store.messages import stand_ins
from compaction_store.messages.framing import framed_text
from compaction_store.messages.parts import PartType, body_of, row_of, walk
from compaction_store.models import Element, Payload, Summary
from compaction_store.models.messages import is_erased
from compaction_store.probes.own_text import piece_at_cut
from compaction_store.tokens import MARK
from compaction_store.tokens.message_text import read
from compaction_store.waiting import drive

# The number of tokens of a frame, and the largest share of the source's tokens for a summary with its frame.
_FRAME_TOKENS = 60
_MOST_OF_SOURCE = 0.8
_LEAST = 12
# The smallest room in characters, because a sentence would not fit into less.
_SHORT = 80
_LONGEST_SENTENCE = 240
_LONGEST_CALL = 160
_MARK = "…"

# How a line of an earlier summary begins: with the seq of its message, and who said it.
_NOTED = re.compile(r"\[(\d{1,19})\] ([a-z]{2,20}): ")

# The weight of a user's sentence with a word such as "must", "not" or "wants". It may matter as much as an order.
_WISH = 2.0

# Words that mark an error, for results that have no field for errors.
_ERROR = re.compile(r"\b(?:\w*error|\w*exception|traceback|fail(?:ed|ure)|fatal|denied|not found)\b", re.IGNORECASE)


class _Saying(NamedTuple):
    """A text of one message."""

    seq: int
    label: str
    text: str
    kind: str
    weight: float


class ExtractiveSummarizer:
    """Summarizes without a model.

    A summary has at most `share` of its source's characters, or 80 if that is more, and at most `max_tokens` tokens.
    The tokens are counted by the store's counter, or by o200k_base if there is no store.
    """

    name = "ExtractiveSummarizer"
    needs_async = False

    def __init__(self, *, share: float = 0.3, max_tokens: int = 2048, checks: Sequence[Check] = ()) -> None:
        if not 0 < share < 1:
            raise InvalidInput(f"share must be between 0 and 1{other(share)}")
        number(max_tokens, "max_tokens", least=_LEAST)
        self._share = share
        self._max_tokens = max_tokens
        self._checks = check_checks(checks)
        # The reader remembers the names that it has read, because most of them occur again in the next summary.
        self._reader = NameReader()

    @property
    def settings(self) -> Payload:
        """The options, as they are stored in the record."""
        return {"share": self._share, "max_tokens": self._max_tokens}

    def __repr__(self) -> str:
        return f"ExtractiveSummarizer(share={self._share}, max_tokens={self._max_tokens})"

    def __call__(self, elements: Sequence[Element], /) -> Summary:
        request = Request.of(elements)
        return drive(checked(request, self._summary(request), self._checks))

    def _summary(self, request: Request) -> Summary:
        start = time.monotonic()
        facts = _facts(_sayings(request))
        cover = Cover(facts, self._reader)
        room = min(request.size - 1, max(_SHORT, int(request.size * self._share_of(request))))
        most = self._max_tokens if request.budget is None else min(self._max_tokens, request.budget)
        # Try smaller and smaller rooms. The first is estimated from the source's characters per token.
        room = min(room, most * max(1, request.size) // max(1, request.tokens))
        text, kept = _best(cover, room)
        while text and (took := request.count(text)) > most:
            room = min(room - 1, room * most // took)
            text, kept = _best(cover, room)
        if not text:
            raise SummaryTooLong(f"the source of {request.size:,} characters is too short for a shorter summary")
        coverage = {"messages": request.end_seq - request.start_seq + 1, "sentences": kept, "of_sentences": len(facts)}
        return Summary(text, coverage=coverage, duration=time.monotonic() - start)

    def _share_of(self, request: Request) -> float:
        """Returns `share`, or less if the summary with its frame would take too much of the source's tokens."""
        room = _MOST_OF_SOURCE - _FRAME_TOKENS / max(1, request.tokens)
        return min(self._share, room) if room > 0 else self._share


# ---- finding texts in messages


def _sayings(elements: Iterable[Element]) -> list[_Saying]:
    found: list[_Saying] = []
    for element in elements:
        for payload in element.messages:
            if is_erased(payload):
                continue
            inside = framed_text(payload) if element.is_summary else None
            if inside is not None:
                found.extend(_noted(element.seq, line) for line in inside.splitlines() if line.strip())
            else:
                found.extend(_Saying(element.seq, *said) for said in _of(payload))
    # A text of the assistant is a conclusion if the user speaks next.
    following = (said.label for said in chain(found[1:], [_Saying(0, "user", "", "user", 0)]))
    return [
        said._replace(kind="concluding") if (said.kind, label) == ("assistant", "user") else said
        for said, label in zip(found, following, strict=False)
    ]


def _noted(seq: int, line: str) -> _Saying:
    """Returns a line of an earlier summary, with the seq and the speaker that the beginning of the line names."""
    begin = _NOTED.match(line)
    said = (seq, "", line) if begin is None else (int(begin[1]), begin[2], line[begin.end() :])
    return _Saying(*said, "notes", 1.5)


def _of(payload: Payload) -> Iterator[tuple[str, str, str, float]]:
    role, content = payload.get("role"), payload.get("content")
    label = role if isinstance(role, str) else "assistant"
    kind_of_speech = "user" if label == "user" else "assistant"
    is_result = label in ("tool", "function")
    if isinstance(content, str) and not is_result and row_of(payload).step is None:
        yield label, content, kind_of_speech, 1.0
    for path, kind, part in walk(payload):
        if is_result and path:
            continue
        if kind.step == "call":
            yield _call(kind, part)
        elif kind.step == "result":
            yield _result(kind, part)
        elif path and isinstance(part, dict) and isinstance(part.get("type"), str) and not kind.is_thinking:
            if kind.name == "compaction" and isinstance(part.get("content"), str):
                yield "", part["content"], "notes", 1.5
            else:
                for text in read({"content": [part]})[0]:
                    yield label, text, kind_of_speech, 1.0


def _call(kind: PartType, call: Payload) -> tuple[str, str, str, float]:
    _, given = kind.input_of(call, "")
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    return "call", f"{body_of(call).get('name') or kind.name}({' '.join(text.split())})", "call", 1.0


def _result(kind: PartType, result: Payload) -> tuple[str, str, str, float]:
    text = "\n".join(read({"content": result.get(kind.returns)})[0])
    failed = result.get("is_error") is True or result.get("status") in ("failed", "incomplete")
    return ("error", text, "error", 1.0) if failed else ("result", text, "result", 0.6)


# ---- dividing texts into sentences


def _facts(sayings: Iterable[_Saying]) -> list[Sentence]:
    facts: list[Sentence] = []
    seen: set[str] = set()
    for said in sayings:
        if said.label == "call":
            text = said.text if len(said.text) <= _LONGEST_CALL else f"{said.text[:_LONGEST_CALL]}{_MARK})"
            facts.append(Sentence(len(facts), said.seq, said.label, text, said.kind, said.weight, said.text))
            continue
        if said.kind == "result" and stand_ins.is_cleared(said.text):
            # Skip the line for a cleared result: it says nothing about the conversation.
            continue
        # A line of an earlier summary that quotes a user may have standing orders too.
        lasting = {order.text for order in orders(said.text)} if "user" in (said.kind, said.label) else set()
        found = list(_sentences(said.text, lasting))
        for place, text in enumerate(found):
            if text in seen or not any(c.isalnum() for c in text):
                continue
            seen.add(text)
            # A request usually begins with its subject, and output has its result at the beginning or the end.
            at_an_end = place == 0 or (place == len(found) - 1 and said.label in ("result", "error"))
            failed = said.kind == "result" and _ERROR.search(text) is not None
            kind = "order" if text in lasting else "error" if failed else said.kind
            if kind in ("assistant", "concluding") and decides(text):
                kind = "decision"
            weight = (1.0 if failed else said.weight) * (1.5 if at_an_end else 1.0)
            if kind == "user" and mentions_force(text):
                weight *= _WISH
            facts.append(Sentence(len(facts), said.seq, said.label, text, kind, weight))
    return facts


def _sentences(text: str, whole: Collection[str] = ()) -> Iterator[str]:
    """Yields the sentences of a text. Long sentences are divided, unless they are in `whole`."""
    for start, end in sentences(text):
        rest = text[start:end]
        while len(rest) > _LONGEST_SENTENCE and rest not in whole:
            cut = rest.rfind(" ", _LONGEST_SENTENCE // 2, _LONGEST_SENTENCE)
            cut = cut if cut > 0 else _LONGEST_SENTENCE
            yield rest[:cut]
            rest = rest[cut:].lstrip()
        if rest:
            yield rest


def _best(cover: Cover, room: int) -> tuple[str, int]:
    """Returns the most informative text of at most `room` characters, and its number of sentences."""
    chosen = cover.choose(room)
    if not chosen.sentences and cover.sentences and room > len(_MARK):
        first = max(cover.sentences, key=lambda sentence: (sentence.weight, -sentence.place))
        return first.text[: room - len(_MARK)].rstrip() + _MARK, 1
    return written(chosen), len(chosen.sentences)


# ---- choosing the most informative sentences that fit a number of characters, and listing names that they leave out
# Each kind of text, such as users' texts, conclusions or errors, has a share of the room, so that long results cannot
# take all of it. Within a share, sentences are chosen for the names, paths, figures and rare words that no chosen
# sentence has yet. Some of the room is used to list the remaining names without their sentences. The same sentences
# always give the same choice. The time is O(n log n).

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
        # The sum of the weights of each sentence's words and names.
        self.worths = [sum(map(self._worth.__getitem__, parts)) for parts in self._parts]

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

    def cover(self, index: int, covered: set[str], left: list[int]) -> None:
        """Adds a sentence's words and names to `covered`. Subtracts their weights from all sentences that have them."""
        for part in self._parts[index] - covered:
            worth = self._worth[part]
            for place in self._with[part]:
                left[place] -= worth
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
        self._new = list(cover.worths)
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
