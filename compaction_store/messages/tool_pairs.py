"""Finds the spans of a view that may be summarized or removed without separating a tool call from its result. Pure.

A span is allowed if it is closed and contains nothing pending. A span is closed if it separates none of these: a call
and its result, a call and the running program that made it, or reasoning and the item that it led to. A call without a
result is pending, and so is reasoning without a following item.

Calls and results are paired by id and position, because ids repeat: a result answers the nearest earlier unanswered
call with the same id. A result that answers no call belongs to no group. The module reads OpenAI's chat messages,
OpenAI's Responses items and Anthropic's blocks, even if one thread mixes them. Values of any other form are ignored.
An item has the payloads of one element of a view, and an index is its place.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

from compaction_store.messages.parts import PartType, body_of, row_of, walk
from compaction_store.models import Element, Payload, PendingCall
from compaction_store.models.messages import is_erased

_SYSTEM_ROLES = frozenset({"system", "developer"})
_PLAIN = frozenset({"role", "content"})
_GIVEN_ROLES = _SYSTEM_ROLES | {"user", "tool", "function"}

Refusal = Literal["split_pair", "pending_call"]


class Step(NamedTuple):
    """A call, a result, or the running program that made a call. `form` is its type, or the field of a chat message."""

    kind: Literal["call", "result", "caller"]
    form: str
    id: str


class Tools(NamedTuple):
    """The calls and results in one payload, in order."""

    steps: list[Step]
    ends_in_reasoning: bool
    given_to_model: bool


def _steps(payload: Payload) -> list[tuple[Step, PartType, Any]]:
    """Returns the steps in a payload in order, each with the part that it was made from and its row."""
    steps: list[tuple[Step, PartType, Any]] = []
    for _, found, part in walk(payload):
        if found.text is not None or not isinstance(part, dict):
            continue
        if isinstance(caller := part.get("caller"), dict):
            # Anthropic names a program by tool_id, OpenAI by caller_id.
            maker = caller.get("tool_id", caller.get("caller_id"))
            if type(maker) is str:
                steps.append((Step("caller", found.name, maker), found, part))
        if found.step in ("call", "result") and (name := found.id_of(part)) is not None:
            steps.append((Step(found.step, found.name, name), found, part))
    return steps


def _is_given(payload: Payload) -> bool:
    role = payload.get("role")
    return type(role) is str and role in _GIVEN_ROLES


def tools(payload: Payload | None) -> Tools:
    """Returns the calls and results in a payload. An erased payload has none."""
    if not isinstance(payload, dict):
        return Tools([], ends_in_reasoning=False, given_to_model=False)
    kind, content = payload.get("type"), payload.get("content")
    # Most messages are plain text.
    steps = [] if type(content) is str and payload.keys() <= _PLAIN else [step for step, _, _ in _steps(payload)]
    if _is_given(payload):
        # Only the assistant can make calls and think. The renderers leave both out of any other message.
        return Tools([step for step in steps if step.kind != "call"], ends_in_reasoning=False, given_to_model=True)
    last: Any = payload
    if isinstance(content, list) and kind != "reasoning":
        last = content[-1] if content else None
    reasoning = isinstance(last, dict) and last.get("type") == "reasoning"
    return Tools(steps, reasoning, kind is not None and row_of(payload).step == "result")


def items_of(elements: Iterable[Element]) -> list[tuple[Payload | None, ...]]:
    """Converts the elements of a view to items. A summary becomes an empty item, because the user did not write it."""
    return [() if element.is_summary else element.messages for element in elements]


def call_and_result_ids(messages: Iterable[Payload | None]) -> list[Step]:
    """Returns all calls and results in order. Messages that replace the given ones must have exactly the same."""
    return [step for message in messages for step in tools(message).steps if step.kind != "caller"]


def is_system(payload: Payload | None) -> bool:
    role = payload.get("role") if isinstance(payload, dict) else None
    return type(role) is str and role in _SYSTEM_ROLES


def _is_users(payload: Payload | None) -> bool:
    if not isinstance(payload, dict) or is_erased(payload) or payload.get("role") != "user":
        return False
    content = payload.get("content")
    if isinstance(content, list):
        return not all(row_of(part).step == "result" for part in content)
    return content is not None and content != ""


def last_user(items: Sequence[Sequence[Payload | None]]) -> int | None:
    """Returns the index of the last item with a user message that is more than tool results, or None."""
    for index in range(len(items) - 1, -1, -1):
        if any(map(_is_users, items[index])):
            return index
    return None


def pending_calls(elements: Iterable[Element]) -> tuple[PendingCall, ...]:
    """Returns the calls in a view that the application has not answered yet, in order."""
    waiting: dict[tuple[bool, str], list[tuple[int, PendingCall | None]]] = defaultdict(list)
    place = 0
    for element in elements:
        for payload in () if element.is_summary else element.messages:
            for (kind, form, name), found, part in _steps(payload) if isinstance(payload, dict) else ():
                place += 1
                if kind == "call" and not _is_given(payload):
                    waiting[form == "function", name].append((place, _pending(element.seq, name, found, part)))
                elif kind == "result" and (calls := waiting.get((form == "function", name))):
                    calls.pop()
    left = sorted((place, call) for calls in waiting.values() for place, call in calls if call is not None)
    return tuple(call for _, call in left)


def _pending(seq: int, name: str, found: PartType, call: Payload) -> PendingCall | None:
    """Returns a call as pending, or None if the provider itself answers it."""
    if found.by_provider:
        return None
    field, given = found.input_of(call)
    if isinstance(given, str) and field == "arguments":
        with suppress(ValueError):
            given = json.loads(given)
    tool = body_of(call).get("name")
    return PendingCall(seq, name, tool if isinstance(tool, str) else found.name, given, call)


class _Groups:
    """Groups of indexes that must not be separated (a union-find). The root of a group is its first index."""

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def root(self, index: int) -> int:
        parent = self.parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def link(self, one: int, other: int) -> None:
        first, second = sorted((self.root(one), self.root(other)))
        self.parent[second] = first


class Links:
    """The groups of items that belong together in a list of items. They are found in linear time.

    `pending` has the indexes of items with an unanswered call, and of the last item if it ends in reasoning. `orphans`
    has the indexes of items with a result that answers no call. An erased payload has no steps, so a call whose result
    is erased is pending.
    """

    def __init__(self, items: Sequence[Sequence[Payload | None]]) -> None:
        self._size = len(items)
        groups = _Groups(self._size)
        waiting: dict[tuple[bool, str], list[int]] = defaultdict(list)
        latest: dict[str, int] = {}
        orphans: set[int] = set()
        reasoning: int | None = None
        for index, payloads in enumerate(items):
            for payload in payloads:
                steps, ends_in_reasoning, given = tools(payload)
                # If input for the model follows the reasoning, the reasoning was cut short and led to no item.
                if reasoning is not None and not given:
                    groups.link(reasoning, index)
                reasoning = index if ends_in_reasoning else None
                for kind, form, name in steps:
                    if kind == "call":
                        waiting[form == "function", name].append(index)
                        latest[name] = index
                    elif kind == "caller":
                        groups.link(latest.get(name, index), index)
                    elif calls := waiting.get((form == "function", name)):
                        groups.link(calls.pop(), index)
                    else:
                        orphans.add(index)
        self.orphans = frozenset(orphans)
        self.pending = frozenset(chain(() if reasoning is None else (reasoning,), *waiting.values()))
        self._pending = sorted(self.pending)
        self._low = [groups.root(index) for index in range(self._size)]
        ends = dict(zip(self._low, range(self._size), strict=True))
        self._high = [ends[low] for low in self._low]
        # For each index, the last index of all groups that begin at or before it.
        self._reach = list(accumulate(self._high, max))

    def _check(self, start: int, end: int) -> None:
        if not 0 <= start <= end < self._size:
            raise IndexError(f"a span must be within 0 to {self._size - 1}, not {start} to {end}")

    def problem(self, start: int, end: int) -> Refusal | None:
        """Returns why a span, inclusive at both ends, must not be summarized or removed, or None if it is allowed."""
        self._check(start, end)
        if self._waits(start, end):
            return "pending_call"
        if (start == 0 or self._reach[start - 1] < start) and self._reach[end] <= end:
            return None
        inside = slice(start, end + 1)
        return "split_pair" if min(self._low[inside]) < start or max(self._high[inside]) > end else None

    def _waits(self, start: int, end: int) -> bool:
        place = bisect_left(self._pending, start)
        return place < len(self._pending) and self._pending[place] <= end

    def borders(self) -> list[int]:
        """Returns the indexes before which a cut separates no group. Allowed spans begin and end at them."""
        return [index for index in range(self._size) if index == 0 or self._reach[index - 1] < index]

    def interrupts(self, start: int, end: int) -> bool:
        """Returns whether an allowed span lies between a call and its result, where APIs refuse a summary."""
        self._check(start, end)
        return start > 0 and self._reach[start - 1] > end

    def safe(self, start: int, end: int, *, interrupting: bool = True) -> tuple[int, int] | None:
        """Returns the largest allowed span inside a range, or None if there is none. Of equal spans, returns the first.

        With `interrupting=False`, considers only spans that do not lie between a call and its result.
        """
        # If a piece lies between a call and its result, so does each of its parts. So whole pieces can be skipped.
        found = (span for span in self.pieces(start, end) if interrupting or not self.interrupts(*span))
        return max(found, key=lambda span: span[1] - span[0], default=None)

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the maximal allowed spans inside a range, in order. Every allowed span lies inside one of these."""
        if start > end:
            return
        self._check(start, end)
        todo = [(start, end)]
        while todo:
            start, end = todo.pop()
            barrier = self._barrier(start, end)
            if barrier is None:
                yield start, end
                continue
            if barrier < end:
                todo.append((barrier + 1, end))
            if start < barrier:
                todo.append((start, barrier - 1))

    def _barrier(self, start: int, end: int) -> int | None:
        """Returns an index that no allowed span inside a range contains, or None if the whole range is allowed.

        The search begins at both ends, so its time depends on the smaller of the two parts into which the index divides
        the range. All cuts of a range of n items together take O(n log n).
        """
        low, high, pending = self._low, self._high, self.pending
        for left in range(start, (start + end) // 2 + 1):
            for index in (left, start + end - left):
                if low[index] < start or high[index] > end or index in pending:
                    return index
        return None

    def closed(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the smallest allowed span that contains a span, or None if there is none."""
        self._check(start, end)
        low = min(self._low[start : end + 1])
        high = max(self._high[start : end + 1])
        while low < start or high > end:
            fresh = slice(low, start), slice(end + 1, high + 1)
            start, end = low, high
            low = min(chain((low,), *(self._low[part] for part in fresh)))
            high = max(chain((high,), *(self._high[part] for part in fresh)))
        return None if self._waits(start, end) else (start, end)
