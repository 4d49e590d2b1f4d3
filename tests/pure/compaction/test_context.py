"""The context a callback plans in: plans show at once, and what the rules refuse is refused before a model is asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support.paths import ROOT
from support.strategy_runs import attempts_of, context_of, run_strategy

import compaction_store as cs
from compaction_store.compaction.asks import Stalled
from compaction_store.compaction.context import CompactionContext, planner_of
from compaction_store.errors import (
    EmptySummary,
    IdsChanged,
    InvalidSpan,
    LastUserInside,
    NoProgress,
    NotSmaller,
    PendingCall,
    SplitPair,
    SystemInside,
)
from compaction_store.messages.framing import frame
from compaction_store.messages.stand_ins import left_out
from compaction_store.models import Element, Span
from compaction_store.rendering.view import View
from compaction_store.strategies import Ask
from compaction_store.tokens import Counter

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = Counter("words", lambda payload, _size: sum(len(str(v).split()) for v in payload.values()))
LONG = "one two three four five six seven eight nine ten"


def user(text: str = LONG) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str = LONG) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": LONG}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(of: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": of, "content": LONG}


def context(*messages: dict[str, Any], folded: Sequence[tuple[int, int]] = (), **options: Any) -> CompactionContext:
    """A context over messages with seqs from 1, some of them already folded."""
    elements = []
    for seq, message in enumerate(messages, 1):
        if any(start < seq <= end for start, end in folded):
            continue
        end = next((end for start, end in folded if start == seq), None)
        if end is None:
            elements.append(Element(seq, seq, seq, (message,), WORDS.tokens(message, 0), None, NOW))
        else:
            number = len(elements) + 1
            elements.append(Element(seq, end, 99, (user("a summary of things"),), 5, number, NOW, "summary", "other"))
    return context_of(View("t", 99, tuple(elements)), counter=WORDS, **options)


def chat(count: int = 8) -> list[dict[str, Any]]:
    return [user() if i % 2 == 0 else assistant() for i in range(count)]


def shape(ctx: CompactionContext) -> list[tuple[int, int]]:
    return [(element.seq, element.end_seq) for element in ctx.elements]


def test_what_comes_before_and_after_a_span_stays_in_its_place() -> None:
    ctx = context(*chat(5))
    ctx.compact(3, 4, "S", allow={"larger"})
    assert shape(ctx) == [(1, 1), (2, 2), (3, 4), (5, 5)]
    assert ctx.result_messages == [*chat(2), frame("S", 3, 4), user()]
    assert ctx.total_tokens == 3 * 11 + WORDS.tokens(frame("S", 3, 4), 0)


@pytest.mark.parametrize("order", [[(1, 2), (3, 4)], [(3, 4), (1, 2)]])
def test_spans_appear_in_the_order_of_seqs_whatever_the_order_of_the_calls(order: list[tuple[int, int]]) -> None:
    ctx = context(*chat(5))
    for start, end in order:
        ctx.compact(start, end, f"of {start}", allow={"larger"})
    assert ctx.result_messages == [frame("of 1", 1, 2), frame("of 3", 3, 4), user()]
    assert [(a.start_seq, a.end_seq) for a in attempts_of(ctx)] == order


def test_gaps_between_spans_stay() -> None:
    ctx = context(*chat(6))
    for seq in (1, 3, 6):
        ctx.compact(seq, seq, "S", allow={"larger"})
    assert [m["content"][:5] for m in ctx.result_messages if m] == [
        "Notes",
        "one t",
        "Notes",
        "one t",
        "one t",
        "Notes",
    ]


@pytest.mark.parametrize("second", [(3, 4), (1, 1), (2, 5)])
def test_a_span_that_cuts_through_a_planned_one_is_a_conflict(second: tuple[int, int]) -> None:
    ctx = context(*chat(8))
    ctx.compact(1, 3, "A", allow={"larger"})
    asked: list[Any] = []
    with pytest.raises(cs.SpanConflict):
        ctx.compact(*second, asked.append)  # type: ignore[arg-type]
    assert asked == []
    assert shape(ctx)[:2] == [(1, 3), (4, 4)]
    assert [a.outcome for a in attempts_of(ctx)] == ["applied"]


def test_a_span_may_hold_planned_ones_whole_and_is_made_from_them() -> None:
    ctx = context(*chat(8), folded=[(1, 2)])
    ctx.compact(3, 4, "A", allow={"larger"})
    given: list[Element] = []

    def summarize(elements: Sequence[Element]) -> str:
        given.extend(elements)
        return "B"

    ctx.compact(1, 5, summarize)
    assert [(e.seq, e.end_seq, e.kind) for e in given] == [(1, 2, "summary"), (3, 4, "summary"), (5, 5, None)]
    assert shape(ctx) == [(1, 5), (6, 6), (7, 7), (8, 8)]
    # A stored record is named by its number, and one of this run by its place in the run.
    assert attempts_of(ctx)[1].inputs == (1, -1)


@pytest.mark.parametrize(
    "span", [(0, 2), (-1, 2), (2, 1), (5, 6), (1, 9), (1.0, 2), ("1", 2), (True, 2), (None, 2), (9, 9)]
)
def test_a_span_outside_the_view_is_refused_and_no_model_asked(span: tuple[Any, Any]) -> None:
    ctx = context(*chat(5))
    asked: list[Any] = []
    with pytest.raises(InvalidSpan):
        ctx.compact(*span, asked.append)  # type: ignore[arg-type]
    assert (asked, attempts_of(ctx), len(ctx.elements)) == ([], [], 5)


@pytest.mark.parametrize("span", [(2, 3), (1, 3), (3, 8), (4, 4)])
def test_a_span_that_cuts_through_a_stored_compaction_is_a_conflict(span: tuple[int, int]) -> None:
    ctx = context(*chat(8), folded=[(2, 4)])
    with pytest.raises(cs.SpanConflict):
        ctx.compact(*span, "S")
    assert attempts_of(ctx) == []


def rejected(ctx: CompactionContext, kind: type[cs.Rejected], plan: Callable[[], object]) -> None:
    before = ctx.elements
    with pytest.raises(kind):
        plan()
    assert ctx.elements == before
    assert [(a.outcome, (a.error or {})["type"]) for a in attempts_of(ctx)] == [("rejected", kind.__name__)]


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u2003"])
def test_an_empty_summary_is_rejected(text: str) -> None:
    ctx = context(*chat())
    rejected(ctx, EmptySummary, lambda: ctx.compact(1, 2, text))


def test_a_summary_that_is_not_smaller_is_rejected_unless_insisted_upon() -> None:
    ctx = context(*chat())
    rejected(ctx, NotSmaller, lambda: ctx.compact(1, 1, LONG))
    ctx.compact(1, 1, LONG, allow={"larger"}, reason="it is better")
    attempt = attempts_of(ctx)[1]
    assert (attempt.allow, attempt.reason) == (frozenset({"larger"}), "it is better")


@pytest.mark.parametrize("span", [(2, 2), (3, 3), (1, 2), (3, 5)])
def test_a_call_is_not_parted_from_its_result(span: tuple[int, int]) -> None:
    for plan in ("compact", "remove"):
        ctx = context(user(), call("a", "b"), result("a"), result("b"), assistant(), user())
        arguments = ("S",) if plan == "compact" else ()
        rejected(ctx, SplitPair, lambda: getattr(ctx, plan)(*span, *arguments))  # noqa: B023
    ctx = context(user(), call("a", "b"), result("a"), result("b"), assistant(), user())
    ctx.compact(2, 4, "S")
    assert shape(ctx) == [(1, 1), (2, 4), (5, 5), (6, 6)]


def test_a_call_that_waits_for_its_result_stays() -> None:
    ctx = context(user(), assistant(), call("a"), user())
    rejected(ctx, PendingCall, lambda: ctx.compact(1, 3, "S"))


def test_system_and_last_user_messages_stay_unless_insisted_upon() -> None:
    messages = [{"role": "system", "content": LONG}, user(), assistant(), user(), assistant()]
    ctx = context(*messages)
    rejected(ctx, SystemInside, lambda: ctx.compact(1, 2, "S"))
    ctx = context(*messages)
    rejected(ctx, LastUserInside, lambda: ctx.remove(4, 5))
    ctx = context(*messages)
    ctx.compact(1, 2, "S", allow={"system", "larger"})
    ctx.remove(4, 5, allow={"last_user"})
    assert shape(ctx) == [(1, 2), (3, 3), (4, 5)]
    assert ctx.result_messages == [frame("S", 1, 2), assistant(), left_out(4, 5)]


def test_stand_ins_keep_the_calls_and_results_they_replace() -> None:
    ctx = context(user(), call("a"), result("a"), user())
    short = [
        {**call("a"), "tool_calls": [{**call("a")["tool_calls"][0], "function": {"name": "f", "arguments": "{}"}}]}
    ]
    rejected(ctx, IdsChanged, lambda: ctx.replace(2, 3, short))
    ctx = context(user(), call("a"), result("a"), user())
    ctx.replace(3, 3, [{**result("a"), "content": "cut"}])
    assert [m["content"] for m in ctx.result_messages if m] == [LONG, None, "cut", LONG]
    assert (attempts_of(ctx)[0].kind, ctx.elements[2].is_summary) == ("truncation", False)


def test_what_may_be_allowed_is_a_closed_list() -> None:
    ctx = context(*chat())
    with pytest.raises(cs.InvalidInput, match="larger"):
        ctx.compact(1, 2, "S", allow={"pairs"})
    ctx.compact(1, 1, LONG, allow="larger")


def test_safe_span_is_the_largest_inside() -> None:
    ctx = context(user(), call("a"), result("a"), assistant(), assistant(), call("b"), user())
    assert ctx.safe_span(1, 2) == Span(1, 1)
    assert ctx.safe_span(3, 6) == Span(4, 5)
    assert ctx.safe_span(1, 7) == Span(1, 5)
    assert ctx.safe_span(6, 6) is None
    assert ctx.safe_span(-5, 900) == Span(1, 5)
    assert ctx.safe_span(5, 4) is None
    ctx.compact(*Span(1, 5), "S")
    assert ctx.safe_span(2, 7) == Span(7, 7)


@pytest.mark.parametrize("value", [None, 5, b"text", ["text"]])
def test_a_summarizer_returns_text(value: Any) -> None:
    ctx = context(*chat())
    with pytest.raises(TypeError):
        ctx.compact(1, 2, lambda _elements: value)
    assert [(a.outcome, a.start_seq, a.end_seq) for a in attempts_of(ctx)] == [("failed", 1, 2)]


def test_a_summarizer_that_raises_leaves_a_failed_attempt_without_its_words() -> None:
    ctx = context(*chat())

    def summarize(_elements: Sequence[Element]) -> str:
        raise RuntimeError("secret")

    with pytest.raises(RuntimeError):
        ctx.compact(1, 2, summarize)
    [attempt] = attempts_of(ctx)
    where = f"test_context:{summarize.__code__.co_firstlineno + 1} in summarize"
    told = {"type": "RuntimeError", "text": "the summarizer failed", "at": where}
    assert (attempt.outcome, attempt.error) == ("failed", told)
    assert len(ctx.elements) == 8


def test_a_voided_callback_takes_back_what_it_planned_and_no_more() -> None:
    ctx = context(*chat(), folded=[(1, 2)])
    ctx.compact(3, 4, "A", allow={"larger"})
    mark = planner_of(ctx).begin("second")
    ctx.compact(1, 4, "B", allow={"larger"})
    with pytest.raises(EmptySummary):
        ctx.compact(5, 5, "")
    planner_of(ctx).void(mark, ZeroDivisionError("secret"))
    assert shape(ctx)[:3] == [(1, 2), (3, 4), (5, 5)]
    assert [(a.callback, a.outcome) for a in attempts_of(ctx)] == [
        ("test", "applied"), ("second", "rejected"), ("second", "failed"),
    ]  # fmt: skip
    assert "secret" not in str(attempts_of(ctx))


def test_a_voided_callback_whose_attempt_was_recorded_is_not_recorded_twice() -> None:
    ctx = context(*chat())
    mark = planner_of(ctx).begin("second")
    try:
        ctx.compact(1, 2, "")
    except EmptySummary as error:
        planner_of(ctx).void(mark, error)
    assert [a.outcome for a in attempts_of(ctx)] == ["rejected"]


def test_the_same_callback_is_not_offered_a_span_that_made_no_progress() -> None:
    ctx = context(*chat(), stalled=[Stalled("test", 1, 2)])
    asked: list[Any] = []
    with pytest.raises(NoProgress):
        ctx.compact(1, 2, asked.append)  # type: ignore[arg-type]
    assert (asked, attempts_of(ctx)) == ([], [])
    ctx.compact(1, 3, "another span")
    planner_of(ctx).begin("another callback")
    ctx.compact(5, 6, "S")


def test_the_elements_given_and_returned_are_not_the_plans_own() -> None:
    messages = chat(4)
    ctx = context(*messages)
    result = ctx.result_messages
    result.clear()
    assert len(ctx.result_messages) == 4


def test_a_summary_object_keeps_what_an_auditor_asks_for() -> None:
    ctx = context(*chat())
    block = {"role": "assistant", "content": [{"type": "compaction", "content": "kept"}]}
    summary = cs.Summary("short", model="m", usage={"input_tokens": 3}, replacement=(block,))
    ctx.compact(1, 4, summary)
    assert ctx.result_messages[0] == block
    assert attempts_of(ctx)[0].summary == summary


def test_an_async_summarizer_is_refused_where_nothing_awaits_it() -> None:
    async def summarize(_elements: Sequence[Element]) -> str:
        raise AssertionError

    ctx = context(*chat())
    with pytest.raises(TypeError, match="AsyncStore"):
        ctx.compact(1, 2, summarize)


def test_an_async_summarizer_is_awaited_and_several_may_run_at_once() -> None:
    ctx = context(*chat(), awaits=True)
    running = 0
    most = 0

    async def summarize(elements: Sequence[Element]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return f"from {elements[0].seq}"

    async def callback() -> None:
        await asyncio.gather(*[_wait(ctx.compact(s, s + 1, summarize)) for s in (1, 3, 5)])
        planner_of(ctx).finish()

    asyncio.run(callback())
    assert most == 3
    assert shape(ctx) == [(1, 2), (3, 4), (5, 6), (7, 7), (8, 8)]


async def _wait(planned: Any) -> None:
    await planned


def test_two_summaries_under_way_for_one_span_are_one_summary_and_one_conflict() -> None:
    ctx = context(*chat(), awaits=True)

    async def summarize(_elements: Sequence[Element]) -> str:
        await asyncio.sleep(0)
        return "S"

    async def callback() -> list[Any]:
        both = [_wait(ctx.compact(1, 2, summarize)), _wait(ctx.compact(2, 3, summarize))]
        return await asyncio.gather(*both, return_exceptions=True)

    assert [type(e) for e in asyncio.run(callback())] == [type(None), cs.SpanConflict]


def test_a_summary_nobody_awaited_is_an_error_of_the_callback() -> None:
    ctx = context(*chat(), awaits=True)

    async def summarize(_elements: Sequence[Element]) -> str:
        return "S"

    async def callback() -> None:
        planned = ctx.compact(1, 2, summarize)
        with pytest.raises(TypeError, match="await"):
            planner_of(ctx).finish()
        await planned

    asyncio.run(callback())


def test_a_strategy_learns_the_result_of_each_step() -> None:
    told: list[Any] = []

    class Two:
        def steps(self, _ctx: CompactionContext) -> Any:
            told.append((yield Ask(1, 2, "")))
            told.append((yield Ask(3, 4, "S", allow=frozenset({"larger"}))))
            told.append((yield Ask(5, 6)))

    ctx = context(*chat())
    run_strategy(ctx, Two())
    # Framed, the summary takes more than the two messages: a strategy must ask for that by name.
    assert [type(t) for t in told] == [EmptySummary, type(None), type(None)]
    assert [(a.kind, a.outcome) for a in attempts_of(ctx)] == [
        ("summary", "rejected"), ("summary", "applied"), ("removal", "applied"),
    ]  # fmt: skip


def test_by_default_a_strategys_framed_summary_must_be_smaller_too() -> None:
    ctx = context(*chat())

    class One:
        def steps(self, _ctx: CompactionContext) -> Any:
            yield Ask(1, 2, "short but framed")

    run_strategy(ctx, One())
    assert [(a.error or {})["type"] for a in attempts_of(ctx)] == ["NotSmaller"]


@pytest.mark.parametrize(
    ("given", "limit", "trigger", "target"),
    [
        ({"context_window": 1000}, 1000, 800, 500),
        ({"context_window": 4096, "reserve_output": 512, "overhead": 84}, 3500, 2800, 1750),
        ({"context_window": 1000, "trigger": 900, "target": 1.0 / 3}, 1000, 900, 333),
        ({"context_window": 1000, "trigger": 1.0, "target": 1}, 1000, 1000, 1),
    ],
)
def test_a_budget_counts_fractions_of_what_is_left(given: Any, limit: int, trigger: int, target: int) -> None:
    budget = cs.TokenBudget(**given)
    assert (budget.limit, budget.trigger_tokens, budget.target_tokens) == (limit, trigger, target)
    assert (budget.is_over(trigger), budget.is_over(trigger + 1)) == (False, True)
    assert (budget.fits(limit), budget.fits(limit + 1)) == (True, False)


@pytest.mark.parametrize(
    "given",
    [
        {"context_window": 0}, {"context_window": -1}, {"context_window": 1.5}, {"context_window": True},
        {"context_window": 10, "reserve_output": 10}, {"context_window": 10, "overhead": -1},
        {"context_window": 10, "trigger": 0.0}, {"context_window": 10, "trigger": 1.1},
        {"context_window": 10, "trigger": 11}, {"context_window": 10, "trigger": 0.4, "target": 0.5},
        {"context_window": 10, "trigger": "0.8"}, {"context_window": 10, "target": None},
        {"context_window": 10, "trigger": float("nan")},
    ],
)  # fmt: skip
def test_a_budget_that_means_nothing_is_refused(given: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        cs.TokenBudget(**given)


def test_the_last_user_message_is_the_users_own_and_not_a_summary() -> None:
    ctx = context(user(), assistant(), user(), assistant(), folded=[(3, 4)])
    rejected(ctx, LastUserInside, lambda: ctx.compact(1, 2, "S"))
    ctx.compact(3, 4, "S")


def test_safe_span_stands_not_between_a_call_and_its_late_result() -> None:
    ctx = context(user(), call("a"), user(), assistant(), result("a"), user())
    assert ctx.safe_span(2, 4) is None
    assert ctx.safe_span(1, 4) == Span(1, 1)
    ctx.remove(3, 4)


def test_a_summarizer_that_plans_over_its_own_span_conflicts_with_itself() -> None:
    ctx = context(*chat(8))

    def summarize(_elements: Sequence[Element]) -> str:
        ctx.compact(3, 6, "inner", allow={"larger"})
        return "outer"

    with pytest.raises(cs.SpanConflict):
        ctx.compact(1, 4, summarize, allow={"larger"})
    assert [(a.outcome, a.start_seq, a.end_seq) for a in attempts_of(ctx)] == [("applied", 3, 6)]


def test_a_context_shows_what_a_callback_may_use_and_no_more() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = reference.split("### CompactionContext\n")[1].split("\n### ")[0]
    documented = set(re.findall(r"^\| `(\w+)", section, re.MULTILINE))
    assert {name for name in dir(context(*chat())) if not name.startswith("_")} == documented
    assert documented == {
        "thread_id", "authority", "budget", "measured", "errors", "elements", "message_elements", "result_messages",
        "total_tokens", "tokens_before", "counter", "links", "count", "safe_span", "compact", "replace", "remove",
        "planned", "attempts", "from_messages",
    }  # fmt: skip
