"""Which form of a view a ladder settles for, and how much room it leaves for summaries that are yet to be written.

A summary is asked for only where there is room for it, and the room is found by trying: the rungs below are planned
with a stand-in of its size. So a view that could be made to fit without a summarizer fits with one, too.
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

# Of what the view may take, summaries are given a quarter if the rest can be cut for it; else less.
_SHARES = (4, 8, 16)
# So many messages at the end are never summarized for want of room.
_LAST = 2
# What takes no more than so many times the floor is summarized rather than cut: little would be gained by cutting.
_SMALL = 4

IndexSpan = tuple[int, int]


class Goal(NamedTuple):
    """`limit` is what the view should take, `most` what it may take at all, `unread` the seqs not to be cut for less.

    Where results that nobody has read take more than half of what was asked for, half of that is left to all the rest.
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
        """The indexes of what is not to be cut."""
        return frozenset(i for i, element in enumerate(elements) if element.seq in self.unread)


class Choice(NamedTuple):
    """A form of the view; `withdrawn` if it is that of the view without the summaries of this ladder."""

    draft: Draft
    withdrawn: bool


class Rungs:
    """What can be done without a model. `recent` gives the index at which the recent elements begin."""

    def __init__(
        self, counter: Counter, caps: Caps, pins: Pins, recent: Callable[[Sequence[Element]], int], *, verbatim: bool
    ) -> None:
        self._counter = counter
        self._caps = caps
        self._pins = pins
        self._recent = recent
        self._verbatim = verbatim

    def choose(self, layout: Layout, before: Sequence[Element] | None, goal: Goal) -> Choice:
        """The gentlest form that meets the goal; else the gentlest that fits at all; else the smallest.

        `before` is the view without the summaries that this ladder made, where it made any.
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
        """The gentlest first: summaries spared, summaries cut, and both without the summaries of this ladder."""
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
            cut_summaries=cut_summaries,
        )  # fmt: skip
        return draft.fit(verbatim=self._verbatim)

    def end_of_old(self, layout: Layout, goal: Goal) -> int:
        """The index at which what is not to be summarized begins.

        With a budget, it is later than asked for where all of it, with its long contents cut to the floor, would leave
        no room for a summary. Much of it would have to be cut or removed then.
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
        """For each span that is to be summarized, what its framed summary may take; none where there is no room."""
        sizes = [sum(element.tokens for element in layout.elements[low : high + 1]) for low, high in spans]
        total = sum(element.tokens for element in layout.elements)
        # With so much, nothing else need be touched.
        free = goal.limit - (total - sum(sizes))
        for limit in sorted({goal.limit, goal.most}):
            wanted = {max(free, limit // _SHARES[0]), free, self._least(), *(limit // share for share in _SHARES)}
            for whole in sorted(wanted, reverse=True):
                shares = _shared(whole, spans, sizes, self._least())
                if shares and (whole <= free or self._fits(layout, shares, goal._replace(limit=limit))):
                    return shares
        # Nothing fits, whatever is done: a summary is the best that can be had.
        return _shared(goal.limit // _SHARES[0], spans, sizes, self._least())

    def _least(self) -> int:
        return (
            summary_room.frame_tokens(self._counter, (1, 1)) - summary_room.FRAMES_DIFFER_BY + summary_room.LEAST_TEXT
        )

    def _fits(self, layout: Layout, shares: Sequence[tuple[IndexSpan, int]], goal: Goal) -> bool:
        """Whether the rungs meet the goal with summaries that take all of their room."""
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
    """The room shared by the sizes of the spans. Spans whose shares would be too small go without, smallest first."""
    chosen = list(zip(spans, sizes, strict=True))
    while chosen:
        total = max(1, sum(size for _, size in chosen))
        shares = [(span, whole * size // total) for span, size in chosen]
        if all(share >= least for _, share in shares):
            return shares
        chosen.remove(min(chosen, key=lambda one: one[1]))
    return []
