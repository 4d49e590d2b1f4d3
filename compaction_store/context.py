"""What an `on_compact` callback is given: it looks at the view and plans; nothing here touches a database.

The view, the plan and the rules are the only inputs, so that the same calls plan the same compactions. Every attempt is
kept, whatever came of it: what was planned, what the rules refused, and what a summarizer failed at. A callback that
raises takes back what it planned and nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from compaction_store import event_loop, framing, measuring, spans
from compaction_store.budget import TokenBudget
from compaction_store.errors import (
    CompactionStoreError,
    EmptySummary,
    IdsChanged,
    InvalidCallback,
    InvalidInput,
    LastUserInside,
    NoProgress,
    NotSmaller,
    PendingCall,
    Rejected,
    SpanConflict,
    SplitPair,
    SystemInside,
    raised_at,
)
from compaction_store.models import Element, Measured, Payload, Summary, View
from compaction_store.payload import encode
from compaction_store.plan import Attempt, Mark, Plan, Span
from compaction_store.summarizers.attempts import Call, without_text
from compaction_store.summarizers.request import Request, check_summarizer
from compaction_store.tokens import Counter

SummaryResult = str | Summary
Summarize = Callable[[Sequence[Element]], "SummaryResult | Awaitable[SummaryResult]"]

# The first and the last index of a span among the elements of the view.
Place = tuple[int, int]

ALLOWED = frozenset({"larger", "system", "last_user"})
# What a callback that keeps failing in the same way is not offered again.
_NO_PROGRESS = (NotSmaller, EmptySummary)


class Stalled(NamedTuple):
    """An attempt that was rejected for making no progress, since when the thread has not changed."""

    callback: str
    start_seq: int
    end_seq: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What a strategy yields: this span, to be summarized, or replaced, or removed. It is sent what came of it."""

    start_seq: int
    end_seq: int
    summarize: SummaryResult | Summarize | None = field(default=None, repr=False)
    replacement: tuple[Payload, ...] | None = field(default=None, repr=False)
    allow: frozenset[str] = frozenset()
    reason: str | None = field(default=None, repr=False)
    shrink: bool = True


Steps = Generator[Ask, "Exception | None", None]


class Planned:
    """What `compact` returns. Where the summarizer is awaited, the plan is made when this is awaited."""

    def __init__(self, waiting: Callable[[], Awaitable[None]] | None = None) -> None:
        self._waiting = waiting

    @property
    def is_waiting(self) -> bool:
        """Whether the plan is still to be made, by awaiting this."""
        return self._waiting is not None

    def __await__(self) -> Generator[Any, None, None]:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            yield from waiting().__await__()


class CompactionContext:
    """A view, and a growing plan of what should stand in it instead. All positions are seqs.

    `elements` and `result_messages` follow from the view and the plan, and are exact after every call.
    """

    def __init__(
        self,
        view: View,
        *,
        counter: Counter,
        budget: TokenBudget | None = None,
        stalled: Collection[Stalled] = (),
        awaits: bool = False,
    ) -> None:
        self.thread_id = view.thread_id
        #: Its marks are in the tokens of `counter`, as all figures here are, whatever a model's own tokens are.
        self.budget = measuring.in_own_tokens(budget, view)
        #: What the view takes by the best figure known.
        self.measured = view.measured or Measured(view.tokens, view.tokens)
        self._plan = Plan(view.elements)
        self._counter = counter
        self._stalled = frozenset(stalled)
        self._awaits = awaits
        #: What callbacks and summarizers raised, in the order in which it came.
        self.errors: list[Exception] = []
        #: Why nothing is planned, where that is so; a strategy may know better.
        self.idle = "the callbacks found nothing to compact"
        self._callback = "callback"
        self._turn = 0
        self._open = 0
        self._told: list[Exception] = []

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Everything that was tried, in order."""
        return self._plan.attempts

    @property
    def elements(self) -> tuple[Element, ...]:
        """The view with everything folded that was planned so far."""
        return self._plan.folded()

    @property
    def result_messages(self) -> list[Payload | None]:
        """What the model will be sent if the plan is committed."""
        return [message for element in self.elements for message in element.messages]

    @property
    def total_tokens(self) -> int:
        """What the view takes with everything folded that was planned so far."""
        return self._plan.tokens(0, len(self._plan.base) - 1)

    @property
    def counter(self) -> Counter:
        """The store's counter: of messages and of plain text, which it also cuts."""
        return self._counter

    @property
    def links(self) -> spans.Links:
        """Which of `elements` belong together, as calls and their results do."""
        return spans.Links(spans.items_of(self.elements)) if self._plan.folds else self._links

    def count(self, messages: Iterable[Payload]) -> int:
        """The tokens of messages by the store's counter."""
        return sum(self._counter.tokens(e.payload, e.size) for e in map(encode, messages))

    def safe_span(self, start_seq: int, end_seq: int) -> Span | None:
        """The largest span inside that may be summarized or removed, so that no tool call loses its result.

        Nor does it stand between a call and its result, where a summary would part them. None where there is none.
        """
        low, high = self._plan.indexes_inside(Span(start_seq, end_seq))
        if low > high or (found := self._links.safe(low, high, interrupting=False)) is None:
            return None
        return Span(self._plan.base[found[0]].seq, self._plan.base[found[1]].end_seq)

    def compact(
        self,
        start_seq: int,
        end_seq: int,
        summary: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
    ) -> Planned:
        """Plans one summary in place of a span: a text, a `Summary`, or a callable that is given the elements.

        In an async callback the result must be awaited where the summary is a callable, async or not: it runs off the
        event loop unless it is async.
        """
        allowed = _allowed(allow, reason)
        return self._summarize(Span(start_seq, end_seq), summary, allowed, reason, shrink=False)

    def replace(
        self,
        start_seq: int,
        end_seq: int,
        messages: Sequence[Payload],
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
    ) -> None:
        """Plans shortened stand-ins for a span. They keep exactly the ids of the tool calls and results there."""
        self._replace(Span(start_seq, end_seq), messages, _allowed(allow, reason), reason)

    def remove(self, start_seq: int, end_seq: int, *, allow: Collection[str] = (), reason: str | None = None) -> None:
        """Plans that nothing stands in the view for a span."""
        span = Span(start_seq, end_seq)
        allowed = _allowed(allow, reason)
        place = self._checked(span, "removal", allowed)
        self._place(place, span, "removal", 0, allow=allowed, reason=reason)

    # What a store drives callbacks with.

    @property
    def applied(self) -> bool:
        """Whether anything is planned."""
        return any(attempt.outcome == "applied" for attempt in self.attempts)

    def reason(self, *, tried: bool) -> str:
        """A sentence on what came of it all."""
        if self.applied:
            return "compacted"
        if not tried:
            return "no callback is registered"
        for outcome, text in (("failed", "every attempt failed"), ("rejected", "every attempt was rejected")):
            if any(attempt.outcome == outcome for attempt in self.attempts):
                return text
        if any(isinstance(error, NoProgress) for error in self.errors):
            return "the last attempt made no progress, and nothing has changed since"
        return self.idle

    def rename(self, callback: str) -> str:
        """From here on a part of a callback plans, under its own name. Returns the name until now."""
        before, self._callback = self._callback, callback
        return before

    def begin(self, callback: str) -> Mark:
        """From here on a callback of that name plans. Returns where to go back to with `void`."""
        self._callback = callback
        self._turn += 1
        self._open = 0
        return self._plan.mark()

    def finish(self) -> None:
        """Refuses a callback that did not await what it should have."""
        if self._open:
            raise InvalidCallback(
                f"{self._callback} must await ctx.compact(…): an async callback awaits every summarizer, "
                "and a callback that is not async can use no async one"
            )

    def void(self, mark: Mark, error: Exception) -> None:
        """Takes back what was planned since the mark. What was rejected or failed stays; so does why it is void."""
        self._plan.void(mark)
        if not any(error is told for told in self.errors):
            self.errors.append(error)
        self._turn += 1
        if not isinstance(error, Rejected | SpanConflict) and not any(error is told for told in self._told):
            what = _error(error, "the callback failed")
            self._plan.attempts.append(Attempt(self._callback, "summary", "failed", None, None, error=what))

    @property
    def must_await(self) -> bool:
        """Whether this is called on an event loop, which work that is not async must not block."""
        return self._awaits and event_loop.is_running()

    def later(self, plan: Callable[[], Awaitable[None]]) -> Planned:
        """A plan that is made when it is awaited, which the callback must do before it ends."""
        turn = self._turn

        async def wait() -> None:
            try:
                await plan()
            finally:
                self._settled(turn)

        self._open += 1
        return Planned(wait)

    def ask(self, step: Ask) -> Planned:
        """Does what a strategy's step asks for."""
        span = Span(step.start_seq, step.end_seq)
        if step.summarize is not None:
            return self._summarize(span, step.summarize, step.allow, step.reason, shrink=step.shrink)
        if step.replacement is not None:
            self._replace(span, step.replacement, step.allow, step.reason)
        else:
            self.remove(*span, allow=step.allow, reason=step.reason)
        return Planned()

    # Summaries.

    def _summarize(
        self, span: Span, summary: SummaryResult | Summarize, allow: frozenset[str], reason: str | None, *, shrink: bool
    ) -> Planned:
        place = self._checked(span, "summary", allow)
        if isinstance(summary, str | Summary):
            self._finish(place, span, summary, allow, reason, shrink)
            return Planned()
        check_summarizer(summary, "a summary", choices="text, a Summary or a callable")
        self._offered(span, allow)
        elements = Request(tuple(self._plan.elements(*place)), lambda: self.elements)
        call = Call(summary)
        # A summarizer that blocks would stop the event loop; one that is async belongs on it.
        if self.must_await or (self._awaits and event_loop.is_async(summary)):
            return self._later(partial(event_loop.call, summary, elements), span, allow, reason, shrink, call)
        tried = len(self.attempts)
        try:
            result = summary(elements)
        except Exception as error:
            self._fail(span, error, call)
            raise
        if inspect.isawaitable(result):
            if self._awaits:
                return self._later(lambda: result, span, allow, reason, shrink, call)
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidCallback("an async summarizer needs an AsyncStore: on a Store it must be synchronous")
        if len(self.attempts) != tried:
            # The summarizer has planned something itself.
            place = self._checked(span, "summary", allow)
        self._finish(place, span, result, allow, reason, shrink, call)
        return Planned()

    def _later(
        self,
        ask: Callable[[], Awaitable[Any]],
        span: Span,
        allow: frozenset[str],
        reason: str | None,
        shrink: bool,
        call: Call,
    ) -> Planned:
        """Plans a summary that has to be awaited, once it is there."""
        turn = self._turn

        async def wait() -> None:
            text = await self._awaited(ask(), span, turn, call)
            # Another summary may have been planned there while this one was written.
            place = self._checked(span, "summary", allow)
            self._finish(place, span, text, allow, reason, shrink, call)

        self._open += 1
        return Planned(wait)

    async def _awaited(self, result: Awaitable[Any], span: Span, turn: int, call: Call) -> Any:
        try:
            text = await result
        except BaseException as error:
            if self._settled(turn) and isinstance(error, Exception):
                self._fail(span, error, call)
            raise
        if not self._settled(turn):
            raise InvalidCallback("a summary must come before the callback that asked for it ends")
        return text

    def _settled(self, turn: int) -> bool:
        """Notes that a summary has come, or will not; False if it is too late, its callback having ended."""
        if turn != self._turn:
            return False
        self._open -= 1
        return True

    def _finish(
        self,
        place: Place,
        span: Span,
        result: Any,
        allow: frozenset[str],
        reason: str | None,
        shrink: bool,
        call: Call | None = None,
    ) -> None:
        if not isinstance(result, str | Summary) or (isinstance(result, Summary) and not isinstance(result.text, str)):
            error = InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
            self._fail(span, error, call)
            raise error
        if call is not None:
            result = call.summary(result)
        elif isinstance(result, str):
            result = Summary(result)
        before = self._plan.tokens(*place)
        if not result.text.strip():
            self._reject(EmptySummary, span, "summary", "the summary is empty", result)
        replacement = result.replacement or (framing.frame(result.text, *span),)
        after = self.count(replacement)
        least = after if shrink else self.count([{"role": "user", "content": result.text}])
        if least >= before and "larger" not in allow:
            what = f"the summary takes {least} tokens, what it stands for {before}"
            self._reject(NotSmaller, span, "summary", what, result)
        inputs = tuple(number for element in self._plan.elements(*place) if (number := element.number) is not None)
        self._place(place, span, "summary", after, replacement, result, inputs, allow=allow, reason=reason)

    def _replace(self, span: Span, messages: Sequence[Payload], allow: frozenset[str], reason: str | None) -> None:
        place = self._checked(span, "truncation", allow)
        self._offered(span, allow)
        stand_ins = tuple(encode(message).payload for message in messages)
        replaced = [m for element in self._plan.elements(*place) for m in element.messages if m is not None]
        if not stand_ins:
            raise InvalidInput("the stand-ins must be at least one message; remove() leaves nothing")
        if spans.call_and_result_ids(stand_ins) != spans.call_and_result_ids(replaced):
            self._reject(IdsChanged, span, "truncation", "the stand-ins do not keep the span's tool calls and results")
        after = self.count(stand_ins)
        before = self._plan.tokens(*place)
        if after >= before and "larger" not in allow:
            self._reject(
                NotSmaller, span, "truncation", f"the stand-ins take {after} tokens, what they stand for {before}"
            )
        self._place(place, span, "truncation", after, stand_ins, allow=allow, reason=reason)

    # The rules.

    def _offered(self, span: Span, allow: frozenset[str]) -> None:
        """Refuses a try that would come to nothing again; a text somebody wrote is no such try."""
        if "larger" not in allow and Stalled(self._callback, *span) in self._stalled:
            raise NoProgress(
                f"{self._callback} was just rejected on {span} and nothing has changed since",
                start_seq=span.start_seq,
                end_seq=span.end_seq,
            )

    def _checked(self, span: Span, kind: str, allow: frozenset[str]) -> Place:
        """The indexes of a span that may be compacted, judged by every rule that needs no summary."""
        low, high = self._plan.indexes(span)
        if kind != "truncation":
            problem = self._links.problem(low, high)
            if problem == "split_pair":
                self._reject(SplitPair, span, kind, "a tool call and its result would be parted")
            if problem == "pending_call":
                self._reject(PendingCall, span, kind, "a tool call still waits for its result")
        if "system" not in allow and any(
            m is not None and spans.is_system(m)
            for element in self._plan.base[low : high + 1]
            for m in element.messages
        ):
            self._reject(SystemInside, span, kind, "a system message is inside")
        if "last_user" not in allow and self._last_user is not None and low <= self._last_user <= high:
            self._reject(LastUserInside, span, kind, "the last user message is inside")
        return low, high

    def _reject(self, kind: type[Rejected], span: Span, what: str, text: str, summary: Summary | None = None) -> None:
        kept = None if summary is None else without_text(summary)
        before = self._plan.tokens(*self._plan.indexes(span))
        error: Payload = {"type": kind.__name__, "text": text, "no_progress": issubclass(kind, _NO_PROGRESS)}
        self._plan.attempts.append(Attempt(self._callback, what, "rejected", *span, before, summary=kept, error=error))
        raise kind(f"{text} ({span} of thread {self.thread_id!r})", start_seq=span[0], end_seq=span[1])

    def _fail(self, span: Span, error: Exception, call: Call | None) -> None:
        before = self._plan.tokens(*self._plan.indexes(span))
        known = None if call is None else call.failed(error)
        told = _error(error, "the summarizer failed")
        failed = Attempt(self._callback, "summary", "failed", *span, before, summary=known, error=told)
        self._plan.attempts.append(failed)
        self._told.append(error)

    @cached_property
    def _items(self) -> list[tuple[Payload | None, ...]]:
        return spans.items_of(self._plan.base)

    @cached_property
    def _links(self) -> spans.Links:
        """Over the view as it was: whatever is planned folds whole pairs, or keeps their ids."""
        return spans.Links(self._items)

    @cached_property
    def _last_user(self) -> int | None:
        return spans.last_user(self._items)

    def _place(
        self,
        place: Place,
        span: Span,
        kind: str,
        tokens_after: int,
        replacement: tuple[Payload, ...] = (),
        summary: Summary | None = None,
        inputs: tuple[int, ...] = (),
        *,
        allow: frozenset[str],
        reason: str | None,
    ) -> None:
        before = self._plan.tokens(*place)
        attempt = Attempt(
            self._callback, kind, "applied", *span, before, tokens_after, replacement, summary, inputs, allow, reason
        )
        self._plan.place(*place, attempt)


def _allowed(allow: Collection[str], reason: object) -> frozenset[str]:
    """What a call insists on, once its reason is seen to be text."""
    if reason is not None and not isinstance(reason, str):
        raise InvalidInput(f"reason must be text, not {type(reason).__name__}")
    allowed = frozenset([allow] if isinstance(allow, str) or not isinstance(allow, Iterable) else allow)
    if not allowed <= ALLOWED:
        raise InvalidInput(f"allow must be among {', '.join(sorted(ALLOWED))}")
    return allowed


def _error(error: Exception, text: str) -> Payload:
    """An error as it is recorded: type, place and a text of ours, because another's may quote what it was given."""
    told: Payload = {
        "type": type(error).__qualname__,
        "text": str(error) if isinstance(error, CompactionStoreError) else text,
    }
    place = raised_at(error)
    return told if place is None else told | {"at": place}
