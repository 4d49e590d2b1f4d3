"""Plans one summary: calls the summarizer and checks its result."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from compaction_store.compaction import binding, summary_calls, summary_room
from compaction_store.compaction.asking import Summarize
from compaction_store.compaction.attempt_log import AttemptLog, Indexes
from compaction_store.compaction.binding import Orders
from compaction_store.compaction.checked_summary import checked
from compaction_store.compaction.open_summaries import OpenSummaries
from compaction_store.compaction.plan import Plan
from compaction_store.compaction.span_rules import SpanRules
from compaction_store.compaction.summary_calls import CallRecord
from compaction_store.compaction.summary_request import Request, TrackedView
from compaction_store.compaction.summary_room import SummaryOptions
from compaction_store.errors import ChecksFailed, EmptySummary, InvalidCallback, InvalidInput, NotSmaller, Rejected
from compaction_store.messages import tool_pairs
from compaction_store.messages.encoding import encode
from compaction_store.models import Payload, Span, Summary
from compaction_store.tokens import Counter
from compaction_store.waiting import Call, Work, drive

NO_SYSTEM = "a replacement must not have a system message, unless it shortens system messages"


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
            raise InvalidCallback(
                f"a summarizer must return text or a Summary for a repair too, not {type(result).__name__}"
            )
        return call.summary(result)


def _is_text(result: object) -> bool:
    return isinstance(result, str) or (isinstance(result, Summary) and isinstance(result.text, str))


class SummaryPlanner:
    def __init__(self, plan: Plan, rules: SpanRules, log: AttemptLog, counter: Counter) -> None:
        self.open = OpenSummaries()
        self._plan = plan
        self._rules = rules
        self._log = log
        self._counter = counter

    def ask(self, indexes: Indexes, span: Span, summarize: Summarize, options: SummaryOptions) -> Work[None]:
        """Returns work that asks a summarizer and plans its summary."""
        request = self._request(indexes, span, options)
        assert isinstance(request.view, TrackedView)  # noqa: S101 — made so just now
        call = CallRecord(summarize, request.view)
        return self._asked(self.open.open(), indexes, span, _Asked(summarize, request, call), options)

    def _request(self, indexes: Indexes, span: Span, options: SummaryOptions) -> Request:
        elements = tuple(self._plan.elements(*indexes))
        standing = binding.orders_in(elements)
        tokens = options.text_tokens(self._plan.tokens(*indexes), self._counter, span, standing)
        return Request(elements, TrackedView(self._plan.folded), tokens, self._counter)

    def _asked(self, turn: int, indexes: Indexes, span: Span, asked: _Asked, options: SummaryOptions) -> Work[None]:
        tried = len(self._plan.attempts)
        call = asked.call
        try:
            result = yield Call(asked.summarize, asked.request)
            if options.checks and _is_text(result):
                again = asked.again if getattr(asked.summarize, "can_repair", False) is True else None
                summary = call.summary(result)
                result = yield from checked(asked.request, summary, options.checks, again=again, cut=options.cut)
        except BaseException as error:
            if self.open.close(turn) and isinstance(error, Exception):
                if isinstance(error, ChecksFailed):
                    known = call.failed(error)
                    self._log.reject(ChecksFailed, span, "summary", str(error), known, call, reason=options.reason)
                self._log.fail(span, error, call, reason=options.reason)
            raise
        if not self.open.close(turn):
            raise InvalidCallback("a summary must arrive before the callback that requested it ends")
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidCallback("an async summarizer needs an AsyncStore: on a Store it must be synchronous")
        if len(self._plan.attempts) != tried:
            # The summarizer, or code that ran at the same time, has planned another compaction: check the span again.
            indexes = self._rules.check(span, "summary", options.allow, options.reason)
            self._rules.check_new(span)
        self.take(indexes, span, result, options, call)

    def take_text(self, indexes: Indexes, span: Span, result: str | Summary, options: SummaryOptions) -> None:
        """Checks a summary that the callback wrote itself, and plans it."""
        if options.checks and _is_text(result):
            summary = summary_calls.recordable(Summary(result) if isinstance(result, str) else result)
            request = self._request(indexes, span, options)
            try:
                result = drive(checked(request, summary, options.checks, cut=options.cut))
            except ChecksFailed as error:
                self._log.reject(ChecksFailed, span, "summary", str(error), error.attempted, reason=options.reason)
        self.take(indexes, span, result, options)

    def take(
        self, indexes: Indexes, span: Span, result: Any, options: SummaryOptions, call: CallRecord | None = None
    ) -> None:
        """Plans a summary, or rejects it if it is empty or too large."""
        summary = self._summary(span, result, call, options.reason)
        try:
            standing = binding.orders_in(self._plan.elements(*indexes))
            replacement = _replacement(summary, span, options, standing)
            summary, replacement = self._fitted(indexes, span, summary, replacement, options, call, standing)
            after = summary_room.count_encoded(self._counter, replacement)
        except Rejected:
            raise
        except Exception as error:
            self._log.fail(span, error, call, summary, reason=options.reason)
            raise
        inputs = self._log.inputs(indexes, call)
        self._log.apply(
            indexes, span, "summary", after, replacement=replacement, summary=summary, inputs=inputs,
            allow=options.allow, reason=options.reason,
        )  # fmt: skip

    def _summary(self, span: Span, result: Any, call: CallRecord | None, reason: str | None) -> Summary:
        if not isinstance(result, str | Summary) or (isinstance(result, Summary) and not isinstance(result.text, str)):
            error = InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
            self._log.fail(span, error, call, reason=reason)
            raise error
        summary = Summary(result) if isinstance(result, str) else result
        summary = summary_calls.recordable(summary) if call is None else call.summary(summary)
        if not summary.text.strip():
            self._log.reject(EmptySummary, span, "summary", "the summary is empty", summary, call, reason=reason)
        return summary

    def _fitted(
        self,
        indexes: Indexes,
        span: Span,
        summary: Summary,
        replacement: tuple[Payload, ...],
        options: SummaryOptions,
        call: CallRecord | None,
        standing: Orders,
    ) -> tuple[Summary, tuple[Payload, ...]]:
        """Returns a summary and its messages, cut if they are too long and may be cut."""
        counted = replacement if options.framed else [{"role": "user", "content": summary.text}]
        takes = summary_room.count_encoded(self._counter, counted)
        before = self._plan.tokens(*indexes)
        # A provider's own block cannot be cut, so use it unchanged if it is smaller than its span.
        most = (options._replace(room=None) if summary.replacement else options).most_tokens(before)
        if most is None or takes <= most:
            return summary, replacement
        cut = summary_room.cut
        shorter = cut(summary, span, options.role, most, self._counter, standing) if options.cut else None
        if shorter is None:
            text = summary_room.too_large(takes, before, most)
            self._log.reject(NotSmaller, span, "summary", text, summary, call, reason=options.reason)
        return shorter


def _replacement(summary: Summary, span: Span, options: SummaryOptions, standing: Orders) -> tuple[Payload, ...]:
    """Returns the messages that replace the span of a summary."""
    if not summary.replacement:
        return (binding.framed(summary.text, span, options.role, standing),)
    replacement = tuple(encode(message).payload for message in summary.replacement)
    if any(map(tool_pairs.is_system, replacement)):
        raise InvalidInput(NO_SYSTEM)
    return replacement
