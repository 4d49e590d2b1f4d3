"""A check of the caller's own: one that raises an error, waits, or returns something else costs no summary."""

# ruff: noqa: ARG002 — a check need not use its arguments

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from support.probed_threads import assistant, user
from support.strategy_runs import attempts_of, context_of, elements

from compaction_store import InvalidInput, Summary
from compaction_store.checks import Check, CheckedSpan, KeepsOrders
from compaction_store.compaction.checked_summary import checked
from compaction_store.compaction.checks import check_checks
from compaction_store.compaction.summary_request import Request
from compaction_store.errors import ChecksFailed, CompactionStoreError
from compaction_store.models import Attempt
from compaction_store.probes import Place, Probe
from compaction_store.rendering.view import View
from compaction_store.waiting import drive_async

SECRET = "the customer's own words"
FILLER = "The work went on as it was planned, step by step, and nothing was remarkable about it. " * 4
THREAD = [user(f"Never push to main. {SECRET} {FILLER}"), assistant(f"Done. {FILLER}"), user("Go on.")]
LOST = Probe("used_name", "identifier", False, 0, Place("content", 0, 5, 1), "order_17")


class Raises(Check):
    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        raise ValueError(SECRET)


class RaisesLater(Check):
    def probes(self, span: CheckedSpan, text: str) -> Iterator[Probe]:
        yield LOST
        raise TypeError(SECRET)


class PassesRaises(Check):
    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return [LOST]

    def passes(self, asked: int, lost: int) -> bool:
        raise ZeroDivisionError(SECRET)


class Returns(Check):
    """Returns what it was given, whatever that is."""

    def __init__(self, value: Any, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        self._value = value

    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        return self._value() if callable(self._value) else self._value  # type: ignore[no-any-return]


class Waits(Check):
    async def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:  # type: ignore[override]
        return []


class WaitsBetween(Check):
    async def probes(self, span: CheckedSpan, text: str) -> Any:
        yield LOST


class Slow(Check):
    def probes(self, span: CheckedSpan, text: str) -> Iterable[Probe]:
        time.sleep(0.1)
        return [LOST]


async def _coroutine() -> list[Probe]:
    return [LOST]


JUNK = {
    "None": None, "number": 7, "text": "order_17", "texts": ["order_17"], "coroutine": _coroutine,
    "mixed": [LOST, None],
}  # fmt: skip
BROKEN = [Raises, RaisesLater, PassesRaises]
WRITERS = ["A short summary.", lambda _elements: "A short summary."]


def compacted(summary: Any, *checks: Check) -> Attempt:
    ctx = context_of(View("t", 0, tuple(elements(THREAD))))
    ctx.compact(1, 2, summary, checks=checks)
    return attempts_of(ctx)[-1]


def outcomes(attempt: Attempt) -> list[dict[str, Any]]:
    assert attempt.summary is not None
    assert attempt.summary.checks is not None
    return attempt.summary.checks["outcomes"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("summary", WRITERS, ids=["text", "summarizer"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_check_that_raises_is_recorded_and_the_others_are_made(kind: type[Check], summary: Any) -> None:
    attempt = compacted(summary, kind(), KeepsOrders())
    assert attempt.outcome == "applied"
    assert attempt.summary is not None
    assert "[1] user: Never push to main." in attempt.summary.text
    broken, kept = outcomes(attempt)
    assert (broken["passed"], broken["asked"]) == (False, 0)
    assert broken["error"] == {"type": broken["error"]["type"], "text": None}
    assert (kept["failed"], kept["left"]) == (1, 0)
    assert SECRET not in str(attempt.summary.checks)


@pytest.mark.parametrize("summary", WRITERS, ids=["text", "summarizer"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_strict_check_that_raises_rejects_the_summary_by_name(kind: type[Check], summary: Any) -> None:
    ctx = context_of(View("t", 0, tuple(elements(THREAD))))
    with pytest.raises(ChecksFailed, match=rf"{kind.__name__}: it raised \w+Error") as failure:
        ctx.compact(1, 2, summary, checks=(kind(strict=True),))
    assert SECRET not in str(failure.value)
    attempt = attempts_of(ctx)[-1]
    assert attempt.outcome == "rejected"
    assert "error" in outcomes(attempt)[0]
    assert len(ctx.result_messages) == len(THREAD)


@pytest.mark.parametrize("value", JUNK.values(), ids=JUNK)
def test_a_check_that_returns_something_else_is_recorded(value: Any) -> None:
    attempt = compacted("A short summary.", Returns(value))
    [found] = outcomes(attempt)
    assert (attempt.outcome, found["passed"], found["error"]["type"]) == ("applied", False, "InvalidCallback")
    assert found["error"]["text"].startswith("a check's probes must return Probe values, not ")
    with pytest.raises(ChecksFailed, match="Returns: it raised InvalidCallback"):
        compacted("A short summary.", Returns(value, strict=True))


@pytest.mark.parametrize("kind", [Waits, WaitsBetween])
def test_an_async_check_is_refused_before_anything_is_asked(kind: type[Check]) -> None:
    for given in (lambda: compacted("A summary.", kind()), lambda: check_checks((kind(strict=True),))):
        with pytest.raises(InvalidInput, match=f"checks must be synchronous, and the probes of {kind.__name__} are"):
            given()


def test_a_slow_check_does_not_stop_an_event_loop() -> None:
    async def run() -> tuple[Summary, int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.005)
                turns += 1

        counting = asyncio.create_task(count())
        request = Request(tuple(elements(THREAD)[:2]))
        summary = await drive_async(checked(request, Summary("A short summary."), (Slow(),)))
        counting.cancel()
        return summary, turns

    summary, turns = asyncio.run(run())
    assert summary.checks is not None
    assert summary.checks["outcomes"][0]["failed"] == 1
    assert turns >= 5


def test_all_errors_of_checks_are_typed() -> None:
    for check in (Raises(strict=True), RaisesLater(strict=True), PassesRaises(strict=True)):
        with pytest.raises(CompactionStoreError):
            compacted("A summary.", check)
