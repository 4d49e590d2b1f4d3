"""Contexts from plain messages, for the tests of an application's callback: the same plans as on a store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from compaction_store import CompactionContext, InvalidInput, TokenBudget
from compaction_store.errors import InvalidMessage, NotSmaller, SystemInside
from compaction_store.strategies import Ladder, SlidingWindow
from compaction_store.tokens import bytes_over_four


def talk(count: int) -> list[dict[str, Any]]:
    system = {"role": "system", "content": "You are terse."}
    return [system, *({"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 40} for n in range(count))]


def fold_the_old(ctx: CompactionContext) -> None:
    if ctx.budget is not None and ctx.budget.is_over(ctx.total_tokens):
        ctx.compact(2, ctx.elements[-5].seq, "They talked.")


def test_a_callback_is_tested_without_a_store() -> None:
    messages = talk(20)
    ctx = CompactionContext.from_messages(messages, budget=TokenBudget(800))
    fold_the_old(ctx)
    assert ctx.result_messages[0] == messages[0]
    assert ctx.result_messages[-4:] == messages[-4:]
    assert "They talked." in str(ctx.result_messages[1])
    [attempt] = ctx.attempts
    assert (attempt.kind, attempt.outcome, attempt.start_seq, attempt.end_seq) == ("summary", "applied", 2, 17)
    # Without a budget, this callback does nothing.
    ctx = CompactionContext.from_messages(messages)
    fold_the_old(ctx)
    assert ctx.result_messages == messages
    assert ctx.attempts == ()


def test_the_rules_and_errors_are_those_of_a_store() -> None:
    ctx = CompactionContext.from_messages(talk(6))
    with pytest.raises(SystemInside):
        ctx.compact(1, 3, "Everything.")
    with pytest.raises(NotSmaller):
        ctx.compact(2, 3, "word " * 500)
    assert [attempt.outcome for attempt in ctx.attempts] == ["rejected", "rejected"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(["no message"], InvalidMessage), ([{"role": "user", "content": {1, 2}}], InvalidMessage), ([], InvalidInput)],
)
def test_bad_messages_are_refused_as_append_refuses_them(wrong: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CompactionContext.from_messages(wrong)


def test_a_bad_budget_or_counter_is_refused() -> None:
    from_messages: Any = CompactionContext.from_messages
    for options in ({"budget": 5}, {"counter": 5}):
        with pytest.raises((InvalidInput, TypeError)):
            from_messages(talk(3), **options)


def test_tokens_are_counted_as_a_store_counts_them() -> None:
    messages = talk(6)
    ctx = CompactionContext.from_messages(messages, counter=bytes_over_four())
    assert ctx.total_tokens == bytes_over_four().messages(messages)
    assert [element.seq for element in ctx.elements] == list(range(1, 8))


@pytest.mark.parametrize("strategy", [SlidingWindow, Ladder])
def test_a_strategy_runs_on_it_too(strategy: Any) -> None:
    ctx = CompactionContext.from_messages(talk(60), budget=TokenBudget(2000))
    strategy(lambda _: "They talked.")(ctx)
    assert not ctx.budget or not ctx.budget.is_over(ctx.total_tokens)
    assert {attempt.outcome for attempt in ctx.attempts} == {"applied"}


def test_on_an_event_loop_it_is_awaited_as_on_an_async_store() -> None:
    async def summarize(_elements: Any) -> str:
        await asyncio.sleep(0)
        return "They talked."

    async def callback(ctx: CompactionContext) -> None:
        await ctx.compact(2, 9, summarize)
        await SlidingWindow(summarize, retain=4)(ctx)

    async def test() -> CompactionContext:
        ctx = CompactionContext.from_messages(talk(30))
        await callback(ctx)
        return ctx

    ctx = asyncio.run(test())
    assert [attempt.outcome for attempt in ctx.attempts] == ["applied", "applied"]
    assert len(ctx.result_messages) < 10
