"""Checks that a summary keeps what it must keep and invents nothing.

Pass checks to `ctx.compact(…, checks=(KeepsOrders(), NothingInvented()))`, to a strategy or to a summarizer. The checks
are rules and call no model. If a check fails, a summarizer of this package that uses a model gets a list of the missing
items and writes the summary once more. If the check still fails, lines with the missing items are appended or, with
`strict=True`, the summary is rejected. The compaction record has the result of each check.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction_store.arguments import number, other
from compaction_store.compaction.checks import Check
from compaction_store.errors import InvalidInput
from compaction_store.models.probe import Probe
from compaction_store.probes.checked_span import CheckedSpan

__all__ = [
    "Check",
    "CheckedSpan",
    "KeepsFiles",
    "KeepsIdentifiers",
    "KeepsOrders",
    "NothingInvented",
    "NothingStale",
    "QuotesAreQuotes",
]


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
        number(calls, "calls", least=1)
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
