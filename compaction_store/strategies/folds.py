"""The scan of the sliding window, which yields the spans to fold.

The window starts with the oldest element and grows by one element at a time. Each time it reaches the threshold,
everything in it that may be folded is folded: into one summary, or into several if something between them must stay.
The summaries are then part of the window, which continues to grow. If the elements up to its last summary alone reach
the threshold, only the elements after that summary are counted, so that each summary covers a full window. The scan
takes linear time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from operator import add, sub
from typing import Any, NamedTuple

from compaction_store.strategies.outline import Outline
from compaction_store.strategies.thresholds import Measure, Threshold, Window

Index = int


class Folded(NamedTuple):
    """The summary of a folded span, and its number of tokens."""

    item: Any
    tokens: int


class Fold(NamedTuple):
    """A span of indexes to summarize, both ends inclusive. The scan is sent a `Folded`, or None without a summary."""

    low: Index
    high: Index


Folds = Generator[Fold, Folded | None, None]


class _Sums(NamedTuple):
    """The total size of several elements."""

    tokens: int
    messages: int
    turns: int

    def less(self, other: _Sums) -> _Sums:
        return _Sums(*map(sub, self, other))


class _Sizes:
    """Computes the size of any range of elements in constant time."""

    def __init__(self, outline: Outline) -> None:
        self.users = ["user" in who for who in outline.speakers]
        messages = (len(element.messages) for element in outline.elements)
        own = zip((element.tokens for element in outline.elements), messages, self.users, strict=True)
        self._before = list(accumulate(own, lambda total, more: _Sums(*map(add, total, more)), initial=_Sums(0, 0, 0)))

    def between(self, low: Index, high: Index) -> _Sums:
        """Returns the size of a range of indexes, both ends inclusive."""
        return self._before[high + 1].less(self._before[low])


class _Stretch(NamedTuple):
    """A range that may be folded. `end` is the last index to fold, or None if nothing may be folded yet."""

    low: Index
    end: Index | None
    high: Index

    @property
    def size(self) -> int:
        return 0 if self.end is None else self.end + 1 - self.low


class _Stretches:
    """The ranges of the window that may be folded, in order. They grow block by block."""

    def __init__(self, outline: Outline, *, before_reply: bool) -> None:
        self._replies = ["assistant" in who for who in outline.speakers]
        self._spoken_at = ["assistant" in who or "summary" in who for who in outline.speakers]
        self._before_reply = before_reply
        self._listed: list[_Stretch] = []
        # Whether the last range has a message of the assistant or a summary.
        self._spoken = False
        # The number of elements that would be folded now.
        self.size = 0

    def add(self, low: Index, high: Index) -> None:
        """Adds a block of elements that may be folded."""
        if not self._listed or self._listed[-1].high + 1 != low:
            self._listed.append(_Stretch(low, None, low - 1))
            self._spoken = False
        last = self._listed[-1]
        self._spoken = self._spoken or any(self._spoken_at[low : high + 1])
        after = high + 1
        may_end = not self._before_reply or after == len(self._replies) or self._replies[after]
        self._listed[-1] = _Stretch(last.low, high if self._spoken and may_end else last.end, high)
        self.size += self._listed[-1].size - last.size

    def folds(self) -> list[Fold]:
        return [Fold(piece.low, piece.end) for piece in self._listed if piece.end is not None]

    def drop(self, high: Index) -> None:
        """Drops everything up to an index, because it has been folded or will not be folded."""
        rest = [piece for piece in self._listed if piece.high > high]
        if rest and rest[0].low <= high:
            cut = rest.pop(0)
            self._listed, self.size = [], 0
            self.add(high + 1, cut.high)
            rest = [*self._listed, *rest]
        self._listed = rest
        self.size = sum(piece.size for piece in rest)
        if not rest:
            self._spoken = False


@dataclass(eq=False, repr=False)
class Scan:
    """A scan. Predicates get windows of `items`. With `whole_at_end`, the last check always counts the whole window."""

    _outline: Outline
    _items: Sequence[Any]
    _threshold: Threshold
    _limit: int | None
    _: KW_ONLY
    keep_first: bool
    before_reply: bool
    whole_at_end: bool = False

    def __post_init__(self) -> None:
        self._sizes = _Sizes(self._outline)
        self._pieces = _Stretches(self._outline, before_reply=self.before_reply)
        self._first = _first_foldable(self._outline, keep_first=self.keep_first)
        self._shown: list[Any] = []
        # The size by which the summaries have shrunk the window.
        self._saved = _Sums(0, 0, 0)
        # The index in `_shown` after the last summary, or of the first element that may be folded.
        self._base: int | None = None
        self._base_total = _Sums(0, 0, 0)
        self._base_reaches: bool | None = None
        # A threshold that even an empty window reaches says nothing about sizes, so everything is folded at the end.
        self._always = self._reaches(0, 0, _Sums(0, 0, 0), ends_with_user=False)
        self._least = 0

    def folds(self) -> Folds:
        """Yields every span to fold, in order."""
        blocks = iter(self._outline.blocks)
        block = next(blocks, None)
        for index, item in enumerate(self._items):
            self._shown.append(item)
            if self._outline.sealed[index]:
                self._rebase(len(self._shown), self._total(index))
            if block is not None and block.high == index:
                if block.foldable and block.low >= self._first:
                    if self._base is None:
                        self._rebase(block.low, self._sizes.between(0, block.low - 1))
                    self._pieces.add(block.low, block.high)
                block = next(blocks, None)
            if self._pieces.size > self._least and self._reached(index):
                yield from self._fold(index)

    def _reached(self, index: Index) -> bool:
        at_end = index + 1 == len(self._items)
        if self._always:
            return at_end
        base = self._base or 0
        if self._base_reaches is None:
            self._base_reaches = self._reaches(0, base, self._base_total, ends_with_user=False)
        total = self._total(index)
        apart = self._base_reaches and not (at_end and self.whole_at_end)
        start, sums = (base, total.less(self._base_total)) if apart else (0, total)
        return self._reaches(start, len(self._shown), sums, ends_with_user=self._sizes.users[index])

    def _reaches(self, start: int, end: int, sums: _Sums, *, ends_with_user: bool) -> bool:
        size = Measure(*sums, ends_with_user=ends_with_user, limit=self._limit)
        return self._threshold(Window(self._shown, start, end, size))

    def _total(self, index: Index) -> _Sums:
        return self._sizes.between(0, index).less(self._saved)

    def _rebase(self, base: int, total: _Sums) -> None:
        self._base, self._base_total, self._base_reaches = base, total, None

    def _fold(self, index: Index) -> Folds:
        done: list[tuple[Fold, Folded]] = []
        for fold in self._pieces.folds():
            folded = yield fold
            if folded is not None:
                done.append((fold, folded))
        if not done:
            # Try again only with more than twice as much to fold, because each refusal may have cost a model call.
            self._least = 2 * self._pieces.size
            return
        self._least = 0
        self._show(done, index)
        last = done[-1][0].high
        self._pieces.drop(last)
        self._rebase(len(self._shown) - (index - last), self._total(index).less(self._sizes.between(last + 1, index)))

    def _show(self, done: Sequence[tuple[Fold, Folded]], index: Index) -> None:
        """Replaces the folded elements of the window, from the first of these folds on, with their summaries."""
        at = done[0][0].low
        place = len(self._shown) - 1 - (index - at)
        tail: list[Any] = []
        for fold, folded in done:
            tail += [*self._items[at : fold.low], folded.item]
            at = fold.high + 1
            self._saved = _Sums(*map(add, self._saved, self._sizes.between(*fold).less(_Sums(folded.tokens, 1, 0))))
        self._shown[place:] = [*tail, *self._items[at : index + 1]]


def tokens_that_stay(outline: Outline, *, keep_first: bool) -> int:
    """Returns how many tokens are left of a view, not counting summaries, if everything is folded that may be."""
    first = _first_foldable(outline, keep_first=keep_first)
    folded = (range(b.low, b.high + 1) for b in outline.blocks if b.foldable and b.low >= first)
    sizes = [element.tokens for element in outline.elements]
    return sum(sizes) - sum(sizes[index] for block in folded for index in block)


def _first_foldable(outline: Outline, *, keep_first: bool) -> Index:
    # Do not touch anything before a sealed summary, so that folded spans never change.
    sealed = (index + 1 for index in reversed(range(len(outline.elements))) if outline.sealed[index])
    # The messages before the first reply or summary are the original task.
    replies = (index for index, who in enumerate(outline.speakers) if "assistant" in who or "summary" in who)
    return max(next(replies, len(outline.speakers)) if keep_first else 0, next(sealed, 0))
