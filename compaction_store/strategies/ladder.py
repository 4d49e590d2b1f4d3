"""A view brought under a target rung by rung: a summary, shorter contents, removals, and last of all the ends.

Each rung is stepped on only if the one before did not suffice. Old messages are summarized and the recent ones kept;
then contents are cut to 8192 tokens, 4096, … down to 128; then messages are removed from the middle outwards; then the
first and the last are cut as well. Pairs of calls and results go whole. Only the final form is committed: a record for
each contiguous span, and one for a summary that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Self

from compaction_store import event_loop
from compaction_store.budget import TokenBudget
from compaction_store.context import Ask, CompactionContext, Steps
from compaction_store.errors import InvalidInput, Rejected, SpanConflict
from compaction_store.models import Element
from compaction_store.strategies import base
from compaction_store.strategies.contents import compact
from compaction_store.strategies.layout import Layout, tail
from compaction_store.strategies.parts import InParts
from compaction_store.strategies.pins import PinOption, Pins
from compaction_store.strategies.truncation import Caps, Change, plan

PART_CHARS = 120_000


class Ladder(base.Planner):
    """Summarizes what is old, cuts contents, removes, cuts the ends: as much as the target takes, in this order.

    The target is that of the budget, or `target_tokens`, less `reserve`; of a small budget at most half is held in
    reserve. The summarizer is given what is old in parts of about `part_chars` of JSON, all at once with None; there is
    one record. With `keep_recent_tokens` what is recent is counted in tokens, and cut only after all else is gone.
    """

    def __init__(
        self,
        summarize: base.Summarizer | None = None,
        *,
        target_tokens: int | None = None,
        keep_recent: int = 15,
        reserve: int = 2048,
        start_cap: int = 8192,
        floor_cap: int = 128,
        keep_recent_tokens: int | None = None,
        truncate_tool_arguments: bool = True,
        part_chars: int | None = PART_CHARS,
        pin: PinOption = (),
    ) -> None:
        if summarize is not None:
            base.check_summarizer(summarize)
        base.check_count(keep_recent, "keep_recent", least=0)
        base.check_count(reserve, "reserve", least=0)
        base.check_count(floor_cap, "floor_cap", least=1)
        base.check_count(start_cap, "start_cap", least=floor_cap)
        if keep_recent_tokens is not None:
            base.check_count(keep_recent_tokens, "keep_recent_tokens", least=0)
        if part_chars is not None:
            base.check_count(part_chars, "part_chars", least=1)
        if target_tokens is not None:
            base.check_count(target_tokens, "target_tokens", least=reserve + 1)
        self.summarize = summarize
        self.target_tokens = target_tokens
        self.keep_recent = keep_recent
        self.keep_recent_tokens = keep_recent_tokens
        self.reserve = reserve
        self.part_chars = part_chars
        self.caps = Caps(start_cap, floor_cap, truncate_tool_arguments)
        self.pins = Pins(pin)

    @property
    def name(self) -> str:
        return base.shown_call(
            "Ladder",
            [
                ("summarize", self.summarize, None),
                ("target_tokens", self.target_tokens, None),
                ("keep_recent", self.keep_recent, 15),
                ("keep_recent_tokens", self.keep_recent_tokens, None),
                ("reserve", self.reserve, 2048),
                ("start_cap", self.caps.start, 8192),
                ("floor_cap", self.caps.floor, 128),
                ("truncate_tool_arguments", self.caps.inputs, True),
                ("part_chars", self.part_chars, PART_CHARS),
            ],
        )

    @property
    def needs_async(self) -> bool:
        return event_loop.is_async(self.summarize)

    def with_pins(self, pins: Pins) -> Self:
        """The same, with something more that it never touches."""
        held = copy(self)
        held.pins = self.pins | pins
        return held

    def limit(self, budget: TokenBudget | None) -> int:
        """What the view may take in the end."""
        if self.target_tokens is not None:
            return self.target_tokens - self.reserve
        if budget is None:
            raise InvalidInput("a Ladder needs a budget, or target_tokens=")
        target = budget.target_tokens
        return target - min(self.reserve, target // 2)

    def steps(self, ctx: CompactionContext) -> Steps:
        return self.steps_to(ctx, self.limit(ctx.budget))

    def steps_to(self, ctx: CompactionContext, limit: int) -> Steps:
        """The same with another limit."""
        if ctx.total_tokens <= limit:
            return
        if self.summarize is not None:
            yield from self._summaries(ctx, self.summarize)
        if ctx.total_tokens <= limit:
            return
        for change in self._changes(ctx, limit):
            replacement = change.messages if change.kind == "truncation" else None
            span = change.start_seq, change.end_seq
            yield from base.attempt(
                ctx, Ask(*span, replacement=replacement, allow=change.allow, reason=change.reason)
            )  # fmt: skip

    def _changes(self, ctx: CompactionContext, limit: int) -> list[Change]:
        elements = ctx.elements
        layout = Layout(elements, self.pins, ctx.links)
        verbatim = self.keep_recent_tokens is not None
        return plan(layout, limit, ctx.counter, self.caps, recent=self.recent(elements), verbatim=verbatim)

    def recent(self, elements: Sequence[Element]) -> int:
        """The index at which what is recent begins."""
        return tail([element.tokens for element in elements], self.keep_recent, self.keep_recent_tokens)

    def _summaries(self, ctx: CompactionContext, summarize: base.Summarizer) -> Steps:
        """One summary for each span of what is old. A summarizer that failed once is not asked again in this run."""
        least = base.least_summary(ctx, summarize)
        layout = Layout(ctx.elements, self.pins, ctx.links)
        for low, high in self.old(layout):
            if sum(element.tokens for element in layout.elements[low : high + 1]) <= least:
                continue
            error = yield from self._summary(ctx, layout, low, high, summarize)
            if error is not None and not isinstance(error, Rejected | SpanConflict):
                return

    def _summary(
        self, ctx: CompactionContext, layout: Layout, low: int, high: int, summarize: base.Summarizer
    ) -> base.Attempted:
        elements = layout.elements
        writer, reason = summarize, "old messages summarized"
        if callable(summarize) and self.part_chars is not None:
            ends = [elements[end].end_seq for _, end, _ in layout.parts(low, high, self.part_chars, _chars)]
            writer = InParts(summarize, ends) if len(ends) > 1 else summarize
        error = yield from base.attempt(ctx, Ask(elements[low].seq, elements[high].end_seq, writer, reason=reason))
        if (
            error is not None
            and isinstance(writer, InParts)
            and (end := writer.done_to) not in {None, elements[high].end_seq}
        ):
            ask = Ask(elements[low].seq, end, writer.joined(), reason=f"{reason}, until a part failed")
            yield from base.attempt(ctx, ask)
        return error

    def old(self, layout: Layout) -> Iterator[tuple[int, int]]:
        """The spans of indexes that are to be summarized. A summary that stands alone is not summarized again."""
        for low, high in layout.for_summaries(layout.first, self.recent(layout.elements) - 1):
            filled = [element for element in layout.elements[low : high + 1] if element.messages]
            if len(filled) > 1 or not all(element.is_summary for element in filled):
                yield low, high


def _chars(element: Element) -> int:
    return sum(len(compact(message)) for message in element.messages if message is not None)
