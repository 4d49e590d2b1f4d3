"""Several summarizers, each tried where those before it failed. What failed is on record with what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import replace
from typing import Any

from compaction_store import drivers
from compaction_store.compaction.naming import name_of
from compaction_store.compaction.summary_calls import CallRecord, without_text
from compaction_store.compaction.summary_request import Request, Summarizer, check_summarizer
from compaction_store.errors import InvalidCallback, SummarizerError, SummarizersFailed
from compaction_store.models import Element, Payload, Summary
from compaction_store.summarizers.judging import judge

# Yields the summarizer to call next, and is sent its result, or the exception that it raised.
_Steps = Generator[Summarizer, Any, Summary]


class FallbackSummarizer:
    """Asks the first, and whenever one fails, or answers with what is no summary, the next."""

    def __init__(self, first: Summarizer, *then: Summarizer) -> None:
        self.summarizers = (first, *then)
        for one in self.summarizers:
            check_summarizer(one)

    @property
    def name(self) -> str:
        return f"FallbackSummarizer({', '.join(name_of(one, 'summarizer') for one in self.summarizers)})"

    @property
    def needs_async(self) -> bool:
        return any(map(drivers.is_async, self.summarizers))

    def __repr__(self) -> str:
        return f"FallbackSummarizer({', '.join(type(one).__name__ for one in self.summarizers)})"

    def __call__(self, elements: Sequence[Element], /) -> Summary | Awaitable[Summary]:
        request = Request.of(elements)
        # Nothing is begun that nobody might await.
        return _awaited(request, self._steps(request)) if self.needs_async else _finished(request, self._steps(request))

    def _steps(self, request: Request) -> _Steps:
        errors: list[Exception] = []
        failures: list[Payload] = []
        for one in self.summarizers:
            call = CallRecord(one)
            result = yield one
            try:
                if not isinstance(result, Exception):
                    return _judged(request, call, result, failures)
                error = result
            except Exception as raised:  # noqa: BLE001 — whatever it was, the next is there for it
                error = raised
            errors.append(error)
            failures.append(call.failure(error))
        raise _all_failed(errors, failures)


def _finished(request: Request, steps: _Steps) -> Summary | Awaitable[Summary]:
    """Calls one summarizer after the other; from the first result that must be awaited on, it awaits."""
    result: Any = None
    while True:
        try:
            one = steps.send(result)
        except StopIteration as done:
            summary: Summary = done.value
            return summary
        try:
            result = one(request)
        except Exception as error:  # noqa: BLE001 — the steps decide what to make of it
            result = error
        if inspect.isawaitable(result):
            return _awaited(request, steps, result)


async def _awaited(request: Request, steps: _Steps, waiting: Awaitable[Any] | None = None) -> Summary:
    result: Any = None if waiting is None else await _outcome(waiting)
    while True:
        try:
            one = steps.send(result)
        except StopIteration as done:
            summary: Summary = done.value
            return summary
        result = await _outcome(drivers.Call(one, request).run_async())


async def _outcome(waiting: Awaitable[Any]) -> Any:
    """The result of what is awaited, or the exception that it raised."""
    try:
        return await waiting
    except Exception as error:  # noqa: BLE001 — the steps decide what to make of it
        return error


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


def _all_failed(errors: Sequence[Exception], failures: Sequence[Payload]) -> SummarizersFailed:
    names = ", ".join(type(error).__name__ for error in errors)
    failed = SummarizersFailed(f"every one of {len(errors)} summarizers failed: {names}", errors=tuple(errors))
    # A record has one model: of several, the first that was asked.
    model = next((failure["model"] for failure in failures if "model" in failure), None)
    failed.attempted = Summary("", model=model, coverage={"failed_before": list(failures)})
    return failed
