"""Several summarizers, each tried where those before it failed. What failed is on record with what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import replace
from typing import Any

from compaction_store.errors import InvalidInput, SummarizerError, SummarizersFailed
from compaction_store.models import Element, Payload, Summary
from compaction_store.naming import name_of
from compaction_store.summarizers.attempts import Call, without_text
from compaction_store.summarizers.judging import judge
from compaction_store.summarizers.request import Request, Summarizer

# Yields what is to be awaited, and is sent what came of it, be it an exception.
_Steps = Generator[Awaitable[Any], Any, Summary]


def needs_async(summarize: object) -> bool:
    """Whether what a summarizer returns must be awaited, as far as it can be told without a call."""
    call = getattr(summarize, "__call__", None)  # noqa: B004 — its kind is asked, not whether it is there
    return (
        bool(getattr(summarize, "needs_async", False))
        or inspect.iscoroutinefunction(summarize)
        or inspect.iscoroutinefunction(call)
    )


class FallbackSummarizer:
    """Asks the first, and whenever one fails, or answers with what is no summary, the next."""

    def __init__(self, first: Summarizer, *then: Summarizer) -> None:
        self.summarizers = (first, *then)
        for one in self.summarizers:
            if not callable(one):
                raise InvalidInput(f"a summarizer is a callable, not {type(one).__name__}")

    @property
    def name(self) -> str:
        return f"FallbackSummarizer({', '.join(name_of(one, 'summarizer') for one in self.summarizers)})"

    @property
    def needs_async(self) -> bool:
        return any(map(needs_async, self.summarizers))

    def __repr__(self) -> str:
        return f"FallbackSummarizer({', '.join(type(one).__name__ for one in self.summarizers)})"

    def __call__(self, elements: Sequence[Element], /) -> Summary | Awaitable[Summary]:
        steps = self._steps(Request.of(elements))
        # Nothing is begun that nobody might await.
        return _awaited(steps) if self.needs_async else _finished(steps)

    def _steps(self, request: Request) -> _Steps:
        errors: list[Exception] = []
        failures: list[Payload] = []
        for one in self.summarizers:
            call = Call(one)
            try:
                result: Any = one(request)
                if inspect.isawaitable(result):
                    result = yield result
                if not isinstance(result, Exception):
                    return _judged(request, call, result, failures)
                error = result
            except Exception as raised:  # noqa: BLE001 — whatever it was, the next is there for it
                error = raised
            errors.append(error)
            failures.append(call.failure(error))
        raise _all_failed(errors, failures)


def _finished(steps: _Steps) -> Summary | Awaitable[Summary]:
    try:
        waiting = next(steps)
    except StopIteration as done:
        summary: Summary = done.value
        return summary
    return _awaited(steps, waiting)


async def _awaited(steps: _Steps, waiting: Awaitable[Any] | None = None) -> Summary:
    answer: Any = None
    while True:
        if waiting is not None:
            try:
                answer = await waiting
            except Exception as error:  # noqa: BLE001 — the steps decide what to make of it
                answer = error
        try:
            waiting = steps.send(answer)
        except StopIteration as done:
            summary: Summary = done.value
            return summary


def _judged(request: Request, call: Call, result: Any, failures: Sequence[Payload]) -> Summary:
    if not isinstance(result, str | Summary):
        raise TypeError(f"a summarizer returned {type(result).__name__}, not text")
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
