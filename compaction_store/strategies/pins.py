"""Pins, which mark messages that a strategy must not change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased

Pin = int | tuple[int, int] | Callable[[Payload], Any]
PinOption = Pin | Iterable[Pin]


class Pins:
    """One pin or several. A pin is a seq, a span as a pair of seqs, or a predicate that is called with a message.

    A predicate is not called for summaries; they can be pinned by a seq or a span.
    """

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
