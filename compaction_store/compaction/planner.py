"""Plans the compactions that callbacks request: checks the rules, calls summarizers, and checks their summaries.

A planner has no access to a database. The view, the rules and the requests are its only inputs, so the same requests
give the same plan. Every attempt is kept, whatever its outcome. If a callback raises an error, only its own plans are
withdrawn.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from compaction_store import errors
from compaction_store.compaction import size_estimate, standing_orders, summary_calls, summary_room
from compaction_store.compaction.asks import Ask, Planned, Stalled, Summarize
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.checked_summary import checked
from compaction_store.compaction.plan import Indexes, Mark, Plan
from compaction_store.compaction.standing_orders import Orders
from compaction_store.compaction.summary_calls import CallRecord
from compaction_store.compaction.summary_request import Request, TrackedView, check_summarizer
from compaction_store.messages import stand_ins, tool_pairs
from compaction_store.messages.encoding import encode
from compaction_store.models import Attempt, Measured, Payload, Span, Summary
from compaction_store.models.vocabulary import Kind
from compaction_store.module_data import ModuleData
from compaction_store.rendering.view import View
from compaction_store.tokens import Counter
from compaction_store.waiting import Call, Work, begin, drive, drive_async, is_async, is_on_event_loop

_NO_SYSTEM = "a replacement must not have a system message, unless it shortens system messages"
_TEXTS: dict[str, str] = ModuleData(__file__).values
_PAIRS = {"split_pair": errors.SplitPair, "pending_call": errors.PendingCall}


class _Asked(NamedTuple):
    """A summarizer, its request and the record of its call."""

    summarize: Summarize
    request: Request
    call: CallRecord

    def again(self, request: Request) -> Work[Summary]:
        """Asks the summarizer to correct a summary that failed its checks."""
        call = CallRecord(self.summarize, self.call.view)
        result = yield Call(self.summarize, request)
        if not _is_text(result):
            raise errors.InvalidCallback(
                f"a summarizer must return text or a Summary for a repair too, not {type(result).__name__}"
            )
        return call.summary(result)


class Planner:
    """A view, the growing plan of its compactions, and the callback that is running."""

    def __init__(
        self,
        view: View,
        *,
        counter: Counter,
        budget: TokenBudget | None = None,
        stalled: Collection[Stalled] = (),
        awaits: bool = False,
        authority: Payload | None = None,
        leaves_lines: bool = True,
        now: datetime | None = None,
    ) -> None:
        self.budget = size_estimate.in_own_tokens(budget, view)
        self.measured = view.measured or Measured(view.tokens, view.tokens)
        self.counter = counter
        #: The time for thresholds; None for the current time.
        self.now = now
        self.plan = Plan(view.elements, view.thread_id, authority)
        #: The errors of callbacks and summarizers, in order.
        self.errors: list[Exception] = []
        #: The reason, if a strategy knows one, why it planned nothing or why the view is still above the trigger.
        self.idle_reason: str | None = None
        self._stalled = frozenset(stalled)
        self._awaits = awaits
        self._leaves_lines = leaves_lines
        # The number of the running callback, and of the summaries that it has requested but not awaited yet.
        self._turn = 0
        self._open = 0

    @property
    def attempts(self) -> Sequence[Attempt]:
        return self.plan.attempts

    @property
    def applied(self) -> bool:
        """Whether anything is planned."""
        return any(attempt.outcome == "applied" for attempt in self.attempts)

    def planned(self) -> Planned:
        """Returns the messages of the view as it is planned now."""
        return self.plan.last_planned.keep(Planned(self.plan.messages))

    def count(self, messages: Iterable[Payload]) -> int:
        return summary_room.count_encoded(self.counter, messages)

    def reason(self, *, tried: bool) -> str:
        """Returns a sentence on the outcome of the whole run."""
        if self.applied:
            tokens = self.plan.tokens(0, len(self.plan.base) - 1)
            if self.budget is None or not self.budget.is_over(tokens):
                return "compacted"
            return ": ".join(filter(None, ["compacted, but the view is still above the trigger", self.idle_reason]))
        if not tried:
            return "no callback is registered"
        ends = {attempt.outcome for attempt in self.attempts}
        verbs = [verb for outcome, verb in (("failed", "failed"), ("rejected", "was rejected")) if outcome in ends]
        if verbs:
            return f"every attempt {' or '.join(verbs)}"
        if any(isinstance(error, errors.NoProgress) for error in self.errors):
            return "the last attempt made no progress, and nothing has changed since"
        return self.idle_reason or "the callbacks found nothing to compact"

    def begin(self, callback: str) -> Mark:
        """Prepares for the next callback. Returns a mark for `void`, in case the callback fails."""
        self._refuse_late_summaries()
        return self.plan.begin(callback)

    def finish(self) -> None:
        """Checks a callback that has ended. Raises InvalidCallback if it did not await every summary."""
        if self._open:
            raise errors.InvalidCallback(_TEXTS["must_await"].format(callback=self.plan.callback))

    def void(self, mark: Mark, error: Exception) -> None:
        """Withdraws everything that was planned since the mark, and records the error. Other attempts are kept."""
        if not any(error is known for known in self.errors):
            self.errors.append(error)
        self._refuse_late_summaries()
        self.plan.void(mark, error)

    def rename(self, callback: str) -> str:
        """Records attempts under another name from now on. Returns the previous name."""
        before, self.plan.callback = self.plan.callback, callback
        return before

    def mark(self) -> Mark:
        """Returns a mark for `withdraw`."""
        return self.plan.mark()

    def withdraw(self, mark: Mark, text: str) -> None:
        """Withdraws what was planned since the mark. The attempts stay on record, because they may have cost money."""
        self.plan.withdraw(mark, {"type": errors.NotSmaller.__name__, "text": text, "no_progress": True})

    def _refuse_late_summaries(self) -> None:
        """Starts counting for another callback. Summaries of the previous one are refused from now on."""
        self._turn += 1
        self._open = 0

    def _expect(self) -> int:
        """Counts a requested summary. Returns the number of the running callback, to be given to `_arrived`."""
        self._open += 1
        return self._turn

    def _arrived(self, turn: int) -> bool:
        """Counts a summary as awaited. Returns False if the callback that requested it has ended."""
        if turn != self._turn:
            return False
        self._open -= 1
        return True

    # It is enough to check them on the original view: every planned compaction folds whole pairs of a call and its
    # result, or keeps their ids.

    @cached_property
    def links(self) -> tool_pairs.Links:
        """The links between tool calls and their results in the view."""
        return tool_pairs.Links(self._items)

    def safe_span(self, span: Span) -> Span | None:
        """Returns the largest part of a span that separates no tool call from its result, or None if there is none."""
        low, high = self.plan.indexes_inside(span)
        if low > high or (found := self.links.safe(low, high, interrupting=False)) is None:
            return None
        return Span(self.plan.base[found[0]].seq, self.plan.base[found[1]].end_seq)

    def check_new(self, span: Span) -> None:
        """Raises InvalidSpan if the running callback has already summarized exactly this span."""
        if self.plan.has_summarized(span):
            raise errors.InvalidSpan(
                f"a callback must not summarize the same span twice: {span} already has a summary, from which the "
                "second one would be made"
            )

    def _check(self, ask: Ask, kind: Kind) -> Indexes:
        """Returns the indexes of a span. If the span may not be compacted, records the rejection and raises it."""
        low, high = self.plan.indexes(ask.span)
        if (refusal := self._refusal(low, high, kind, ask.allow)) is not None:
            self.plan.reject(ask, kind, *refusal)
        return low, high

    def _check_progress(self, ask: Ask) -> None:
        """Raises NoProgress if the span was just rejected because it made no progress."""
        callback = self.plan.callback
        if "larger" not in ask.allow and Stalled(callback, *ask.span) in self._stalled:
            text = f"{callback} was just rejected on {ask.span} and nothing has changed since"
            raise errors.NoProgress(text, start_seq=ask.start_seq, end_seq=ask.end_seq)

    def _refusal(
        self, low: int, high: int, kind: Kind, allow: Collection[str]
    ) -> tuple[type[errors.Rejected], str] | None:
        if kind != "truncation" and (problem := self.links.problem(low, high)) is not None:
            return _PAIRS[problem], _TEXTS[problem]
        inside = (m for element in self.plan.base[low : high + 1] for m in element.messages)
        if "system" not in allow and any(m is not None and tool_pairs.is_system(m) for m in inside):
            return errors.SystemInside, "a system message is inside the span"
        if "last_user" not in allow and self._last_user is not None and low <= self._last_user <= high:
            return errors.LastUserInside, "the last user message is inside the span"
        return None

    @cached_property
    def _items(self) -> list[tuple[Payload | None, ...]]:
        return tool_pairs.items_of(self.plan.base)

    @cached_property
    def _last_user(self) -> int | None:
        return tool_pairs.last_user(self._items)

    def ask(self, ask: Ask) -> Planned:
        """Plans what is asked. If a summary must be awaited, it is planned only then."""
        if ask.summarize is not None:
            return self._summarize(ask, ask.summarize)
        if ask.replacement is not None:
            self._replace(ask, ask.replacement)
        else:
            self.plan.apply(self._check(ask, "removal"), ask, "removal", self.line_tokens(ask.span))
        return Planned(self.plan.messages)

    def line_tokens(self, span: Span) -> int:
        """Returns the tokens of the line that requests have where the messages of a span were removed."""
        return self.count([stand_ins.left_out(*span)]) if self._leaves_lines else 0

    def _replace(self, ask: Ask, messages: Sequence[Payload]) -> None:
        indexes = self._check(ask, "truncation")
        self._check_progress(ask)
        new = tuple(encode(message).payload for message in messages)
        old = [m for element in self.plan.elements(*indexes) for m in element.messages]
        if not new:
            raise errors.InvalidInput(
                "messages must have at least one message; call remove() to leave nothing in the view"
            )
        if any(map(tool_pairs.is_system, new)) and not any(map(tool_pairs.is_system, old)):
            raise errors.InvalidInput(_NO_SYSTEM)
        if tool_pairs.call_and_result_ids(new) != tool_pairs.call_and_result_ids(old):
            text = "the new messages do not keep the span's tool calls and results"
            self.plan.reject(ask, "truncation", errors.IdsChanged, text)
        before, after = self.plan.tokens(*indexes), self.count(new)
        if after >= before and "larger" not in ask.allow:
            text = f"the new messages have {after} tokens, the span has {before}"
            self.plan.reject(ask, "truncation", errors.NotSmaller, text)
        self.plan.apply(indexes, ask, "truncation", after, replacement=new, inputs=self.plan.inputs(indexes))

    def _summarize(self, ask: Ask, summary: str | Summary | Summarize) -> Planned:
        indexes = self._check(ask, "summary")
        if isinstance(summary, str | Summary):
            self._take_text(indexes, ask, summary)
            return self.planned()
        check_summarizer(summary, "a summary", choices="text, a Summary or a callable")
        self._check_progress(ask)
        work = self._asked(indexes, ask, summary)
        # On an event loop, the summarizer runs when the result is awaited. If it ran now, a blocking one would stop the
        # loop, and an async one must run on the loop.
        if self.must_await or (self._awaits and is_async(summary)):
            return Planned(self.plan.messages, lambda: drive_async(work))
        rest = begin(work) if self._awaits else drive(work)
        return self.planned() if rest is None else Planned(self.plan.messages, lambda: rest)

    def _asked(self, indexes: Indexes, ask: Ask, summarize: Summarize) -> Work[None]:
        """Returns work that asks a summarizer and plans its summary."""
        request = self._request(indexes, ask)
        assert isinstance(request.view, TrackedView)  # noqa: S101 — made so just now
        asked = _Asked(summarize, request, CallRecord(summarize, request.view))
        return self._summary_of(self._expect(), indexes, ask, asked)

    def _request(self, indexes: Indexes, ask: Ask) -> Request:
        elements = tuple(self.plan.elements(*indexes))
        standing = standing_orders.orders_in(elements)
        tokens = summary_room.text_tokens(ask, self.plan.tokens(*indexes), self.counter, standing)
        return Request(elements, TrackedView(self.plan.folded), tokens, self.counter)

    def _summary_of(self, turn: int, indexes: Indexes, ask: Ask, asked: _Asked) -> Work[None]:
        tried = len(self.plan.attempts)
        call = asked.call
        try:
            result = yield Call(asked.summarize, asked.request)
            if ask.checks and _is_text(result):
                again = asked.again if getattr(asked.summarize, "can_repair", False) is True else None
                result = yield from checked(asked.request, call.summary(result), ask.checks, again=again, cut=ask.cut)
        except BaseException as error:
            if self._arrived(turn) and isinstance(error, Exception):
                if isinstance(error, errors.ChecksFailed):
                    self.plan.reject(ask, "summary", errors.ChecksFailed, str(error), call.failed(error), call)
                self.plan.fail(ask, error, call)
            raise
        if not self._arrived(turn):
            raise errors.InvalidCallback("a summary must arrive before the callback that requested it ends")
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise errors.InvalidCallback("an async summarizer needs an AsyncStore: on a Store it must be synchronous")
        if len(self.plan.attempts) != tried:
            # The summarizer, or code that ran at the same time, has planned another compaction: check the span again.
            indexes = self._check(ask, "summary")
            self.check_new(ask.span)
        self._take(indexes, ask, result, call)

    def _take_text(self, indexes: Indexes, ask: Ask, result: str | Summary) -> None:
        """Checks a summary that the callback wrote itself, and plans it."""
        if ask.checks and _is_text(result):
            summary = summary_calls.recordable(Summary(result) if isinstance(result, str) else result)
            try:
                result = drive(checked(self._request(indexes, ask), summary, ask.checks, cut=ask.cut))
            except errors.ChecksFailed as error:
                self.plan.reject(ask, "summary", errors.ChecksFailed, str(error), error.attempted)
        self._take(indexes, ask, result, None)

    def _take(self, indexes: Indexes, ask: Ask, result: Any, call: CallRecord | None) -> None:
        """Plans a summary, or rejects it if it is empty or too large."""
        summary = self._usable(ask, result, call)
        try:
            standing = standing_orders.orders_in(self.plan.elements(*indexes), summary.text)
            summary, replacement = self._fitted(indexes, ask, summary, standing, call)
            after = self.count(replacement)
        except errors.Rejected:
            raise
        except Exception as error:
            self.plan.fail(ask, error, call, summary)
            raise
        inputs = self.plan.inputs(indexes, call)
        self.plan.apply(indexes, ask, "summary", after, replacement=replacement, summary=summary, inputs=inputs)

    def _usable(self, ask: Ask, result: Any, call: CallRecord | None) -> Summary:
        if not _is_text(result):
            error = errors.InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
            self.plan.fail(ask, error, call)
            raise error
        summary = Summary(result) if isinstance(result, str) else result
        summary = summary_calls.recordable(summary) if call is None else call.summary(summary)
        if not summary.text.strip() and not summary.unreadable:
            self.plan.reject(ask, "summary", errors.EmptySummary, "the summary is empty", summary, call)
        return summary

    def _fitted(
        self, indexes: Indexes, ask: Ask, summary: Summary, standing: Orders, call: CallRecord | None
    ) -> tuple[Summary, tuple[Payload, ...]]:
        """Returns a summary and its messages, cut if they are too long and may be cut."""
        replacement = _replacement(summary, ask, standing)
        takes = self.count(replacement if ask.framed else [{"role": "user", "content": summary.text}])
        before = self.plan.tokens(*indexes)
        # A provider's own block cannot be cut, so use it unchanged if it is smaller than its span.
        most = summary_room.most_tokens(replace(ask, room=None) if summary.replacement else ask, before)
        if most is None or takes <= most:
            return summary, replacement
        shorter = summary_room.cut(summary, ask.span, ask.role, most, self.counter, standing) if ask.cut else None
        if shorter is None:
            text = f"the summary has {takes} tokens, and its span has {before}"
            text = text if takes >= before else f"{text}; the summary must have at most {most}"
            self.plan.reject(ask, "summary", errors.NotSmaller, text, summary, call)
        return shorter

    @property
    def must_await(self) -> bool:
        """Whether the run belongs to an `AsyncStore` and the caller is on an event loop, which blocking would stop."""
        return self._awaits and is_on_event_loop()

    def run(self, work: Work[None]) -> Planned:
        """Runs work that adds spans to the plan. If `must_await` is true, it runs only when the result is awaited."""
        if not self.must_await:
            drive(work)
            return self.planned()
        turn = self._expect()

        async def wait() -> None:
            try:
                await drive_async(work)
            finally:
                self._arrived(turn)

        return Planned(self.plan.messages, wait)


def _is_text(result: object) -> bool:
    return isinstance(result, str) or (isinstance(result, Summary) and isinstance(result.text, str))


def _replacement(summary: Summary, ask: Ask, standing: Orders) -> tuple[Payload, ...]:
    """Returns the messages that replace the span of a summary."""
    if not summary.replacement:
        return (standing_orders.framed(summary.text, ask.span, ask.role, standing),)
    replacement = tuple(encode(message).payload for message in summary.replacement)
    if any(map(tool_pairs.is_system, replacement)):
        raise errors.InvalidInput(_NO_SYSTEM)
    return replacement
