"""Shortens a view to a target in steps, called rungs. Each rung is used only if the rungs before it were not enough.

1. Old messages are summarized, and recent messages are kept.
2. Contents are cut, by default to 8192 tokens, then 4096, and so on down to 128.
3. Messages are removed from the middle outwards.
4. The first and the last message are cut.
5. Summaries are cut or removed. If that is not enough, the summaries of this run are withdrawn, and the view is
   shortened without them.
6. System messages are cut.

With a budget, the rungs from the third on are used only if the view does not fit the budget's limit.

Calls are removed together with their results. Only the final form is committed, with one record for each contiguous
span and one for each summary that failed.
"""

from __future__ import annotations

from collections import Counter as Sums
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain, product
from typing import NamedTuple

from compaction_store.arguments import name_of, number
from compaction_store.compaction import summary_room
from compaction_store.compaction.asks import Ask, Steps, Summarize
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.compaction.summary_request import Request, SummaryResult
from compaction_store.errors import InvalidCallback, InvalidInput, NotSmaller, Rejected, SpanConflict
from compaction_store.messages.framing import Role
from compaction_store.models import Element, Payload, Span, Summary
from compaction_store.models.messages import is_erased
from compaction_store.strategies import base
from compaction_store.strategies.contents import compact
from compaction_store.strategies.outline import Layout, Pins, tail, unread
from compaction_store.strategies.truncation import Caps, Change, Draft, Means, changes_of
from compaction_store.tokens import Counter
from compaction_store.tokens.message_text import MESSAGE
from compaction_store.waiting import Call, Work, begin

# The shares of the limit that summaries may take, as divisors. The first share that leaves room for the rest is used.
_SHARES = (4, 8, 16)
# The number of messages at the end that are kept even if summarizing them would make room.
_LAST = 2
# Elements of up to this many times the floor count with their full size, because cutting them would save little.
_SMALL = 4

IndexSpan = tuple[int, int]


class Goal(NamedTuple):
    """A view should have at most `limit` tokens. The model's window has room for `most` tokens.

    With a budget, the limit is only a wish, for which contents are summarized and cut. Messages are removed and system
    messages are cut only if the view would not fit the window otherwise. Old messages are then removed until the view
    has `low` tokens, so that the next requests need no removal.

    `unread` has the seqs of results that no model has read. They are cut only if the view would not fit the window
    otherwise. If they take more than half of the limit, the limit is raised by the excess, up to `most`.
    """

    limit: int
    most: int
    low: int
    unread: frozenset[int]
    is_soft: bool

    @classmethod
    def of(cls, elements: Sequence[Element], limit: int, budget: TokenBudget | None) -> Goal:
        if budget is None or budget.limit <= limit:
            return cls(limit, limit, limit, frozenset(), is_soft=False)
        most = budget.limit
        new = unread(elements)
        taken = sum(elements[index].tokens for index in new)
        limit = limit if taken <= limit // 2 else max(limit, min(most, taken + limit // 2))
        low = max(limit, budget.trigger_tokens)
        return cls(limit, most, low, frozenset(elements[index].seq for index in new), is_soft=True)

    @property
    def hard(self) -> Goal:
        """The goal that the view fits the window."""
        return self._replace(limit=self.most)

    def kept(self, elements: Sequence[Element]) -> frozenset[int]:
        """Returns the indexes of unread elements."""
        return frozenset(i for i, element in enumerate(elements) if element.seq in self.unread)


class Choice(NamedTuple):
    """A draft of the view. `withdrawn` is true if the draft leaves out the summaries of this ladder."""

    draft: Draft
    withdrawn: bool


@dataclass(frozen=True)
class Rungs:
    """Plans the rungs without a model. `recent` finds the recent elements; a removal leaves `line` tokens."""

    counter: Counter
    caps: Caps
    pins: Pins
    recent: Callable[[Sequence[Element]], int]
    _: KW_ONLY
    verbatim: bool
    line: int

    def choose(self, layout: Layout, before: Sequence[Element] | None, goal: Goal) -> Choice:
        """Returns the first draft that fits. The drafts are tried in the order of `_forms`.

        If cutting contents makes the view fit the window, nothing else is done, even if the goal is not met. Otherwise
        the view only has to fit the window, and system messages are cut only if nothing else makes it fit. If no draft
        fits, returns the smallest. `before` is the view without this ladder's summaries, or None if there are none.
        """
        if goal.is_soft:
            cut = self._draft(layout, goal, Means.CUTS)
            if cut.left <= goal.most:
                return Choice(cut, withdrawn=False)
            without_old = self._draft(layout, goal._replace(limit=goal.low), Means.OLD)
            if without_old.left <= goal.low:
                return Choice(without_old, withdrawn=False)
        tried: list[Choice] = []
        goals = [goal.hard, goal.hard._replace(unread=frozenset())] if goal.unread else [goal.hard]
        for means, one in product((Means.REMOVALS, Means.SYSTEMS), goals):
            for choice in self._forms(layout, before, one, means):
                if choice.draft.left <= goal.most:
                    return choice
                tried.append(choice)
        return min(tried, key=lambda choice: choice.draft.left)

    def _forms(self, layout: Layout, before: Sequence[Element] | None, goal: Goal, means: Means) -> Iterator[Choice]:
        """Yields a draft with summaries kept and one with summaries cut, then both without this ladder's summaries."""
        for view, withdrawn in [(layout, False)] + ([] if before is None else [(Layout(before, self.pins), True)]):
            yield Choice(self._draft(view, goal, means), withdrawn)
            if any(element.is_summary for element in view.elements):
                yield Choice(self._draft(view, goal, means, cut_summaries=True), withdrawn)

    def _draft(self, layout: Layout, goal: Goal, means: Means, *, cut_summaries: bool = False) -> Draft:
        elements = layout.elements
        draft = Draft(
            layout, goal.limit, self.counter, self.caps, self.recent(elements), means=means, kept=goal.kept(elements),
            cut_summaries=cut_summaries, least_cut=self.caps.floor if goal.is_soft else 0, line=self.line,
        )  # fmt: skip
        return draft.fit(verbatim=self.verbatim)

    def end_of_old(self, layout: Layout, goal: Goal) -> int:
        """Returns the index of the first element that is not summarized. Usually, this is the first recent element.

        With a budget, it is later if the recent elements would leave no room for a summary, even with long contents cut
        to the floor. Summarizing some of them is better than cutting or removing most of them.
        """
        elements, recent = layout.elements, self.recent(layout.elements)
        if self.verbatim or not goal.is_soft:
            return recent
        kept = goal.kept(elements)
        floor = self.caps.floor + MESSAGE
        whole = kept | layout.systems | layout.pinned
        costs = [
            element.tokens if i in whole or element.tokens <= _SMALL * floor else floor * len(element.messages)
            for i, element in enumerate(elements)
        ]
        held = sum(cost for i, cost in enumerate(costs[:recent]) if i in layout.systems or i in layout.pinned)
        for limit in (goal.limit, goal.most):
            left = limit - limit // _SHARES[0] - held - sum(costs[recent:])
            index = recent
            while left < 0 and index < len(elements) - _LAST:
                if index not in whole:
                    left += costs[index]
                index += 1
            if left >= 0:
                return index
        return recent

    def rooms(self, layout: Layout, spans: Sequence[IndexSpan], goal: Goal) -> list[tuple[IndexSpan, int]]:
        """Returns the spans to summarize, each with the number of tokens that its framed summary may have."""
        sizes = [_tokens(layout, *span) for span in spans]
        # With a summary of up to this size, nothing else needs to change.
        free = goal.limit - (sum(element.tokens for element in layout.elements) - sum(sizes))
        for one, means in self._stages(goal):
            parts = [one.limit // share for share in _SHARES]
            for whole in sorted({max(free, parts[0]), free, self._least(), *parts}, reverse=True):
                shares = _shared(whole, spans, sizes, self._least())
                if shares and (whole <= free or self._fits(layout, shares, one, means)):
                    return shares
        # No room is small enough. With summaries, the view comes nearest to the limit.
        return _shared(goal.limit // _SHARES[0], spans, sizes, self._least())

    def _stages(self, goal: Goal) -> list[tuple[Goal, Means]]:
        """Returns what summaries should save the view from, in order: a smaller summary is better than a removal."""
        cuts = [(goal, Means.CUTS), (goal.hard, Means.CUTS)] if goal.is_soft else []
        return [*cuts, (goal.hard, Means.REMOVALS), (goal.hard, Means.SYSTEMS)]

    def _least(self) -> int:
        return summary_room.frame_tokens(self.counter, (1, 1)) - summary_room.FRAMES_DIFFER_BY + summary_room.LEAST_TEXT

    def _fits(self, layout: Layout, shares: Sequence[tuple[IndexSpan, int]], goal: Goal, means: Means) -> bool:
        """Returns whether the later rungs can meet the goal if the summaries use all of their room."""
        elements: list[Element] = []
        at = 0
        for (low, high), tokens in shares:
            first, last = layout.elements[low], layout.elements[high]
            stand_in = first._replace(
                end_seq=last.end_seq, messages=({"role": "user", "content": ""},), tokens=tokens, number=-1,
                kind="summary", callback=None,
            )  # fmt: skip
            elements += [*layout.elements[at:low], stand_in]
            at = high + 1
        elements += layout.elements[at:]
        return self._draft(Layout(elements, self.pins), goal, means).left <= goal.limit


def _shared(whole: int, spans: Sequence[IndexSpan], sizes: Sequence[int], least: int) -> list[tuple[IndexSpan, int]]:
    """Divides the room in proportion to the spans' sizes. Drops the smallest while a share is too small."""
    chosen = list(zip(spans, sizes, strict=True))
    while chosen:
        total = max(1, sum(size for _, size in chosen))
        shares = [(span, whole * size // total) for span, size in chosen]
        if all(share >= least for _, share in shares):
            return shares
        chosen.remove(min(chosen, key=lambda one: one[1]))
    return []


PART_CHARS = 120_000
# The number of tokens of an empty line between two summaries.
_BETWEEN = 1
RESERVE = 2048


@dataclass(frozen=True, eq=False, repr=False)
class Ladder(base.Summarizing):
    """Summarizes old messages, cuts contents and removes messages, step by step, until the view meets a target.

    The target is `target_tokens` minus `reserve`, which is 2048 by default. Without `target_tokens`, it is the target
    of the budget. A budget has its own reserve, so its target is lowered only if `reserve` is given, and by at most
    half.

    The summarizer gets the available room as its budget, and a longer summary is cut to fit. The old messages are
    summarized in parts of about `part_chars` characters of JSON, or all at once if `part_chars` is None; both ways make
    one record. With `keep_recent_tokens`, the recent messages are the fewest at the end that have that many tokens
    together, and they are cut only after all others are removed.

    With a budget, the target is only a wish. Messages are removed and system messages are cut only if the view would
    not fit the budget's limit otherwise. Old messages are then removed until the view is no longer above the trigger.

    With a budget, fewer than `keep_recent` messages are kept if that many would leave no room for a summary, even after
    their long contents are cut. The others are then summarized instead of being cut or removed. No model has read the
    results after the assistant's last message. They are cut only if the view would otherwise exceed the budget's limit.
    If earlier callbacks of the same run have brought the view at least halfway from the trigger to the target, the
    ladder does nothing.
    """

    summarize: base.SummarySource | None = base.option(None, keep=base.a_summarizer_or_none)  # type: ignore[assignment]
    _: KW_ONLY
    target_tokens: int | None = base.option(None, keep=base.a_count(1, optional=True))
    keep_recent: int = base.option(15, keep=base.a_count(0))
    reserve: int | None = base.option(None, keep=base.a_count(0, optional=True))
    start_cap: int = base.option(8192, keep=base.a_count(1))
    floor_cap: int = base.option(128, keep=base.a_count(1))
    keep_recent_tokens: int | None = base.option(None, keep=base.a_count(0, optional=True))
    truncate_tool_arguments: bool = base.option(default=True, keep=base.a_switch)
    part_chars: int | None = base.option(PART_CHARS, keep=base.a_count(1, optional=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        number(self.start_cap, "start_cap", least=self.floor_cap)
        if self.target_tokens is not None:
            number(self.target_tokens, "target_tokens", least=(RESERVE if self.reserve is None else self.reserve) + 1)

    def limit(self, budget: TokenBudget | None) -> int:
        """Returns the number of tokens that the shortened view may have."""
        if self.target_tokens is not None:
            return self.target_tokens - (RESERVE if self.reserve is None else self.reserve)
        if budget is None:
            raise InvalidInput("target_tokens must be given if there is no budget")
        target = budget.target_tokens
        return target - min(self.reserve or 0, target // 2)

    def steps(self, ctx: CompactionContext) -> Steps:
        limit = self.limit(ctx.budget)
        is_low = ctx.budget is not None and ctx.total_tokens <= (limit + ctx.budget.trigger_tokens) // 2
        # If earlier callbacks saved so much, further changes are not worth a record.
        if not (is_low and self.target_tokens is None and planner_of(ctx).applied):
            yield from self.steps_to(ctx, limit)

    def steps_to(self, ctx: CompactionContext, limit: int) -> Steps:
        """Yields the steps that shorten the view to `limit` tokens."""
        if ctx.total_tokens <= limit:
            return
        planner = planner_of(ctx)
        before, mark = ctx.elements, planner.mark()
        goal = Goal.of(before, limit, ctx.budget)
        line = planner.line_tokens(Span(before[0].seq, before[-1].end_seq)) if before else 0
        caps = Caps(self.start_cap, self.floor_cap, self.truncate_tool_arguments)
        verbatim = self.keep_recent_tokens is not None
        rungs = Rungs(ctx.counter, caps, self.pins, self.recent, verbatim=verbatim, line=line)
        if self.summarize is not None:
            yield from self._summaries(ctx, self.summarize, goal, rungs)
        if ctx.total_tokens <= goal.limit:
            return
        summarized = ctx.elements is not before
        choice = rungs.choose(Layout(ctx.elements, self.pins, ctx.links), before if summarized else None, goal)
        if choice.withdrawn:
            planner.withdraw(mark, "the view fits the limit only without the summary")
        changes = changes_of(choice.draft)
        if not changes and choice.draft.left <= goal.most:
            planner.idle_reason = "the view fits the window, and no more of it can be summarized or cut"
        for change in changes:
            yield from base.attempt(ctx, _ask(change, self.role))

    def recent(self, elements: Sequence[Element]) -> int:
        """Returns the index at which the recent elements begin."""
        return tail([element.tokens for element in elements], self.keep_recent, self.keep_recent_tokens)

    def _summaries(self, ctx: CompactionContext, summarize: base.SummarySource, goal: Goal, rungs: Rungs) -> Steps:
        """Summarizes each span of old messages, and stops after the first failure of the summarizer."""
        layout = Layout(ctx.elements, self.pins, ctx.links)
        sized = [(span, _tokens(layout, *span)) for span in self.old(layout, rungs.end_of_old(layout, goal))]
        spans = [span for span, size in sized if base.worth(ctx, size, summarize, self.min_saving)]
        spare = 0
        attempts = planner_of(ctx).attempts
        for (low, high), room in rungs.rooms(layout, spans, goal):
            tried = len(attempts)
            error = yield from self._summary(ctx, layout, low, high, summarize, room + spare)
            made = attempts[-1] if len(attempts) > tried else None
            if made is not None and made.outcome == "applied":
                spare = max(0, room + spare - (made.tokens_after or 0))
            if error is not None and not isinstance(error, Rejected | SpanConflict):
                return

    def _summary(
        self, ctx: CompactionContext, layout: Layout, low: int, high: int, summarize: base.SummarySource, room: int
    ) -> base.Attempted:
        elements = layout.elements
        writer, reason = summarize, "old messages summarized"
        if callable(summarize) and self.part_chars is not None:
            ends = [elements[end].end_seq for _, end, _ in layout.parts(low, high, self.part_chars, _chars)]
            writer = InParts(summarize, ends) if len(ends) > 1 else summarize
        # If a summary is too long, call the summarizer again with less room, and cut the second summary. If it cannot
        # be called again, cut the first.
        once = isinstance(writer, InParts) or not callable(writer)
        ask = self.ask(elements[low].seq, elements[high].end_seq, reason, summarize=writer, room=room, cut=once)
        error = yield from base.attempt(ctx, ask)
        if isinstance(error, NotSmaller) and not once:
            error = yield from base.attempt(ctx, replace(ask, stated_room=room // 2, cut=True))
        end = writer.done_to if isinstance(writer, InParts) else None
        if error is not None and isinstance(writer, InParts) and end not in {None, elements[high].end_seq}:
            reason = f"{reason}, until a part failed"
            yield from base.attempt(ctx, replace(ask, end_seq=end, summarize=writer.joined(), reason=reason))
        return error

    def old(self, layout: Layout, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Yields the spans of indexes to summarize. A span that is nothing but one summary is left out."""
        end = self.recent(layout.elements) if end is None else end
        for low, high in layout.for_summaries(layout.first, end - 1):
            filled = [element for element in layout.elements[low : high + 1] if element.messages]
            if len(filled) > 1 or not all(element.is_summary for element in filled):
                yield low, high


def _ask(change: Change, role: Role) -> Ask:
    span = change.start_seq, change.end_seq
    summary = None if change.text is None else Summary(change.text)
    replacement = change.messages if change.kind == "truncation" else None
    return Ask(*span, summary, replacement=replacement, allow=change.allow, reason=change.reason, role=role)


def _tokens(layout: Layout, low: int, high: int) -> int:
    return sum(element.tokens for element in layout.elements[low : high + 1])


def _chars(element: Element) -> int:
    return sum(len(compact(message)) for message in element.messages if not is_erased(message))


class InParts:
    """A summarizer that calls another summarizer for each part of a long span, with a share of the room.

    `ends` are the last seqs of the parts. If a part fails, the whole summary fails. The earlier parts can still be used
    as a summary of the span's beginning.
    """

    def __init__(self, summarize: Summarize, ends: Sequence[int]) -> None:
        self.name = name_of(summarize, "summarizer")
        self.model = getattr(summarize, "model", None)
        self._summarize = summarize
        self._ends = ends
        self._done: list[Summary] = []

    @property
    def done_to(self) -> int | None:
        """The last seq that has been summarized so far, or None if no part has."""
        return self._ends[len(self._done) - 1] if self._done else None

    def __call__(self, elements: Sequence[Element]) -> SummaryResult | Awaitable[SummaryResult]:
        return begin(self._work(elements))

    def _work(self, elements: Sequence[Element]) -> Work[Summary]:
        whole = Request.of(elements)
        start = 0
        for end_seq in self._ends:
            end = next(i for i in range(start, len(whole)) if whole[i].end_seq == end_seq) + 1
            part = replace(whole, elements=whole.elements[start:end])
            if whole.budget is not None:
                part = replace(part, budget=max(1, whole.budget * part.tokens // max(1, whole.tokens) - _BETWEEN))
            self._take((yield Call(self._summarize, part)))
            start = end
        return self.joined()

    def _take(self, result: SummaryResult) -> None:
        summary = Summary(result) if isinstance(result, str) else result
        if not isinstance(summary, Summary):
            raise InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
        if not isinstance(summary.text, str):
            raise InvalidCallback(f"the text of a Summary must be text, not {type(summary.text).__name__}")
        if summary.replacement is not None:
            raise InvalidInput("part_chars must be None for a summarizer that returns a Summary with a replacement")
        if not summary.text.strip():
            raise ValueError("the summary of a part is empty")
        self._done.append(summary)

    def joined(self) -> Summary:
        """Returns the joined summaries of all parts that have been summarized so far."""
        done = self._done
        durations = [summary.duration for summary in done if summary.duration is not None]
        return Summary(
            "\n\n".join(summary.text.strip() for summary in done),
            model=next((summary.model for summary in done if summary.model is not None), None),
            prompt=next((summary.prompt for summary in done if summary.prompt is not None), None),
            usage=_sum(summary.usage for summary in done),
            provider=_all([summary.provider for summary in done]),
            coverage=_all([summary.coverage for summary in done]) or {"parts": [{} for _ in done]},
            duration=sum(durations) if durations else None,
            settings=next((summary.settings for summary in done if summary.settings is not None), None),
            summarizer=next((summary.summarizer for summary in done if summary.summarizer is not None), self.name),
        )


def _sum(usages: Iterator[Payload | None]) -> Payload | None:
    """Sums the integers by name. Leaves out all other values, which cannot be added."""
    given = [usage for usage in usages if usage]
    sums = Sums[str]()
    for name, value in chain.from_iterable(usage.items() for usage in given):
        if type(value) is int:
            sums[name] += value
    return dict(sums) if given else None


def _all(values: Sequence[Payload | None]) -> Payload | None:
    return {"parts": [value or {} for value in values]} if any(values) else None
