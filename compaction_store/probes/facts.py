"""Reads a whole thread once, and collects what the probes ask about: names, orders, calls, files, values.

The facts depend on the messages alone, so they serve any number of strategies. The time is linear.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from compaction_store.language.names import Name, NameReader, keys, names_in_run
from compaction_store.language.orders import Order, orders, rare_words, stem
from compaction_store.language.secrets import has_secret, secret_words, secrets
from compaction_store.language.sentences import prose, sentences
from compaction_store.language.words import Phrases, quotations, word_places, words
from compaction_store.models import Payload
from compaction_store.models.probe import Place
from compaction_store.module_data import ModuleData
from compaction_store.probes.calls import FileChange, changed_files, looks_up, signature
from compaction_store.probes.speech import MessageReading, Said, ToolCall, ToolResult, parsed

# A longer text in a call is content to write and not a reference. A longer text of a user is mostly pasted text.
_LONGEST_GIVEN = 400
_LONGEST_USER = 6000
_ENDS = 1500
# A result with more fields is a table, and is not compared with the result of an equal call.
_MOST_FIELDS = 500


class ThreadMessage(NamedTuple):
    """A message of a thread, with the fields that the probes need. `tokens` and `at` are only used to count costs.

    With `is_summary`, the message is an earlier summary, and its orders are the orders that it reports.
    """

    seq: int
    payload: Payload | None
    tokens: int | None = None
    at: datetime | None = None
    is_summary: bool = False
    planted: tuple[Planted, ...] = ()


class Planted(NamedTuple):
    """A sentence that was planted in a message for a test. A summary has kept it if it has all phrases in `wanted`."""

    kind: Literal["rule", "constraint", "fact", "goal", "preference"]
    text: str
    wanted: tuple[str, ...]


class Need(NamedTuple):
    """A name or a quotation that a user or a call uses. A quotation's key is its words, with spaces around each."""

    key: str
    kind: str
    text: str
    said: Said
    start: int
    end: int


class Supersession(NamedTuple):
    """An old value and its new one, with their places. `about` is the thing that has the value, or empty."""

    about: str
    old: str
    new: str
    old_at: Place
    new_at: Place


@dataclass(slots=True)
class MessageFacts:
    """The facts about one message."""

    seq: int
    payload: Payload | None
    tokens: int | None
    at: datetime | None
    said: list[Said]
    calls: list[ToolCall]
    results: list[ToolResult]
    #: The names in the message by their keys, including the names inside paths. Also the thread's quotations in it.
    names: dict[str, Name]
    needs: list[Need] = field(default_factory=list)
    orders: list[tuple[Said, Order]] = field(default_factory=list)
    #: The signature of each look-up call, and the index of the call in `calls`.
    lookups: list[tuple[str, int]] = field(default_factory=list)
    changes: list[tuple[FileChange, int]] = field(default_factory=list)
    superseded: list[Supersession] = field(default_factory=list)
    is_assistant: bool = False
    planted: tuple[Planted, ...] = ()


class ThreadFacts:
    """The facts about the messages of a thread, by seq. The facts of many threads may share a `reader`."""

    def __init__(self, messages: Iterable[ThreadMessage], reader: NameReader | None = None) -> None:
        self.reader = NameReader() if reader is None else reader
        self.messages: dict[int, MessageFacts] = {}
        #: The keys of the names that are credentials according to the text around them.
        self.secret_keys: set[str] = set()
        #: The credentials that users and calls named, as words in lower case.
        self.secret_words: set[str] = set()
        #: The seqs of the messages that have a name, in order, by the name's key.
        self.seqs: dict[str, list[int]] = defaultdict(list)
        values = _Values()
        for message in messages:
            facts = self._read(message)
            values.read(facts)
            self.messages[message.seq] = facts
        needs = (need for facts in self.messages.values() for need in facts.needs if need.kind == "quotation")
        self._phrases = Phrases((need.key, need.key.split()) for need in needs)
        for facts in self.messages.values():
            for key in self.phrases_in(said.text for said in facts.said):
                facts.names.setdefault(key, _QUOTATION)
            for key in facts.names:
                self.seqs[key].append(facts.seq)

    def phrases_in(self, texts: Iterable[str]) -> Iterator[str]:
        """Yields the keys of those quotations of the thread that occur in the given texts."""
        for text in texts if self._phrases else ():
            yield from (key for key, _ in self._phrases.found(words(text)))

    def places(self, seq: int) -> dict[str, Place]:
        """Returns the first place of each name, and of each of the thread's quotations, in a message."""
        found: dict[str, Place] = {}
        for said in self.messages[seq].said:
            for name, start, end in self.reader.at(said.text):
                for key in keys(name):
                    if key not in found:
                        found[key] = place_of(seq, said, start, end)
            at: list[tuple[int, int]] = []
            for phrase, last in self._phrases.found(words(said.text)):
                at = at or word_places(said.text)
                found.setdefault(phrase, place_of(seq, said, at[last - len(phrase.split()) + 1][0], at[last][1]))
        return found

    def keys_in(self, texts: Iterable[str]) -> dict[str, Name]:
        """Returns the names, and the thread's quotations, in texts from outside the thread, by their keys."""
        kept = list(texts)
        found = self._names(kept)
        for key in self.phrases_in(kept):
            found.setdefault(key, _QUOTATION)
        return found

    def has(self, key: str, first: int, last: int) -> bool:
        """Returns whether any message from the seq `first` to the seq `last` has the name with this key."""
        there = self.seqs.get(key, [])
        place = bisect_left(there, first)
        return place < len(there) and there[place] <= last

    def names_secret(self, text: str) -> bool:
        """Returns whether a text has a word that was named as a credential elsewhere in the thread."""
        return bool(self.secret_words) and not self.secret_words.isdisjoint(secret_words(text))

    def _names(self, texts: Iterable[str]) -> dict[str, Name]:
        found: dict[str, Name] = {}
        for text in texts:
            for name in self.reader.names(text):
                for key in keys(name):
                    found.setdefault(key, name)
        return found

    def _read(self, message: ThreadMessage) -> MessageFacts:
        reading = MessageReading(message.payload, is_summary=message.is_summary)
        facts = MessageFacts(
            message.seq, message.payload, message.tokens, message.at, reading.said, reading.calls, reading.results,
            self._names(said.text for said in reading.said), planted=message.planted,
        )  # fmt: skip
        kinds = {said.kind for said in reading.said}
        facts.is_assistant = not kinds & {"user", "result", "system"} and not reading.results
        for said in reading.said:
            if said.kind == "user":
                facts.orders.extend((said, order) for order in orders(said.text))
                facts.needs.extend(self._needs_of_user(said))
            elif said.kind == "assistant":
                facts.needs.extend(need for low, high in _ends(said) for need in self._named(said, low, high))
            elif said.kind == "notes":
                facts.orders.extend((said, order) for order in orders(said.text, whole=True))
            elif said.kind == "call" and len(said.text) <= _LONGEST_GIVEN:
                facts.needs.extend(self._named(said, 0, len(said.text)))
        for place, call in enumerate(reading.calls):
            if looks_up(call):
                facts.lookups.append((signature(call), place))
            facts.changes.extend((change, place) for change in changed_files(call))
        return facts

    def _needs_of_user(self, said: Said) -> Iterator[Need]:
        for start, end in _ends(said):
            yield from self._named(said, start, end)
            for low, high in quotations(said.text[start:end]):
                text = said.text[start + low : start + high]
                yield Need(f" {' '.join(words(text))} ", "quotation", text, said, start + low, start + high)

    def _named(self, said: Said, start: int, end: int) -> Iterator[Need]:
        text = said.text[start:end]
        withheld = list(secrets(text)) if has_secret(text) else []
        for first, last in withheld:
            self.secret_words.update(secret_words(text[first:last]))
        for name, low, high in self.reader.at(text):
            if name.is_strong:
                if any(low < last and first < high for first, last in withheld):
                    self.secret_keys.add(name.key)
                yield Need(name.key, name.kind, name.text, said, start + low, start + high)


def _ends(said: Said) -> list[tuple[int, int]]:
    """Returns the part of a text that is read: all of it or, if it is long, its beginning and its end."""
    size = len(said.text)
    return [(0, size)] if size <= _LONGEST_USER else [(0, _ENDS), (size - _ENDS, size)]


_QUOTATION = Name("", "identifier", "")


def place_of(seq: int, said: Said, start: int, end: int) -> Place:
    """Returns the place of a part of a text. In a JSON string, searches for it, because escapes change the offsets."""
    if said.raw is None:
        return Place(said.field, start, end, seq)
    at = said.raw.find(said.text[start:end])
    return Place(said.field, at, at + end - start, seq) if at >= 0 else Place(said.field, 0, len(said.raw), seq)


class _Values:
    """The newest value of each thing so far, and of each field in the results of equal calls."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[str, Place]] = {}
        self._made: dict[str, str] = {}
        self._fields: dict[str, tuple[int, dict[str, str]]] = {}

    def read(self, facts: MessageFacts) -> None:
        for said in facts.said:
            if said.kind == "user" and len(said.text) <= _LONGEST_USER:
                for statement in statements(said.text):
                    self._state(facts, said, statement)
        for signed, place in facts.lookups:
            if (call := facts.calls[place].id) is not None:
                self._made[call] = signed
        for result in facts.results:
            self._result(facts, result)

    def _state(self, facts: MessageFacts, said: Said, statement: StatedValue) -> None:
        at = place_of(facts.seq, said, statement.start, statement.end)
        if statement.old is not None:
            facts.superseded.append(Supersession("", statement.old, statement.value, at, at))
            return
        before = self._newest.get(statement.about)
        if before is not None and before[0] != statement.value:
            facts.superseded.append(Supersession(statement.about, before[0], statement.value, before[1], at))
        self._newest[statement.about] = statement.value, at

    def _result(self, facts: MessageFacts, result: ToolResult) -> None:
        signed = self._made.pop(result.id, None) if result.id is not None else None
        if signed is None or result.failed:
            return
        texts = [said for said in facts.said if said.kind == "result"]
        found = fields(texts[0].text) if len(texts) == 1 else {}
        if not found or len(found) > _MOST_FIELDS:
            return
        seq, before = self._fields.get(signed, (0, {}))
        said = texts[0]
        for name, value in found.items():
            old = before.get(name, value)
            if old != value and min(len(old), len(value)) > 1:
                old_at, new_at = Place(said.field, 0, 0, seq), Place(said.field, 0, len(said.text), facts.seq)
                # The last name in the field's path, such as `status` for `order.status`.
                about = " ".join(stem(word) for word in words(name.rpartition(".")[2].replace("_", " ")))
                facts.superseded.append(Supersession(about, old, value, old_at, new_at))
        self._fields[signed] = facts.seq, found


# ---- values that a conversation replaces with newer values

_LONGEST_SENTENCE = 400
_DATA = ModuleData(__file__)
_CHANGES = re.compile(_DATA.pattern("changes"), re.IGNORECASE)
_CHANGES_BACK = re.compile(_DATA.pattern("changes_back"), re.IGNORECASE)
_IS = re.compile(_DATA.pattern("is"))
_TO = re.compile(_DATA.pattern("to"), re.IGNORECASE)
# A sentence that states a value has one of these words. Most sentences have none and need not be searched.
_MAY_STATE = re.compile(r" (?:is|are|be|to|with|by|of|than|became|becomes|ist|sind|beträgt|liegt|est|es|son|é|è|será) ")
_AGE = frozenset(map(stem, _DATA.words("age")))
_MANY = frozenset(map(stem, _DATA.words("many")))
_MOST_KEY_WORDS = 2
_LONGEST_VALUE = 60
_LONGEST_JSON = 200_000


class StatedValue(NamedTuple):
    """A thing, its value, and the place of the value. `old` is the value that the same sentence replaces, if any."""

    about: str
    value: str
    start: int
    end: int
    old: str | None = None


def statements(text: str) -> Iterator[StatedValue]:
    """Yields the values that a text states, sentence by sentence."""
    plain = prose(text)
    for start, end in sentences(plain):
        sentence = plain[start:end]
        if end - start <= _LONGEST_SENTENCE and _MAY_STATE.search(sentence) is not None:
            for said in (*_changes(sentence), *_assignments(sentence)):
                yield said._replace(start=said.start + start, end=said.end + start)


def _changes(sentence: str) -> Iterator[StatedValue]:
    for pattern, is_back in ((_CHANGES, False), (_CHANGES_BACK, True)):
        for found in pattern.finditer(sentence):
            first = found.lastindex or 2
            old, new = (first, first - 1) if is_back else (first - 1, first)
            before, after = plain_value(found[old]), plain_value(found[new])
            if before and after and before != after and _is_value(before) and _is_value(after):
                yield StatedValue("", after, *found.span(new), before)


def _assignments(sentence: str) -> Iterator[StatedValue]:
    stated = [(found, 1, sentence[max(0, found.start() - 60) : found.start()]) for found in _IS.finditer(sentence)]
    stated += [(found, 2, found[1]) for found in _TO.finditer(sentence)]
    for found, group, before in stated:
        value = plain_value(found[group])
        if (about := _about(before)) and value and _is_value(value):
            yield StatedValue(about, value, *found.span(group))


def _about(before: str) -> str:
    """Returns the stems of the last rare words before a value, if they name the thing that has it, or else ""."""
    clause = re.split(r"[,;:.!?()\"`*]|\b(?:and|but|because|that|which|if|when|so)\b", before)[-1]
    found = [stem(word) for word in words(clause) if word]
    kept = [word for word in found if word in rare_words(clause) and word not in _AGE][-_MOST_KEY_WORDS:]
    if not kept or kept[-1] in _MANY or any(any(c.isdigit() for c in word) for word in kept):
        return ""
    return " ".join(kept)


def plain_value(text: str) -> str:
    """Returns the words of a value in lower case, so that differently written values can be compared."""
    return " ".join(words(text.strip("`\"'.,:;!?*()")))


def _is_value(value: str) -> bool:
    """Returns whether a text can be a value that a summary repeats: a number, a name, a date, or a few words."""
    if len(value) > _LONGEST_VALUE:
        return False
    return any(c.isdigit() for c in value) or "_" in value or " " in value or bool(names_in_run(value))


def fields(text: str) -> dict[str, str]:
    """Returns the short texts and numbers of a result that is a JSON object by their paths, without those in arrays."""
    if len(text) > _LONGEST_JSON or not isinstance(value := parsed(text), dict):
        return {}
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend((f"{path}.{name}" if path else str(name), item) for name, item in one.items())
        elif isinstance(one, str | int | float) and not isinstance(one, bool) and 0 < len(str(one)) <= _LONGEST_VALUE:
            found[path] = plain_value(str(one))
    return found
