"""Contexts by positions: ranges of the view as it was given, and the messages that a call returns."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from support.faces import Face, Faces
from support.strategy_runs import attempts_of, context_of

from compaction_store import CompactionContext, InvalidInput
from compaction_store.errors import InvalidSpan, SplitPair
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
    with pytest.raises(InvalidInput, match="end_seq must be left out for a range"):
        compact(range(3), 4, "x")
    for arguments in ((1, 4), (1, None), (range(3), None)):
        with pytest.raises(InvalidInput, match="a position or a range of positions and a summary"):
            compact(*arguments)


def test_a_single_position_is_one_element() -> None:
    ctx = context(first=101)
    asked: list[Any] = []
    ctx.compact(2, lambda elements: asked.extend(e.seq for e in elements) or "The third.")  # type: ignore[func-returns-value]
    assert asked == [103]
    # Positions do not change when a callback plans something, and negative ones count from the end.
    ctx.compact(-3, "The eighth.")
    assert [(e.seq, e.end_seq) for e in ctx.elements if e.is_summary] == [(103, 103), (108, 108)]
    assert [attempt.reason for attempt in ctx.attempts] == ["the element at position 2", "the element at position -3"]
    assert len(ctx.compact(0, "The first.")) == 10


@pytest.mark.parametrize("bad", [10, -11, True, 2.0, "2", None])
def test_a_position_outside_of_the_view_is_refused_before_anybody_is_asked(bad: Any) -> None:
    ctx = context()
    asked: list[Any] = []
    with pytest.raises((InvalidSpan, InvalidInput)):
        ctx.compact(bad, lambda elements: asked.append(elements) or "x")  # type: ignore[func-returns-value]
    assert not asked


def test_a_forgotten_end_says_which_element_was_meant() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ctx = CompactionContext.from_messages([
        message(0), {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "and so on " * 30}, message(3), message(4),
    ])  # fmt: skip
    with pytest.raises(SplitPair) as refused:
        ctx.compact(2, lambda _: "Short.")
    [note] = refused.value.__notes__
    assert "seqs 3 to 3" in note
    assert "compact(start_seq, end_seq, summary)" in note
    [attempt] = ctx.attempts
    assert (attempt.outcome, attempt.reason) == ("rejected", "the element at position 2")


def test_the_same_span_is_not_summarized_twice_in_one_callback() -> None:
    ctx = context()
    asked: list[Any] = []
    ctx.compact(2, 5, "The first summary.")
    for again in ((2, 5), (range(1, 5),), (slice(1, 5),)):
        compact: Any = ctx.compact
        with pytest.raises(InvalidSpan, match="must not summarize the same span twice: seqs 2 to 5"):
            compact(*again, asked.append)
    assert not asked
    assert len(ctx.attempts) == 1
    # A larger span may include the summary, which the record then names as an input.
    ctx.compact(1, 6, "A wider summary.")
    assert ctx.attempts[-1].inputs == (-1,)


def test_a_span_may_be_summarized_again_after_its_summary_was_replaced_in_the_plan() -> None:
    ctx = context()
    ctx.compact(2, 5, "The first summary of the span.")
    words = {"role": "user", "content": "Instead of the summary, some words that are a little longer."}
    ctx.replace(2, 5, [words], allow="larger")
    ctx.compact(2, 5, "The second.", allow="larger")
    assert [attempt.kind for attempt in ctx.attempts] == ["summary", "truncation", "summary"]
    assert ctx.attempts[-1].inputs == (-2,)


def test_two_summaries_of_a_span_at_the_same_time_are_one_too_many() -> None:
    ctx = context(awaits=True)

    async def summarize(_elements: Any) -> str:
        await asyncio.sleep(0)
        return "Said."

    async def callback() -> list[Any]:
        made = [ctx.compact(range(5), summarize), ctx.compact(range(5), summarize)]
        return await asyncio.gather(*made, return_exceptions=True)

    results = asyncio.run(callback())
    assert [type(result).__name__ for result in results].count("InvalidSpan") == 1
    assert sum(attempt.outcome == "applied" for attempt in ctx.attempts) == 1


def test_a_store_refuses_the_second_summary_of_a_span(faces: Faces, store: Face) -> None:
    store.append("t", [message(n) for n in range(10)])

    def twice(ctx: CompactionContext) -> None:
        ctx.compact(2, "The third.")
        ctx.compact(3, 3, "The third again.")

    async def twice_later(ctx: CompactionContext) -> None:
        twice(ctx)

    run = store.compact("t", twice if faces.kind == "sync" else twice_later)
    assert not run.applied
    [record] = run
    assert record.outcome == "failed"
    assert "the same span twice" in record.error["text"]
    assert store.view("t").messages == [message(n) for n in range(10)]


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
    assert store.audit.verify("t").findings == ()
