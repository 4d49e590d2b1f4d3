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
from compaction_store.models import Element
from compaction_store.strategies.layout import Layout, unread
from compaction_store.strategies.pins import Pins
from compaction_store.strategies.truncation import Caps, Draft
from compaction_store.tokenizing.message_text import MESSAGE
from compaction_store.tokens import Counter

# The shares of the limit that summaries may take, as divisors. The first share that leaves room for the rest is used.
_SHARES = (4, 8, 16)
# The number of messages at the end that are kept even if summarizing them would make room.
_LAST = 2
# Elements of up to this many times the floor count with their full size, because cutting them would save little.
_SMALL = 4

IndexSpan = tuple[int, int]


class Goal(NamedTuple):
    """A view should have at most `limit` tokens. The model's window has room for `most` tokens.

    `unread` has the seqs of results that no model has read. They are cut only if the view would not fit the window
    otherwise. If they take more than half of the limit, the limit is raised by the excess, up to `most`.
    """

    limit: int
    most: int
    unread: frozenset[int]

    @classmethod
    def of(cls, elements: Sequence[Element], limit: int, most: int) -> Goal:
        if most == limit:
            return cls(limit, most, frozenset())
        new = unread(elements)
        taken = sum(elements[index].tokens for index in new)
        roomier = limit if taken <= limit // 2 else min(most, taken + limit // 2)
        return cls(max(limit, roomier), most, frozenset(elements[index].seq for index in new))

    def kept(self, elements: Sequence[Element]) -> frozenset[int]:
        """Returns the indexes of unread elements."""
        return frozenset(i for i, element in enumerate(elements) if element.seq in self.unread)


class Choice(NamedTuple):
    """A draft of the view. `withdrawn` is true if the draft leaves out the summaries of this ladder."""

    draft: Draft
    withdrawn: bool


class Rungs:
    """Plans the rungs that need no model. `recent` returns the index at which the recent elements begin."""

    def __init__(
        self, counter: Counter, caps: Caps, pins: Pins, recent: Callable[[Sequence[Element]], int], *, verbatim: bool
    ) -> None:
        self._counter = counter
        self._caps = caps
        self._pins = pins
        self._recent = recent
        self._verbatim = verbatim

    def choose(self, layout: Layout, before: Sequence[Element] | None, goal: Goal) -> Choice:
        """Returns the first draft that meets the goal. The drafts are tried in the order of `_forms`.

        If no draft does, returns the first that fits the window, or else the smallest. `before` is the view without the
        summaries of this ladder, or None if there are none.
        """
        tried: list[Choice] = []
        goals = [goal, Goal(goal.most, goal.most, frozenset())] if goal.unread else [goal]
        for one in goals:
            for choice in self._forms(layout, before, one):
                if choice.draft.left <= one.limit:
                    return choice
                tried.append(choice)
            if fitting := [choice for choice in tried if choice.draft.left <= goal.most]:
                return fitting[0]
        return min(tried, key=lambda choice: choice.draft.left)

    def _forms(self, layout: Layout, before: Sequence[Element] | None, goal: Goal) -> Iterator[Choice]:
        """Yields a draft with summaries kept and one with summaries cut, then both without this ladder's summaries."""
        views = [(layout, False)] + ([] if before is None else [(Layout(before, self._pins), True)])
        for view, withdrawn in views:
            yield Choice(self._draft(view, goal), withdrawn)
            if any(element.is_summary for element in view.elements):
                yield Choice(self._draft(view, goal, cut_summaries=True), withdrawn)

    def _draft(self, layout: Layout, goal: Goal, *, cut_summaries: bool = False) -> Draft:
        elements = layout.elements
        kept = goal.kept(elements)
        draft = Draft(
            layout, goal.limit, self._counter, self._caps, self._recent(elements), kept=kept,
            cut_summaries=cut_summaries, least_cut=self._caps.floor if goal.most > goal.limit else 0,
        )  # fmt: skip
        return draft.fit(verbatim=self._verbatim)

    def end_of_old(self, layout: Layout, goal: Goal) -> int:
        """Returns the index of the first element that is not summarized. Usually, this is the first recent element.

        With a budget, it is later if the recent elements would leave no room for a summary, even with long contents cut
        to the floor. Summarizing some of them is better than cutting or removing most of them.
        """
        elements, recent = layout.elements, self._recent(layout.elements)
        if self._verbatim or goal.most == goal.limit:
            return recent
        kept = goal.kept(elements)
        floor = self._caps.floor + MESSAGE
        whole = kept | layout.systems | layout.pinned
        costs = [
            element.tokens if i in whole or element.tokens <= _SMALL * floor else floor * len(element.messages)
            for i, element in enumerate(elements)
        ]
        held = sum(cost for i, cost in enumerate(costs[:recent]) if i in layout.systems or i in layout.pinned)
        left = goal.limit - goal.limit // _SHARES[0] - held - sum(costs[recent:])
        index = recent
        while left < 0 and index < len(elements) - _LAST:
            if index not in whole:
                left += costs[index]
            index += 1
        return index if left >= 0 else recent

    def rooms(self, layout: Layout, spans: Sequence[IndexSpan], goal: Goal) -> list[tuple[IndexSpan, int]]:
        """Returns the spans to summarize, each with the number of tokens that its framed summary may have."""
        sizes = [sum(element.tokens for element in layout.elements[low : high + 1]) for low, high in spans]
        total = sum(element.tokens for element in layout.elements)
        # With a summary of up to this size, nothing else needs to change.
        free = goal.limit - (total - sum(sizes))
        for limit in sorted({goal.limit, goal.most}):
            wanted = {max(free, limit // _SHARES[0]), free, self._least(), *(limit // share for share in _SHARES)}
            for whole in sorted(wanted, reverse=True):
                shares = _shared(whole, spans, sizes, self._least())
                if shares and (whole <= free or self._fits(layout, shares, goal._replace(limit=limit))):
                    return shares
        # No room is small enough. With summaries, the view comes nearest to the limit.
        return _shared(goal.limit // _SHARES[0], spans, sizes, self._least())

    def _least(self) -> int:
        return (
            summary_room.frame_tokens(self._counter, (1, 1)) - summary_room.FRAMES_DIFFER_BY + summary_room.LEAST_TEXT
        )

    def _fits(self, layout: Layout, shares: Sequence[tuple[IndexSpan, int]], goal: Goal) -> bool:
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
        return self._draft(Layout(elements, self._pins), goal).left <= goal.limit


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
