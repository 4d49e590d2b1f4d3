"""Computes the spans of a view that a strategy may summarize or remove.

System messages, the last message of the user and pinned elements are never summarized or removed. The last message is
never removed. The first message that is not a system message is never removed either, because an API may require it to
be from the user. No summary may come between a call and its result.

Anthropic's API requires a turn of the user before a system message in the middle of a thread, and a turn of the
assistant after it. So the messages before and after such a system message are never removed, and the one after it is
never summarized. All indexes are indexes of the list of elements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from compaction_store.messages import tool_pairs
from compaction_store.models import Element, Payload
from compaction_store.strategies.outline import Pins, speakers


def tail(tokens: Sequence[int], keep_recent: int, keep_recent_tokens: int | None) -> int:
    """Returns the index at which the recent elements begin.

    These are the last `keep_recent` elements, or the fewest at the end that have `keep_recent_tokens` together.
    """
    if keep_recent_tokens is None:
        return max(0, len(tokens) - keep_recent)
    index, total = len(tokens), 0
    while index and total < keep_recent_tokens:
        index -= 1
        total += tokens[index]
    return index


def unread(elements: Sequence[Element]) -> frozenset[int]:
    """Returns the indexes of results after the assistant's last message, which no model has read yet."""
    found: list[int] = []
    for index in range(len(elements) - 1, -1, -1):
        element = elements[index]
        if "assistant" in speakers(element):
            break
        if not element.is_summary and any(map(_has_result, element.messages)):
            found.append(index)
    return frozenset(found)


def held_unread(elements: Sequence[Element], limit: int | None) -> int:
    """Returns how many elements at the end to keep, so that a model can read new results in full.

    These are the unread results and the assistant's turn with their calls. Returns 0 if there is no limit, or if these
    elements take more than three quarters of it.
    """
    new = unread(elements)
    if not new or limit is None:
        return 0
    start = min(new)
    while start and "assistant" in speakers(elements[start - 1]):
        start -= 1
    return len(elements) - start if sum(e.tokens for e in elements[start:]) <= limit * 3 // 4 else 0


def _has_result(payload: Payload | None) -> bool:
    return any(step.kind == "result" for step in tool_pairs.tools(payload).steps)


class Layout:
    """The elements of a view, and the rules for which of them may be summarized or removed. Built in linear time."""

    def __init__(
        self, elements: Sequence[Element], pins: Pins | None = None, links: tool_pairs.Links | None = None
    ) -> None:
        self.elements = elements
        items = tool_pairs.items_of(elements)
        self._known = links
        self.last_user = tool_pairs.last_user(items)
        self.systems = frozenset(i for i, messages in enumerate(items) if any(map(tool_pairs.is_system, messages)))
        # A removal leaves an element without messages. Such an element is never taken for the first or the last one, or
        # for the neighbour of a system message.
        filled = [i for i, element in enumerate(elements) if element.messages]
        self.first = next((i for i in filled if i not in self.systems), len(items))
        self.last = filled[-1] if filled else -1
        self.pinned = frozenset(i for i, e in enumerate(elements) if pins.hold(e)) if pins else frozenset[int]()
        alone = self.systems | self.pinned
        if self.last_user is not None:
            alone |= {self.last_user}
        inner = {i for i in self.systems if i > self.first}
        pairs = list(pairwise(filled)) if inner else []
        after = {later for i, later in pairs if i in inner} - self.systems
        before = {i for i, later in pairs if later in inner} - self.systems
        self._no_summary = sorted(alone | after)
        self._no_removal = alone | after | before | {self.first, self.last}

    @cached_property
    def links(self) -> tool_pairs.Links:
        return tool_pairs.Links(tool_pairs.items_of(self.elements)) if self._known is None else self._known

    @cached_property
    def _borders(self) -> frozenset[int]:
        return frozenset(self.links.borders())

    def for_summaries(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yields the largest spans that may be summarized, in order, both ends inclusive."""
        for segment in _between(self._no_summary, low, high):
            for piece in self.links.pieces(*segment):
                if not self.links.interrupts(*piece):
                    yield piece

    def for_removal(self, low: int, high: int, spared: Collection[int] = ()) -> Iterator[tuple[int, int]]:
        """Yields the largest spans that may be removed. Leaves out spans without messages."""
        for segment in _between(sorted(self._no_removal.union(spared)), low, high):
            for start, end in self.links.pieces(*segment):
                if any(element.messages for element in self.elements[start : end + 1]):
                    yield start, end

    def stands_alone(self, index: int) -> bool:
        """Returns whether a span may begin and end at this element without separating a call from its result."""
        return index in self._borders and (index + 1 in self._borders or index + 1 == len(self.elements))

    def parts(
        self, low: int, high: int, size: int, measure: Callable[[Element], int]
    ) -> Iterator[tuple[int, int, int]]:
        """Divides a span that may be summarized into parts of at least `size`; only the last part may be smaller.

        Yields the first index, the last index and the size of each part.
        """
        start, filled = low, 0
        for index in range(low, high + 1):
            filled += measure(self.elements[index])
            if index == high or (filled >= size and index + 1 in self._borders):
                yield start, index, filled
                start, filled = index + 1, 0


def _between(barriers: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yields the parts into which the indexes in `barriers` divide a range. The barriers are in no part."""
    for place in range(bisect_left(barriers, low), len(barriers)):
        barrier = barriers[place]
        if barrier > high:
            break
        if low < barrier:
            yield low, barrier - 1
        low = barrier + 1
    if low <= high:
        yield low, high
