"""Runs strategies one after another, and adds pins to any strategy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from compaction_store.compaction.asks import Ask, Steps
from compaction_store.compaction.callbacks import Strategy, callback_name, sent
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.errors import InvalidCallback, PinnedInside
from compaction_store.messages.tool_pairs import Links, items_of
from compaction_store.models import Element
from compaction_store.strategies.base import Attempted, BaseStrategy
from compaction_store.strategies.outline import Pin, PinOption, Pins
from compaction_store.strategies.thresholds import Predicate, Threshold, as_threshold


class Pipeline(BaseStrategy):
    """Runs strategies in order, each on the view that the earlier ones planned. All plans are committed at once.

    The threshold `when` is checked before each strategy. If it is not reached, this strategy and all later ones do not
    run. With `pin`, pinned messages are not changed. Plain callbacks may be among the strategies, but they ignore the
    pins. Each record names its strategy.
    """

    def __init__(
        self,
        *strategies: Strategy | Callable[[CompactionContext], Any],
        when: Threshold | Predicate | int | None = None,
        pin: PinOption = (),
    ) -> None:
        for strategy in strategies:
            if not isinstance(strategy, Strategy) and not callable(strategy):
                raise InvalidCallback(
                    f"a pipeline must consist of strategies and callbacks, not of {type(strategy).__name__}"
                )
        self._pins = Pins(pin)
        self._strategies = strategies
        self._when = None if when is None else as_threshold(when)

    @property
    def name(self) -> str:
        return f"Pipeline({', '.join(map(callback_name, self._strategies))})"

    @property
    def needs_async(self) -> bool:
        return any(getattr(strategy, "needs_async", False) for strategy in self._strategies)

    def steps(self, ctx: CompactionContext) -> Steps:
        planner = planner_of(ctx)
        limit = None if ctx.budget is None else ctx.budget.limit
        for strategy in self._strategies:
            if self._when is not None and not self._when.is_reached(ctx.elements, limit, planner.now):
                return
            caller = planner.rename(callback_name(strategy))
            if isinstance(strategy, Strategy):
                yield from (_pinned(strategy, self._pins) if self._pins else strategy).steps(ctx)
            else:
                strategy(ctx)
            planner.rename(caller)


def pin(strategy: Strategy, *pins: Pin) -> Strategy:
    """Returns a strategy that does not change pinned messages. A pin is a seq, a span of seqs or a predicate.

    If a span to summarize or remove contains a pinned message, the parts around that message are used. A span to
    replace with shorter messages is refused if it contains a pinned message.
    """
    return _pinned(strategy, Pins(pins))


def _pinned(strategy: Strategy, pins: Pins) -> Strategy:
    with_pins = getattr(strategy, "with_pins", None)
    held: Strategy = _Pinned(strategy, pins) if with_pins is None else with_pins(pins)
    return held


class _Pinned(BaseStrategy):
    """A strategy whose spans are cut around pins."""

    def __init__(self, strategy: Strategy, pins: Pins) -> None:
        self._strategy = strategy
        self._pins = pins

    @property
    def name(self) -> str:
        return f"pin({callback_name(self._strategy)}, {self._pins})"

    @property
    def needs_async(self) -> bool:
        return bool(getattr(self._strategy, "needs_async", False))

    def steps(self, ctx: CompactionContext) -> Steps:
        cuts = _Cuts(ctx.elements, self._pins)
        inner = self._strategy.steps(ctx)
        outcome: Exception | None = None
        while (ask := sent(inner, outcome)) is not None:
            outcome = yield from cuts.ask(ask)


class _Cuts:
    """Asks for the parts of a span that have no pinned elements."""

    def __init__(self, elements: Sequence[Element], pins: Pins) -> None:
        self._elements = elements
        self._starts = [element.seq for element in elements]
        self._held = [index for index, element in enumerate(elements) if pins.hold(element)]

    @cached_property
    def _links(self) -> Links:
        return Links(items_of(self._elements))

    def ask(self, ask: Ask) -> Attempted:
        low = bisect_right(self._starts, ask.start_seq) - 1
        high = bisect_right(self._starts, ask.end_seq) - 1
        held = self._held[bisect_left(self._held, low) : bisect_right(self._held, high)]
        if not held:
            return (yield ask)
        outcome: Exception | None = PinnedInside(
            "a pinned message is inside the span", start_seq=ask.start_seq, end_seq=ask.end_seq
        )
        if ask.replacement is not None:
            return outcome
        done = False
        for before, after in pairwise([low - 1, *held, high + 1]):
            found = self._links.safe(before + 1, after - 1, interrupting=False)
            if found is not None:
                start, end = self._elements[found[0]].seq, self._elements[found[1]].end_seq
                outcome = yield replace(ask, start_seq=start, end_seq=end)
                done = done or outcome is None
        return None if done else outcome
