"""A view made to fit without any model: contents cut, then messages removed, then the first and the last cut. Pure.

Every decision is made in memory on counted tokens; what comes out is the final form only, one change for each
contiguous span. What a message can give is estimated before anything is cut, so that no message is tokenized that will
be removed, and none twice for one cap. The cost is that of the thread, not of its square.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

from compaction_store.models import Payload
from compaction_store.readable import MESSAGE
from compaction_store.strategies.contents import pieces
from compaction_store.strategies.layout import Layout
from compaction_store.strategies.shortening import Rule, shorten, size_of
from compaction_store.tokens import Counter


class Change(NamedTuple):
    """What is to stand for a span: shortened messages, or nothing. Positions are seqs, both ends inclusive."""

    start_seq: int
    end_seq: int
    kind: Literal["truncation", "removal"]
    messages: tuple[Payload, ...] = ()
    allow: frozenset[str] = frozenset()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Caps:
    """How far contents are cut, and in which steps."""

    start: int = 8192
    floor: int = 128
    inputs: bool = True

    def steps(self) -> Iterator[int]:
        cap = self.start
        while cap > self.floor:
            yield cap
            cap //= 2
        yield self.floor


def plan(
    layout: Layout, limit: int, counter: Counter, caps: Caps, *, recent: int, verbatim: bool = False
) -> list[Change]:
    """What makes the view fit the limit, or comes as near as possible.

    `recent` is where the recent elements begin: they are removed after all others. With `verbatim` they are also cut
    only if removing all others would not do.
    """
    draft = _Draft(layout, limit, counter, caps, recent)
    draft.fit(verbatim=verbatim)
    return list(draft.changes())


class _Draft:
    """A view, what its elements take by now, and what became of them."""

    def __init__(self, layout: Layout, limit: int, counter: Counter, caps: Caps, recent: int) -> None:
        elements = layout.elements
        self.layout = layout
        self.limit = limit
        self.counter = counter
        self.caps = caps
        self.recent = recent
        self.tokens = [element.tokens for element in elements]
        self.total = sum(self.tokens)
        self.forms: dict[int, tuple[Payload, ...]] = {}
        self.cap_of: dict[int, int] = {}
        self.removed: list[tuple[int, int]] = []
        self.lost = 0
        # What this very run has folded is left alone; what was folded before is removed after all else.
        self.summaries = frozenset(i for i, e in enumerate(elements) if e.is_summary)
        self.fresh = frozenset(i for i in self.summaries if (elements[i].number or 0) < 0)
        whole = self.summaries | layout.pinned
        own = {0, layout.last, layout.last_user} - layout.systems - whole
        self.ends = [sorted(i for i in own if i is not None), sorted(layout.systems - whole)]
        self.middle = [i for i in range(len(elements)) if i not in own | layout.systems | whole]

    @property
    def over(self) -> int:
        return self.total - self.lost - self.limit

    def fit(self, *, verbatim: bool) -> None:
        if verbatim:
            self._stage([i for i in self.middle if i < self.recent], only_old=True)
        if self.over > 0:
            self._stage([*self._ends_to_cut(), *self.middle], only_old=False)
        for ends in self.ends:
            self._cut_until(ends)

    def _ends_to_cut(self) -> list[int]:
        """The ends that are cut along with the others: one that takes half of the limit, if it is not what the user
        said last; and all of them where removing all the rest would not do.
        """
        floor = self.caps.floor
        gains = self._gains(self.middle)
        most = self._removable(0, len(self.tokens) - 1, self.summaries)
        left = self.total - sum(gains.values()) - self._worth(most, gains)
        large = [i for i in self.ends[0] if i != self.layout.last_user and 2 * self.tokens[i] > self.limit]
        chosen = large
        left -= sum(self._gain(index, floor) for index in large)
        for ends in self.ends:
            if left > self.limit:
                more = [index for index in ends if index not in large]
                chosen = chosen + more
                left -= sum(self._gain(index, floor) for index in more)
        return chosen

    def _stage(self, indexes: Sequence[int], *, only_old: bool) -> None:
        """Cuts, and where that will not do removes from the middle outwards; then only what is left is cut."""
        if self.over <= sum(self._gains(indexes).values()):
            self._cut_until(indexes)
        if self.over <= 0:
            return
        order = list(self._outwards())
        if only_old:
            order = [index for index in order if index < self.recent]
            gains = self._gains(indexes)
            most = self._removable(self.layout.first, self.recent - 1, self.summaries)
            if self.over > sum(gains.values()) + self._worth(most, gains):
                return
        self._remove_until(indexes, order, and_summaries=False)
        if self.over > 0 and not only_old and self.summaries > self.fresh:
            self._remove_until(indexes, order, and_summaries=True)

    # Cutting.

    def _gain(self, index: int, cap: int) -> int:
        """About what a cap saves of an element; nothing if it was cut to that cap before."""
        tokens = self.tokens[index]
        if tokens <= cap or self.cap_of.get(index, cap + 1) <= cap:
            return 0
        return max(0, tokens - (cap + MESSAGE) * len(self.layout.elements[index].messages))

    def _gains(self, indexes: Iterable[int]) -> dict[int, int]:
        return {index: self._gain(index, self.caps.floor) for index in indexes}

    def _cut_until(self, indexes: Sequence[int]) -> None:
        """Cuts to the largest cap that will do, in the order given, and no more of them than it takes."""
        for cap in self.caps.steps():
            if self.over <= 0:
                return
            if cap == self.caps.floor or self.over <= sum(self._gain(index, cap) for index in indexes):
                self._cut(indexes, cap)

    def _cut(self, indexes: Iterable[int], cap: int) -> None:
        for index in indexes:
            if self.over <= 0:
                return
            if self._gain(index, cap) > 0:
                self._cut_one(index, cap)

    def _cut_one(self, index: int, cap: int) -> None:
        self.cap_of[index] = cap
        last_user = self.layout.last_user
        rule = Rule(self.caps.inputs, thinking=last_user is not None and index < last_user)
        old = self.forms.get(index, self.layout.elements[index].messages)
        new = [message if message is None else shorten(message, cap, self.counter, rule) for message in old]
        kept = tuple(message for message in new if message is not None)
        if len(kept) < len(new) or all(a is b for a, b in zip(old, new, strict=True)):
            return
        tokens = self.counter.messages(kept)
        if tokens < self.tokens[index]:
            self.total += tokens - self.tokens[index]
            self.tokens[index] = tokens
            self.forms[index] = kept

    # Removing.

    def _outwards(self) -> Iterator[int]:
        """All indexes from the middle outwards, the recent ones after all others."""
        count = len(self.tokens)
        end = self.recent if self.recent > self.layout.first + 1 else count
        low = min(count // 2, end - 1)
        high = low + 1
        while low >= 0 or high < end:
            if low >= 0:
                yield low
            if high < end:
                yield high
            low, high = low - 1, high + 1
        yield from range(end, count)

    def _removable(self, low: int, high: int, spared: AbstractSet[int]) -> list[tuple[int, int]]:
        return list(self.layout.for_removal(low, high, spared | self._calls_kept)) if low <= high else []

    @cached_property
    def _calls_kept(self) -> AbstractSet[int]:
        """Recent calls whose inputs must not be cut: to remove them instead would be worse."""
        if self.caps.inputs:
            return frozenset()
        recent = range(self.recent, len(self.tokens))
        return frozenset(i for i in recent if self.tokens[i] > self.caps.floor and self._has_long_input(i))

    def _has_long_input(self, index: int) -> bool:
        return any(
            piece.kind in {"input", "arguments"} and size_of(piece, self.counter) > self.caps.floor
            for message in self.layout.elements[index].messages
            if message is not None
            for piece in pieces(message)
        )

    def _worth(self, found: Iterable[tuple[int, int]], gains: Mapping[int, int]) -> int:
        """What removing spans saves beyond what cutting them to the floor would."""
        return sum(self.tokens[i] - gains.get(i, 0) for low, high in found for i in range(low, high + 1))

    def _remove_until(self, indexes: Sequence[int], order: Sequence[int], *, and_summaries: bool) -> None:
        """Removes what a window holds that grows in the order given, until what is left fits once it is cut.

        A window that falls short, because pairs are removed whole, grows by what is missing, and at least by twice what
        it last grew by: few are looked at, however large the thread.
        """
        lows, highs = list(accumulate(order, min)), list(accumulate(order, max))
        size = more = 0
        while size < len(order):
            gains = self._gains(indexes)
            missing = self.total - sum(gains.values()) - self.limit - self._worth(self.removed, gains)
            sums = list(accumulate((self.tokens[i] - gains.get(i, 0) for i in order), initial=0))
            more = max(missing, 2 * more) if size else 0
            size = min(len(order), max(size + 1, bisect_left(sums, sums[size] + max(missing, more))))
            low, high = lows[size - 1], highs[size - 1]
            if and_summaries:
                spared = self.fresh | {i for i in self.summaries if not low <= i <= high}
                self.removed = self._removable(0, len(self.tokens) - 1, spared)
            else:
                self.removed = self._removable(low, high, self.summaries)
            self.lost = self._worth(self.removed, {})
            if self.over <= sum(gains[i] for i in self._left(indexes)) or size == len(order):
                self._cut(self._left(indexes), self.caps.floor)
                more = 0
            if self.over <= 0:
                return

    def _left(self, indexes: Iterable[int]) -> list[int]:
        gone = {i for low, high in self.removed for i in range(low, high + 1)}
        return [index for index in indexes if index not in gone]

    # What came of it.

    def changes(self) -> Iterator[Change]:
        """The final form, in order: each removed span, and each contiguous run of cut elements."""
        runs = [(low, high, False) for low, high in self.removed]
        for index in self._left(sorted(self.forms)):
            if runs and runs[-1][2] and runs[-1][1] == index - 1:
                runs[-1] = (runs[-1][0], index, True)
            else:
                runs.append((index, index, True))
        for low, high, cut in sorted(runs):
            start, end = self.layout.elements[low].seq, self.layout.elements[high].end_seq
            if cut:
                yield self._truncation(start, end, range(low, high + 1))
            else:
                yield Change(start, end, "removal", reason="removed from the middle outwards")

    def _truncation(self, start: int, end: int, indexes: range) -> Change:
        caps = sorted({self.cap_of[index] for index in indexes})
        messages = tuple(message for index in indexes for message in self.forms[index])
        allow = {"system"} if self.layout.systems.intersection(indexes) else set()
        if self.layout.last_user in indexes:
            allow.add("last_user")
        reason = f"contents cut to {' and '.join(map(str, caps))} tokens"
        return Change(start, end, "truncation", messages, frozenset(allow), reason)
