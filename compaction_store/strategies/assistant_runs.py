"""Summarizes each run of the assistant's messages and keeps the user's messages.

A run is at least `min_length` adjacent messages of the assistant, two by default. If a run has a call but not its
result, only the parts of the run without that call are summarized. Summaries are not summarized again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from typing import Any, cast

from compaction_store.compaction.asks import Ask, Steps, rules
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.errors import NoProgress
from compaction_store.messages import tool_pairs
from compaction_store.models import Element, Payload, Span, Summary
from compaction_store.strategies import base
from compaction_store.strategies.outline import Outline, elements_of, held_unread
from compaction_store.strategies.thresholds import Predicate, Threshold

_MADE_BY_ASSISTANT = frozenset({"assistant"})
_WITH_RESULTS = frozenset({"assistant", "result"})


@dataclass(frozen=True, eq=False, repr=False)
class AssistantRuns(base.Summarizing):
    """Summarizes each run of the assistant's messages; with `first_only`, only the first run that can be summarized.

    With `tool_results`, results of tools count as the assistant's messages. The last `retain` messages are kept. With a
    budget, results that no model has read yet are also kept with their calls, unless these messages take more than
    three quarters of the budget's limit. With `when`, the strategy does nothing below that threshold. If the summary of
    a run fails, the failure is recorded, and the other runs are summarized. `min_saving` is a number of tokens as an
    integer, or a share of the run as a float; a summary that saves less is rejected. The summaries are messages with
    the role `role`.
    """

    _: KW_ONLY
    first_only: bool = base.option(default=False, keep=base.a_switch)
    min_length: int = base.option(2, keep=base.a_count(1))
    retain: int = base.option(0, keep=base.a_count(0))
    tool_results: bool = base.option(default=False, keep=base.a_switch)
    when: Threshold | Predicate | int | None = base.option(None, keep=base.a_threshold)
    allow: Collection[str] = base.option((), keep=rules, shown=False)

    def steps(self, ctx: CompactionContext) -> Steps:
        elements = ctx.elements
        limit = None if ctx.budget is None else ctx.budget.limit
        when = cast("Threshold | None", self.when)
        if when is not None and not when.is_reached(elements, limit, planner_of(ctx).now):
            return
        runs = self.runs(elements, max(self.retain, held_unread(elements, limit)), ctx.links)
        asks = [self.ask(*run, f"a run of the assistant's messages, {run}", allow=self.allow) for run in runs]
        for ask in self._worth_asking(ctx, elements, asks):
            error = yield from base.attempt(ctx, ask)
            # With first_only, the strategy calls the model once, even if that call fails.
            if self.first_only and not isinstance(error, NoProgress):
                return

    def runs(
        self, elements: Sequence[Element], tail: int | None = None, links: tool_pairs.Links | None = None
    ) -> Iterator[Span]:
        """Yields the runs, of which the last `tail` elements are no part."""
        outline = Outline(elements, pins=self.pins, tail=self.retain if tail is None else tail, links=links)
        for low, high in _maximal(outline, _WITH_RESULTS if self.tool_results else _MADE_BY_ASSISTANT):
            for start, end in _whole(outline, low, high):
                if sum(len(element.messages) for element in elements[start : end + 1]) >= self.min_length:
                    yield Span(elements[start].seq, elements[end].end_seq)

    def _worth_asking(self, ctx: CompactionContext, elements: Sequence[Element], asks: list[Ask]) -> list[Ask]:
        """Returns the `Ask`s whose span a summary could shorten enough."""
        if "larger" in self.allow:
            return asks
        sized = zip(asks, _tokens(elements, asks), strict=True)
        kept = [ask for ask, size in sized if base.worth(ctx, size, self.summarize, self.min_saving)]
        if len(kept) < len(asks):
            planner_of(ctx).idle_reason = base.TOO_LITTLE
        return kept


def plan_assistant_runs(messages: Iterable[Payload | None], **options: Any) -> list[Span]:
    """Returns the spans that `AssistantRuns` would summarize, in order. The first message has seq 1.

    The options are those of `AssistantRuns`.
    """
    strategy = AssistantRuns(Summary("-"), **options)
    spans = list(strategy.runs(elements_of(messages)))
    return spans[:1] if strategy.first_only else spans


def _tokens(elements: Sequence[Element], asks: Iterable[Ask]) -> Iterator[int]:
    place = 0
    for ask in asks:
        total = 0
        while place < len(elements) and elements[place].seq <= ask.end_seq:
            total += elements[place].tokens if elements[place].seq >= ask.start_seq else 0
            place += 1
        yield total


def _maximal(outline: Outline, wanted: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yields the longest ranges whose elements may be summarized and have only the wanted speakers."""
    both = zip(outline.speakers, outline.stays, strict=True)
    fits = [bool(who) and wanted.issuperset(who) and not stays for who, stays in both]
    for is_run, indexes in groupby(range(len(fits)), key=fits.__getitem__):
        if is_run:
            run = list(indexes)
            yield run[0], run[-1]


def _whole(outline: Outline, low: int, high: int) -> list[tuple[int, int]]:
    """Returns the whole run, or only parts of it if summarizing the whole run would split a call from its result.

    In Anthropic's format, a message between a call and its result is left out too: it is in the same turn as one of
    them.
    """
    links = outline.links
    if links.problem(low, high) is not None or (outline.is_anthropic and links.interrupts(low, high)):
        return outline.safe(low, high)
    return [(low, high)]
