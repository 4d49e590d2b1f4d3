"""A plan of compactions: the spans of a view to replace, and the resulting view. Every lookup is a bisection."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn, Self, cast

from compaction_store.compaction.asks import Ask, LastPlanned
from compaction_store.compaction.summary_calls import CallRecord, without_text
from compaction_store.errors import (
    ChecksFailed,
    CompactionStoreError,
    EmptySummary,
    InvalidSpan,
    NotSmaller,
    Rejected,
    SpanConflict,
    own_text,
    raised_at,
)
from compaction_store.jsonable import AsDict
from compaction_store.messages.stand_ins import shown
from compaction_store.models import Attempt, Compaction, Element, Measured, Payload, Span, Summary
from compaction_store.models.vocabulary import Kind, Outcome
from compaction_store.rendering.view import View
from compaction_store.results import ItemsOf

# Among the inputs of a record, this number means all earlier records: the summary may repeat any of them.
EVERYTHING = 0
# If an attempt is rejected by one of these rules, the same span is not tried again until the thread changes.
_NO_PROGRESS = (NotSmaller, EmptySummary, ChecksFailed)
#: The first and last index of elements.
Indexes = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CompactionPlan(AsDict):
    """The result of `plan`: the records that a compaction would write, the reason, and the view before and after.

    `errors` are the exceptions of callbacks and summarizers, in order.
    """

    attempts: tuple[Attempt, ...]
    reason: str
    before: View = field(repr=False)
    after: View = field(repr=False)
    errors: tuple[Exception, ...] = field(default=(), repr=False)


class PlannedSpan(NamedTuple):
    """A planned span: the first and last index of the elements it covers, and the index of its attempt."""

    low: int
    high: int
    attempt: int


class Mark(NamedTuple):
    """The state of a plan at one moment, to which the plan can be reset."""

    attempts: int
    placed: tuple[PlannedSpan, ...]


class Plan:
    """The elements of a view and every attempt to compact them, each with its callback's name and its authority."""

    def __init__(self, elements: Sequence[Element], thread_id: str, authority: Payload | None = None) -> None:
        self.base = elements
        self.thread_id = thread_id
        self.attempts: list[Attempt] = []
        self.callback = "callback"
        self.authority = authority
        self._given_authority = authority
        # The number of attempts before the running callback, and the errors that the attempts have recorded.
        self._began = 0
        self._failures: list[Exception] = []
        # The planned spans are disjoint and in order. A span that covers other planned spans replaces them.
        self._placed: list[PlannedSpan] = []
        self._starts = [element.seq for element in elements]
        self._sums = [0, *accumulate(element.tokens for element in elements)]
        self._folded: tuple[Element, ...] | None = None
        self.last_planned = LastPlanned()

    def indexes(self, span: Span) -> tuple[int, int]:
        """Returns the indexes of a span, which must not cut through an element or a planned span."""
        start, end = span
        last_seq = self.base[-1].end_seq
        if type(start) is not int or type(end) is not int or not 1 <= start <= end <= last_seq:
            given = f"{start} to {end}" if type(start) is type(end) is int else "seqs that are not integers"
            raise InvalidSpan(f"a span must lie within seqs 1 to {last_seq} and must not end before its start: {given}")
        low = bisect_right(self._starts, start) - 1
        high = bisect_right(self._starts, end) - 1
        cut = self.base[low].seq != start or self.base[high].end_seq != end
        if cut or any(p.low < low or p.high > high for p in self._placed[self._overlapping(low, high)]):
            raise SpanConflict(f"{span} cuts through the span of a compaction; cover that span whole or leave it out")
        return low, high

    def indexes_inside(self, span: Span) -> tuple[int, int]:
        """Returns the largest range of whole elements in a span. If it is empty, the first index is above the last."""
        low = bisect_left(self._starts, span.start_seq)
        high = bisect_right(self._starts, span.end_seq) - 1
        if high >= 0 and self.base[high].end_seq > span.end_seq:
            high -= 1
        if low <= high:
            for placed in self._placed[self._overlapping(low, high)]:
                if placed.low < low:
                    low = placed.high + 1
                if placed.high > high:
                    high = placed.low - 1
        return low, high

    def tokens(self, low: int, high: int) -> int:
        """Returns the tokens of a range with all planned folds applied."""
        total = self._sums[high + 1] - self._sums[low]
        for placed in self._placed[self._overlapping(low, high)]:
            after = self.attempts[placed.attempt].tokens_after or 0
            total += after - (self._sums[placed.high + 1] - self._sums[placed.low])
        return total

    def elements(self, low: int, high: int) -> Iterator[Element]:
        """Yields the elements of a range with all planned folds applied."""
        at = low
        for placed in self._placed[self._overlapping(low, high)]:
            yield from self.base[at : placed.low]
            yield self._element(placed)
            at = placed.high + 1
        yield from self.base[at : high + 1]

    @property
    def folds(self) -> bool:
        """Whether anything is planned."""
        return bool(self._placed)

    def folded(self) -> tuple[Element, ...]:
        """Returns the whole view with all planned folds applied."""
        if self._folded is None:
            self._folded = tuple(self.elements(0, len(self.base) - 1))
        return self._folded

    def messages(self) -> list[Payload]:
        """Returns the messages that the model will be sent if the plan is committed."""
        return [message for element in self.folded() for message in shown(element)]

    def begin(self, callback: str) -> Mark:
        """Records the next attempts under the name of this callback, and with the authority given to the run."""
        self.callback, self.authority = callback, self._given_authority
        self._began = len(self.attempts)
        return self.mark()

    def has_summarized(self, span: Span) -> bool:
        """Whether the plan has a summary of exactly this span, and the running callback has made it."""
        made = (self.attempts[placed.attempt] for placed in self._placed if placed.attempt >= self._began)
        return any(attempt.kind == "summary" and (attempt.start_seq, attempt.end_seq) == span for attempt in made)

    def apply(
        self,
        indexes: Indexes,
        ask: Ask,
        kind: Kind,
        tokens_after: int,
        *,
        replacement: tuple[Payload, ...] = (),
        summary: Summary | None = None,
        inputs: tuple[int, ...] = (),
    ) -> None:
        """Adds a compaction to the plan."""
        before = self.tokens(*indexes)
        attempt = Attempt(
            self.callback, kind, "applied", *ask.span, before, tokens_after, replacement, summary, inputs, ask.allow,
            ask.reason, authority=self.authority,
        )  # fmt: skip
        self._place(*indexes, attempt)

    def reject(
        self,
        ask: Ask,
        kind: Kind,
        rule: type[Rejected],
        text: str,
        summary: Summary | None = None,
        call: CallRecord | None = None,
    ) -> NoReturn:
        """Records that a rule refused an attempt, and raises the error."""
        error: Payload = {"type": rule.__name__, "text": text, "no_progress": issubclass(rule, _NO_PROGRESS)}
        self._add(ask, kind, "rejected", error, summary, call)
        raise rule(f"{text} ({ask.span} of thread {self.thread_id!r})", start_seq=ask.start_seq, end_seq=ask.end_seq)

    def fail(self, ask: Ask, error: Exception, call: CallRecord | None, summary: Summary | None = None) -> None:
        """Records that the summarizer failed, or that its summary cannot be used."""
        if summary is None and call is not None:
            summary = call.failed(error)
        self._add(ask, "summary", "failed", _as_recorded(error, "the summarizer failed"), summary, call)
        self._failures.append(error)

    def void(self, mark: Mark, error: Exception) -> None:
        """Withdraws the plan since the mark. A summary with known usage stays as a failed attempt: it was paid for.

        Records the callback's error, unless it is a `Rejected`, a `SpanConflict` or the error of a recorded attempt.
        """
        applied = [attempt for attempt in self.attempts[mark.attempts :] if attempt.outcome == "applied"]
        self._take_back(mark)
        for attempt in applied:
            if attempt.summary is not None and attempt.summary.usage is not None:
                self.attempts.append(replace(
                    attempt, outcome="failed", tokens_after=None, replacement=(), summary=without_text(attempt.summary),
                    inputs=_recorded(attempt.inputs),
                    error=_as_recorded(error, "") | {"text": "the callback failed after this summary"},
                ))  # fmt: skip
        if not isinstance(error, Rejected | SpanConflict) and not any(error is known for known in self._failures):
            what = _as_recorded(error, "the callback failed")
            attempt = Attempt(self.callback, "summary", "failed", None, None, error=what, authority=self.authority)
            self.attempts.append(attempt)

    def inputs(self, indexes: Indexes, call: CallRecord | None = None) -> tuple[int, ...]:
        """Returns the numbers of the records in a range, with EVERYTHING if the summarizer saw more than the range."""
        numbers = tuple(number for element in self.elements(*indexes) if (number := element.number) is not None)
        saw_more = call is not None and call.view is not None and call.view.was_shown
        return (EVERYTHING, *numbers) if saw_more else numbers

    def _add(
        self, ask: Ask, kind: Kind, outcome: Outcome, error: Payload, summary: Summary | None, call: CallRecord | None
    ) -> None:
        indexes = self.indexes(ask.span)
        self.attempts.append(Attempt(
            self.callback, kind, outcome, *ask.span, self.tokens(*indexes),
            summary=None if summary is None else without_text(summary), inputs=_recorded(self.inputs(indexes, call)),
            reason=ask.reason, error=error, authority=self.authority,
        ))  # fmt: skip

    def _place(self, low: int, high: int, attempt: Attempt) -> None:
        """Adds an attempt to the plan. Its range must be one that `indexes` returned."""
        self.last_planned.settle()
        self._placed[self._overlapping(low, high)] = [PlannedSpan(low, high, len(self.attempts))]
        self.attempts.append(attempt)
        self._folded = None

    def mark(self) -> Mark:
        return Mark(len(self.attempts), tuple(self._placed))

    def _take_back(self, mark: Mark) -> None:
        """Withdraws everything that was placed since the mark. Rejected and failed attempts stay in the list."""
        self.last_planned.settle()
        tried = self.attempts[mark.attempts :]
        self.attempts[mark.attempts :] = [attempt for attempt in tried if attempt.outcome != "applied"]
        self._placed = list(mark.placed)
        self._folded = None

    def withdraw(self, mark: Mark, error: Payload) -> None:
        """Marks what was applied since the mark as rejected. Attempts keep their indexes, to which inputs may refer."""
        self.last_planned.settle()
        for index in range(mark.attempts, len(self.attempts)):
            attempt = self.attempts[index]
            if attempt.outcome == "applied":
                kept = None if attempt.summary is None else without_text(attempt.summary)
                self.attempts[index] = replace(
                    attempt, outcome="rejected", tokens_after=None, replacement=(), summary=kept, error=error
                )
        self._placed = list(mark.placed)
        self._folded = None

    def _overlapping(self, low: int, high: int) -> slice:
        """Returns the slice of the planned spans that overlap a range of indexes."""
        if not self._placed or self._placed[-1].high < low:
            # The common case: most plans are made from the first message to the last.
            return slice(len(self._placed), None)
        return slice(
            bisect_left(self._placed, low, key=lambda placed: placed.high),
            bisect_right(self._placed, high, key=lambda placed: placed.low),
        )

    def _element(self, placed: PlannedSpan) -> Element:
        attempt = self.attempts[placed.attempt]
        return Element(
            cast("int", attempt.start_seq), cast("int", attempt.end_seq), None, attempt.replacement,
            attempt.tokens_after or 0, -1 - placed.attempt, self.base[placed.high].created_at, attempt.kind,
            attempt.callback,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompactionRun(AsDict, ItemsOf[Compaction]):
    """The result of one call of `compact`: its records of any outcome in order, the reason, and the new view.

    `errors` are the exceptions of callbacks and summarizers, in order. With a budget, the view's `measured` is the best
    known figure for the size of the view.
    """

    records: tuple[Compaction, ...]
    reason: str
    view: View = field(repr=False)
    errors: tuple[Exception, ...] = field(default=(), repr=False)

    def _items_of(self) -> tuple[Compaction, ...]:
        return self.records

    @property
    def summed_up(self) -> str:
        """The reason, with the types of the errors that callbacks and summarizers raised."""
        kinds = ", ".join(dict.fromkeys(type(error).__name__ for error in self.errors))
        return f"{self.reason} ({kinds})" if kinds else self.reason

    @property
    def applied(self) -> bool:
        """Whether the view changed."""
        return any(record.outcome == "applied" for record in self.records)

    @property
    def covered(self) -> tuple[Payload, ...]:
        """The failed calls of summarizers after which another summarizer succeeded: see `Compaction.failed_before`."""
        written = (record for record in self.records if record.outcome == "applied")
        return tuple(failed for record in written for failed in record.failed_before)


@dataclass(frozen=True, slots=True, eq=False)
class FittedView(View):
    """The view that `fit` returns. `run` is the run that compacted it, or None if the view was within the trigger.

    It is equal to the same view without a run.
    """

    measured: Measured = field(repr=False, compare=False)
    run: CompactionRun | None = field(default=None, repr=False)

    @classmethod
    def of(cls, view: View, run: CompactionRun | None) -> Self:
        """Returns a view with the run that compacted it."""
        measured = view.measured or Measured(view.tokens, view.tokens)
        return cls(view.thread_id, view.pos, view.elements, measured, view.head, run)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, View):
            return NotImplemented
        return (self.thread_id, self.pos, self.elements, self.head) == (
            other.thread_id, other.pos, other.elements, other.head,
        )  # fmt: skip

    __hash__ = View.__hash__

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields of the view, ready for `json.dumps`, without the run, which has the view again."""
        return View(self.thread_id, self.pos, self.elements, self.measured, self.head).as_dict()


class BudgetExceeded(CompactionStoreError):
    """The view is above the limit of the budget. `view` is this view, and `view.run` the run that did not help."""

    def __init__(self, message: str, *, view: FittedView) -> None:
        super().__init__(message)
        self.view = view


def _recorded(inputs: Iterable[int]) -> tuple[int, ...]:
    """Replaces planned records among inputs by EVERYTHING, because they have no number yet and may be withdrawn."""
    return tuple(dict.fromkeys(max(number, EVERYTHING) for number in inputs))


def _as_recorded(error: Exception, default: str) -> Payload:
    """Returns an error's type and place and, if this package wrote it, its text. Other texts may quote a message."""
    found: Payload = {"type": type(error).__qualname__, "text": own_text(error) or default}
    place = raised_at(error)
    return found if place is None else found | {"at": place}
