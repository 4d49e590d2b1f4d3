"""Walks through the history of a thread, and finds out what each fold lost and invented, and which calls were repeated.

The caller reports the events in order. Without revocations, each message and each summary enters the view once and
leaves it at most once, so the time is linear in their length.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from compaction_store.language.force import mentions_force
from compaction_store.language.names import Name, NameReader, is_claim, keys
from compaction_store.language.orders import Order, rare_words, wanted_words
from compaction_store.language.secrets import MASK, has_secret, masked
from compaction_store.language.sentences import sentences
from compaction_store.language.words import Phrases, quotations, words
from compaction_store.models import Payload
from compaction_store.models.probe import Place, Probe, ProbeType
from compaction_store.module_data import ModuleData
from compaction_store.probes.calls import FileState
from compaction_store.probes.facts import MessageFacts, Need, Planted, Supersession, ThreadFacts, place_of
from compaction_store.probes.own_text import MOST_PIECES, blanked, piece_at_cut
from compaction_store.probes.speech import MessageReading, Said

_GONE = re.compile(ModuleData(__file__).pattern("gone"), re.IGNORECASE)
_FIELD = re.compile(r"[\"'`*]{0,3}\s?[:=]")
_BEHIND_FIELD = re.compile(r"\w[\"'`*]{0,3}\s?[:=]\s?[\"'`*]{0,3}\Z")
_NEAR = 10
_ESCAPE = re.compile(r"\\[nrt\"]")


@dataclass(frozen=True, slots=True)
class Fold:
    """A compaction of a thread, whose `replacement` is in the view instead of messages `start_seq` to `end_seq`.

    `also` are other messages that the model was sent with the replacement, such as a file that its program read again.
    `sources` are the first and the last seq that the summarizer was given. By default, these are the seqs of the span.
    """

    record: int
    start_seq: int
    end_seq: int
    replacement: Sequence[Payload | None] = field(default=(), repr=False)
    is_summary: bool = True
    sources: tuple[int, int] | None = None
    also: Sequence[Payload] = field(default=(), repr=False)


@dataclass(slots=True)
class _Shown:
    """An element of the view: a message or the replacement of a span, with facts about all messages that it covers."""

    start_seq: int
    end_seq: int
    keys: Sequence[str]
    facts: MessageFacts | None
    orders: list[tuple[int, Said, Order]]
    files: dict[str, tuple[str, FileState, Place]]
    superseded: list[Supersession]
    lookups: list[str]
    planted: list[tuple[int, Planted]] = field(default_factory=list)
    replaced: list[_Shown] = field(default_factory=list)
    record: int | None = None
    #: The names that a summary only lists.
    listed: frozenset[str] = frozenset()


class _Unsourced(NamedTuple):
    """An open probe about a name or quotation of a summary. `piece` is a pattern of what stood there before a cut."""

    probe: Probe
    wanted: list[str]
    first: int
    last: int
    piece: re.Pattern[str] | None


class ThreadProbe:
    """The view of a thread as it grows and is folded. `probes` has the answers so far. `finish` adds the open ones."""

    def __init__(self, facts: ThreadFacts) -> None:
        self._facts = facts
        self.probes: list[Probe] = []
        #: The number of different look-up calls that each record folded.
        self.lookups_folded = Counter[int]()
        self._shown: list[_Shown] = []
        self._starts: list[int] = []
        self._visible = Counter[str]()
        self._in_notes = Counter[str]()
        self._listed = Counter[str]()
        self._visible_calls = Counter[str]()
        # The record that folded a name, and the seq of the message that has the name.
        self._folded: dict[str, tuple[int, int]] = {}
        self._folded_calls: dict[str, tuple[int, int, Place]] = {}
        self._written: dict[str, int] = {}
        self._said_now: list[_Shown] = []
        # The probe and the time of a repeated call. Its costs are added when its result comes.
        self._repeated: dict[str, tuple[Probe, datetime | None]] = {}
        # The first place of each name in the messages that were searched.
        self._places: dict[int, dict[str, Place]] = {}
        self._spans: dict[int, int] = {}
        self._made: dict[str, list[str]] = {}
        self._unsourced: list[_Unsourced] = []

    # ---- what happens to the thread

    def append(self, seq: int) -> None:
        """Adds the next message of the thread."""
        facts = self._facts.messages[seq]
        if not facts.is_assistant:
            self._flush()
        for need in facts.needs:
            self._need(facts, need)
        for signed, place in facts.lookups:
            self._look_up(facts, signed, place)
        for result in facts.results:
            self._returned(facts, result.id, failed=result.failed)
        element = self._element(facts)
        self._shown.append(element)
        self._starts.append(seq)
        if facts.is_assistant:
            # The next message may be a call of the same reply: its names must not be visible because of this text.
            self._said_now.append(element)
        else:
            self._show(element)

    def fold(self, fold: Fold) -> list[Probe]:
        """Folds a span. Returns the probes that are answered at once, without those about inventions."""
        self._flush()
        first = bisect_left(self._starts, fold.start_seq)
        end = bisect_right(self._starts, fold.end_seq)
        removed = self._shown[first:end]
        reading = [MessageReading(payload, is_summary=fold.is_summary) for payload in fold.replacement]
        texts = [said.text for one in reading for said in one.said]
        listed = Passages(texts).listed(self._facts.reader) if fold.is_summary else frozenset[str]()
        also = [said.text for payload in fold.also for said in MessageReading(payload).said]
        listed -= self._facts.keys_in(also).keys()
        texts += also
        passages = Passages(texts)
        element = _Shown(
            fold.start_seq, fold.end_seq, list(self._facts.keys_in(texts)), None,
            [one for old in removed for one in old.orders], {}, [one for old in removed for one in old.superseded], [],
            [one for old in removed for one in old.planted], removed, fold.record, listed,
        )  # fmt: skip
        for old in removed:
            element.files.update(old.files)
            self._hide(old, fold.record)
        self._shown[first:end] = [element]
        self._starts[first:end] = [fold.start_seq]
        self._spans[fold.record] = fold.start_seq
        self._show(element)
        asked = [
            *self._orders(fold, element, passages), *self._files(fold, element, passages),
            *self._stale(fold, element, reading, passages), *self._planted(fold, element, passages),
        ]  # fmt: skip
        if fold.is_summary:
            self._invented(fold, reading, listed)
        self.probes += asked
        return asked

    def revoke(self, record: int) -> None:
        """Revokes a record, so that the view shows its span again. Does nothing if the record is not in the view."""
        self._flush()
        place = bisect_left(self._starts, self._spans.get(record, 0))
        element = self._shown[place] if place < len(self._shown) else None
        if element is None or element.record != record:
            return
        self._hide(element, record)
        self._shown[place : place + 1] = element.replaced
        self._starts[place : place + 1] = [old.start_seq for old in element.replaced]
        for old in element.replaced:
            self._show(old)

    def finish(self) -> list[Probe]:
        """Returns all probes, including the open ones: about inventions, and about repeated calls without a result."""
        self._flush()
        self.probes += [probe for probe, _ in self._repeated.values()]
        self._repeated.clear()
        self.probes += _sourced(self._unsourced, self._facts)
        self._unsourced.clear()
        return self.probes

    def used(self, start_seq: int, end_seq: int, *, record: int, calls: int = 2) -> Iterator[Probe]:
        """Yields a probe for each name that a user or several calls used, most used first: is it in the view?"""
        first: dict[str, tuple[int, Need]] = {}
        times = Counter[str]()
        for seq, facts in self._facts.messages.items():
            if start_seq <= seq <= end_seq:
                for need in facts.needs:
                    if need.said.kind != "assistant":
                        first.setdefault(need.key, (seq, need))
                        times[need.key] += calls if need.said.kind == "user" else 1
        for key, count in times.most_common():
            seq, need = first[key]
            if count >= calls and need.kind != "quotation":
                place = place_of(seq, need.said, need.start, need.end)
                kept, is_secret = self.is_visible(key), key in self._facts.secret_keys
                yield _probe("used_name", need.kind, record, place, need.text, kept=kept, is_secret=is_secret)

    def is_visible(self, key: str) -> bool:
        """Returns whether the view has a name or a quotation, by its key."""
        return self._visible[key] > 0

    # ---- the view

    def _element(self, facts: MessageFacts) -> _Shown:
        files: dict[str, tuple[str, FileState, Place]] = {}
        for change, place in facts.changes:
            call = facts.calls[place]
            files[_file_key(change.path)] = change.path, change.state, Place(call.field, 0, 0, facts.seq)
            if call.id is not None:
                self._made.setdefault(call.id, []).append(_file_key(change.path))
            self._written[file_name(change.path)] = facts.seq
        lookups = [signed for signed, _ in facts.lookups]
        orders = [(facts.seq, said, order) for said, order in facts.orders]
        planted = [(facts.seq, one) for one in facts.planted]
        return _Shown(facts.seq, facts.seq, list(facts.names), facts, orders, files, facts.superseded, lookups, planted)

    def _flush(self) -> None:
        for element in self._said_now:
            self._show(element)
        self._said_now.clear()

    def _show(self, element: _Shown) -> None:
        self._listed.update(element.listed)
        self._visible.update(element.keys)
        self._visible_calls.update(element.lookups)
        if element.facts is None:
            self._in_notes.update(element.keys)
        else:
            for key in element.keys:
                self._folded.pop(key, None)

    def _hide(self, element: _Shown, record: int) -> None:
        self._listed.subtract(element.listed)
        for key in element.keys:
            self._visible[key] -= 1
            if element.facts is not None:
                self._folded[key] = record, element.start_seq
            else:
                self._in_notes[key] -= 1
                if key in self._folded:
                    self._folded[key] = record, self._folded[key][1]
        if element.facts is not None:
            for signed, place in element.facts.lookups:
                self._visible_calls[signed] -= 1
                field_ = element.facts.calls[place].field
                if signed not in self._folded_calls:
                    self.lookups_folded[record] += 1
                self._folded_calls[signed] = record, element.start_seq, Place(field_, 0, 0, element.start_seq)

    # ---- later

    def _need(self, facts: MessageFacts, need: Need) -> None:
        folded = self._folded.pop(need.key, None)
        if folded is None:
            return
        record, seq = folded
        # A name in a list is of no use to somebody who does not know what it is.
        kept = self._visible[need.key] > self._listed[need.key]
        in_notes, listed = self._in_notes[need.key], self._listed[need.key]
        where = "in a summary" if in_notes > listed else "in a message" if kept else "in a list" if listed else None
        if seq not in self._places:
            self._places[seq] = self._facts.places(seq)
        place = self._places[seq].get(need.key, Place("", 0, 0, seq))
        again = place_of(facts.seq, need.said, need.start, need.end)
        self.probes.append(_probe(
            "needed_later", need.kind, record, place, need.text, kept=kept, again=again, detail=where,
            is_secret=need.key in self._facts.secret_keys,
        ))  # fmt: skip

    def _look_up(self, facts: MessageFacts, signed: str, place: int) -> None:
        known = self._folded_calls.pop(signed, None)
        if known is None or self._visible_calls[signed] > 0:
            return
        record, seq, before = known
        call = facts.calls[place]
        reader = self._facts.reader
        named = {file_name(name.text) for said in facts.said if said.kind == "call" for name in reader.names(said.text)}
        if any(self._written.get(name, 0) > seq for name in named):
            # The file was changed after the first call, so it had to be read again.
            return
        again = Place(call.field, 0, 0, facts.seq)
        probe = _probe("re_derivation", call.name, record, before, call.name, kept=False, again=again)
        if call.id is None:
            self.probes.append(probe)
        else:
            self._repeated[call.id] = probe, facts.at

    def _returned(self, facts: MessageFacts, call: str | None, *, failed: bool) -> None:
        if call is None:
            return
        written = self._made.pop(call, ())
        if failed and written:
            for element in self._shown[-_LATEST:]:
                for key in written:
                    element.files.pop(key, None)
        if (repeated := self._repeated.pop(call, None)) is not None:
            probe, at = repeated
            seconds = (facts.at - at).total_seconds() if facts.at and at else None
            self.probes.append(replace(probe, tokens=facts.tokens, seconds=seconds))

    # ---- at the fold

    def _orders(self, fold: Fold, element: _Shown, passages: Passages) -> Iterator[Probe]:
        verbatim = passages.holding((order.text for _, _, order in element.orders))
        for seq, said, order in element.orders:
            kept = order.text in verbatim or passages.says(order.text)
            place = place_of(seq, said, order.start, order.end)
            is_secret = self._facts.names_secret(order.text)
            yield _probe("standing_order", "order", fold.record, place, order.text, kept=kept, is_secret=is_secret)

    def _files(self, fold: Fold, element: _Shown, passages: Passages) -> Iterator[Probe]:
        by_name = {key: " ".join(words(file_name(path))) for key, (path, _, _) in element.files.items()}
        naming = passages.with_phrases(by_name.values())
        for key, (path, state, place) in element.files.items():
            there = naming.get(by_name[key], [])
            named = bool(there) or self._visible[file_name(path)] > 0 or self._visible[key] > 0
            says_state = state == "written" or not there or any(_GONE.search(passages.text(i)) for i in there)
            detail = state if named and says_state else f"{state}: not named" if not named else f"{state}: not said"
            yield _probe("artifact", state, fold.record, place, path, kept=named and says_state, detail=detail)

    def _stale(
        self, fold: Fold, element: _Shown, reading: Sequence[MessageReading], passages: Passages
    ) -> Iterator[Probe]:
        if not element.superseded or not fold.is_summary:
            return
        said = [(n, one) for n, reading_ in enumerate(reading) for one in reading_.said]
        there = passages.with_phrases(value for one in element.superseded for value in (one.old, one.new))
        for one in element.superseded:
            stating = [index for index in there[one.old] if passages.has_words(index, one.about.split())]
            if stating:
                text, start, end = passages.place(stating[0])
                place = Place(_field(*said[text]), start, end, record=fold.record)
                stated, kept = passages.text(stating[0]), bool(there[one.new])
                yield _probe("stale", "value", fold.record, place, stated, kept=kept, again=one.new_at)

    def _planted(self, fold: Fold, element: _Shown, passages: Passages) -> Iterator[Probe]:
        there = passages.holding(phrase for _, one in element.planted for phrase in one.wanted)
        for seq, one in element.planted:
            said = next((said for said in self._facts.messages[seq].said if one.text in said.text), None)
            start = 0 if said is None else said.text.find(one.text)
            place = Place("", 0, 0, seq) if said is None else place_of(seq, said, start, start + len(one.text))
            asked: Any = f"planted_{one.kind}"
            yield _probe(asked, one.kind, fold.record, place, one.text, kept=there.issuperset(one.wanted))

    def _invented(self, fold: Fold, reading: Sequence[MessageReading], listed: frozenset[str]) -> None:
        sources = fold.sources or (fold.start_seq, fold.end_seq)
        for number, one in enumerate(reading):
            for said in one.said:
                where = _field(number, said)
                plain = blanked(said.text, *sources)
                for kind, start, end, name in _claims(plain, self._facts.reader):
                    place = Place(where, start, end, record=fold.record)
                    probe = _probe("invented", kind, fold.record, place, said.text[start:end], kept=True)
                    if name is not None:
                        self.probes.append(replace(probe, type="explained", kept=name.key not in listed))
                    if name is not None and self._facts.has(name.key, *sources):
                        self.probes.append(probe)
                    else:
                        wanted = words(_ESCAPE.sub("  ", said.text[start:end]))
                        self._unsourced.append(_Unsourced(probe, wanted, *sources, piece_at_cut(plain, start, end)))


# The number of elements at the end of the view that may have the call of a result. A result comes soon after its call.
_LATEST = 50


def _field(number: int, said: Said) -> str:
    """Returns the path of a text in a record's body. A framed text is the summary, so its path is `summary_text`."""
    return "summary_text" if said.kind == "notes" and said.field == "content" else f"replacement[{number}].{said.field}"


def _claims(text: str, reader: NameReader) -> Iterator[tuple[str, int, int, Name | None]]:
    """Yields the names and quotations of a summary that its sources must have. Yields each name once."""
    seen: set[str] = set()
    for name, start, end in reader.at(text):
        if name.key not in seen and is_claim(name):
            seen.add(name.key)
            yield name.kind, start, end, name
    # A call in a summary may be JSON. Its escapes are not words.
    for start, end in quotations(_ESCAPE.sub("  ", text)):
        yield "quotation", start, end, None


def _sourced(asked: Sequence[_Unsourced], facts: ThreadFacts) -> Iterator[Probe]:
    """Answers the open probes about invented names and quotations, in one pass over the messages of the thread."""
    phrases: dict[str, list[str]] = {}
    for one in asked:
        phrases[" ".join(one.wanted)] = one.wanted
        if one.probe.kind != "quotation":
            phrases.update((part, [part]) for part in one.wanted)
    automaton = Phrases(phrases.items())
    # A summary with many cuts must not take long, so only so many pieces are looked for.
    pieces = list(dict.fromkeys(one.piece for one in asked if one.piece is not None))[:MOST_PIECES]
    seqs: dict[str | re.Pattern[str], list[int]] = defaultdict(list)
    for seq, message in facts.messages.items() if asked else ():
        there: set[str | re.Pattern[str]] = set()
        for said in message.said:
            there.update(key for key, _ in automaton.found(words(said.text)))
            there.update(piece for piece in pieces if piece.search(said.text) is not None)
        for key in there:
            seqs[key].append(seq)

    def has(key: str | re.Pattern[str], first: int, last: int) -> bool:
        place = bisect_left(seqs.get(key, ()), first)
        return place < len(seqs.get(key, ())) and seqs[key][place] <= last

    for probe, wanted, first, last, piece in asked:
        held = not wanted or has(" ".join(wanted), first, last)
        if not held and probe.kind in ("path", "identifier") and len(wanted) > 1:
            # A path or an identifier of several words counts as kept if the sources have all of these words.
            held = all(has(part, first, last) for part in wanted)
        yield replace(probe, kept=held or (piece is not None and has(piece, first, last)))


def _file_key(path: str) -> str:
    return path.casefold().removeprefix("./").replace("\\", "/")


def file_name(path: str) -> str:
    return path.casefold().replace("\\", "/").rstrip("/").rpartition("/")[2]


def _probe(
    asked: ProbeType, kind: str, record: int, place: Place, text: str, *, kept: bool, again: Place | None = None,
    detail: str | None = None, is_secret: bool = False,
) -> Probe:  # fmt: skip
    if is_secret:
        text = MASK
    elif is_secret := has_secret(text):
        text = masked(text)
    return Probe(asked, kind, kept, record, place, text, again, detail, is_secret=is_secret)


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

    def listed(self, reader: NameReader) -> frozenset[str]:
        """Returns the keys of the names that no passage describes.

        A passage describes its names if it has half as many other words, and at least two if it has several names. It
        also describes a name behind the name of a field, as in `id: A-7`.
        """
        found: dict[bool, set[str]] = {True: set(), False: set()}
        for text, start, end in self._places:
            passage = self.texts[text][start:end]
            at = [one for one in reader.at(passage) if not _FIELD.match(passage, one[2])]
            plain = list(passage)
            for _, low, high in at:
                plain[low:high] = " " * (high - low)
            said = {word for word in words("".join(plain)) if not any(c.isdigit() for c in word)}
            names = {name.key for name, _, _ in at}
            says = len(said) >= max(len(names) / 2, min(len(names), 2))
            for name, low, _ in at:
                found[says or _BEHIND_FIELD.search(passage[max(0, low - _NEAR) : low]) is not None].update(keys(name))
        return frozenset(found[False] - found[True])

    def says(self, order: str) -> bool:
        """Returns whether one passage, or two neighbours, have the rare words of an order and a word of force."""
        wanted = wanted_words(order)
        if not wanted:
            return False
        has_pairs = any(len(word) == 2 and not word.isascii() for word in wanted)  # noqa: PLR2004
        least = -(-len(wanted) * 7 // 10) if has_pairs else len(wanted)
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
        return {text for one in self.texts if phrases for text, _ in phrases.found(words(one))}

    def with_phrases(self, phrases: Iterable[str]) -> dict[str, list[int]]:
        """Returns for each phrase, words with spaces between them, the indexes of the passages that have it."""
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
