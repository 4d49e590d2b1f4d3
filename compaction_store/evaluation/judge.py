"""A judge: a model that is asked several times whether a summary is good. No other figure includes its verdicts.

Its agreement with people's verdicts on the same records (Cohen's kappa) shows how far it can be trusted.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from compaction_store import arguments
from compaction_store.compaction.element_json import document, dump, source_document
from compaction_store.errors import InvalidInput, SummarizerError
from compaction_store.messages.framing import framed_text
from compaction_store.models import Element, Payload, Summary
from compaction_store.module_data import ModuleData

PROMPT: Final = ModuleData(__file__).text("prompt")
_ANSWER = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)

# The verdicts that a reviewer can give on a record, except unsure.
_VERDICTS = {"good": True, "bad": False}

# A function that asks a model, given a prompt and a document. Returns the answer with the tokens used, or only the
# answer's text.
Ask = Callable[[str, str], "Summary | str"]


class JudgeVerdict(NamedTuple):
    """How often a judge said yes, no, or neither (`unclear`), and how many calls gave no answer (`failed`)."""

    yes: int
    no: int
    unclear: int
    failed: int

    @property
    def is_good(self) -> bool | None:
        """The answer of the majority; None for a tie."""
        return None if self.yes == self.no else self.yes > self.no

    @property
    def is_unanimous(self) -> bool:
        return min(self.yes, self.no) == 0 and not self.unclear and not self.failed


class Asker:
    """Asks a model `replicates` times.

    `ask` is called with a prompt and a JSON document, and returns the answer as text or as a `Summary`. It may be the
    method `answer` of an `AnthropicSummarizer` or `OpenAISummarizer`.
    """

    def __init__(self, ask: Ask, model: str | None, prompt: str, replicates: int) -> None:
        if not callable(ask):
            raise InvalidInput(f"ask must be a callable that takes a prompt and a document{arguments.other(ask)}")
        if inspect.iscoroutinefunction(ask) or getattr(getattr(ask, "__self__", None), "needs_async", False):
            raise InvalidInput("ask must not be async: give the summarizer a client that is not async")
        arguments.number(replicates, "replicates", least=1)
        self._ask, self.prompt, self.replicates = ask, prompt, replicates
        self.model = model if model is not None else getattr(getattr(ask, "__self__", None), "model", None)
        self.use = SummarizerUse()
        #: The number of calls without an answer, by the type of the error.
        self.errors = Counter[str]()

    def answer(self, document: str) -> str | None:
        """Returns the answer, or None if the call failed. Counts the tokens in either case."""
        try:
            answer = self._ask(self.prompt, document)
        except SummarizerError as error:
            self.errors[type(error).__name__] += 1
            self.use.add(None if error.attempted is None else error.attempted.usage)
            return None
        self.use.add(answer.usage if isinstance(answer, Summary) else None)
        return answer.text if isinstance(answer, Summary) else answer


class Judge(Asker):
    """A judge that asks a model `replicates` times about each summary. `Asker` explains `ask`."""

    def __init__(self, ask: Ask, *, model: str | None = None, prompt: str = PROMPT, replicates: int = 3) -> None:
        super().__init__(ask, model, prompt, replicates)

    def of(self, source: Sequence[Element], replacement: Sequence[Payload]) -> JudgeVerdict:
        """Returns the verdict on a summary that replaces the elements in `source`."""
        notes = "\n".join(framed_text(message) or "" for message in replacement)
        asked = f'{{"source":{document(source_document(source).pieces)},"notes":{dump(notes)}}}'
        said = Counter(self._once(asked) for _ in range(self.replicates))
        return JudgeVerdict(said["yes"], said["no"], said["unclear"], said["failed"])

    def _once(self, asked: str) -> str:
        if (text := self.answer(asked)) is None:
            return "failed"
        found = _ANSWER.match(text)
        return "unclear" if found is None else found[1].lower()


def labels_of(events: Iterable[Any]) -> Mapping[int, bool]:
    """Maps the number of a record to people's newest verdict on it. Leaves out a record if this verdict is unsure."""
    found: dict[int, bool] = {}
    for event in events:
        record, verdict = event.body.get("number"), event.body.get("verdict")
        if event.kind == "verdict" and type(record) is int:
            found.pop(record, None)
            if verdict in _VERDICTS:
                found[record] = _VERDICTS[verdict]
    return found


# ---- the tokens of model calls, as the APIs of Anthropic and OpenAI report them


class Usage(NamedTuple):
    """A call's input tokens, as the API reported them. `fresh` ones were not read from its cache or written to it."""

    fresh: int
    cache_read: int
    cache_write: int


@dataclass
class SummarizerUse:
    """The tokens that summarizers reported. `without_usage` counts calls without a report, whose cost is unknown."""

    attempts: int = 0
    without_usage: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def add(self, usage: Mapping[str, Any] | None, *, by_model: bool = True) -> None:
        self.attempts += 1
        given = usage_of({"usage": usage})
        written = 0 if usage is None else sum(_figure(usage, name) for name in ("output_tokens", "completion_tokens"))
        self.without_usage += by_model and given is None and not written
        if given is not None:
            self.input_tokens += given.fresh
            self.cache_read += given.cache_read
            self.cache_write += given.cache_write
        self.output_tokens += written

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.cache_read + self.cache_write + self.output_tokens


def usage_of(message: Mapping[str, Any]) -> Usage | None:
    """Returns the input tokens that a reply, or the meta of a reply, reports. Reads Anthropic's and OpenAI's fields."""
    if not isinstance(given := message.get("usage"), Mapping):
        return None
    if "prompt_tokens" in given or "input_tokens_details" in given:
        whole = _figure(given, "prompt_tokens") or _figure(given, "input_tokens")
        details = given.get("prompt_tokens_details", given.get("input_tokens_details"))
        read = min(whole, _figure(details, "cached_tokens")) if isinstance(details, Mapping) else 0
        found = Usage(whole - read, read, 0)
    else:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        found = Usage(*(_figure(given, name) for name in names))
    return found if sum(found) else None


def _figure(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value > 0 else 0
