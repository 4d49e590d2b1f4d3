"""Writes a state summary by rules, without a model: copies the most informative sentences into the parts of a state.

Sentences are chosen by features that every language has, such as their speaker, and the names and rare words that no
other chosen sentence has. The same elements always give the same text, which is always shorter than they are. In an
earlier state, what is newer about a file, the plan or the next step replaces what is older.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from compaction_store import errors
from compaction_store.arguments import number, other
from compaction_store.compaction.checked_summary import with_checks
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.element_json import dump
from compaction_store.compaction.summary_request import Request
from compaction_store.language.force import decides, mentions_force
from compaction_store.language.names import NameReader
from compaction_store.language.orders import orders, without_mark
from compaction_store.language.sentences import sentences
from compaction_store.messages import stand_ins
from compaction_store.messages.framing import framed_text
from compaction_store.models import Element, Payload, Summary
from compaction_store.models.state import PART_NAMES, PARTS, PartName, State, StateLine
from compaction_store.module_data import ModuleData
from compaction_store.summarizers import sayings as told
from compaction_store.summarizers.cover import ITEMS, Cover, Sentence, written
from compaction_store.summarizers.prompted import Asked, ModelSummarizer, beginning, is_refusal, judged
from compaction_store.waiting import Work, drive, drive_async

# The number of tokens of a frame, and the largest share of the source's tokens for a summary with its frame.
_FRAME_TOKENS = 60
_MOST_OF_SOURCE = 0.8
_LEAST = 12
# A model is not asked for the users' standing orders, because it may change their words.
_ASKED: tuple[PartName, ...] = tuple(name for name in PART_NAMES if name != "orders")
_DATA = ModuleData(__file__)
# The least tokens of a part that a model fills.
_LEAST_OF_PART = 32
# The smallest room in characters, because a sentence would not fit into less.
_SHORT = 80
_LONGEST_SENTENCE = 240
_MARK = "…"

# How a line of a listing begins: with its number.
_NUMBERED = re.compile(r"^[ \t]*\d{1,6}[ \t]*[|\u2192:\t] ?", re.MULTILINE)

# A shorter piece of a text is a heading or the number of an item, such as "E.g." and "IMPORTANT TIPS:".
_FRAGMENT, _WORDS = 20, 3
# The first and the last message of the users begin with what they want; a text of more sentences was partly pasted, and
# a pasted line is code or output if fewer of its characters are letters and spaces.
_LEAD, _LEAD_WEIGHT = 6, 4.0
_PASTED = 20
_LETTERS = 0.75
# The rest of a number or of "E.g." in a divided text, and the beginning of a fence.
_STUB = re.compile(r"\W*(?:\d{1,3}|(?:[A-Za-z]\.)+[A-Za-z]?)\W*|```\w*")
# A listing has at least this many lines with numbers.
_LISTING = 3

# The part for each kind of text. A file's line, an entry of a plan and a line of an earlier state name their part.
_PART_OF: dict[str, PartName] = {
    "user": "task", "request": "task", "how": "task", "order": "orders", "decision": "decisions", "error": "errors",
    "assistant": "decisions", "call": "facts", "result": "facts", "file": "facts",
    "fields": "facts", "notes": "facts", "next": "next",
}  # fmt: skip

_OUTPUTS = frozenset({"result", "fields", "file", "error"})
_USERS = frozenset({"user", "request", "how"})


class StateSummary:
    """Writes a summary with the parts of a state, by rules, or with the model of another summarizer.

    A summary has at most `share` of its source's characters, or 80 if that is more, and at most `max_tokens` tokens.
    The tokens are counted by the store's counter, or by o200k_base if there is no store. `summarize` is an
    `AnthropicSummarizer` or `OpenAISummarizer`, whose model fills the parts. With an async client, the result must be
    awaited. Users' standing orders, and a part that the model gets wrong twice, are filled by rules.
    """

    is_summarizer = True

    def __init__(
        self, summarize: ModelSummarizer | None = None, *, share: float = 0.3, max_tokens: int = 2048,
        checks: Sequence[Check] = (),
    ) -> None:  # fmt: skip
        if summarize is not None and (not isinstance(summarize, ModelSummarizer) or not summarize.can_repair):
            what = "an AnthropicSummarizer or OpenAISummarizer, in another mode than 'native'"
            raise errors.InvalidInput(f"summarize must be {what}{other(summarize)}")
        if type(share) not in (int, float) or not 0 < share < 1:
            raise errors.InvalidInput(f"share must be between 0 and 1{other(share)}")
        number(max_tokens, "max_tokens", least=_LEAST)
        self._model = summarize
        self._share = share
        self._max_tokens = max_tokens
        self._checks = check_checks(checks)
        # The reader remembers the names that it has read, because most of them occur again in the next summary.
        self._reader = NameReader()

    @property
    def settings(self) -> Payload:
        """The options, as they are stored in the record."""
        return {"share": self._share, "max_tokens": self._max_tokens}

    @property
    def name(self) -> str:
        return "StateSummary" if self._model is None else f"StateSummary({self._model.name})"

    @property
    def needs_async(self) -> bool:
        return self._model is not None and self._model.needs_async

    def __repr__(self) -> str:
        model = "" if self._model is None else f"{self._model!r}, "
        return f"StateSummary({model}share={self._share}, max_tokens={self._max_tokens})"

    def __call__(self, elements: Sequence[Element], /) -> Summary:
        work = with_checks(self._work, Request.of(elements), self._checks, can_repair=False)
        return cast("Summary", drive_async(work)) if self.needs_async else drive(work)

    def _work(self, request: Request) -> Work[Summary]:
        if self._model is None:
            return self._written(request, _facts(told.sayings(request)))
        asked = self._model.asked(self.name, state=self.settings)
        return (yield from judged(self._by_model(self._model, request, asked), request, asked))

    def _by_model(self, model: ModelSummarizer, request: Request, asked: Asked) -> Work[Summary]:
        """A part with a fault is asked for again, alone. If it has a fault again, it is filled by rules."""
        most = min(self._most(request), int(request.tokens * self._share_of(request)))
        limits = {name: max(_LEAST_OF_PART, int(most * PARTS[name].share)) for name in _ASKED}
        lines: dict[PartName, list[StateLine]] = {}
        coverage: Payload = {}
        try:
            faults = yield from _answered(model, request, asked, limits, lines, coverage)
        except errors.SummaryCutShort:
            faults = dict.fromkeys(limits, "cut short")
        if not faults and not any(lines.values()):
            raise errors.SummaryUseless("the answer has no lines")
        left: dict[PartName, str] = {}
        for part in faults:
            alone = {part: limits[part]}
            try:
                left |= yield from _answered(model, request, replace(asked), alone, lines, coverage)
            except errors.SummarizerError as error:
                left[part] = type(error).__name__
        summary = self._merged(request, lines)
        coverage |= {**(summary.coverage or {}), "asked_again": faults, "by_rules": left}
        return asked.summary(summary.text, {name: found for name, found in coverage.items() if found != {}})

    def _merged(self, request: Request, lines: dict[PartName, list[StateLine]]) -> Summary:
        """Merges a model's lines into the earlier states. Takes the other parts from the messages, by rules."""
        facts = [fact for fact in _facts(told.sayings(request)) if fact.part not in lines]
        # An earlier next step is over, done or not.
        earlier = [
            said._replace(kind="line", part="decisions" if said.part == "next" else said.part)
            for element in request
            for payload in element.messages
            if element.is_summary and (text := framed_text(payload)) is not None and State.parse(text) is not None
            for said in told.carried(text, element.seq)
            if said.part in lines
        ]
        new = [
            told.Saying(line.seqs, line.text, "line", told.WISH, name)
            for name, found in lines.items()
            for line in found
        ]
        facts += _facts(told.newest([earlier, new]))
        return self._written(request, [fact._replace(place=place) for place, fact in enumerate(facts)])

    def _share_of(self, request: Request) -> float:
        """Returns `share`, or less if the summary with its frame would take too much of the source's tokens."""
        room = _MOST_OF_SOURCE - _FRAME_TOKENS / max(1, request.tokens)
        return min(self._share, room) if room > 0 else self._share

    def _most(self, request: Request) -> int:
        return self._max_tokens if request.budget is None else min(self._max_tokens, request.budget)

    def _written(self, request: Request, facts: Sequence[Sentence]) -> Summary:
        start = time.monotonic()
        cover = Cover(facts, self._reader)
        room = min(request.size - 1, max(_SHORT, int(request.size * self._share_of(request))))
        most = self._most(request)
        # Try smaller and smaller rooms. The first is estimated from the source's characters per token.
        room = min(room, most * max(1, request.size) // max(1, request.tokens))
        text, kept = _best(cover, room)
        while text and (took := request.count(text)) > most:
            room = min(room - 1, room * most // took)
            text, kept = _best(cover, room)
        if not text:
            raise errors.SummaryTooLong(f"the source of {request.size:,} characters is too short for a shorter summary")
        state = State.parse(text)
        coverage = {"messages": len(range(request.start_seq, request.end_seq + 1)), "sentences": kept}
        coverage |= {"of_sentences": len(facts)} | (state.coverage if state is not None else {})
        return Summary(text, coverage=coverage, duration=time.monotonic() - start)


# ---- the parts as a model answers them


def _answered(
    model: ModelSummarizer, request: Request, asked: Asked, limits: dict[PartName, int],
    lines: dict[PartName, list[StateLine]], coverage: Payload,
) -> Work[dict[PartName, str]]:  # fmt: skip
    """Asks for parts. Adds the lines of those that are right, and returns the faults of the others."""
    parts = {name: {"type": "array", "items": _DATA.values["line"]} for name in limits}
    asked.schema = {"type": "object", "properties": parts, "required": [*parts], "additionalProperties": False}
    told = "\n".join(f'- "{name}": {PARTS[name].meaning} ({most:,} tokens)' for name, most in limits.items())
    form = dump({name: [{"text": "...", "seqs": [0]}] for name in limits})
    question = [model.instructions or "", _DATA.text("parts").format(parts=told, form=form)]
    if "mode" in asked.settings:
        # The messages of a conversation have no seqs.
        seqs = {str(element.seq): beginning(element) for element in request}
        question.append(_DATA.text("seqs").format(seqs=dump(seqs)))
    notes, found = yield from model.notes(request, asked, "\n\n".join(filter(None, question)), _as_parts)
    coverage.update(found)
    if any(is_refusal(note.text) for note in notes):
        raise errors.SummaryRefused("the answer is a refusal")
    known = {seq for element in request for seq in range(element.seq, element.end_seq + 1)}
    faults: dict[PartName, str] = {}
    for name, most in limits.items():
        try:
            read_ = [line for note in notes for line in _lines(note.text, name, known)]
            if request.count("\n".join(map(str, read_))) > most:
                raise ValueError("over its budget")
            lines[name] = read_
        except ValueError as fault:
            faults[name] = str(fault)
    return faults


def _as_parts(text: str) -> Any:
    """Returns the JSON of an earlier state, or the text of any other summary."""
    state = State.parse(text)
    return text if state is None else {name: [line.as_dict() for line in lines] for name, lines in state.items()}


def _lines(answer: str, name: PartName, seqs: set[int]) -> Iterator[StateLine]:
    """Yields the lines of a part. Raises a ValueError that says what is wrong with it, without content."""
    # Each part is read for itself, because a model may write something around its JSON, or break off in the middle.
    # Inside a JSON text, the quotes would be escaped.
    if (start := re.search(rf'(?<!\\)"{name}"\s*:\s*', answer)) is None:
        raise ValueError("missing")
    try:
        found, _ = json.JSONDecoder().raw_decode(answer, start.end())
    except (ValueError, RecursionError):
        raise ValueError("broken JSON") from None
    if not isinstance(found, list):
        raise ValueError("not a list")  # noqa: TRY004 — a fault of the answer
    for given in found:
        text, cited = (given.get("text"), given.get("seqs")) if isinstance(given, dict) else (None, None)
        if not isinstance(text, str) or not text.strip():
            raise ValueError("a line without text")
        if not isinstance(cited, list) or not cited or not all(type(seq) is int for seq in cited):
            raise ValueError("a line without seqs")
        if not seqs.issuperset(cited):
            raise ValueError("seqs outside of the span")
        yield StateLine(text, tuple(cited))


# ---- dividing texts into sentences


def _facts(said_: Iterable[told.Saying]) -> list[Sentence]:
    facts: list[Sentence] = []
    seen: set[str] = set()
    for said in said_:
        if said.kind == "call" and said.part == "facts":
            facts.append(Sentence(len(facts), said.seqs, "facts", said.text, said.kind, said.weight, said.whole))
            continue
        if said.kind == "result" and stand_ins.is_cleared(said.text):
            # Skip the line for a cleared result: it says nothing about the conversation.
            continue
        lasting = {order.text for order in orders(said.text)} if said.kind in _USERS else set()
        # The line numbers of a listing say nothing.
        bare, numbers = _NUMBERED.subn("", said.text)
        read_ = bare if numbers >= _LISTING else said.text
        found = [said.text] if said.part in ITEMS or said.kind == "line" else list(_sentences(read_, lasting))
        for place, text in enumerate(found):
            plain = " ".join(without_mark(text).split())
            if plain in seen or not any(c.isalnum() for c in plain) or (len(found) > 1 and _STUB.fullmatch(plain)):
                continue
            seen.add(plain)
            kind = "order" if without_mark(text) in lasting else _kind(said, plain)
            weight = _weight(said, kind, plain, place, found)
            if kind == "request" and (place >= _LEAD or weight < 1):
                kind = "user"
            part = "orders" if kind == "order" else said.part or _PART_OF[kind]
            facts.append(Sentence(len(facts), said.seqs, part, plain, kind, weight))
    # The number of an item in a list says nothing alone.
    return [one for one in facts if one.part == "task" or any(c.isalpha() for c in one.text)] or facts


def _kind(said: told.Saying, text: str) -> str:
    """Returns what a sentence is: as its text, or an error, a decision or a conclusion."""
    if said.part is not None:
        return said.kind
    if said.kind in _OUTPUTS and said.kind != "fields" and not told.is_code(text) and told.is_error(text):
        return "error"
    return "decision" if said.kind == "concluding" or (said.kind == "assistant" and decides(text)) else said.kind


def _weight(said: told.Saying, kind: str, text: str, place: int, found: Sequence[str]) -> float:
    is_output = said.kind in _OUTPUTS and said.part is None
    # A request usually begins with its subject, and output has its result at the beginning or the end.
    at_an_end = place == 0 or (place == len(found) - 1 and (is_output or said.kind == "next"))
    weight = (1.0 if kind in ("order", "error") else said.weight) * (1.5 if at_an_end else 1.0)
    if is_output and kind != "error":
        weight *= told.weight_of_output(text, said.kind, place, len(found))
    elif said.kind in _USERS and kind != "order":
        weight *= _weight_by_place(text, place, found, is_outer=said.weight == told.WISH)
        weight *= told.WISH if mentions_force(text) and kind != "request" else 1.0
    if said.part is None and said.kind in ("user", "assistant", "concluding", "next"):
        # A question of the assistant is over when the user has answered.
        if told.is_polite(text) or (said.kind == "concluding" and text.endswith("?")):
            return told.SILENT
        weight *= 0.5 if said.kind in ("assistant", "concluding") and told.is_intention(text) else 1.0
    is_fragment = len(text) < _FRAGMENT and text.count(" ") < _WORDS and text.isascii() and not at_an_end
    return weight * told.SILENT if is_fragment and kind not in ("request", "order", "next") else weight


def _weight_by_place(text: str, place: int, found: Sequence[str], *, is_outer: bool) -> float:
    if len(found) > _LEAD and told.is_code(text):
        return told.SILENT
    if is_outer and place < _LEAD:
        return _LEAD_WEIGHT
    pasted = len(found) > _PASTED and sum(c.isalpha() or c == " " for c in text) < _LETTERS * len(text)
    return 0.6 if pasted else 1.0


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
