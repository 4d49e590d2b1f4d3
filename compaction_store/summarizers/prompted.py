"""Summarizes with a model of any provider. Sends a prompt, and the messages as one JSON document.

A source that is too long for the model is summarized in parts, whose summaries are merged; the record lists the parts.
Every answer is judged, and its cost is recorded even if the answer is refused.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from compaction_store import errors
from compaction_store.arguments import name_of, number, other
from compaction_store.compaction import element_json
from compaction_store.compaction.checked_summary import with_checks
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.element_json import ElementJson
from compaction_store.compaction.summary_calls import CallRecord, settings, without_text
from compaction_store.compaction.summary_request import Request, Summarizer, check_summarizer, texts
from compaction_store.models import Element, Payload, Summary
from compaction_store.module_data import ModuleData
from compaction_store.rendering.view import View
from compaction_store.summarizers.api_calls import ApiRequest, Deadline, ask, is_async_client, stop_reason
from compaction_store.waiting import Call, Work, begin, drive, drive_async, is_async

_DATA = ModuleData(__file__)
INSTRUCTIONS = _DATA.text("instructions")
RULES = _DATA.text("rules")
REPAIR = _DATA.text("repair")
STAYS = _DATA.text("stays")
_INLINE, _FROM, _AFTER = map(_DATA.text, ("inline", "inline_from", "inline_after"))
# How many tokens of the messages around a span a model is shown by default.
CONTEXT = 4000
# How many characters tell a message from others.
_BEGINNING = 200
# The smallest part, in characters of JSON. If a smaller request is too long for the model, splitting does not help.
_LEAST = 1000
# The errors for an unknown parameter. Without a status, the client's SDK does not know it. llama.cpp's server in Python
# answers 500.
_NO_SCHEMA = {(errors.SummarizerRejected, code) for code in (None, 400, 422)} | {(errors.SummarizerUnavailable, 500)}
_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")

# A function that sends a document with the prompt, appends the answer to `Asked.answers`, and returns its text.
Send = Callable[[str, "Asked"], Work[str]]
# A function that makes the agent's request from a view.
Render = Callable[[View], Mapping[str, Any]]
Mode = Literal["prompt", "inline", "native"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Note(NamedTuple):
    start_seq: int
    end_seq: int
    text: str


@dataclass
class Asked:
    """The summarizer, the model, the settings, the prompt and all answers for one summary, for the record."""

    name: str
    model: str
    settings: Payload
    prompt: str | None
    deadline: Deadline
    answers: list[Any] = field(default_factory=list)
    # The JSON schema of the answer, if it must be JSON.
    schema: Payload | None = None
    start: float = field(default_factory=time.monotonic)

    def summary(self, text: str, coverage: Payload | None = None) -> Summary:
        answers = [answer.to_dict(mode="json", warnings=False) for answer in self.answers]
        provider = {"messages": [{n: one.get(n) for n in ("id", "model", "stop_reason")} for one in answers]}
        return Summary(
            text, model=(answers[-1].get("model") if answers else None) or self.model, prompt=self.prompt,
            usage=_spent(answers) if answers else None, provider=provider if answers else None, coverage=coverage,
            settings=self.settings, duration=time.monotonic() - self.start, summarizer=self.name,
        )  # fmt: skip


def check_model(model: object) -> None:
    if not isinstance(model, str) or not model:
        raise errors.InvalidInput(f"model must be the name of a model{other(model)}")


def check_parameters(parameters: Mapping[str, Any] | None, unfit: Sequence[str]) -> None:
    if parameters is not None and (found := [name for name in unfit if name in parameters]):
        raise errors.InvalidInput(f"parameters must not have {', '.join(found)}")


def judged(work: Work[Summary], request: Request, asked: Asked) -> Work[Summary]:
    """Runs work that returns a summary, and judges it. Adds the cost to a SummarizerError, for the record."""
    try:
        summary = yield from work
        judge(summary, request)
    except errors.SummarizerError as error:
        error.attempted = asked.summary("")
        raise
    coverage = {"messages": request.end_seq - request.start_seq + 1, **(summary.coverage or {})}
    if unseen := hidden(summary.text):
        coverage["hidden_characters"] = unseen
    return replace(summary, coverage=coverage)


def prompt_for(instructions: str, max_tokens: int, request: Request, stays: Sequence[ElementJson] = ()) -> str:
    """Returns the prompt for notes. It asks for less than `max_tokens`, so that a longer answer is not cut off."""
    return "\n\n".join([instructions, *([STAYS] if stays else []), RULES.format(tokens=_room(max_tokens, request))])


def _room(max_tokens: int, request: Request) -> int:
    return max(16, min(max_tokens * 3 // 4, request.max_tokens // 2))


def inline_prompt(instructions: str, max_tokens: int, request: Request, stays: Sequence[ElementJson]) -> str:
    """Returns the instruction that follows the conversation itself, up to the last of the request's elements."""
    scope = []
    if any(element.role != "system" for element in request.before or ()):
        told = next((text for element in request if (text := beginning(element))), "")
        scope.append(_FROM.format(text=element_json.dump(told)))
    if after := [piece for piece in stays if piece.start_seq > request.end_seq]:
        scope.append(_AFTER.format(document=element_json.document(after)))
    return "\n\n".join([_INLINE.format(instructions=instructions, tokens=_room(max_tokens, request)), *scope])


def beginning(element: Element) -> str:
    """Returns the beginning of the longest text of an element, because the first text of a call is its id."""
    return max(texts(element), key=len, default="").strip()[:_BEGINNING]


class ModelSummarizer(ABC):
    """The base of the summarizers that ask a model. `limit` is the parameter that limits the tokens of an answer."""

    name: ClassVar[str]
    is_summarizer = True
    # The parameter of a request that has the conversation.
    _conversation = "messages"
    # The parameters of a request that belong to the conversation: they are sent with it in inline mode only.
    _OF_CONVERSATION: ClassVar = ("system", "instructions", "tools", "tool_choice", "parallel_tool_calls")

    def __init__(
        self, client: Any, model: str, instructions: str | None, max_tokens: int, deadline: float,
        parameters: Mapping[str, Any] | None, checks: Sequence[Check], *, mode: str, context: int, render: Render,
        unfit: Sequence[str], limit: str,
    ) -> None:  # fmt: skip
        check_model(model)
        number(max_tokens, "max_tokens", least=1)
        if type(deadline) not in (int, float) or not deadline > 0:
            raise errors.InvalidInput(f"deadline must be a number of seconds > 0{other(deadline)}")
        if not callable(render):
            raise errors.InvalidInput(f"render must be a function that makes a request of a view{other(render)}")
        if mode not in MODES:
            raise errors.InvalidInput(f"mode must be {' or '.join(map(repr, MODES))}{other(mode)}")
        number(context, "context", least=0)
        check_parameters(parameters, unfit)
        self._client = client
        self._model = model
        self.instructions = instructions
        self._max_tokens = max_tokens
        self._limit = {limit: max_tokens}
        self._deadline = deadline
        self._parameters = dict(parameters or {})
        self._checks = check_checks(checks)
        self._mode = mode
        self._context = context
        self._render = render

    @property
    def can_repair(self) -> bool:
        """Whether the summarizer can repair one of its summaries if it is given the faults."""
        return self._mode != "native"

    @property
    def model(self) -> str:
        return self._model

    @property
    def needs_async(self) -> bool:
        return is_async_client(self._client)

    def __call__(self, elements: Sequence[Element], /) -> Summary | Awaitable[Summary]:
        return self._run(with_checks(self._work, Request.of(elements), self._checks, can_repair=self.can_repair))

    def answer(self, prompt: str, document: str) -> Summary | Awaitable[Summary]:
        """Returns the model's answer to a judge's prompt and a document, with the number of tokens used."""
        if self._mode == "native":
            raise errors.InvalidInput("mode must be 'prompt' or 'inline' to answer a prompt, not 'native'")
        return self._run(self._answered(document, self.asked(self.name, prompt)))

    def _answered(self, document: str, asked: Asked) -> Work[Summary]:
        try:
            return asked.summary((yield from self._send(document, asked)))
        except errors.SummarizerError as error:
            error.attempted = asked.summary("")
            raise

    def _run(self, work: Work[Summary]) -> Summary | Awaitable[Summary]:
        return drive_async(work) if self.needs_async else drive(work)

    def asked(self, name: str, prompt: str | None = None, **options: Any) -> Asked:
        mode = {} if self._mode == "prompt" else {"mode": self._mode}
        given = settings({**self._limit, **self._parameters, **mode, **options})
        return Asked(name, self._model, given, prompt, Deadline(self._deadline))

    def _work(self, request: Request) -> Work[Summary]:
        asked = self.asked(self.name)
        return (yield from judged(self._summary(request, asked), request, asked))

    def _summary(self, request: Request, asked: Asked) -> Work[Summary]:
        if (repair := request.repair) is not None:
            # Allow more tokens than for notes, because the missing lines are added to them.
            asked.prompt = REPAIR.format(tokens=max(16, min(self._max_tokens * 3 // 4, request.max_tokens)))
            shown = element_json.dump({"notes": repair.text, "missing": repair.missing, "unfounded": repair.unfounded})
            return asked.summary((yield from self._send(shown, asked)))
        notes, coverage = yield from self.notes(request, asked, self.instructions or INSTRUCTIONS)
        while len(notes) > 1:
            fewer = yield from _notes(self._send, [element_json.notes_json(*note) for note in notes], asked, ())
            if len(fewer) >= len(notes):
                raise errors.SourceTooLong("the summaries of the parts are too long to be merged")
            notes = fewer
        return asked.summary(notes[0].text, coverage)

    def notes(
        self, request: Request, asked: Asked, instructions: str, as_json: Callable[[str], Any] = str
    ) -> Work[tuple[list[Note], Payload]]:
        """Returns notes (several if elements are long) and the record's coverage. `as_json` converts earlier notes."""
        stays = element_json.surroundings(request, self._context)
        asked.prompt = prompt_for(instructions, self._max_tokens, request, stays)
        if self._mode == "inline":
            after = [element for element in request.unquoted_after or () if element.role == "system"]
            view = View("", 0, (*(request.before or ()), *request, *after))
            prompt = inline_prompt(instructions, self._max_tokens, request, stays)
            try:
                text = yield from self._send_inline(self._rendered(view), prompt, asked)
            except (errors.SourceTooLong, errors.SummaryCutShort, errors.SummaryUseless):
                pass  # The messages are sent as a document.
            else:
                asked.prompt = prompt
                around = [piece.start_seq for piece in stays if piece.start_seq > request.end_seq]
                return [Note(request.start_seq, request.end_seq, text)], {"around": around} if around else {}
        shown = element_json.source_document(request.elements, as_json)
        notes = yield from _notes(self._send_as_json, shown.pieces, asked, stays)
        parts = [[note.start_seq, note.end_seq] for note in notes] if len(notes) > 1 else ()
        seen = {"parts": parts, "erased": shown.erased, "media": shown.media, "around": [e.start_seq for e in stays]}
        return notes, {name: list(found) for name, found in seen.items() if found}

    def _rendered(self, view: View) -> Payload:
        """Returns the agent's request, which must be one of the summarizer's API."""
        found = self._render(view)
        name = self._conversation
        if isinstance(found, Mapping) and isinstance(found.get(name), list | tuple):
            return dict(found)
        raise errors.InvalidInput(f"render must return a request of the summarizer's API, which has a list {name!r}")

    @property
    def _given(self) -> Payload:
        """The parameters of every request. Inline mode adds those of the conversation."""
        fixed = {name: value for name, value in self._parameters.items() if name not in self._OF_CONVERSATION}
        return {**(self._parameters if self._mode == "prompt" else fixed), "model": self._model, **self._limit}

    def _send_as_json(self, shown: str, asked: Asked) -> Work[str]:
        """Sends a document, and sends it again without the schema to a server or a model that knows no schemas."""
        try:
            return (yield from self._send(shown, asked))
        except (errors.SummarizerRejected, errors.SummarizerUnavailable) as error:
            if asked.schema is None or (type(error), error.status) not in _NO_SCHEMA:
                raise
        asked.schema = None
        return (yield from self._send(shown, asked))

    @abstractmethod
    def _send(self, shown: str, asked: Asked) -> Work[str]:
        """Sends a document with the prompt. If `asked` has a schema, the answer must be JSON of that schema."""

    def _said(self, parameters: Payload, asked: Asked) -> Work[str]:
        return self._text((yield from self._answer(parameters, asked)))

    def _answer(self, parameters: Payload, asked: Asked) -> Work[Any]:
        answer = yield from ask(self._client, self._request(parameters), asked.deadline)
        # Record the answer before it is judged, because a refused or unfinished answer is billed too.
        asked.answers.append(answer)
        return answer

    @abstractmethod
    def _request(self, parameters: Payload) -> ApiRequest: ...

    @abstractmethod
    def _text(self, answer: Any) -> str:
        """Returns the text of an answer. Raises a SummarizerError for an answer that is not finished."""

    @abstractmethod
    def _send_inline(self, arguments: Payload, prompt: str, asked: Asked) -> Work[str]:
        """Sends the agent's own request with one more message, the prompt."""


def finished(text: str, reason: Any, *, refused: bool, full: bool, whole: bool) -> str:
    """Returns the text of a finished answer. Raises an error for any other answer."""
    if refused:
        raise errors.SummaryRefused("the model refused")
    if full:
        raise errors.SourceTooLong("the model's context window was full before the end of the answer")
    if not whole:
        raise errors.SummaryCutShort(f"the answer is not finished: {stop_reason(reason)}")
    if not (text := text.strip()):
        raise errors.SummaryUseless("the answer is empty")
    return text


def _notes(send: Send, pieces: Sequence[ElementJson], asked: Asked, stays: Sequence[ElementJson]) -> Work[list[Note]]:
    """Returns a note on the pieces, or on each half if they are too long: without `stays` that take over a quarter."""
    try:
        text = yield from send(element_json.document(pieces, stays), asked)
    except errors.SourceTooLong:
        parts = element_json.halves(pieces, _LEAST)
        if parts is None and not stays:
            raise
        if parts is None or 4 * _size(stays) > _size(parts[0]):
            stays = ()
    else:
        return [Note(pieces[0].start_seq, pieces[-1].end_seq, text)]
    notes: list[Note] = []
    for part in parts or [pieces]:
        notes += yield from _notes(send, part, asked, stays)
    return notes


def _size(pieces: Sequence[ElementJson]) -> int:
    return sum(len(piece.text) for piece in pieces)


def _spent(answers: Sequence[Payload]) -> Payload:
    """Returns the total usage of all requests for a summary."""
    usages = [one["usage"] for one in answers if isinstance(one.get("usage"), dict)]
    return {name: sum(usage.get(name) or 0 for usage in usages) for name in _COUNTS} | {"requests": len(answers)}


# ---- whether an answer is a summary
# Only clear cases are refused, because a false alarm costs a compaction. A refusal is recognized by the first words of
# a short text. An answer with only markup, a heading or a placeholder is an empty shell. docs/summarizers.md describes
# the lists of words and their limits.

# A longer text that begins like a refusal probably contains a summary too.
_LONGEST_REFUSAL = 600
_REFUSALS = re.compile(_DATA.pattern("refusals"), re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]{0,100}>|```\w*")
_SHELLS = _DATA.words("shell_words")


def judge(summary: Summary, request: Request) -> None:
    """Raises a SummarizerError if an answer is not a summary of the request."""
    text = summary.text
    if summary.unreadable:
        return
    if not text.strip():
        raise errors.SummaryUseless("the answer is empty")
    if is_shell(text):
        raise errors.SummaryUseless("the answer has only markup or a heading and no summary")
    if is_refusal(text):
        raise errors.SummaryRefused("the answer is a refusal")
    if len(text) >= request.size:
        raise errors.SummaryTooLong(f"the answer must have fewer than {request.size:,} characters, not {len(text):,}")


def is_refusal(text: str) -> bool:
    """Returns whether a text begins like a model's refusal."""
    start = text.strip().lstrip("*_#>\"' ").replace("\u2019", "'")
    return len(start) <= _LONGEST_REFUSAL and _REFUSALS.match(start) is not None


def is_shell(text: str) -> bool:
    """Returns whether a text has only markup, a heading or a placeholder, and no summary."""
    words = "".join(c for c in _MARKUP.sub("", text) if c.isalnum()).lower()
    return not words or words in _SHELLS


def hidden(text: str) -> Payload:
    """Counts the invisible characters of a text by kind."""
    counts = {kind: len(re.findall(pattern, text)) for kind, pattern in _DATA.values["hidden"].items()}
    return {kind: count for kind, count in counts.items() if count}


# ---- several summarizers, tried in order until one succeeds; the record names those that failed


class FallbackSummarizer:
    """Calls summarizers in order until one returns a usable summary."""

    is_summarizer = True

    def __init__(self, first: Summarizer, *then: Summarizer, checks: Sequence[Check] = ()) -> None:
        self.summarizers = (first, *then)
        self._checks = check_checks(checks)
        for one in self.summarizers:
            check_summarizer(one)

    @property
    def name(self) -> str:
        return f"FallbackSummarizer({', '.join(name_of(one, 'summarizer') for one in self.summarizers)})"

    @property
    def can_repair(self) -> bool:
        """Whether any of the summarizers can repair a summary if it is given the faults."""
        return any(getattr(one, "can_repair", False) is True for one in self.summarizers)

    @property
    def needs_async(self) -> bool:
        return any(map(is_async, self.summarizers))

    def __repr__(self) -> str:
        return f"FallbackSummarizer({', '.join(type(one).__name__ for one in self.summarizers)})"

    def __call__(self, elements: Sequence[Element], /) -> Summary | Awaitable[Summary]:
        work = with_checks(self._work, Request.of(elements), self._checks, can_repair=self.can_repair)
        # Do not call an async summarizer before the result is awaited.
        return drive_async(work) if self.needs_async else begin(work)

    def _work(self, request: Request) -> Work[Summary]:
        raised: list[Exception] = []
        failures: list[Payload] = []
        for summarizer in self.summarizers:
            call = CallRecord(summarizer)
            try:
                return _judged(request, call, (yield Call(summarizer, request)), failures)
            except Exception as error:  # noqa: BLE001 — after any error, the next summarizer is called
                raised.append(error)
                failures.append(call.failure(error))
        names = ", ".join(type(error).__name__ for error in raised)
        failed = errors.SummarizersFailed(f"all {len(raised)} summarizers failed: {names}", errors=tuple(raised))
        # A record can name only one model. Name the first that was called.
        model = next((failure["model"] for failure in failures if "model" in failure), None)
        failed.attempted = Summary("", model=model, coverage={"failed_before": failures})
        raise failed


def _judged(request: Request, call: CallRecord, result: Any, failures: Sequence[Payload]) -> Summary:
    if not isinstance(result, str | Summary):
        raise errors.InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
    summary = call.summary(result)
    try:
        judge(summary, request)
    except errors.SummarizerError as error:
        error.attempted = without_text(summary)
        raise
    if not failures:
        return summary
    return replace(summary, coverage={**(summary.coverage or {}), "failed_before": list(failures)})
