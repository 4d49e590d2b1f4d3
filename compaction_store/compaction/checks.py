"""Checks a summary against the messages that it replaces, by rules that need no model.

A check asks questions about a summary, called probes, and says which of them failed. `checked_summary` then asks the
summarizer for one repair, if it can repair, and appends lines with the items that are still missing.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from compaction_store.arguments import other
from compaction_store.compaction.summary_request import Request, TrackedView
from compaction_store.errors import InvalidInput
from compaction_store.messages import framing
from compaction_store.models import Element
from compaction_store.probes import Fold, Place, Probe, ProbeType, ThreadFacts, ThreadMessage, ThreadProbe

# The record of the summary has no number yet.
_NO_NUMBER = 0


class CheckedSpan:
    """The span whose summary is checked. It answers probes as if a given text were the span's summary."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._known: dict[str, tuple[ThreadProbe, list[Probe]]] = {}

    @property
    def start_seq(self) -> int:
        return self._request.start_seq

    @property
    def end_seq(self) -> int:
        return self._request.end_seq

    @cached_property
    def _facts(self) -> ThreadFacts:
        # Include the rest of the view, because names in it are not lost. Checks quote nothing from it.
        rest = self._request.unquoted_rest or ()
        elements = sorted((*self._request.elements, *rest), key=lambda element: element.seq)
        return ThreadFacts(message for element in elements for message in _messages(element))

    def probes(self, text: str, *types: ProbeType) -> list[Probe]:
        """Returns the probes of the given types, answered as if `text` were the span's summary."""
        return [probe for probe in self._probed(text)[1] if probe.type in types]

    def used_names(self, text: str, *, calls: int) -> list[Probe]:
        """Returns a probe for each name that a user, or at least `calls` calls, used in the span.

        A probe is kept if the view still contains the name.
        """
        probe = self._probed(text)[0]
        return list(probe.used(self.start_seq, self.end_seq, record=_NO_NUMBER, calls=calls))

    def text_at(self, place: Place) -> str | None:
        """Returns the text at a place in a message of the span, or None if it cannot be read."""
        facts = None if place.seq is None else self._facts.messages.get(place.seq)
        value: Any = None if facts is None else facts.payload
        for step in place.field.replace("]", "").replace("[", ".").split("."):
            if isinstance(value, list) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            elif isinstance(value, Mapping):
                value = value.get(step)
            else:
                return None
        return value if isinstance(value, str) else None

    def names_secret(self, text: str) -> bool:
        """Returns whether a text has a word that a user or a call of the view named as a credential."""
        return self._facts.names_secret(text)

    def _probed(self, text: str) -> tuple[ThreadProbe, list[Probe]]:
        if text not in self._known:
            probe = ThreadProbe(self._facts)
            for seq in self._facts.messages:
                probe.append(seq)
            framed = framing.frame(text, self.start_seq, self.end_seq)
            seqs = list(self._facts.messages)
            view = self._request.view
            shown = (seqs[0], seqs[-1]) if seqs and isinstance(view, TrackedView) and view.was_shown else None
            probe.fold(Fold(_NO_NUMBER, self.start_seq, self.end_seq, (framed,), sources=shown))
            self._known[text] = probe, probe.finish()
        return self._known[text]


def _messages(element: Element) -> Iterator[ThreadMessage]:
    for seq, payload in zip(range(element.seq, element.end_seq + 1), element.messages, strict=False):
        yield ThreadMessage(seq, payload, is_summary=element.is_summary)


class Check(ABC):
    """The base class of all checks. If a `strict` check fails, the summary is rejected and the span stays unchanged.

    To write your own check, subclass this class. Its method `probes` returns the questions with their answers. A
    question that failed has `kept=False`.

    `probes` must not be async. On an event loop it runs in a thread, so it may take long. If it raises an error, the
    record names the error's type, and the summary has not passed.
    """

    def __init__(self, *, strict: bool = False) -> None:
        if not isinstance(strict, bool):
            raise InvalidInput(f"strict must be True or False{other(strict)}")
        self.strict = strict

    @property
    def name(self) -> str:
        """The name of the check in records."""
        return type(self).__name__

    @abstractmethod
    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        """Returns the questions, answered as if `text` were the summary of the span."""

    def passes(self, asked: int, lost: int) -> bool:
        """Returns whether a summary passes, given the numbers of questions and of failures."""
        return lost == 0 <= asked

    def __repr__(self) -> str:
        return f"{self.name}(strict=True)" if self.strict else f"{self.name}()"


class KeepsOrders(Check):
    """A check that the summary contains the users' standing orders, such as "never push to main"."""

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return span.probes(text, "standing_order")


class KeepsIdentifiers(Check):
    """A check that the view still contains the names that a user wrote in the span, or that `calls` or more calls used.

    The check passes if at least the share `least` of these names is left.
    """

    def __init__(self, *, least: float = 0.9, calls: int = 2, strict: bool = False) -> None:
        super().__init__(strict=strict)
        if type(least) not in (int, float) or not 0 <= least <= 1:
            raise InvalidInput(f"least must be a number from 0 to 1{other(least)}")
        if type(calls) is not int or calls < 1:
            raise InvalidInput(f"calls must be an integer >= 1{other(calls)}")
        self._least = least
        self._calls = calls

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return span.used_names(text, calls=self._calls)

    def passes(self, asked: int, lost: int) -> bool:
        return asked - lost >= self._least * asked


class KeepsFiles(Check):
    """A check that the view names the files that calls wrote in the span, and says which were deleted or moved."""

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return span.probes(text, "artifact")


class NothingInvented(Check):
    """A check that the names and numbers in the summary are in its sources.

    Acronyms, years, and short or round numbers are not checked.
    """

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return [probe for probe in span.probes(text, "invented") if probe.kind != "quotation"]


class QuotesAreQuotes(Check):
    """A check that the summary's quotations of 3 to 60 words are in its sources word for word."""

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return [probe for probe in span.probes(text, "invented") if probe.kind == "quotation"]


class NothingStale(Check):
    """A check that the summary gives no value that was replaced inside the span, unless it also gives the newer one."""

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return span.probes(text, "stale")


def check_checks(checks: object) -> tuple[Check, ...]:
    """Checks the option `checks`, and returns it as a tuple."""
    given = tuple(checks) if isinstance(checks, Collection) and not isinstance(checks, str) else None
    if given is None or not all(isinstance(one, Check) for one in given):
        raise InvalidInput(f"checks must be a sequence of checks such as KeepsOrders(){other(checks)}")
    waiting = [one.name for one in given if _is_async(one.probes)]
    if waiting:
        raise InvalidInput(f"checks must be synchronous, and the probes of {', '.join(waiting)} are async")
    twice = [name for name, times in Tally(one.name for one in given).items() if times > 1]
    if twice:
        raise InvalidInput(f"checks must have each check only once, but {', '.join(twice)} is given several times")
    return given


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
