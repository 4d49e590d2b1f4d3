"""Builds the plan of a compaction from the requests of callbacks, without access to a database.

The view, the rules and the requests are the only inputs, so the same requests give the same plan. Every attempt is
kept, whatever its outcome. If a callback raises an error, only its own plans are withdrawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from compaction_store.compaction import size_estimate, summary_room
from compaction_store.compaction.asking import Ask, Planned, Stalled, Summarize
from compaction_store.compaction.attempt_log import AttemptLog
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.plan import Mark, Plan
from compaction_store.compaction.span_rules import SpanRules
from compaction_store.compaction.summary_planner import NO_SYSTEM, SummaryPlanner
from compaction_store.compaction.summary_request import SummaryResult, check_summarizer
from compaction_store.compaction.summary_room import SummaryOptions
from compaction_store.errors import IdsChanged, InvalidInput, NoProgress, NotSmaller
from compaction_store.messages import stand_ins, tool_pairs
from compaction_store.messages.encoding import encode
from compaction_store.models import Attempt, Measured, Payload, Span, Summary
from compaction_store.rendering.view import View
from compaction_store.tokens import Counter
from compaction_store.waiting import Work, begin, drive, drive_async, is_async, is_on_event_loop


class PlanBuilder:
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
    ) -> None:
        self.thread_id = view.thread_id
        self.budget = size_estimate.in_own_tokens(budget, view)
        self.measured = view.measured or Measured(view.tokens, view.tokens)
        self.counter = counter
        self.plan = Plan(view.elements)
        #: The errors of callbacks and summarizers, in order.
        self.errors: list[Exception] = []
        #: The reason, if a strategy knows one, why it planned nothing or why the view is still above the trigger.
        self.idle_reason: str | None = None
        self._log = AttemptLog(self.plan, view.thread_id, authority)
        self.rules = SpanRules(self.plan, self._log, stalled)
        self._summaries = SummaryPlanner(self.plan, self.rules, self._log, counter)
        self._awaits = awaits
        self._leaves_lines = leaves_lines

    # ---- the outcome of the plan

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
        if any(isinstance(error, NoProgress) for error in self.errors):
            return "the last attempt made no progress, and nothing has changed since"
        return self.idle_reason or "the callbacks found nothing to compact"

    # ---- callbacks in turn

    def begin(self, callback: str) -> Mark:
        """Prepares for the next callback. Returns a mark for `void`, in case the callback fails."""
        self._log.begin(callback)
        self._summaries.open.begin()
        return self.plan.mark()

    def finish(self) -> None:
        """Checks a callback that has ended. Raises InvalidCallback if it did not await every summary."""
        self._summaries.open.check(self._log.callback)

    def void(self, mark: Mark, error: Exception) -> None:
        """Withdraws everything that was planned since the mark, and records the error. Other attempts are kept."""
        if not any(error is known for known in self.errors):
            self.errors.append(error)
        self._summaries.open.begin()
        self._log.void(mark, error)

    def rename(self, callback: str) -> str:
        """Records attempts under another name from now on. Returns the previous name."""
        before, self._log.callback = self._log.callback, callback
        return before

    @property
    def authority(self) -> Payload | None:
        """The authority to record with attempts."""
        return self._log.authority

    @authority.setter
    def authority(self, stated: Payload | None) -> None:
        self._log.authority = stated

    def mark(self) -> Mark:
        """Returns a mark for `withdraw`."""
        return self.plan.mark()

    def withdraw(self, mark: Mark, text: str) -> None:
        """Withdraws everything that was planned since the mark. The attempts stay on record, because they may have cost
        money.
        """
        self.plan.withdraw(mark, {"type": NotSmaller.__name__, "text": text, "no_progress": True})

    # ---- requests

    def ask(self, step: Ask) -> Planned:
        """Carries out a strategy's request."""
        span = Span(step.start_seq, step.end_seq)
        if step.summarize is not None:
            options = SummaryOptions(
                step.allow, step.reason, step.role, framed=step.framed, min_saving=step.min_saving, room=step.room,
                stated_room=step.stated_room, cut=step.cut, checks=step.checks,
            )  # fmt: skip
            planned = self.summarize(span, step.summarize, options)
            self.plan.last_planned.forget()
            return planned
        if step.replacement is not None:
            self.replace(span, step.replacement, step.allow, step.reason)
        else:
            self.remove(span, step.allow, step.reason)
        return Planned(self.plan.messages)

    def remove(self, span: Span, allow: frozenset[str], reason: str | None) -> None:
        indexes = self.rules.check(span, "removal", allow, reason)
        self._log.apply(indexes, span, "removal", self.line_tokens(span), allow=allow, reason=reason)

    def line_tokens(self, span: Span) -> int:
        """Returns the tokens of the line that requests have where the messages of a span were removed.

        The line is not stored as a replacement, because it follows from the span.
        """
        return self.count([stand_ins.left_out(*span)]) if self._leaves_lines else 0

    def replace(self, span: Span, messages: Sequence[Payload], allow: frozenset[str], reason: str | None) -> None:
        indexes = self.rules.check(span, "truncation", allow, reason)
        self.rules.check_progress(span, allow)
        stand_ins = tuple(encode(message).payload for message in messages)
        replaced = [m for element in self.plan.elements(*indexes) for m in element.messages]
        if not stand_ins:
            raise InvalidInput("messages must have at least one message; call remove() to leave nothing in the view")
        if any(map(tool_pairs.is_system, stand_ins)) and not any(map(tool_pairs.is_system, replaced)):
            raise InvalidInput(NO_SYSTEM)
        if tool_pairs.call_and_result_ids(stand_ins) != tool_pairs.call_and_result_ids(replaced):
            text = "the new messages do not keep the span's tool calls and results"
            self._log.reject(IdsChanged, span, "truncation", text, reason=reason)
        before, after = self.plan.tokens(*indexes), self.count(stand_ins)
        if after >= before and "larger" not in allow:
            text = f"the new messages have {after} tokens, the span has {before}"
            self._log.reject(NotSmaller, span, "truncation", text, reason=reason)
        inputs = self._log.inputs(indexes)
        self._log.apply(
            indexes, span, "truncation", after, replacement=stand_ins, inputs=inputs, allow=allow, reason=reason
        )

    def summarize(self, span: Span, summary: SummaryResult | Summarize, options: SummaryOptions) -> Planned:
        """Plans a summary. If the result must be awaited, the summary is planned only then."""
        indexes = self.rules.check(span, "summary", options.allow, options.reason)
        if isinstance(summary, str | Summary):
            self._summaries.take_text(indexes, span, summary, options)
            return self.planned()
        check_summarizer(summary, "a summary", choices="text, a Summary or a callable")
        self.rules.check_progress(span, options.allow)
        work = self._summaries.ask(indexes, span, summary, options)
        # On an event loop, the summarizer runs when the result is awaited. If it ran now, a blocking one would stop the
        # loop, and an async one must run on the loop.
        if self.must_await or (self._awaits and is_async(summary)):
            return Planned(self.plan.messages, lambda: drive_async(work))
        rest = begin(work) if self._awaits else drive(work)
        return self.planned() if rest is None else Planned(self.plan.messages, lambda: rest)

    # ---- waiting

    @property
    def must_await(self) -> bool:
        """Whether the run belongs to an `AsyncStore` and the caller is on an event loop, which blocking would stop."""
        return self._awaits and is_on_event_loop()

    def run(self, work: Work[None]) -> Planned:
        """Runs work that adds spans to the plan. If `must_await` is true, it runs only when the result is awaited."""
        if not self.must_await:
            drive(work)
            return self.planned()
        turn = self._summaries.open.open()

        async def wait() -> None:
            try:
                await drive_async(work)
            finally:
                self._summaries.open.close(turn)

        return Planned(self.plan.messages, wait)
