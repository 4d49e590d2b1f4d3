"""Every planner takes steps and memory in proportion to the thread, and no more."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from support.strategy_runs import Payload, elements, run

from compaction_store import TokenBudget
from compaction_store.strategies import (
    AssistantRuns,
    ClearToolResults,
    Ladder,
    Pipeline,
    SlidingWindow,
    SummaryTree,
    compress_context,
    over,
    sliding_window,
)
from compaction_store.tokens import from_callable

COUNTER = from_callable(lambda message: len(json.dumps(message)) // 4)
BUDGET = TokenBudget(context_window=20_000)


def thread(count: int) -> list[Payload]:
    turn: list[Payload] = []
    for n in range(count // 5):
        turn += [
            {"role": "user", "content": f"Question {n}: " + "please look at the file and say what is in it. " * 3},
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{n}", "name": "read", "input": {"n": n}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "a line\n" * 60}]},
            {"role": "assistant", "content": "It says that the thing is so and so. " * 4},
            {"role": "assistant", "content": "And more: " + "words and words. " * 5},
        ]
    return turn


def short(_elements: Any) -> str:
    return "What was said there."


def on_a_context(strategy: Any) -> Callable[[list[Payload]], object]:
    return lambda messages: run(strategy, elements(messages, COUNTER), budget=BUDGET, counter=COUNTER).elements


window = SlidingWindow(short, threshold=over(tokens=3_000), retain=20)
PLANNERS: dict[str, Callable[[list[Payload]], object]] = {
    "assistant runs": on_a_context(AssistantRuns(short)),
    "sliding window": on_a_context(window),
    "ladder": on_a_context(Ladder(short)),
    "ladder, no summarizer": on_a_context(Ladder()),
    "clear tool results": on_a_context(ClearToolResults(keep=3)),
    "summary tree": on_a_context(SummaryTree(short, leaf_tokens=1_000, fan_in=8)),
    "pipeline": on_a_context(Pipeline(ClearToolResults(keep=3), window)),
    "compress_context": lambda messages: compress_context(messages, 5_000, counter=COUNTER),
    "sliding_window": lambda messages: sliding_window(
        messages,
        summarize=lambda _items: {"role": "user", "content": "So it was."},
        threshold=over(tokens=3_000),
        count=lambda message: len(json.dumps(message)) // 4,
    ),
}  # fmt: skip


def steps(plan: Callable[[], object]) -> int:
    """Counts the calls of functions, both in Python and in C."""
    count = 0

    def tick(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(tick)
    try:
        plan()
    finally:
        sys.setprofile(before)
    return count


def peak(plan: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        plan()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", PLANNERS)
def test_four_times_the_thread_takes_four_times_the_steps_and_the_memory(name: str) -> None:
    plan = PLANNERS[name]
    plan(thread(50))
    short_thread, long_thread = thread(1_000), thread(4_000)
    assert steps(lambda: plan(long_thread)) < 4.6 * steps(lambda: plan(short_thread))
    assert peak(lambda: plan(long_thread)) < 4.6 * peak(lambda: plan(short_thread))
