"""Asks a model closed questions about each compacted view, and grades the answers by a rule.

The questions are made by rules from the messages that follow, and their wrong options from the same thread. The model
sees the view alone and, once a question, all messages instead: a question that it cannot answer then is left out.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile, zip_longest
from typing import Any, Final, NamedTuple

from compaction_store import arguments
from compaction_store.compaction.element_json import document, dump, source_document
from compaction_store.evaluation.judge import Ask, Asker
from compaction_store.language.force import decides
from compaction_store.language.orders import rare_words
from compaction_store.language.secrets import masked
from compaction_store.language.sentences import prose, sentences
from compaction_store.models import Element
from compaction_store.models.probe import Place, Probe, ProbeType
from compaction_store.module_data import ModuleData
from compaction_store.probes.facts import MessageFacts, Need, ThreadFacts, place_of
from compaction_store.probes.thread_probe import file_name

_DATA = ModuleData(__file__)
PROMPT: Final = _DATA.text("prompt")
#: The types of probes with the answers that were given from a view.
ASKED: Final[tuple[ProbeType, ...]] = ("asked_recall", "asked_artifact", "asked_continuation", "asked_decision")
_WHOLE: ProbeType = "asked_whole"
_OPTIONS = 4
# Only so many of the messages before and after a compaction are read.
_BEHIND = 300
_AHEAD = 100
_BLANK = "____"
_AROUND = 150
_LONGEST = 240
_SENTENCE = range(25, _LONGEST)
_LONGEST_TEXT = 6000
_FIRST = re.compile(r"\W*([0-4])\b")
_NUMBER = re.compile(r"\b[0-4]\b")


class Question(NamedTuple):
    """A question with its options, of which the one at `right` is right. `again` is where the answer was needed."""

    type: ProbeType
    kind: str
    text: str
    options: tuple[str, ...]
    right: int
    place: Place
    again: Place | None = None


class Examiner(Asker):
    """Asks a model at most `limit` questions about each compacted view, each of them `replicates` times.

    `ask` is called as by a `Judge`. A question takes `replicates` calls, and one more with all messages.
    """

    def __init__(
        self, ask: Ask, *, model: str | None = None, prompt: str = PROMPT, replicates: int = 2, limit: int = 4
    ) -> None:
        super().__init__(ask, model, prompt, replicates)
        arguments.number(limit, "limit", least=1)
        self.limit = limit
        self._known: dict[tuple[object, ...], bool | None] = {}
        #: The number of answers that are not one of the numbers. They count as wrong.
        self.unclear = 0

    def examined(self) -> dict[str, Any]:
        """Returns the model, its prompt and settings, and the numbers of calls, their errors and tokens so far."""
        names = ("model", "prompt", "replicates", "limit", "unclear")
        counted = {"calls": self.use.attempts, "tokens": self.use.tokens, "failed": self.errors.total()}
        return {name: getattr(self, name) for name in names} | counted | {"errors": dict(sorted(self.errors.items()))}

    def probes(
        self, questions: Questions, record: int, view: Sequence[Element], whole: Sequence[Element]
    ) -> Iterator[Probe]:
        """Yields the answers to questions about a view. `whole` are all messages so far."""
        for question in islice(questions, self.limit):
            answers = [self._is_right(question, view) for _ in range(self.replicates)]
            key = (questions.about, question.text, question.options)
            if key not in self._known:
                self._known[key] = self._is_right(question, whole)
            best = self._known[key]
            for kind, is_right in ((_WHOLE, best), *((question.type, answer) for answer in answers)):
                if is_right is not None and (best is not False or kind == _WHOLE):
                    text = question.options[question.right]
                    yield Probe(kind, question.kind, is_right, record, question.place, text, question.again)

    def _is_right(self, question: Question, view: Sequence[Element]) -> bool | None:
        """Returns whether the answer is right; None if the call failed."""
        # The view comes first, so that a provider that caches prefixes reads it once.
        options = {str(number): option for number, option in enumerate(question.options, 1)}
        asked = f'"question":{dump(question.text)},"options":{dump(options)}'
        if (text := self.answer(f'{{"view":{document(source_document(view).pieces)},{asked}}}')) is None:
            return None
        found = {first[1]} if (first := _FIRST.match(text)) else set(_NUMBER.findall(text))
        self.unclear += len(found) != 1
        return found == {str(question.right + 1)}


class Questions:
    """The questions about a view: each kind in turn, the most needed first. The same view has the same questions.

    `folded` are the seqs of the messages that were replaced, and `shown` those of the messages that the view has.
    `count` is the number of messages so far.
    """

    def __init__(self, thread_id: str, facts: ThreadFacts, folded: set[int], shown: set[int], count: int) -> None:
        self.about = (thread_id, count)
        self._facts, self._messages, self._shown = facts, facts.messages, shown
        seqs = list(facts.messages)
        self._folded = [seq for seq in seqs[:count] if seq in folded][-_BEHIND:]
        self._later = seqs[count : count + _AHEAD]
        self._dice = random.Random(f"{thread_id}:{count}")  # noqa: S311 — only an order

    def __iter__(self) -> Iterator[Question]:
        makers = self._recall(), self._artifact(), self._continuation(), self._decision()
        return filter(None, chain.from_iterable(zip_longest(*makers)))

    def _question(
        self, kind: tuple[ProbeType, str], right: str, wrong: Iterable[str], *at: Place, text: str = "", also: str = ""
    ) -> Iterator[Question]:
        """Yields the question if it has enough wrong options: `also`, and those most like the right one."""
        mixed = [option for option in dict.fromkeys(wrong) if option not in (right, also)]
        self._dice.shuffle(mixed)
        mixed.sort(key=lambda option: _form(option) != _form(right))
        options = [right, *filter(None, [also]), *mixed][:_OPTIONS]
        if len(options) == _OPTIONS:
            self._dice.shuffle(options)
            yield Question(*kind, text or _DATA.text(kind[0]), tuple(options), options.index(right), *at)

    def _recall(self) -> Iterator[Question]:
        """Asks for a name that later messages use, and that only folded messages have."""
        seen: set[str] = set()
        names: dict[str, dict[str, tuple[str, int]]] = {}
        for seq in self._folded:
            for key, name in self._messages[seq].names.items():
                if name.text and name.is_strong and key not in self._facts.secret_keys:
                    names.setdefault(name.kind, {}).setdefault(key, (name.text, seq))
        for seq in self._later:
            facts = self._messages[seq]
            for need in facts.needs:
                known = names.get(need.kind, {})
                if need.key in seen or need.key not in known:
                    continue
                seen.add(need.key)
                who, excerpt = _use(facts, need)
                if _BLANK in excerpt and self._shown.isdisjoint(self._facts.seqs[need.key]):
                    source = known[need.key][1]
                    place = self._facts.places(source).get(need.key, Place("", 0, 0, source))
                    again = place_of(seq, need.said, need.start, need.end)
                    taken = f"{excerpt} {need.text}"
                    wrong = (text for text, _ in known.values() if text not in taken and need.text not in text)
                    text = _DATA.text("asked_recall").format(who=who, excerpt=excerpt)
                    yield from self._question(("asked_recall", need.kind), need.text, wrong, place, again, text=text)
            # A name that was said again needs the folded messages no more.
            seen.update(facts.names)

    def _artifact(self) -> Iterator[Question]:
        """Asks which file was changed, and its last state. Files that later messages name come first."""
        changed: dict[str, tuple[str, str, Place]] = {}
        named: list[str] = []
        failed = {one.id for facts in self._messages.values() for one in facts.results if one.failed and one.id}
        for seq in sorted({*self._folded, *self._shown}):
            facts = self._messages[seq]
            named += [name.text for name in facts.names.values() if name.kind == "path" and name.text]
            for change, index in facts.changes:
                if (call := facts.calls[index]).id not in failed:
                    changed[file_name(change.path)] = change.path, change.state, Place(call.field, 0, 0, seq)
        later = {file_name(name.text) for seq in self._later for name in self._messages[seq].names.values()}
        hidden = ((key, one) for key, one in changed.items() if one[2].seq not in self._shown)
        for *_, (path, state, place) in sorted((key not in later, -(one[2].seq or 0), one) for key, one in hidden):
            other = f"{path}: {'deleted' if state == 'written' else 'written'}"
            wrong = (f"{text}: written" for text in named if file_name(text) not in changed)
            yield from self._question(("asked_artifact", state), f"{path}: {state}", wrong, place, also=other)

    def _continuation(self) -> Iterator[Question]:
        """Asks for the next step: a call or, if the reply has none, its first sentence."""
        reply = list(takewhile(lambda seq: self._messages[seq].is_assistant, self._later))
        steps = [step for seq in reply for step in self._step(seq)]
        for kind, right, place in sorted(steps, key=lambda step: step[0] != "call")[:1]:
            # The step after next might be right too.
            near = self._later[: len(reply) + 2]
            others = [seq for seq in (*self._folded, *sorted(self._shown), *self._later) if seq not in near]
            wrong = (text for seq in others for other, text, _ in self._step(seq) if other == kind)
            yield from self._question(("asked_continuation", kind), right, wrong, place)

    def _step(self, seq: int) -> Iterator[tuple[str, str, Place]]:
        """Yields the first call of a message or, if it has none, the first sentence of a reply."""
        facts = self._messages[seq]
        for call in facts.calls[:1]:
            yield "call", masked(_call(call.name, call.given))[:_LONGEST], Place(call.field, 0, 0, seq)
        if facts.is_assistant and not facts.calls:
            found = ((said, *at) for said in facts.said if said.kind == "assistant" for at in sentences(said.text))
            for said, start, end in islice((one for one in found if one[2] - one[1] >= _SENTENCE.start), 1):
                yield "text", masked(said.text[start:end])[:_LONGEST], place_of(seq, said, start, end)

    def _decision(self) -> Iterator[Question]:
        """Asks which decision was made. The wrong ones are made later. Those that matter then come first."""
        known, shown = (dict(self._decided(seqs)) for seqs in ([*self._folded, *self._shown], self._shown))
        later = {text: rare_words(text) for text, _ in self._decided(self._later) if text not in known}
        used = frozenset[str]().union(*later.values())
        for right in sorted(known.keys() - shown.keys(), key=lambda text: (-len(rare_words(text) & used), text)):
            rare = rare_words(right)
            wrong = (text for text, words in later.items() if 2 * len(words & rare) < len(words))
            yield from self._question(("asked_decision", "sentence"), right, wrong, known[right])

    def _decided(self, seqs: Iterable[int]) -> Iterator[tuple[str, Place]]:
        """Yields the sentences of messages that say what was decided, done or found."""
        for seq in seqs:
            for said in self._messages[seq].said:
                plain = prose(said.text[:_LONGEST_TEXT]) if said.kind in ("user", "assistant") else ""
                for start, end in sentences(plain):
                    if end - start in _SENTENCE and decides(plain[start:end]):
                        yield masked(plain[start:end]), place_of(seq, said, start, end)


def _use(facts: MessageFacts, need: Need) -> tuple[str, str]:
    """Returns who uses a name, and the text around it with a blank in its place."""
    said, text = need.said, need.said.text
    if said.kind == "call":
        text = next((_call(one.name, one.given) for one in facts.calls if said.field.startswith(one.field)), text)
    else:
        text = next((text[start:end] for start, end in sentences(text) if start <= need.start < end), text)
    text = re.sub(re.escape(need.text), _BLANK, masked(text), flags=re.IGNORECASE)
    place = max(0, text.find(_BLANK) - _AROUND)
    return _DATA.values["who"][said.kind], text[place : place + 2 * _AROUND]


def _call(name: str, given: Any) -> str:
    return f"{name}({given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)})"


def _form(text: str) -> str:
    """Returns the form of a name, which `AB-12` and `X-7Y` have in common."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"[^\W_]*\d[^\W_]*", "0", text))
