"""Chooses how much a ladder changes a view, and how much room its summaries get.

Several sizes of the summaries' room are tried, the largest first. The first that lets the later rungs meet the goal is
used. To find it, these rungs are planned with placeholders of the summaries' sizes. If no size is small enough,
summaries are requested anyway, because they bring the view nearest to the limit. A view that can fit without a
summarizer also fits with one, because its summaries can be withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from compaction_store.compaction import summary_room
from compaction_store.compaction.budget import TokenBudget
from compaction_store.models import Element
from compaction_store.strategies.layout import Layout, unread
from compaction_store.strategies.pins import Pins
from compaction_store.strategies.truncation import Caps, Draft, Means
from compaction_store.tokens import Counter
from compaction_store.tokens.message_text import MESSAGE

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


class Rungs:
    """Plans the rungs that need no model. `recent` returns the index at which the recent elements begin.

    `line` is the number of tokens of the line that a removal leaves.
    """

    def __init__(
        self,
        counter: Counter,
        caps: Caps,
        pins: Pins,
        recent: Callable[[Sequence[Element]], int],
        *,
        verbatim: bool,
        line: int,
    ) -> None:
        self._counter = counter
        self._caps = caps
        self._pins = pins
        self._recent = recent
        self._verbatim = verbatim
        self._line = line

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
        for means in (Means.REMOVALS, Means.SYSTEMS):
            for one in goals:
                for choice in self._forms(layout, before, one, means):
                    if choice.draft.left <= goal.most:
                        return choice
                    tried.append(choice)
        return min(tried, key=lambda choice: choice.draft.left)

    def _forms(self, layout: Layout, before: Sequence[Element] | None, goal: Goal, means: Means) -> Iterator[Choice]:
        """Yields a draft with summaries kept and one with summaries cut, then both without this ladder's summaries."""
        views = [(layout, False)] + ([] if before is None else [(Layout(before, self._pins), True)])
        for view, withdrawn in views:
            yield Choice(self._draft(view, goal, means), withdrawn)
            if any(element.is_summary for element in view.elements):
                yield Choice(self._draft(view, goal, means, cut_summaries=True), withdrawn)

    def _draft(self, layout: Layout, goal: Goal, means: Means, *, cut_summaries: bool = False) -> Draft:
        elements = layout.elements
        kept = goal.kept(elements)
        draft = Draft(
            layout, goal.limit, self._counter, self._caps, self._recent(elements), means=means, kept=kept,
            cut_summaries=cut_summaries, least_cut=self._caps.floor if goal.is_soft else 0,
            line=self._line,
        )  # fmt: skip
        return draft.fit(verbatim=self._verbatim)

    def end_of_old(self, layout: Layout, goal: Goal) -> int:
        """Returns the index of the first element that is not summarized. Usually, this is the first recent element.

        With a budget, it is later if the recent elements would leave no room for a summary, even with long contents cut
        to the floor. Summarizing some of them is better than cutting or removing most of them.
        """
        elements, recent = layout.elements, self._recent(layout.elements)
        if self._verbatim or not goal.is_soft:
            return recent
        kept = goal.kept(elements)
        floor = self._caps.floor + MESSAGE
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
        sizes = [sum(element.tokens for element in layout.elements[low : high + 1]) for low, high in spans]
        total = sum(element.tokens for element in layout.elements)
        # With a summary of up to this size, nothing else needs to change.
        free = goal.limit - (total - sum(sizes))
        for one, means in self._stages(goal):
            wanted = {
                max(free, one.limit // _SHARES[0]),
                free,
                self._least(),
                *(one.limit // share for share in _SHARES),
            }
            for whole in sorted(wanted, reverse=True):
                shares = _shared(whole, spans, sizes, self._least())
                if shares and (whole <= free or self._fits(layout, shares, one, means)):
                    return shares
        # No room is small enough. With summaries, the view comes nearest to the limit.
        return _shared(goal.limit // _SHARES[0], spans, sizes, self._least())

    def _stages(self, goal: Goal) -> Iterator[tuple[Goal, Means]]:
        """Yields what the summaries should save the view from, in order: a smaller summary is better than a removal."""
        if goal.is_soft:
            yield goal, Means.CUTS
            yield goal.hard, Means.CUTS
        yield goal.hard, Means.REMOVALS
        yield goal.hard, Means.SYSTEMS

    def _least(self) -> int:
        return (
            summary_room.frame_tokens(self._counter, (1, 1)) - summary_room.FRAMES_DIFFER_BY + summary_room.LEAST_TEXT
        )

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
        return self._draft(Layout(elements, self._pins), goal, means).left <= goal.limit


def _shared(whole: int, spans: Sequence[IndexSpan], sizes: Sequence[int], least: int) -> list[tuple[IndexSpan, int]]:
    """Divides the room in proportion to the sizes of the spans.

    While a share is too small, the smallest span is dropped.
    """
    chosen = list(zip(spans, sizes, strict=True))
    while chosen:
        total = max(1, sum(size for _, size in chosen))
        shares = [(span, whole * size // total) for span, size in chosen]
        if all(share >= least for _, share in shares):
            return shares
        chosen.remove(min(chosen, key=lambda one: one[1]))
    return []
