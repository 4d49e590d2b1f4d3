"""Summarizes each run of the assistant's messages and keeps the user's messages.

A run is at least `min_length` adjacent messages of the assistant, two by default. If a run has a call but not its
result, only the parts of the run without that call are summarized. Summaries are not summarized again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Self

from compaction_store import waiting
from compaction_store.compaction.asking import Ask, Steps, check_role
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.context import CompactionContext, builder_of
from compaction_store.errors import NoProgress
from compaction_store.messages.framing import Role
from compaction_store.models import Element, Payload, Span
from compaction_store.strategies.base import (
    MIN_SAVING,
    TOO_LITTLE,
    Planner,
    SummarySource,
    attempt,
    check_allow,
    check_count,
    check_saving,
    check_summarizer,
    shown_call,
    worth,
)
from compaction_store.strategies.layout import held_unread
from compaction_store.strategies.outline import Outline, elements_of
from compaction_store.strategies.pins import PinOption, Pins
from compaction_store.strategies.thresholds import Predicate, Threshold, as_threshold, window_of

_MADE_BY_ASSISTANT = frozenset({"assistant"})
_WITH_RESULTS = frozenset({"assistant", "result"})


def plan_assistant_runs(
    messages: Iterable[Payload | None],
    *,
    first_only: bool = False,
    min_length: int = 2,
    retain: int = 0,
    tool_results: bool = False,
    pin: PinOption = (),
) -> list[Span]:
    """Returns the spans that `AssistantRuns` would summarize, in order. The first message has seq 1."""
    outline = Outline(elements_of(messages), pins=Pins(pin), tail=retain)
    spans = list(_runs(outline, min_length, tool_results=tool_results))
    return spans[:1] if first_only else spans


class AssistantRuns(Planner):
    """Summarizes each run of the assistant's messages; with `first_only`, only the first run that can be summarized.

    With `tool_results`, results of tools count as the assistant's messages. The last `retain` messages are kept. With a
    budget, results that no model has read yet are also kept with their calls, unless these messages take more than
    three quarters of the budget's limit. With `when`, the strategy does nothing below that threshold. If the summary of
    a run fails, the failure is recorded, and the other runs are summarized. `min_saving` is a number of tokens as an
    integer, or a share of the run as a float; a summary that saves less is rejected. The summaries are messages with
    the role `role`.
    """

    def __init__(
        self,
        summarize: SummarySource,
        *,
        first_only: bool = False,
        min_length: int = 2,
        retain: int = 0,
        tool_results: bool = False,
        when: Threshold | Predicate | int | None = None,
        pin: PinOption = (),
        allow: Collection[str] = (),
        min_saving: float = MIN_SAVING,
        role: Role = "user",
        checks: Sequence[Check] = (),
    ) -> None:
        check_summarizer(summarize)
        check_saving(min_saving)
        check_role(role)
        check_count(min_length, "min_length", least=1)
        check_count(retain, "retain", least=0)
        self._summarize = summarize
        self._first_only = first_only
        self._min_length = min_length
        self._retain = retain
        self._tool_results = tool_results
        self._when = None if when is None else as_threshold(when)
        self._pins = Pins(pin)
        self._allow = check_allow(allow)
        self._min_saving = min_saving
        self._role = role
        self._checks = check_checks(checks)

    @property
    def name(self) -> str:
        return shown_call("AssistantRuns", [
            ("first_only", self._first_only, False), ("min_length", self._min_length, 2), ("retain", self._retain, 0),
            ("tool_results", self._tool_results, False), ("when", self._when, None),
            ("pin", self._pins or None, None), ("min_saving", self._min_saving, MIN_SAVING),
            ("role", self._role, "user"),
            ("checks", self._checks, ()),
        ])  # fmt: skip

    @property
    def needs_async(self) -> bool:
        return waiting.is_async(self._summarize)

    def with_pins(self, pins: Pins) -> Self:
        """Returns a copy with more pins."""
        held = copy(self)
        held._pins = self._pins | pins  # noqa: SLF001 — an instance of this class
        return held

    def steps(self, ctx: CompactionContext) -> Steps:
        elements = ctx.elements
        limit = None if ctx.budget is None else ctx.budget.limit
        if self._when is not None and not self._when(window_of(elements, limit)):
            return
        tail = max(self._retain, held_unread(elements, limit))
        outline = Outline(elements, pins=self._pins, tail=tail, links=ctx.links)
        asks = [self._ask(run) for run in _runs(outline, self._min_length, tool_results=self._tool_results)]
        for ask in self._worth_asking(ctx, elements, asks):
            error = yield from attempt(ctx, ask)
            # With first_only, the strategy calls the model once, even if that call fails.
            if self._first_only and not isinstance(error, NoProgress):
                return

    def _ask(self, run: Span) -> Ask:
        reason = f"a run of the assistant's messages, {run}"
        return Ask(
            *run, summarize=self._summarize, allow=self._allow, reason=reason, min_saving=self._min_saving,
            role=self._role, checks=self._checks,
        )  # fmt: skip

    def _worth_asking(self, ctx: CompactionContext, elements: Sequence[Element], asks: list[Ask]) -> list[Ask]:
        """Returns the `Ask`s whose span a summary could shorten enough."""
        if "larger" in self._allow:
            return asks
        sized = zip(asks, _tokens(elements, asks), strict=True)
        kept = [ask for ask, size in sized if worth(ctx, size, self._summarize, self._min_saving)]
        if len(kept) < len(asks):
            builder_of(ctx).idle_reason = TOO_LITTLE
        return kept


def _tokens(elements: Sequence[Element], asks: Iterable[Ask]) -> Iterator[int]:
    place = 0
    for ask in asks:
        total = 0
        while place < len(elements) and elements[place].seq <= ask.end_seq:
            total += elements[place].tokens if elements[place].seq >= ask.start_seq else 0
            place += 1
        yield total


def _runs(outline: Outline, min_length: int, *, tool_results: bool) -> Iterator[Span]:
    elements = outline.elements
    for low, high in _maximal(outline, _WITH_RESULTS if tool_results else _MADE_BY_ASSISTANT):
        for start, end in _whole(outline, low, high):
            if sum(len(element.messages) for element in elements[start : end + 1]) >= min_length:
                yield Span(elements[start].seq, elements[end].end_seq)


def _maximal(outline: Outline, wanted: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yields the longest ranges whose elements may be summarized and have only the wanted speakers."""
    low: int | None = None
    for index, who in enumerate(outline.speakers):
        if who and who <= wanted and not outline.stays[index]:  # type: ignore[operator]
            low = index if low is None else low
        elif low is not None:
            yield low, index - 1
            low = None
    if low is not None:
        yield low, len(outline.speakers) - 1


def _whole(outline: Outline, low: int, high: int) -> list[tuple[int, int]]:
    """Returns the whole run, or only parts of it if summarizing the whole run would split a call from its result.

    In Anthropic's format, a message between a call and its result is left out too: it is in the same turn as one of
    them.
    """
    links = outline.links
    parts = links.problem(low, high) is not None
    if parts or (outline.is_anthropic and links.interrupts(low, high)):
        return outline.safe(low, high)
    return [(low, high)]
