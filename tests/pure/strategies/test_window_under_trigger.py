"""A sliding window with a budget gets the view below the trigger, or says why it cannot, and does not run in vain."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import pytest
from support.strategy_runs import COUNTER, Payload, attempts_of, committed, elements, run

from compaction_store import TokenBudget
from compaction_store.compaction.context import planner_of
from compaction_store.models import Element
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

TEXT = "the order service retries a payment when the gateway answers late and the ledger then shows two rows"
WORDS = TEXT.split()


def text(tokens: int, place: int) -> str:
    return f"Order {1000 + place % 17}: " + " ".join(itertools.islice(itertools.cycle(WORDS), tokens)) + "."


def spoken(role: str, tokens: int, place: int) -> Payload:
    return {"role": role, "content": text(tokens, place)}


def called(place: int, results: int, tokens: int) -> list[Payload]:
    ids = [f"c{place}-{n}" for n in range(results)]
    calls = [{"id": one, "type": "function", "function": {"name": "read", "arguments": "{}"}} for one in ids]
    made: list[Payload] = [{"role": "assistant", "content": text(15, place), "tool_calls": calls}]
    return made + [{"role": "tool", "tool_call_id": one, "content": text(tokens, place)} for one in ids]


def shapes() -> dict[str, list[Payload]]:
    """Returns 40 threads: chats and agents, with small and large prompts, tasks, turns and results."""
    made: dict[str, list[Payload]] = {}
    for prompt, task, size in itertools.product([0, 900, 3000], [20, 1500], [10, 70, 400]):
        head = [spoken("system", prompt, 0)] if prompt else []
        turns = [spoken(role, size, n) for n in range(4000 // size) for role in ("user", "assistant")]
        made[f"chat {prompt} {task} {size}"] = [*head, spoken("user", task, 1), *turns]
    for prompt, count, size in itertools.product([0, 1200], [1, 3], [40, 300, 1200, 2600]):
        head = [spoken("system", prompt, 0)] if prompt else []
        steps = [message for n in range(max(4, 9000 // (count * size))) for message in called(n, count, size)]
        made[f"agent {prompt} {count} {size}"] = [*head, spoken("user", 60, 1), *steps[:120]]
    made["only the user"] = [spoken("user", 80, n) for n in range(120)]
    made["a prompt above the trigger"] = [spoken("system", 3500, 0), *made["chat 0 20 70"]]
    made["a prompt above the limit"] = [spoken("system", 4500, 0), *made["chat 0 20 70"]]
    made["one long question"] = [spoken("user", 30, 0), spoken("assistant", 30, 0), spoken("user", 3500, 1)]
    made["long answers"] = [m for n in range(9) for m in (spoken("user", 20, n), spoken("assistant", 1500, n))]
    made["a long answer at the end"] = [*made["chat 0 20 70"][:60], spoken("assistant", 3000, 2)]
    return made


SHAPES = shapes()
BUDGET = TokenBudget(4000)
SUMMARIZERS: dict[str, Any] = {
    "rules": StateSummary, "short": lambda: lambda _: "They talked about an order.",
    "long": lambda: lambda found: text(min(900, found.tokens // 2), 0),
}  # fmt: skip


def total(view: list[Element]) -> int:
    return sum(element.tokens for element in view)


def conversation(messages: list[Payload]) -> Generator[list[Element], list[Element], None]:
    """Yields the view before each request, and is sent the view after it."""
    view: list[Element] = []
    for place, message in enumerate(messages, 1):
        one = elements([message])[0]
        view = [*view, one._replace(seq=place, end_seq=place, pos=place)]
        if message["role"] in {"user", "tool"}:
            view = yield view


def test_there_are_forty_shapes() -> None:
    assert len(SHAPES) == 40


@pytest.mark.parametrize("summarizer", SUMMARIZERS)
@pytest.mark.parametrize("retain", [6, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_view_is_below_the_trigger_or_the_reason_is_told(shape: str, retain: float, summarizer: str) -> None:
    runs = 0
    talk = conversation(SHAPES[shape])
    view = next(talk)
    while True:
        after = view
        if BUDGET.is_over(total(view)):
            runs += 1
            ctx = run(SlidingWindow(SUMMARIZERS[summarizer](), retain=retain), view, budget=BUDGET)
            after = committed(ctx)
            reason = planner_of(ctx).reason(tried=True)
            if BUDGET.is_over(ctx.total_tokens):
                assert "trigger" in reason or "nothing more" in reason or "too little" in reason
                assert reason not in {"compacted", "the callbacks found nothing to compact"}
            else:
                assert reason == "compacted"
            # A summary costs a model call and the prompt cache, so it must save enough for several requests.
            if attempts_of(ctx) and summarizer != "long":
                assert total(view) - total(after) >= 400, attempts_of(ctx)
        try:
            view = talk.send(after)
        except StopIteration:
            break
    assert runs


def test_a_tail_above_the_target_gives_way() -> None:
    messages = [spoken("user", 20, 0), *(m for n in range(5) for m in called(n, 1, 650)), spoken("user", 9, 9)]
    view = elements(messages)
    assert BUDGET.is_over(total(view))
    assert total(view[-9:]) > BUDGET.target_tokens
    ctx = run(SlidingWindow(StateSummary(), retain=9), view, budget=BUDGET)
    assert ctx.total_tokens <= (BUDGET.trigger_tokens + BUDGET.target_tokens) // 2
    assert ctx.result_messages[-3:] == messages[-3:]


def test_a_tail_that_fits_is_kept_whole() -> None:
    messages = [spoken(role, 40, n) for n in range(60) for role in ("user", "assistant")]
    view = elements(messages)
    ctx = run(SlidingWindow(StateSummary(), retain=12), view, budget=BUDGET)
    assert ctx.result_messages[-12:] == messages[-12:]
    assert ctx.total_tokens <= (BUDGET.trigger_tokens + BUDGET.target_tokens) // 2
    assert COUNTER.messages([m for m in ctx.result_messages if m]) == ctx.total_tokens


@pytest.mark.parametrize("target", [0.01, 100, 500, 1000])
@pytest.mark.parametrize(("count", "size"), [(10, 200), (40, 100), (100, 30), (200, 10)])
def test_a_trigger_far_below_the_window_is_reached_in_one_run(count: int, size: int, target: float) -> None:
    budget = TokenBudget(30_000, trigger=1000, target=target)
    messages = [spoken("user" if n % 2 == 0 else "assistant", size, n) for n in range(count)]
    ctx = run(SlidingWindow(StateSummary()), elements(messages), budget=budget)
    assert {attempt.outcome for attempt in attempts_of(ctx)} == {"applied"}
    assert not budget.is_over(ctx.total_tokens)
    assert planner_of(ctx).reason(tried=True) == "compacted"


@pytest.mark.parametrize("target", [0.01, 1000])
def test_what_must_stay_above_a_small_trigger_is_told_and_the_rest_is_folded(target: float) -> None:
    budget = TokenBudget(30_000, trigger=1000, target=target)
    # Long sentences: a summarizer that is given a few tokens would refuse to write.
    messages = [spoken("user" if n % 2 == 0 else "assistant", 700, n) for n in range(60)]
    ctx = run(SlidingWindow(StateSummary()), elements(messages), budget=budget)
    assert {attempt.outcome for attempt in attempts_of(ctx)} == {"applied"}
    assert ctx.total_tokens < 3000
    reason = planner_of(ctx).reason(tried=True)
    assert "still above the trigger" in reason
    assert "tokens must stay" in reason
    assert "the trigger is at 1000 tokens" in reason
