"""Writes a state summary by rules, without a model: copies the most informative sentences into the parts of a state.

Sentences are chosen by features that every language has: their speaker, whether the user's next message follows,
whether they belong to a call or a result, and the names, paths, figures and rare words that no other chosen sentence
has. The same elements always give the same text, and the text is always shorter than the elements. An earlier state is
merged part by part: what is newer about a file, the plan or the next step replaces what is older.
"""

from __future__ import annotations

import heapq
import json
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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
from compaction_store.models.state import PARTS, PartName, State, StateLine, without_carried
from compaction_store.probes.calls import changed_files, read_file
from compaction_store.probes.living import LATEST, list_text
from compaction_store.probes.own_text import piece_at_cut
from compaction_store.probes.speech import ToolCall
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

# How a line of a listing begins: with its number.
_NUMBERED = re.compile(r"^[ \t]*\d{1,6}[ \t]*[|\u2192:\t] ?", re.MULTILINE)

# The weight of a user's sentence with a word such as "must", "not" or "wants". It may matter as much as an order.
_WISH = 2.0
# A shorter piece of a text is a heading or the number of an item, such as "E.g." and "IMPORTANT TIPS:".
_FRAGMENT = 20
_FRAGMENT_WEIGHT = 0.05
# The first and the last message of the users begin with what they want; a text of more sentences was partly pasted, and
# a pasted line is code or output if fewer of its characters are letters and spaces.
_LEAD, _LEAD_WEIGHT = 6, 4.0
_PASTED = 20
_LETTERS = 0.75
# The rest of a number or of "E.g." in a divided text.
_STUB = re.compile(r"\W*(?:\d{1,3}|(?:[A-Za-z]\.)+[A-Za-z]?)\W*")
# A listing has at least this many lines with numbers.
_LISTING = 3
# The weight of a line of an earlier summary.
_CARRIED = 1.5

# Words that mark an error, for results that have no field for errors.
_ERROR = re.compile(r"\b(?:\w*error|\w*exception|traceback|fail(?:ed|ure)|fatal|denied|not found)\b", re.IGNORECASE)


# The part for each kind of text. A file's line, an entry of a plan and a line of an earlier state name their part.
_PART_OF: dict[str, PartName] = {
    "user": "task", "order": "orders", "decision": "decisions", "error": "errors", "call": "facts", "result": "facts",
    "assistant": "facts", "notes": "facts", "next": "next",
}  # fmt: skip
# The parts whose lines are never joined, because each has a meaning of its own.
_ITEMS = frozenset({"orders", "files", "todos"})


class _Saying(NamedTuple):
    """A text in some messages, and its part if that is already known."""

    seqs: tuple[int, ...]
    text: str
    kind: str
    weight: float
    part: PartName | None = None


class StateSummary:
    """Writes a summary with the parts of a state, by rules and without a model.

    A summary has at most `share` of its source's characters, or 80 if that is more, and at most `max_tokens` tokens.
    The tokens are counted by the store's counter, or by o200k_base if there is no store.
    """

    name = "StateSummary"
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
        return f"StateSummary(share={self._share}, max_tokens={self._max_tokens})"

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
        state = State.parse(text)
        coverage = {"messages": len(range(request.start_seq, request.end_seq + 1)), "sentences": kept}
        coverage |= {"of_sentences": len(facts)} | (state.coverage if state is not None else {})
        return Summary(text, coverage=coverage, duration=time.monotonic() - start)

    def _share_of(self, request: Request) -> float:
        """Returns `share`, or less if the summary with its frame would take too much of the source's tokens."""
        room = _MOST_OF_SOURCE - _FRAME_TOKENS / max(1, request.tokens)
        return min(self._share, room) if room > 0 else self._share


# ---- finding texts in messages


def _sayings(elements: Iterable[Element]) -> list[_Saying]:
    found: list[_Saying] = []
    # A newer line about a file replaces the older one, and a newer plan replaces the older plan.
    files: dict[str, _Saying] = {}
    plan: list[_Saying] = []
    for element in elements:
        for payload in element.messages:
            if is_erased(payload):
                continue
            inside = framed_text(payload) if element.is_summary else None
            new = list(_of(payload, element.seq) if inside is None else _carried(inside, element.seq))
            if any(said.part == "todos" for said in new):
                plan = [said for said in new if said.part == "todos"]
            for said in new:
                if said.part == "files":
                    path, _, state = said.text.rpartition(" (")
                    known = files.pop(path, None)
                    # A file that was written and is read again was still written.
                    files[path] = said if known is None or state != "read)" else known
                elif said.part != "todos":
                    found.append(said)
    return [*_placed(found), *files.values(), *plan]


def _placed(found: list[_Saying]) -> list[_Saying]:
    """Marks the texts whose place says more: the assistant's conclusions, and the users' first and last words."""
    spoken = [place for place, said in enumerate(found) if said.kind in ("user", "assistant")]
    for place, after in pairwise([*spoken, None]):
        if place is not None and found[place].kind == "assistant" and (after is None or found[after].kind == "user"):
            # A text of the assistant is a conclusion if the user speaks next, and the last one says how to go on.
            found[place] = found[place]._replace(kind="next" if after is None else "concluding")
    users = [place for place in spoken if found[place].kind == "user"]
    for place in {*users[:1], *users[-1:]}:
        found[place] = found[place]._replace(weight=_WISH)
    # A next step becomes a conclusion as soon as somebody speaks again.
    last = spoken[-1] if spoken else -1
    return [
        said._replace(kind="notes", part="decisions") if said.part == "next" and place < last else said
        for place, said in enumerate(found)
    ]


def _carried(text: str, seq: int) -> Iterator[_Saying]:
    """Yields the lines of an earlier state, or the lines of notes in another form."""
    text = without_carried(text)
    state = State.parse(text)
    if state is not None:
        for part, lines in state.items():
            kind = {"task": "user", "orders": "order", "next": "next", "errors": "error"}.get(part, "notes")
            yield from (
                _Saying(line.seqs or (seq,), line.text, kind, _CARRIED, part)
                for line in lines
                if not line.text.startswith(_HEAD)
            )
        return
    for line in filter(str.strip, text.splitlines()):
        read_ = StateLine.parse(line)
        is_users = line.startswith("[") and line.partition("] ")[2].startswith("user: ")
        yield _Saying(read_.seqs or (seq,), read_.text, "user" if is_users else "notes", _CARRIED)


def _of(payload: Payload, seq: int) -> Iterator[_Saying]:
    role, content = payload.get("role"), payload.get("content")
    kind_of_speech = "user" if role == "user" else "assistant"
    is_result = role in ("tool", "function")
    if isinstance(content, str) and not is_result and row_of(payload).step is None:
        yield _Saying((seq,), content, kind_of_speech, 1.0)
    for path, kind, part in walk(payload):
        if is_result and path:
            continue
        if kind.step == "call":
            yield from _call(kind, part, seq)
        elif kind.step == "result":
            yield _result(kind, part, seq)
        elif path and isinstance(part, dict) and isinstance(part.get("type"), str) and not kind.is_thinking:
            if kind.name == "compaction" and isinstance(part.get("content"), str):
                yield _Saying((seq,), part["content"], "notes", _CARRIED)
            else:
                for text in read({"content": [part]})[0]:
                    yield _Saying((seq,), text, kind_of_speech, 1.0)


def _call(kind: PartType, call: Payload, seq: int) -> Iterator[_Saying]:
    _, given = kind.input_of(call, "")
    name = str(body_of(call).get("name") or kind.name)
    known = ToolCall(kind.id_of(call), name, "", _parsed(given))
    entries = list_text(known).splitlines() if name in LATEST else []
    if entries:
        yield from (_Saying((seq,), entry.removeprefix("- "), "notes", _WISH, "todos") for entry in entries)
        return
    for change in changed_files(known):
        yield _Saying((seq,), f"{change.path} ({change.state})", "call", 1.0, "files")
    if (path := read_file(known)) is not None:
        yield _Saying((seq,), f"{path} (read)", "call", 1.0, "files")
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    yield _Saying((seq,), f"{name}({' '.join(text.split())})", "call", 1.0)


def _result(kind: PartType, result: Payload, seq: int) -> _Saying:
    text = "\n".join(read({"content": result.get(kind.returns)})[0])
    failed = result.get("is_error") is True or result.get("status") in ("failed", "incomplete")
    said = "\n".join(_fields(found)) if (found := _parsed(text)) is not text else text
    return _Saying((seq,), said, "error" if failed else "result", 1.0 if failed else 0.6)


def _parsed(text: Any) -> Any:
    """Parses a JSON object or list, with its numbers as they are written. Returns any other text unchanged."""
    if not isinstance(text, str) or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return text


def _fields(value: Any, name: str = "") -> Iterator[str]:
    """Yields a line for each object in a JSON value, with the names of its fields: these say what the values are."""
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        name, one = waiting.pop()
        inside = [*one.items()] if isinstance(one, dict) else [(name, item) for item in one]
        plain = [(field, item) for field, item in inside if not isinstance(item, dict | list)]
        shown = [
            f"{field}: {item if isinstance(item, str) else json.dumps(item)}" if isinstance(one, dict) else str(item)
            for field, item in plain
            if item not in ("", None)
        ]
        if shown:
            yield (f"{name}: " if name else "") + ", ".join(shown)
        waiting += [(str(field), item) for field, item in reversed(inside) if isinstance(item, dict | list)]


# ---- dividing texts into sentences


def _facts(sayings: Iterable[_Saying]) -> list[Sentence]:
    facts: list[Sentence] = []
    seen: set[str] = set()
    for said in sayings:
        if said.kind == "call" and said.part is None:
            text = said.text if len(said.text) <= _LONGEST_CALL else f"{said.text[:_LONGEST_CALL]}{_MARK})"
            facts.append(Sentence(len(facts), said.seqs, "facts", text, said.kind, said.weight * 0.6, said.text))
            continue
        if said.kind == "result" and stand_ins.is_cleared(said.text):
            # Skip the line for a cleared result: it says nothing about the conversation.
            continue
        lasting = {order.text for order in orders(said.text)} if said.kind == "user" else set()
        bare = _unnumbered(said.text)
        found = [said.text] if said.part in _ITEMS else list(_sentences(bare, lasting))
        for place, text in enumerate(found):
            plain = " ".join(text.split())
            if plain in seen or not any(c.isalnum() for c in plain) or (len(found) > 1 and _STUB.fullmatch(plain)):
                continue
            seen.add(plain)
            # A request usually begins with its subject, and output has its result at the beginning or the end.
            at_an_end = place == 0 or (place == len(found) - 1 and said.kind in ("result", "error", "next"))
            failed = said.kind == "result" and _ERROR.search(plain) is not None
            kind = "order" if text in lasting else "error" if failed else said.kind
            if said.part is None and kind in ("assistant", "concluding"):
                kind = "decision" if kind == "concluding" or decides(plain) else kind
            weight = (1.0 if failed else said.weight) * (1.5 if at_an_end else 1.0)
            if said.kind == "user":
                weight *= _weight_by_place(plain, place, found, is_outer=said.weight == _WISH)
            if len(plain) < _FRAGMENT and plain.isascii() and len(found) > 1:
                weight *= _FRAGMENT_WEIGHT
            if kind == "user" and mentions_force(plain):
                weight *= _WISH
            part = "orders" if kind == "order" else said.part or _PART_OF[kind]
            facts.append(Sentence(len(facts), said.seqs, part, plain, kind, weight))
    # The number of an item in a list says nothing alone.
    return [one for one in facts if one.kind == "user" or any(c.isalpha() for c in one.text)] or facts


def _weight_by_place(text: str, place: int, found: Sequence[str], *, is_outer: bool) -> float:
    if is_outer and place < _LEAD:
        return _LEAD_WEIGHT
    pasted = len(found) > _PASTED and sum(c.isalpha() or c == " " for c in text) < _LETTERS * len(text)
    return 0.6 if pasted else 1.0


def _unnumbered(text: str) -> str:
    """Returns a text without the line numbers of a listing in it."""
    bare, count = _NUMBERED.subn("", text)
    return bare if count >= _LISTING else text


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
    if chosen.sentences or not cover.sentences or room <= len(_MARK):
        return written(chosen), len(chosen.sentences)
    first = max(cover.sentences, key=lambda sentence: (sentence.weight, -sentence.place))
    left = room - len(State({first.part: [StateLine(_MARK, first.seqs)]}).text)
    if left < _SHORT // 4:
        return first.text[: room - len(_MARK)].rstrip() + _MARK, 1
    return State({first.part: [StateLine(first.text[:left].rstrip() + _MARK, first.seqs)]}).text, 1


# ---- choosing the most informative sentences that fit a number of characters, and listing names that they leave out
# Each kind of text, such as users' texts, conclusions or errors, has a share of the room, so that long results cannot
# take all of it. Within a share, sentences are chosen for the names, paths, figures and rare words that no chosen
# sentence has yet. Some of the room is used to list the remaining names without their sentences. The same sentences
# always give the same choice. The time is O(n log n).

_WORD = re.compile(r"\w+")
# In scripts without spaces between words, pairs of characters are used as words.
_UNSPACED = re.compile(f"[{UNSPACED}]")

# The order in which the parts get their shares, after the orders: a short part comes before those that fill any room.
# The first three may use more than that for one sentence.
_FIRST: tuple[PartName, ...] = ("task", "next", "errors", "todos", "decisions", "facts", "files")
_SURE = _FIRST[:3]
# The share of the room that is left after the orders for the list of names. All parts compete for the room that their
# shares do not use.
_LISTED = 0.14
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
_BETWEEN = ", "


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


class Chosen(NamedTuple):
    """The chosen sentences, in order, and names that no chosen sentence has."""

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
        listed = min(int(choice.left * _LISTED), sum(len(name) + len(_BETWEEN) for name in self._first))
        choice.left -= listed
        rest = choice.left
        parts = [part for part in _FIRST if part in found]
        total = sum(PARTS[part].share for part in parts)
        for part in parts:
            choice.fill(self._of(part), int(rest * PARTS[part].share / total) + _heading(part), sure=part in _SURE)
        choice.fill(range(len(self.sentences)), choice.left)
        names = self._unnamed(choice.chosen, choice.left + listed - choice.head_of_list)
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
        """Returns whether a name is worth listing. Short names and likely names of fields in results are not, nor are
        words, and figures that only results have.
        """
        if name.isalpha() or (name not in self._used and not any(c.isalpha() for c in name)):
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
        self._begun: set[PartName | tuple[PartName, tuple[int, ...]]] = set()

    def fill(self, indexes: Iterable[int], room: int, *, sure: bool = False) -> None:
        """Chooses the sentences with the largest gains until the room is full. If `sure`, the first may exceed it.

        The gain of a sentence can only shrink while others are chosen. A gain that was just computed again and is near
        the best known gain is therefore near the best of all gains.
        """
        room, nothing = min(room, self.left), sure or not self.chosen
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

    @property
    def head_of_list(self) -> int:
        """The number of characters that a list of names takes besides the names."""
        return len(_HEAD) + 3 + ("facts" not in self._begun) * _heading("facts")

    def _cost(self, index: int) -> int:
        sentence = self._cover.sentences[index]
        cost = self._cover.lengths[index] + 1 + (sentence.part not in self._begun) * _heading(sentence.part)
        # The sentences of a message are one line of their part.
        joins = sentence.part not in _ITEMS and (sentence.part, sentence.seqs) in self._begun
        return cost + (0 if joins else self._cover.heads[index])

    def _take(self, index: int) -> None:
        self.chosen.add(index)
        sentence = self._cover.sentences[index]
        self._begun |= {sentence.part, (sentence.part, sentence.seqs)}
        self._cover.cover(index, self._covered, self._new)


def _heading(part: PartName) -> int:
    return len(PARTS[part].title) + 4


def written(chosen: Chosen) -> str:
    """Returns the text of a state with the chosen sentences, and with one line for the names."""
    texts: dict[tuple[PartName, tuple[int, ...], int], list[str]] = {}
    for sentence in chosen.sentences:
        # An item keeps its own line; other sentences of a message are one line.
        place = sentence.place if sentence.part in _ITEMS else 0
        texts.setdefault((sentence.part, sentence.seqs, place), []).append(sentence.text)
    found: dict[PartName, list[StateLine]] = {}
    for (part, seqs, _), said in texts.items():
        found.setdefault(part, []).append(StateLine(" ".join(said), seqs))
    if chosen.names:
        found.setdefault("facts", []).append(StateLine(_HEAD + _BETWEEN.join(chosen.names)))
    return State(found).text
