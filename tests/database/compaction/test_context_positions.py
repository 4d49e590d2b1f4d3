"""Contexts by positions: ranges of the view as it was given, and the messages that a call returns."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from support.faces import Face
from support.strategy_runs import attempts_of, context_of

from compaction_store import CompactionContext, InvalidInput
from compaction_store.errors import InvalidSpan
from compaction_store.models import Element
from compaction_store.rendering.view import View
from compaction_store.tokens import o200k_base

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COUNTER = o200k_base()


def message(n: int) -> dict[str, Any]:
    return {"role": "assistant" if n % 2 else "user", "content": f"message {n} " + "and so on " * 30}


def context(count: int = 10, first: int = 1, **options: Any) -> CompactionContext:
    elements = tuple(
        Element(first + n, first + n, n, (message(n),), COUNTER.messages([message(n)]), None, NOW) for n in range(count)
    )
    return context_of(View("t", 9, elements), counter=COUNTER, **options)


def shape(ctx: CompactionContext) -> list[tuple[int, int]]:
    return [(element.seq, element.end_seq) for element in ctx.elements]


def test_a_range_counts_positions_of_the_view_as_it_was_given() -> None:
    ctx = context(first=101)
    ctx.compact(range(5), "The first five.")
    assert shape(ctx)[:2] == [(101, 105), (106, 106)]
    # Positions do not change when a callback plans something.
    ctx.compact(range(6, 8), "Two more.")
    assert shape(ctx) == [(101, 105), (106, 106), (107, 108), (109, 109), (110, 110)]
    assert [element.seq for element in ctx.message_elements] == list(range(101, 111))
    assert ctx.tokens_before == sum(element.tokens for element in ctx.message_elements) > ctx.total_tokens


@pytest.mark.parametrize("given", [slice(0, 5), slice(None, 5), slice(-10, -5)])
def test_a_slice_is_read_as_python_reads_it(given: slice) -> None:
    ctx = context()
    ctx.compact(given, "The first five.")
    assert shape(ctx)[0] == (1, 5)


def test_an_empty_range_plans_nothing_and_asks_nobody() -> None:
    ctx = context()
    asked: list[Any] = []
    for empty in (range(3, 3), range(0), slice(20, 30)):
        assert ctx.compact(empty, lambda elements: asked.append(elements) or "x") == ctx.result_messages  # type: ignore[func-returns-value]
    assert not asked
    assert not attempts_of(ctx)


@pytest.mark.parametrize(
    "bad", [range(-3, 2), range(5, 11), range(0, 6, 2), slice(0, 6, 2), range(5, 0, -1), slice("a", 2)]
)
def test_a_range_that_is_no_part_of_the_view_is_refused_before_anybody_is_asked(bad: Any) -> None:
    ctx = context()
    asked: list[Any] = []
    with pytest.raises(InvalidSpan):
        ctx.compact(bad, asked.append)  # type: ignore[arg-type]
    assert not asked


def test_a_range_and_seqs_are_not_mixed() -> None:
    ctx = context()
    compact: Any = ctx.compact
    for arguments in ((range(3), 4, "x"), (1, "x")):
        with pytest.raises(InvalidInput, match="a range and a summary"):
            compact(*arguments)


def test_what_a_call_returns_is_the_messages_by_then() -> None:
    ctx = context()
    first = ctx.compact(range(2), "One.")
    second = ctx.compact(range(2, 4), "Two.")
    assert len(first) == 9
    assert len(second) == 8
    assert second == ctx.result_messages
    assert list(first)[1:] == [message(n) for n in range(2, 10)]


def test_on_an_async_store_it_is_awaited() -> None:
    ctx = context(awaits=True)

    async def summarize(_elements: Any) -> str:
        return "Said."

    async def callback() -> None:
        waiting = ctx.compact(range(5), summarize)
        assert await waiting == ctx.result_messages
        assert len(waiting) == 6

    asyncio.run(callback())


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_the_role_of_a_summary(role: Any) -> None:
    ctx = context()
    compact: Any = ctx.compact
    result = compact(range(5), "The first five.", role=role)
    assert result[0] is not None
    assert result[0]["role"] == role
    assert ctx.elements[0].role == role
    for bad in ("system", "developer", None, 7):
        with pytest.raises(InvalidInput, match="role must be"):
            compact(range(5, 8), "x", role=bad)


def test_it_is_so_in_a_store(store: Face) -> None:
    store.append("t", [message(n) for n in range(10)])
    run = store.compact("t", lambda ctx: ctx.compact(range(5), "The first five.", role="assistant") and None)
    assert [(record.outcome, record.start_seq, record.end_seq) for record in run] == [("applied", 1, 5)]
    assert run.view.elements[0].role == "assistant"
    assert store.verify("t").findings == ()
