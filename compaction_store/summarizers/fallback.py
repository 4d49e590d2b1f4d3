"""A summarizer that tries several summarizers in order until one succeeds. The record names those that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

from compaction_store.arguments import name_of
from compaction_store.compaction.checked_summary import with_checks
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.summary_calls import CallRecord, without_text
from compaction_store.compaction.summary_request import Request, Summarizer, check_summarizer
from compaction_store.errors import InvalidCallback, SummarizerError, SummarizersFailed
from compaction_store.models import Element, Payload, Summary
from compaction_store.summarizers.prompted import judge
from compaction_store.waiting import Call, Work, begin, drive_async, is_async


class FallbackSummarizer:
    """Calls summarizers in order until one returns a usable summary."""

    is_summarizer = True

    def __init__(self, first: Summarizer, *then: Summarizer, checks: Sequence[Check] = ()) -> None:
        self.summarizers = (first, *then)
        self._checks = check_checks(checks)
        for one in self.summarizers:
            check_summarizer(one)

    @property
    def name(self) -> str:
        return f"FallbackSummarizer({', '.join(name_of(one, 'summarizer') for one in self.summarizers)})"

    @property
    def can_repair(self) -> bool:
        """Whether any of the summarizers can repair a summary if it is given the faults."""
        return any(getattr(one, "can_repair", False) is True for one in self.summarizers)

    @property
    def needs_async(self) -> bool:
        return any(map(is_async, self.summarizers))

    def __repr__(self) -> str:
        return f"FallbackSummarizer({', '.join(type(one).__name__ for one in self.summarizers)})"

    def __call__(self, elements: Sequence[Element], /) -> Summary | Awaitable[Summary]:
        work = with_checks(self._work, Request.of(elements), self._checks, can_repair=self.can_repair)
        # Do not call an async summarizer before the result is awaited.
        return drive_async(work) if self.needs_async else begin(work)

    def _work(self, request: Request) -> Work[Summary]:
        errors: list[Exception] = []
        failures: list[Payload] = []
        for summarizer in self.summarizers:
            call = CallRecord(summarizer)
            try:
                return _judged(request, call, (yield Call(summarizer, request)), failures)
            except Exception as error:  # noqa: BLE001 — after any error, the next summarizer is called
                errors.append(error)
                failures.append(call.failure(error))
        names = ", ".join(type(error).__name__ for error in errors)
        failed = SummarizersFailed(f"all {len(errors)} summarizers failed: {names}", errors=tuple(errors))
        # A record can name only one model. Name the first that was called.
        model = next((failure["model"] for failure in failures if "model" in failure), None)
        failed.attempted = Summary("", model=model, coverage={"failed_before": failures})
        raise failed


def _judged(request: Request, call: CallRecord, result: Any, failures: Sequence[Payload]) -> Summary:
    if not isinstance(result, str | Summary):
        raise InvalidCallback(f"a summarizer must return text or a Summary, not {type(result).__name__}")
    summary = call.summary(result)
    try:
        judge(summary.text, request)
    except SummarizerError as error:
        error.attempted = without_text(summary)
        raise
    if not failures:
        return summary
    return replace(summary, coverage={**(summary.coverage or {}), "failed_before": list(failures)})
