"""A strategy that scans a thread from its oldest message and summarizes the window each time it reaches a threshold.

By default, the messages before the first reply are kept, which are the system messages and the original task. `retain`
says how much of the end of the thread must be kept. A call is folded together with its result.

Summaries by sliding windows are not summarized again, so folded spans do not change. But without a `threshold`, they
are summarized again if they take more than a quarter of the budget's trigger. The summaries of other strategies are
folded like messages and recorded as inputs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

from compaction_store.arguments import number, other
from compaction_store.compaction.asks import Steps, rules
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import sent
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.errors import InvalidInput, Rejected
from compaction_store.messages import tool_pairs
from compaction_store.models import Element, Payload, Span, Summary
from compaction_store.strategies import base
from compaction_store.strategies.folds import Fold, Folded, Folds, Scan, tokens_that_stay
from compaction_store.strategies.outline import Outline, elements_of, held_unread
from compaction_store.strategies.thresholds import Predicate, Threshold, check_fraction, everything, fraction_of, over
from compaction_store.tokens import o200k_base

# The names of all sliding windows begin with this.
_OWN = "SlidingWindow("
# The strategy's own summaries are summarized too if they take more than the budget's trigger divided by this number.
_FULL = 4
# If there is little room, the summarizer is given the budget's trigger divided by this number.
_LEAST = 16
# A summary, with its frame, in fewer tokens says nothing, and a summarizer refuses to write it.
_SHORTEST = 160
# If a view is longer than this number of windows, each summary covers as much as fits the budget's limit.
_FEW = 2
# This number of messages at the end is kept even if the view would get below the trigger without them.
_LAST = 2
ThresholdOption = Threshold | Predicate | int | None


def _assumed(found: Folds, elements: Sequence[Element], tokens: int) -> Iterable[Fold]:
    """Yields all folds under the assumption that every summary has that many tokens."""
    folded: Folded | None = None
    while (fold := sent(found, folded)) is not None:
        yield fold
        folded = _folded(elements[fold.low : fold.high + 1], ({"role": "user", "content": ""},), tokens)


def _folded(
    inside: Sequence[Element], messages: tuple[Payload, ...], tokens: int, callback: str | None = None
) -> Folded:
    end = inside[-1]
    element = Element(inside[0].seq, end.end_seq, None, messages, tokens, None, end.created_at, "summary", callback)
    return Folded(element, tokens)


def _room(elements: Sequence[Element], retain: float) -> int | None:
    """Returns how many tokens `retain` keeps if it is a fraction and there are earlier folds, else None.

    These are the tokens that the last fold kept, plus a fraction of the tokens of newer messages. A fraction of all
    remaining tokens would keep less in every run. Messages whose pos is higher than that of the last summary are newer.
    """
    own = [i for i, e in enumerate(elements) if _is_own(e)]
    if type(retain) is int or not own:
        return None
    written = elements[own[-1]].pos
    rest = elements[own[-1] + 1 :]
    new = sum(e.tokens for e in rest if e.kind is None and written is not None and (e.pos or 0) > written)
    return sum(e.tokens for e in rest) - new + fraction_of(retain, new)


def tail_of(tokens: Sequence[int], retain: float, room: int | None = None) -> int:
    """Returns how many elements to keep: `retain`, or as many as fit `room`, by default that fraction of the tokens."""
    if type(retain) is int:
        number(retain, "retain", least=0)
        return retain
    if type(retain) is not float:
        raise InvalidInput(f"retain must be a number of messages, or a fraction of the tokens{other(retain)}")
    check_fraction(retain, "retain")
    room = fraction_of(retain, sum(tokens)) if room is None else room
    kept = 0
    while kept < len(tokens) and (room := room - tokens[-1 - kept]) >= 0:
        kept += 1
    return kept


def _retained(given: float) -> float:
    tail_of([], given)
    return given


def _is_own(element: Element) -> bool:
    return element.is_summary and (element.callback or "").startswith(_OWN)


@dataclass(frozen=True, eq=False, repr=False)
class SlidingWindow(base.Summarizing):
    """Summarizes a thread window by window.

    `threshold` is `over(…)`, `on_turn_end`, a number of tokens, or a predicate that is called with a `Window`. The
    default is the budget's trigger. A run without a budget, or one that starts although the view is not over the
    trigger, folds at once everything that may be folded.

    `retain` is the number of messages to keep at the end of the thread, or, as a float, a fraction of its tokens. A
    later run keeps what the run before it kept, and this fraction of the tokens that were added since. With a budget,
    results that no model has read yet are also kept with their calls, unless these messages take more than three
    quarters of the budget's limit. A span without a reply or a summary is not folded, and neither is the last message
    of the user.

    With a budget and without a `threshold`, a run brings the view below the trigger if that is possible, and `retain`
    is then an upper bound: if the end of the thread is too large, less of it is kept. The `reason` of the run says why
    the view stays above the trigger.

    Without a `threshold`, summaries by sliding windows are summarized again, together with the messages after them, if
    these summaries take more than a quarter of the budget's trigger. Otherwise, each fold would save less than the one
    before, until the view no longer fits.

    With `keep_first=False`, the messages before the first reply may be folded too. With `before_reply`, a summary ends
    only before a reply or at the end of the thread, so that roles alternate. `allow` has the same meaning as in
    `CompactionContext.compact`.
    """

    _: KW_ONLY
    threshold: ThresholdOption = base.option(None, keep=base.a_size)
    retain: float = base.option(0, keep=lambda given, _: _retained(given))
    keep_first: bool = base.option(default=True, keep=base.a_switch)
    before_reply: bool = base.option(default=False, keep=base.a_switch)
    allow: Collection[str] = base.option((), keep=rules, shown=False)

    @property
    def reached(self) -> Threshold:
        """The threshold, or `everything` if none is given."""
        return cast("Threshold | None", self.threshold) or everything

    def kept(self, elements: Sequence[Element]) -> int:
        """Returns how many elements at the end `retain` keeps."""
        return tail_of([element.tokens for element in elements], self.retain, _room(elements, self.retain))

    def outline(
        self,
        elements: Sequence[Element],
        tail: int | None = None,
        *,
        made_by: str | None = "",
        links: tool_pairs.Links | None = None,
    ) -> Outline:
        """Returns the outline of a view with the last `tail` elements kept, or else those that `retain` keeps."""
        kept = self.kept(elements) if tail is None else tail
        return Outline(elements, pins=self.pins, allow=self.allow, tail=kept, made_by=made_by, links=links)

    def folds(self, outline: Outline, elements: Sequence[Element], threshold: Threshold, limit: int | None) -> Folds:
        """Yields the spans to fold."""
        return Scan(
            outline, elements, threshold, limit, keep_first=self.keep_first, before_reply=self.before_reply,
            whole_at_end=self.threshold is None,
        ).folds()  # fmt: skip

    def steps(self, ctx: CompactionContext) -> Steps:
        elements, budget = ctx.elements, ctx.budget
        limit = None if budget is None else budget.limit
        least = held_unread(elements, limit)
        tail, threshold, room = max(self.kept(elements), least), self.reached, None
        outline = self._outline(ctx, tail, sealed=not self._is_full(ctx))
        if self.threshold is None and budget is not None and budget.is_over(ctx.total_tokens):
            planner_of(ctx).idle_reason = "the sliding window found nothing more to fold"
            smaller = self._under_trigger(ctx, budget, outline, tail, max(least, min(tail, _LAST)))
            if smaller is None:
                return
            outline, stay = smaller
            window = max(budget.trigger_tokens, stay + budget.trigger_tokens // _FULL) + 1
            if ctx.total_tokens > _FEW * window:
                # Together, the summaries of so many windows would be above the trigger.
                window = max(window, ctx.total_tokens // -(-ctx.total_tokens // budget.limit))
            threshold = over(tokens=window)
            room = max(budget.trigger_tokens // _LEAST, _halfway(budget) - stay, _SHORTEST)
        found = self.folds(outline, elements, threshold, limit)
        reason = f"the window reached {threshold!r}" if threshold is not everything else "everything that may be folded"
        folded: Folded | None = None
        while (fold := sent(found, folded)) is not None:
            inside = elements[fold.low : fold.high + 1]
            ask = self.ask(inside[0].seq, inside[-1].end_seq, reason, allow=self.allow, stated_room=room)
            folded = None
            if not self._worth(ctx, inside):
                planner_of(ctx).idle_reason = base.TOO_LITTLE
                continue
            error = yield from base.attempt(ctx, ask)
            if error is not None and not isinstance(error, Rejected):
                # Stop, because the next summary would probably fail too. The earlier summaries stay planned.
                return
            folded = None if error is not None else _planned(ctx, inside)

    def _outline(self, ctx: CompactionContext, tail: int, *, sealed: bool) -> Outline:
        return self.outline(ctx.elements, tail, made_by=_OWN if sealed else None, links=ctx.links)

    def _under_trigger(
        self, ctx: CompactionContext, budget: TokenBudget, outline: Outline, tail: int, least: int
    ) -> tuple[Outline, int] | None:
        """Chooses how much of the end to keep. Returns it with the number of tokens that stay.

        The view should come halfway from the trigger to the target, so that the next requests need no summary. For
        this, fewer messages than `tail` are kept, down to `least`. If the view cannot get below the trigger, all of
        `tail` is kept, unless the view then does not fit the limit. Returns None if the fold would be too small to be
        worth a model call and a lost prompt cache.
        """
        trigger = budget.trigger_tokens
        room = trigger // _FULL
        most = _halfway(budget) - room
        stay = self._stay(outline)
        if stay <= most:
            return outline, stay
        for sealed in (True, False):
            found = bisect_right(
                range(least, tail + 1), most, key=lambda kept: self._stay(self._outline(ctx, kept, sealed=sealed))
            )
            smaller = self._outline(ctx, least + max(0, found - 1), sealed=sealed)
            must_stay = self._stay(smaller)
            if found:
                return smaller, must_stay
        takes = f"{must_stay} tokens must stay, a summary takes up to {room} tokens"
        planner_of(ctx).idle_reason = f"{takes}, and the trigger is at {trigger} tokens"
        if must_stay + room > trigger:
            makes_fit = budget.fits(must_stay + room) and not budget.fits(ctx.total_tokens)
            if not makes_fit and ctx.total_tokens - stay <= room:
                return None
            if budget.fits(stay + room) or not budget.fits(must_stay + room):
                return outline, stay
        return smaller, must_stay

    def _stay(self, outline: Outline) -> int:
        return tokens_that_stay(outline, keep_first=self.keep_first)

    def _is_full(self, ctx: CompactionContext) -> bool:
        """Returns whether the strategy's own summaries take so much of the budget that they must be summarized too."""
        if ctx.budget is None or self.threshold is not None:
            return False
        return _FULL * sum(element.tokens for element in ctx.elements if _is_own(element)) > ctx.budget.trigger_tokens

    def _worth(self, ctx: CompactionContext, inside: Sequence[Element]) -> bool:
        if "larger" in self.allow:
            return True
        return base.worth(ctx, sum(element.tokens for element in inside), self.summarize, self.min_saving)


def plan_sliding_window(
    messages: Iterable[Payload | None],
    *,
    limit: int | None = None,
    count: Callable[[Payload], int] | None = None,
    summary_tokens: int = 0,
    **options: Any,
) -> list[Span]:
    """Returns the spans that `SlidingWindow` would summarize, in order. The first message has seq 1.

    Each summary is assumed to have `summary_tokens` tokens. `over(fraction=…)` means a fraction of `limit`. `count`
    returns the number of tokens of a message; the default is o200k_base. The options are those of `SlidingWindow`.
    """
    window = SlidingWindow(Summary("-"), **options)
    if count is None and (window.reached.needs_tokens or isinstance(window.retain, float)):
        counter = o200k_base()
        count = lambda message: counter.messages([message])  # noqa: E731
    elements = elements_of(messages, count)
    found = window.folds(window.outline(elements), elements, window.reached, limit)
    return [Span(elements[low].seq, elements[high].end_seq) for low, high in _assumed(found, elements, summary_tokens)]


def _halfway(budget: TokenBudget) -> int:
    """Returns the size to aim for. It leaves room for the summaries of short spans, which may follow a long one."""
    trigger = budget.trigger_tokens
    return min((trigger + budget.target_tokens) // 2, trigger - trigger // 8)


def _planned(ctx: CompactionContext, inside: Sequence[Element]) -> Folded:
    """Returns the summary that was just planned as an element of the view."""
    made = planner_of(ctx).attempts[-1]
    return _folded(inside, made.replacement, made.tokens_after or 0, made.callback)
