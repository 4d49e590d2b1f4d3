"""What an `on_compact` callback is given: it looks at the view and plans; nothing here touches a database.

The view, the plan and the rules are the only inputs, so that the same calls plan the same compactions. Every attempt is
kept, whatever came of it: what was planned, what the rules refused, and what a summarizer failed at. A callback that
raises takes back what it planned and nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, cast, overload

from compaction_store import drivers
from compaction_store.compaction import size_estimate, summary_room
from compaction_store.compaction.asking import (
    Ask,
    LastPlanned,
    Planned,
    Stalled,
    Summarize,
    SummaryResult,
    allowed_rules,
    check_role,
)
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.plan import EVERYTHING, Mark, Plan
from compaction_store.compaction.summary_calls import Call, without_text
from compaction_store.compaction.summary_request import Around, Request, check_summarizer
from compaction_store.errors import (
    EmptySummary,
    IdsChanged,
    InvalidCallback,
    InvalidInput,
    InvalidSpan,
    LastUserInside,
    NoProgress,
    NotSmaller,
    PendingCall,
    Rejected,
    SpanConflict,
    SplitPair,
    SystemInside,
    own_text,
    raised_at,
)
from compaction_store.messages import framing, tool_pairs
from compaction_store.messages.encoding import encode
from compaction_store.messages.framing import Role
from compaction_store.models import Attempt, Element, Measured, Payload, Span, Summary
from compaction_store.rendering.view import View
from compaction_store.tokens import Counter

# The first and the last index of a span among the elements of the view.
Place = tuple[int, int]

# What a callback that keeps failing in the same way is not offered again.
_NO_PROGRESS = (NotSmaller, EmptySummary)
_EMPTY: Payload = {"role": "user", "content": ""}
_NO_SYSTEM = "a stand-in must not be a system message: only a truncation of system messages may leave one"


class _Wish(NamedTuple):
    """How a summary is wanted. Without `framed`, its bare text must be smaller than the span."""

    allow: frozenset[str]
    reason: str | None
    role: Role
    framed: bool = False
    min_saving: float = 0
    room: int | None = None
    told: int | None = None
    cut: bool = False


class CompactionContext:
    """A view, and a growing plan of what should stand in it instead. Positions are seqs.

    `elements` and `result_messages` follow from the view and the plan, and are exact after every call.
    `message_elements` and `tokens_before` are the view as it was given, whatever is planned.
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
        self.budget = size_estimate.in_own_tokens(budget, view)
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
        self._last = LastPlanned()

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
    def message_elements(self) -> tuple[Element, ...]:
        """The view as it was given. A range in `compact` counts positions in it."""
        return tuple(self._plan.base)

    @property
    def tokens_before(self) -> int:
        """What the view took before anything was planned."""
        return sum(element.tokens for element in self._plan.base)

    @property
    def counter(self) -> Counter:
        """The store's counter: of messages and of plain text, which it also cuts."""
        return self._counter

    @property
    def links(self) -> tool_pairs.Links:
        """Which of `elements` belong together, as calls and their results do."""
        return tool_pairs.Links(tool_pairs.items_of(self.elements)) if self._plan.folds else self._links

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

    @overload
    def compact(
        self,
        start_seq: int,
        end_seq: int,
        summary: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
        role: Role = "user",
    ) -> Planned: ...

    @overload
    def compact(
        self,
        start_seq: range | slice,
        end_seq: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
        role: Role = "user",
    ) -> Planned: ...

    def compact(
        self,
        start_seq: int | range | slice,
        end_seq: Any,
        summary: SummaryResult | Summarize | None = None,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
        role: Role = "user",
    ) -> Planned:
        """Plans one summary in place of a span: a text, a `Summary`, or a callable that is given the elements.

        The span is two seqs, or a range or slice of positions in `message_elements`: `compact(range(0, 5), summary)`.
        An empty range plans nothing and asks nobody. Returned are the messages that the view then has. In an
        async callback the result must be awaited where the summary is a callable, async or not: it runs off the event
        loop unless it is async. The message with the summary has the role `user` unless `role="assistant"` insists.
        """
        check_role(role)
        wish = _Wish(allowed_rules(allow, reason), reason, role)
        if isinstance(start_seq, range | slice):
            if summary is not None:
                raise InvalidInput("compact() takes a range and a summary, or two seqs and a summary")
            span, summary = self._positions(start_seq), end_seq
            if span is None:
                return self.planned()
        elif summary is None:
            raise InvalidInput("compact() takes two seqs and a summary, or a range and a summary")
        else:
            span = Span(start_seq, end_seq)
        return self._summarize(span, cast("SummaryResult | Summarize", summary), wish)

    def _positions(self, given: range | slice) -> Span | None:
        """The span of a range of positions in the view as it was given; None where it is empty."""
        base = self._plan.base
        try:
            found = range(*given.indices(len(base))) if isinstance(given, slice) else given
        except TypeError:
            raise InvalidSpan("a slice of positions must have whole numbers") from None
        if not found:
            return None
        if found.step != 1 or found.start < 0 or found.stop > len(base):
            raise InvalidSpan(f"a range of positions must lie within 0 to {len(base)} with step 1, not {found!r}")
        return Span(base[found.start].seq, base[found.stop - 1].end_seq)

    def planned(self) -> Planned:
        """The messages of the view with everything folded that is planned so far."""
        return self._last.keep(Planned(lambda: self.result_messages))

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
        self._replace(Span(start_seq, end_seq), messages, allowed_rules(allow, reason), reason)

    def remove(self, start_seq: int, end_seq: int, *, allow: Collection[str] = (), reason: str | None = None) -> None:
        """Plans that nothing stands in the view for a span."""
        span = Span(start_seq, end_seq)
        allowed = allowed_rules(allow, reason)
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
        self._last.settle()
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
        return self._awaits and drivers.is_on_event_loop()

    def later(self, plan: Callable[[], Awaitable[None]]) -> Planned:
        """A plan that is made when it is awaited, which the callback must do before it ends."""
        turn = self._turn

        async def wait() -> None:
            try:
                await plan()
            finally:
                self._settled(turn)

        self._open += 1
        return Planned(lambda: self.result_messages, wait)

    def ask(self, step: Ask) -> Planned:
        """Does what a strategy's step asks for."""
        span = Span(step.start_seq, step.end_seq)
        if step.summarize is not None:
            wish = _Wish(
                step.allow, step.reason, step.role, framed=True, min_saving=step.min_saving, room=step.room,
                told=step.told, cut=step.cut,
            )  # fmt: skip
            planned = self._summarize(span, step.summarize, wish)
            self._last.forget()
            return planned
        if step.replacement is not None:
            self._replace(span, step.replacement, step.allow, step.reason)
        else:
            self.remove(*span, allow=step.allow, reason=step.reason)
        return Planned(lambda: self.result_messages)

    def withdraw(self, mark: Mark, text: str) -> None:
        """Takes back what was planned since the mark. Summaries stay on record: they were paid for."""
        self._last.settle()
        self._plan.withdraw(mark, {"type": NotSmaller.__name__, "text": text, "no_progress": True})

    def mark(self) -> Mark:
        """Where the plan stands, to go back to with `withdraw`."""
        return self._plan.mark()

    # Summaries.

    def _summarize(self, span: Span, summary: SummaryResult | Summarize, wish: _Wish) -> Planned:
        place = self._checked(span, "summary", wish.allow)
        if isinstance(summary, str | Summary):
            self._finish(place, span, summary, wish)
            return self.planned()
        check_summarizer(summary, "a summary", choices="text, a Summary or a callable")
        self._offered(span, wish.allow)
        around = Around(lambda: self.elements)
        elements = self._request(place, span, wish, around)
        call = Call(summary, around)
        # A summarizer that blocks would stop the event loop; one that is async belongs on it.
        if self.must_await or (self._awaits and drivers.is_async(summary)):
            return self._later(drivers.Call(summary, elements).run_async, span, wish, call)
        tried = len(self.attempts)
        try:
            result = summary(elements)
        except Exception as error:
            self._fail(span, error, call)
            raise
        if inspect.isawaitable(result):
            if self._awaits:
                return self._later(lambda: result, span, wish, call)
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidCallback("an async summarizer needs an AsyncStore: on a Store it must be synchronous")
        if len(self.attempts) != tried:
            # The summarizer has planned something itself.
            place = self._checked(span, "summary", wish.allow)
        self._finish(place, span, result, wish, call)
        return self.planned()

    def _later(self, ask: Callable[[], Awaitable[Any]], span: Span, wish: _Wish, call: Call) -> Planned:
        """Plans a summary that has to be awaited, once it is there."""
        turn = self._turn

        async def wait() -> None:
            text = await self._awaited(ask(), span, turn, call)
            # Another summary may have been planned there while this one was written.
            place = self._checked(span, "summary", wish.allow)
            self._finish(place, span, text, wish, call)

        self._open += 1
        return Planned(lambda: self.result_messages, wait)

    def _request(self, place: Place, span: Span, wish: _Wish, view: Around) -> Request:
        """What the summarizer is given: the elements, the view they are of, and how much it may write."""
        elements = tuple(self._plan.elements(*place))
        most = self._most(self._plan.tokens(*place), wish)
        if most is not None:
            around = summary_room.frame_tokens(self._counter, span) if wish.framed else self.count([_EMPTY])
            most = max(1, min(most, most if wish.told is None else wish.told) - around)
        return Request(elements, view, most, self._counter)

    def _most(self, before: int, wish: _Wish) -> int | None:
        """The most tokens that a summary of a span of so many may take; None where its length is nobody's concern."""
        saving = max(1, summary_room.least_saving(wish.min_saving, before))
        most = None if "larger" in wish.allow else before - saving
        return most if wish.room is None else min(wish.room, wish.room if most is None else most)

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

    def _finish(self, place: Place, span: Span, result: Any, wish: _Wish, call: Call | None = None) -> None:
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
            self._reject(EmptySummary, span, "summary", "the summary is empty", result, call)
        replacement = result.replacement or (framing.frame(result.text, *span, wish.role),)
        if any(map(tool_pairs.is_system, replacement)):
            refused = InvalidInput(_NO_SYSTEM)
            self._fail(span, refused, call)
            raise refused
        after = self.count(replacement)
        takes = after if wish.framed else self.count([{"role": "user", "content": result.text}])
        # A provider's own block cannot be cut: where it is smaller than its span, it is taken as it is.
        most = self._most(before, wish._replace(room=None) if result.replacement else wish)
        if most is not None and takes > most:
            shorter = summary_room.cut(result, span, wish.role, most, self._counter) if wish.cut else None
            if shorter is None:
                self._reject(NotSmaller, span, "summary", summary_room.too_large(takes, before, most), result, call)
            result, replacement = shorter
            after = self.count(replacement)
        inputs = self._made_from(place, call)
        self._place(place, span, "summary", after, replacement, result, inputs, allow=wish.allow, reason=wish.reason)

    def _replace(self, span: Span, messages: Sequence[Payload], allow: frozenset[str], reason: str | None) -> None:
        place = self._checked(span, "truncation", allow)
        self._offered(span, allow)
        stand_ins = tuple(encode(message).payload for message in messages)
        replaced = [m for element in self._plan.elements(*place) for m in element.messages if m is not None]
        if not stand_ins:
            raise InvalidInput("the stand-ins must be at least one message; remove() leaves nothing")
        if any(map(tool_pairs.is_system, stand_ins)) and not any(map(tool_pairs.is_system, replaced)):
            raise InvalidInput(_NO_SYSTEM)
        if tool_pairs.call_and_result_ids(stand_ins) != tool_pairs.call_and_result_ids(replaced):
            self._reject(IdsChanged, span, "truncation", "the stand-ins do not keep the span's tool calls and results")
        after = self.count(stand_ins)
        before = self._plan.tokens(*place)
        if after >= before and "larger" not in allow:
            self._reject(
                NotSmaller, span, "truncation", f"the stand-ins take {after} tokens, what they stand for {before}"
            )
        inputs = self._made_from(place)
        self._place(place, span, "truncation", after, stand_ins, inputs=inputs, allow=allow, reason=reason)

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
            m is not None and tool_pairs.is_system(m)
            for element in self._plan.base[low : high + 1]
            for m in element.messages
        ):
            self._reject(SystemInside, span, kind, "a system message is inside")
        if "last_user" not in allow and self._last_user is not None and low <= self._last_user <= high:
            self._reject(LastUserInside, span, kind, "the last user message is inside")
        return low, high

    def _reject(
        self,
        kind: type[Rejected],
        span: Span,
        what: str,
        text: str,
        summary: Summary | None = None,
        call: Call | None = None,
    ) -> NoReturn:
        kept = None if summary is None else without_text(summary)
        error: Payload = {"type": kind.__name__, "text": text, "no_progress": issubclass(kind, _NO_PROGRESS)}
        self._tried(what, "rejected", span, kept, error, call)
        raise kind(f"{text} ({span} of thread {self.thread_id!r})", start_seq=span[0], end_seq=span[1])

    def _fail(self, span: Span, error: Exception, call: Call | None) -> None:
        known = None if call is None else call.failed(error)
        self._tried("summary", "failed", span, known, _error(error, "the summarizer failed"), call)
        self._told.append(error)

    def _tried(
        self, what: str, outcome: str, span: Span, known: Summary | None, error: Payload, call: Call | None
    ) -> None:
        """Notes an attempt that changes nothing."""
        place = self._plan.indexes(span)
        # What is only planned may be taken back, and its number with it.
        inputs = tuple(dict.fromkeys(max(number, EVERYTHING) for number in self._made_from(place, call)))
        attempt = Attempt(
            self._callback, what, outcome, *span, self._plan.tokens(*place), summary=known, inputs=inputs, error=error
        )
        self._plan.attempts.append(attempt)

    def _made_from(self, place: Place, call: Call | None = None) -> tuple[int, ...]:
        """The numbers of the records among the elements; EVERYTHING too if the summarizer looked beyond them."""
        numbers = tuple(number for element in self._plan.elements(*place) if (number := element.number) is not None)
        looked = call is not None and call.around is not None and call.around.was_shown
        return (EVERYTHING, *numbers) if looked else numbers

    @cached_property
    def _items(self) -> list[tuple[Payload | None, ...]]:
        return tool_pairs.items_of(self._plan.base)

    @cached_property
    def _links(self) -> tool_pairs.Links:
        """Over the view as it was: whatever is planned folds whole pairs, or keeps their ids."""
        return tool_pairs.Links(self._items)

    @cached_property
    def _last_user(self) -> int | None:
        return tool_pairs.last_user(self._items)

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
        self._last.settle()
        self._plan.place(*place, attempt)


def _error(error: Exception, text: str) -> Payload:
    """An error as it is recorded: type, place and a text of ours, because another's may quote what it was given."""
    told: Payload = {"type": type(error).__qualname__, "text": own_text(error) or text}
    place = raised_at(error)
    return told if place is None else told | {"at": place}
