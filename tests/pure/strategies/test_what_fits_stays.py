"""A ladder removes messages and cuts system messages only if the view would not fit otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.strategy_runs import COUNTER, Payload, attempts_of, committed, elements, run

from compaction_store import TokenBudget
from compaction_store.models import Element
from compaction_store.strategies import ClearToolResults, Ladder, Pipeline, SlidingWindow, compress_context
from compaction_store.summarizers import StateSummary

FLOOR = 128
# The first and the last message, the last message of the user and a summary, each cut as far as possible.
REST = 5 * (FLOOR + 60)
LADDERS: dict[str, Any] = {
    "none": Ladder,
    "state": lambda: Ladder(StateSummary()),
    "short": lambda: Ladder(lambda _: "They talked."),
    "recent tokens": lambda: Ladder(StateSummary(), keep_recent_tokens=300),
    "pipeline": lambda: Pipeline(ClearToolResults(), SlidingWindow(StateSummary(), retain=6), Ladder()),
}


def text(tokens: int, of: int) -> str:
    return f"{of}: " + "word " * tokens


def thread(prompt: int, turns: list[tuple[int, int, int]]) -> list[Payload]:
    made: list[Payload] = [{"role": "system", "content": text(prompt, 0)}]
    for place, (asked, answered, found) in enumerate(turns, 1):
        made.append({"role": "user", "content": text(asked, place)})
        if found:
            call = {"id": f"c{place}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            made.append({"role": "assistant", "content": None, "tool_calls": [call]})
            made.append({"role": "tool", "tool_call_id": f"c{place}", "content": text(found, place)})
        made.append({"role": "assistant", "content": text(answered, place)})
    return [*made, {"role": "user", "content": "Go on."}]


SIZE = st.sampled_from([3, 20, 60, 150, 400])
TURNS = st.lists(st.tuples(SIZE, SIZE, st.sampled_from([0, 0, 200, 900])), min_size=1, max_size=30)
SHARE = st.floats(0.01, 1.05)


def total(view: list[Element]) -> int:
    return sum(element.tokens for element in view)


@settings(max_examples=60, deadline=None)
@given(share=SHARE, turns=TURNS, window=st.sampled_from([1500, 4000, 8000]), name=st.sampled_from(sorted(LADDERS)))
@example(share=0.64, turns=[(40, 40, 0)] * 16, window=8000, name="none")
@example(share=0.45, turns=[(40, 40, 0)] * 30, window=8000, name="state")
@example(share=0.64, turns=[(40, 40, 0)] * 16, window=8000, name="pipeline")
def test_what_fits_the_window_stays(share: float, turns: list[tuple[int, int, int]], window: int, name: str) -> None:
    budget = TokenBudget(window)
    messages = thread(int(share * window), turns)
    view = elements(messages)
    fits, prompt = budget.fits(total(view)), view[0].tokens
    ctx = run(LADDERS[name](), view, budget=budget)
    done = [attempt for attempt in attempts_of(ctx) if attempt.outcome == "applied"]
    removed = [a for a in done if a.kind == "removal"]
    if fits:
        assert removed == []
    if fits or prompt + REST <= budget.limit:
        assert ctx.result_messages[0] == messages[0]
    # What can fit does fit.
    if prompt + REST <= budget.limit:
        assert budget.fits(ctx.total_tokens)


@settings(max_examples=40, deadline=None)
@given(share=SHARE, turns=TURNS, target=st.sampled_from([1500, 4000]), name=st.sampled_from([None, "text", "rules"]))
@example(share=0.25, turns=[(60, 3, 900), (3, 3, 0), (3, 3, 0), (3, 3, 200), (3, 3, 200)], target=1500, name="rules")
def test_a_plain_list_keeps_its_system_message_too(
    share: float, turns: list[tuple[int, int, int]], target: int, name: str | None
) -> None:
    client: Any = {None: None, "text": lambda _: "They talked.", "rules": StateSummary()}[name]
    messages = thread(int(share * target), turns)
    prompt = COUNTER.messages(messages[:1])
    result = compress_context(messages, target, client=client, reserve=0)
    if prompt + REST <= target:
        assert result.messages[0] is messages[0]
        assert result.error is None
    elif result.messages[0] is not messages[0]:
        # All that may go is gone or as short as it can be, and the system message is the last to be cut.
        assert prompt + 3 * 2 > target - REST


@pytest.mark.parametrize("name", ["none", "pipeline"])
def test_removals_come_in_batches_and_only_above_the_limit(name: str) -> None:
    budget = TokenBudget(3000)
    view: list[Element] = []
    runs = removals = 0
    for turn in range(150):
        message: Payload = {"role": ("user", "assistant")[turn % 2], "content": text(60, turn)}
        view.append(elements([message])[0]._replace(seq=turn + 1, end_seq=turn + 1))
        if not budget.is_over(total(view)):
            continue
        before = view
        ctx = run(LADDERS[name](), view, budget=budget)
        view = committed(ctx)
        runs += 1
        if [a for a in attempts_of(ctx) if a.kind == "removal"]:
            removals += 1
            assert not budget.fits(total(before))
            assert total(view) <= budget.trigger_tokens
        assert budget.fits(total(view))
    assert runs
    assert removals <= 150 / 12
