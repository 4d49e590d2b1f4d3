"""A tree of summaries, which keeps the view of a thread bounded however long the thread is.

Old messages are summarized in leaves of about `leaf_tokens` tokens. When there are `fan_in` adjacent summaries of one
level, they are merged into one summary of the next level. So each message is summarized once for each level, up to the
highest. With the default options, a million messages of 300 tokens need six levels. Only the end of the summarized part
changes: the beginning of the view stays the same until a whole level is full. The level of a summary is part of its
record's callback, such as "SummaryTree level 2".
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from compaction_store.compaction.asks import Steps
from compaction_store.compaction.callbacks import sent
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.errors import Rejected, SpanConflict
from compaction_store.jsonable import named
from compaction_store.models import Element, Summary
from compaction_store.strategies import base
from compaction_store.strategies.outline import Layout, elements_of, held_unread
from compaction_store.tokens import chosen

LEAF_TOKENS = 8000
FAN_IN = 8
# Summaries of this level are merged into a summary of the same level, so that the number of levels is bounded too.
HIGHEST = 8
_LEVEL = re.compile(r"SummaryTree.* level (\d{1,2})\Z")


class Node(NamedTuple):
    """A summary in the tree, existing or planned. `start_seq` and `end_seq` are inclusive."""

    level: int
    start_seq: int
    end_seq: int

    def as_dict(self) -> dict[str, Any]:
        return named(self)


# A generator of the nodes to make. After each node, send it True if the node was made, and False otherwise.
Growth = Generator[Node, bool, None]


@dataclass(frozen=True, eq=False, repr=False)
class SummaryTree(base.Summarizing):
    """Summarizes the elements before the last `keep_recent` as soon as they fill a leaf, and merges full levels."""

    leaf_tokens: int = base.option(LEAF_TOKENS, keep=base.a_count(1))
    fan_in: int = base.option(FAN_IN, keep=base.a_count(2))
    _: KW_ONLY
    keep_recent: int = base.option(15, keep=base.a_count(0))

    @property
    def name(self) -> str:
        return super().name.removesuffix("()")

    def steps(self, ctx: CompactionContext) -> Steps:
        """Yields an `Ask` for each summary that the tree needs. Stops when the summarizer fails."""
        planner = planner_of(ctx)
        caller = planner.rename(self.name)
        unread = held_unread(ctx.elements, None if ctx.budget is None else ctx.budget.limit)
        growth = self.growth(Layout(ctx.elements, self.pins, ctx.links), unread)
        done: bool | None = None
        try:
            while (node := sent(growth, done)) is not None:
                planner.rename(f"{self.name} level {node.level}")
                what = "old messages" if node.level == 1 else "summaries"
                error = yield from base.attempt(ctx, self.ask(node.start_seq, node.end_seq, f"{what} summarized"))
                if error is not None and not isinstance(error, Rejected | SpanConflict):
                    return
                done = error is None
        finally:
            planner.rename(caller)

    def growth(self, layout: Layout, unread: int = 0) -> Growth:
        """Yields the nodes to make. Besides the recent elements, the last `unread` ones are kept."""
        for low, high in layout.for_summaries(layout.first, len(layout.elements) - max(self.keep_recent, unread) - 1):
            row: list[Node] = []
            for node in self._row(layout, low, high):
                if node.level or (yield node._replace(level=1)):
                    row.append(node._replace(level=max(1, node.level)))
                    yield from self._merge(row)

    def _row(self, layout: Layout, low: int, high: int) -> Iterator[Node]:
        """Yields the existing summaries of a span and the new leaves between them. New leaves have level 0."""
        start = low
        for index in range(low, high + 2):
            element = layout.elements[index] if index <= high else None
            if element is not None and not (element.is_summary and layout.stands_alone(index)):
                continue
            for first, last, tokens in layout.parts(start, index - 1, self.leaf_tokens, attrgetter("tokens")):
                if tokens >= self.leaf_tokens:
                    yield Node(0, layout.elements[first].seq, layout.elements[last].end_seq)
            if element is not None:
                yield Node(level_of(element), element.seq, element.end_seq)
            start = index + 1

    def _merge(self, row: list[Node]) -> Growth:
        """Merges the nodes at the end of a row whose level is not above that of the last node, if there are `fan_in`.

        Repeats this with the merged node as the last. If a part between two of the summaries was too short to be
        summarized, the merged span includes it.
        """
        while row:
            level = row[-1].level
            count = next((n for n, node in enumerate(reversed(row)) if node.level > level), len(row))
            if count < self.fan_in:
                return
            merged = Node(min(level + 1, HIGHEST), row[-count].start_seq, row[-1].end_seq)
            if not (yield merged):
                return
            row[-count:] = [merged]


def level_of(element: Element) -> int:
    """Returns the level of a summary. The summary of another strategy has level 1, like a leaf."""
    found = _LEVEL.match(element.callback or "")
    return int(found[1]) if found else 1


def plan_summary_tree(messages: Iterable[Any], *options: Any, counter: Any = None, **more: Any) -> list[Node]:
    """Returns the nodes that `SummaryTree` would make for a plain list of messages, in order, if no summary fails.

    The options are those of `SummaryTree`.
    """
    counting = chosen(counter)
    elements = elements_of(messages, lambda message: counting.messages([message]))
    growth = SummaryTree(Summary("-"), *options, **more).growth(Layout(elements))
    nodes: list[Node] = []
    while (node := sent(growth, True if nodes else None)) is not None:
        nodes.append(node)
    return nodes
