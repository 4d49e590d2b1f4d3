"""The outline of a view for a strategy: the speakers, the elements that must stay, and the blocks that may be folded.

Sealed summaries, system messages, the last message of the user, pinned elements and the last `tail` elements must stay.
`allow` names the rules that do not apply. All indexes are indexes of the list of elements. Everything is computed in
linear time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate, groupby, pairwise, takewhile
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, get_args

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.messages import tool_pairs
from compaction_store.messages.parts import row_of
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased, shown

Speaker = Literal["system", "user", "assistant", "result", "summary", "other"]

_ROLES: dict[str, Speaker] = {
    "system": "system", "developer": "system", "assistant": "assistant", "tool": "result", "function": "result",
}  # fmt: skip
_ALONE: dict[Speaker, frozenset[Speaker]] = {who: frozenset({who}) for who in get_args(Speaker)}
_OF_OPENAI = ("tool", "function", "developer")
_NO_TIME = datetime.fromtimestamp(0, UTC)


def speaker(payload: Payload | None) -> Speaker:
    """Returns the speaker of a message. For a user's message that has only tool results, this is `result`.

    For an item of OpenAI's Responses API without a role, this is `assistant` if the item is a call or reasoning, and
    `result` if it is a result.
    """
    if not isinstance(payload, dict) or is_erased(payload):
        return "other"
    role = payload.get("role")
    if role == "user":
        content = payload.get("content")
        only_results = isinstance(content, list) and content and all(row_of(part).step == "result" for part in content)
        return "result" if only_results else "user"
    if isinstance(role, str):
        return _ROLES.get(role, "other")
    kind = row_of(payload)
    if kind.step == "result":
        return "result"
    return "assistant" if kind.step is not None or kind.role == "assistant" else "other"


def speakers(element: Element) -> frozenset[Speaker]:
    if element.is_summary:
        return _ALONE["summary"]
    messages = element.messages
    return _ALONE[speaker(messages[0])] if len(messages) == 1 else frozenset(map(speaker, messages))


def elements_of(messages: Iterable[Payload | None], count: Callable[[Payload], int] | None = None) -> list[Element]:
    """Returns messages as elements of a view. The first has seq 1. Without `count`, all token counts are 0."""

    def size(message: Payload | None) -> int:
        return 0 if count is None or message is None else count(message)

    return [Element(seq, seq, None, (shown(one),), size(one), None, _NO_TIME) for seq, one in enumerate(messages, 1)]


def speaks_anthropic(payloads: Iterable[Payload | None]) -> bool | None:
    """Returns whether a thread is in Anthropic's format, in which adjacent messages of one role are one turn.

    A list with text blocks counts as Anthropic's format, unless a message shows OpenAI's. Returns None if no content
    shows a format: plain strings fit any format.
    """
    lists = False
    for payload in payloads:
        if not isinstance(payload, dict):
            continue
        role, content = payload.get("role"), payload.get("content")
        if role in _OF_OPENAI or "tool_calls" in payload or payload.get("type", "message") != "message":
            return False
        if isinstance(content, list):
            kinds = list(map(row_of, content))
            if any(kind.only_api == "anthropic" for kind in kinds):
                return True
            lists = lists or any(kind.name == "text" for kind in kinds)
    return lists or None


class Block(NamedTuple):
    """A range of elements that must not be split, both ends inclusive. A call and its result are in the same range."""

    low: int
    high: int
    foldable: bool


class Outline:
    """The elements of a view with their speakers, and which of them must stay.

    Summaries by callbacks whose name begins with `made_by` are sealed. If `made_by` is None, no summary is sealed.
    """

    def __init__(
        self,
        elements: Sequence[Element],
        *,
        pins: Pins | None = None,
        allow: Collection[str] = (),
        tail: int = 0,
        made_by: str | None = "",
        links: tool_pairs.Links | None = None,
    ) -> None:
        self.elements = elements
        self._known = links
        self.tail = max(0, len(elements) - tail)
        self.speakers = list(map(speakers, elements))
        self.sealed = [
            made_by is not None and e.is_summary and (e.callback or "").startswith(made_by) for e in elements
        ]
        self.stays = [index >= self.tail or sealed for index, sealed in enumerate(self.sealed)]
        if "system" not in allow:
            self._keep_system()
        if "last_user" not in allow and (last := tool_pairs.last_user(tool_pairs.items_of(elements))) is not None:
            self.stays[last] = True
        for index, element in enumerate(elements) if pins else ():
            self.stays[index] |= pins.hold(element)  # type: ignore[union-attr]

    def _keep_system(self) -> None:
        """Keeps system messages, and in Anthropic's format the assistant's turn after each, which the API requires.

        The turn after the system messages at the beginning is not kept.
        """
        started = follows = False
        for index, who in enumerate(self.speakers):
            system = "system" in who
            self.stays[index] |= system or (follows and who == {"assistant"} and self.is_anthropic)
            follows = started and (system or (follows and who == {"assistant"}))
            started |= not system

    @cached_property
    def is_anthropic(self) -> bool:
        found = speaks_anthropic(m for e in self.elements if not e.is_summary for m in e.messages)
        # If only strings and summaries are left, assume Anthropic: messages in its format may have been summarized.
        return any(element.is_summary for element in self.elements) if found is None else found

    @cached_property
    def links(self) -> tool_pairs.Links:
        return tool_pairs.Links(tool_pairs.items_of(self.elements)) if self._known is None else self._known

    @cached_property
    def blocks(self) -> list[Block]:
        """All elements in order, divided into the smallest possible blocks."""
        borders = [*self.links.borders(), len(self.elements)]
        keep = [stays or index in self.links.pending for index, stays in enumerate(self.stays)]
        return [Block(low, after - 1, not any(keep[low:after])) for low, after in pairwise(borders)]

    def safe(self, low: int, high: int) -> list[tuple[int, int]]:
        """Returns the largest spans inside a range that may be folded without splitting a call from its result."""
        places = range(bisect_left(self.blocks, (low,)), len(self.blocks))
        inside = takewhile(lambda block: block.high <= high, map(self.blocks.__getitem__, places))
        runs = [list(run) for foldable, run in groupby(inside, attrgetter("foldable")) if foldable]
        return [(run[0].low, run[-1].high) for run in runs]


Pin = int | tuple[int, int] | Callable[[Payload], Any]
PinOption = Pin | Iterable[Pin]


class Pins:
    """Pins: seqs, spans as pairs of seqs, and predicates of messages, which are not called for summaries."""

    def __init__(self, pin: PinOption = ()) -> None:
        self.spans: list[tuple[int, int]] = []
        self.predicates: list[Callable[[Payload], Any]] = []
        for one in [pin] if isinstance(pin, int) or callable(pin) or _is_pair(pin) else pin:
            self._add(one)
        self.spans.sort()
        # For each span, the largest end of this span and the spans before it.
        self._reach = list(accumulate((end for _, end in self.spans), max))

    def _add(self, pin: Any) -> None:
        if callable(pin):
            self.predicates.append(pin)
        elif type(pin) is int and pin > 0:
            self.spans.append((pin, pin))
        elif _is_pair(pin) and 1 <= pin[0] <= pin[1]:
            self.spans.append((pin[0], pin[1]))
        else:
            raise InvalidInput(f"a pin must be a seq >= 1, a span of two seqs, or a predicate of a message{other(pin)}")

    def __or__(self, more: Pins) -> Pins:
        return Pins([*self, *more])

    def __iter__(self) -> Iterator[Pin]:
        yield from self.spans
        yield from self.predicates

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pins) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self.spans or self.predicates)

    def hold(self, element: Element) -> bool:
        """Returns whether any part of the element is pinned."""
        place = bisect_right(self.spans, element.end_seq, key=itemgetter(0))
        if place and self._reach[place - 1] >= element.seq:
            return True
        if element.is_summary:
            return False
        messages = [message for message in element.messages if not is_erased(message)]
        return any(predicate(message) for predicate in self.predicates for message in messages)

    def __repr__(self) -> str:
        seqs = [str(start) if start == end else f"{start}-{end}" for start, end in self.spans]
        return ", ".join([*seqs, *(getattr(p, "__qualname__", type(p).__qualname__) for p in self.predicates)])


def _is_pair(pin: object) -> bool:
    return isinstance(pin, tuple) and len(pin) == 2 and all(type(seq) is int for seq in pin)  # noqa: PLR2004


# ---- which elements may be summarized or removed
# System messages, the last message of the user and pinned elements are never summarized or removed. The last message is
# never removed. The first message that is not a system message is never removed either, because an API may require it
# to be from the user. No summary may come between a call and its result.
#
# Anthropic's API requires a turn of the user before a system message in the middle of a thread, and a turn of the
# assistant after it. So the messages before and after such a system message are never removed, and the one after it is
# never summarized.


def tail(tokens: Sequence[int], keep_recent: int, keep_recent_tokens: int | None) -> int:
    """Returns where the last `keep_recent` elements begin, or the fewest that have `keep_recent_tokens` together."""
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
        steps = (step for message in element.messages for step in tool_pairs.tools(message).steps)
        if not element.is_summary and any(step.kind == "result" for step in steps):
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
        """Divides a span into parts of at least `size`, except the last. Yields first index, last index and size."""
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
