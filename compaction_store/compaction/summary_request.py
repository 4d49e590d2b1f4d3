"""The request to a summarizer, which is the sequence of its elements, so that any callable can be a summarizer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

from compaction_store.errors import InvalidCallback
from compaction_store.messages.framing import framed_text
from compaction_store.models import Element, Summary
from compaction_store.models.messages import is_erased
from compaction_store.results import ItemsOf
from compaction_store.tokens import Counter, count_text
from compaction_store.tokens.message_text import read

SummaryResult = str | Summary


@runtime_checkable
class Summarizer(Protocol):
    """A callable that takes elements and returns a text or a `Summary`. On an AsyncStore, it may return an awaitable.

    If its result must be awaited, it must be an async function, or its attribute `needs_async` must be True.
    """

    def __call__(self, elements: Sequence[Element], /) -> SummaryResult | Awaitable[SummaryResult]: ...


def check_summarizer(summarize: object, what: str = "a summarizer", *, choices: str = "a callable") -> None:
    """Raises InvalidCallback for an object that cannot be called, and for a class given in place of an instance."""
    if isinstance(summarize, type):
        raise InvalidCallback(f"{what} must be {choices}, not the class {summarize.__name__}")
    if not callable(summarize):
        raise InvalidCallback(f"{what} must be {choices}, not {type(summarize).__name__}")


class TrackedView:
    """Gives a summarizer the whole view, and remembers whether it did: the summary may then repeat anything from it."""

    def __init__(self, look: Callable[[], Sequence[Element]], noted_by: TrackedView | None = None) -> None:
        self._look = look
        self._noted_by = noted_by
        self.was_shown = False

    def __call__(self) -> Sequence[Element]:
        self.note()
        return self._look()

    def note(self) -> None:
        self.was_shown = True
        if self._noted_by is not None:
            self._noted_by.note()

    def unquoted(self) -> Sequence[Element]:
        """Returns the view for a check that quotes nothing from it. This call is not remembered."""
        return self._look()


@dataclass(frozen=True)
class Repair:
    """A summary to repair: its text, the lines that it lacks, and the texts in it that are in no message."""

    text: str = field(repr=False)
    missing: tuple[str, ...] = field(repr=False)
    unfounded: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Request(ItemsOf[Element]):
    """The elements to summarize. `view` is a function that returns the whole view, or None if the view is not known.

    `budget` is the maximum number of tokens of the summary's text, as counted by `counter`. It is None if the summary
    may be larger than its span, or if a caller made the request without it. If `repair` is given, the elements already
    have a summary, which must be written again without its faults.
    """

    elements: tuple[Element, ...] = field(repr=False)
    view: Callable[[], Sequence[Element]] | None = field(default=None, repr=False)
    budget: int | None = None
    counter: Counter | None = field(default=None, repr=False)
    repair: Repair | None = field(default=None, repr=False)

    @classmethod
    def of(cls, elements: Sequence[Element]) -> Request:
        """Returns the request itself, or makes a request from plain elements."""
        return elements if isinstance(elements, Request) else cls(tuple(elements))

    @classmethod
    def within(cls, elements: Sequence[Element], view: Sequence[Element], budget: int | None = None) -> Request:
        """Makes a request whose summarizer can also read the view before and after its elements."""
        outer = elements.view if isinstance(elements, Request) and isinstance(elements.view, TrackedView) else None
        return cls(tuple(elements), TrackedView(lambda: view, outer), budget)

    def _items_of(self) -> tuple[Element, ...]:
        return self.elements

    @property
    def start_seq(self) -> int:
        return self.elements[0].seq

    @property
    def end_seq(self) -> int:
        return self.elements[-1].end_seq

    @cached_property
    def before(self) -> tuple[Element, ...] | None:
        """The elements of the view before those of the request; None if the view is not known."""
        return self._shown(None if self.view is None else self._before)

    @cached_property
    def after(self) -> tuple[Element, ...] | None:
        """The elements of the view after those of the request; None if the view is not known."""
        return self._shown(self.unquoted_after)

    @property
    def unquoted_after(self) -> tuple[Element, ...] | None:
        """The same elements as `after`, for a check that quotes nothing from them."""
        return None if self.view is None else tuple(e for e in self._unquoted() if e.seq > self.end_seq)

    @property
    def unquoted_rest(self) -> tuple[Element, ...] | None:
        """The elements of the view that the request lacks, for a check that quotes nothing from them."""
        after = self.unquoted_after
        return None if after is None else (*self._before, *after)

    @property
    def _before(self) -> tuple[Element, ...]:
        return tuple(e for e in self._unquoted() if e.end_seq < self.start_seq)

    def _unquoted(self) -> Sequence[Element]:
        if isinstance(self.view, TrackedView):
            return self.view.unquoted()
        return () if self.view is None else self.view()

    def _shown(self, elements: tuple[Element, ...] | None) -> tuple[Element, ...] | None:
        if elements and isinstance(self.view, TrackedView):
            self.view.note()
        return elements

    @property
    def tokens(self) -> int:
        """The tokens of the elements by the store's counter."""
        return sum(element.tokens for element in self.elements)

    @property
    def max_tokens(self) -> int:
        return max(1, self.tokens - 1 if self.budget is None else min(self.budget, self.tokens - 1))

    def count(self, text: str) -> int:
        """Counts the tokens of a text in the same way as `budget`."""
        return count_text(text) if self.counter is None else self.counter.text(text)

    @property
    def earlier(self) -> tuple[int, ...]:
        """The numbers of the compactions among the elements."""
        return tuple(element.number for element in self.elements if element.number is not None)

    @cached_property
    def size(self) -> int:
        """The number of characters that a model would read."""
        return sum(len(text) for element in self.elements for text in texts(element))


def texts(element: Element) -> Iterator[str]:
    """Yields the texts of an element that a model would read."""
    for payload in element.messages:
        if not is_erased(payload):
            inside = framed_text(payload) if element.is_summary else None
            yield from read(payload)[0] if inside is None else (inside,)
