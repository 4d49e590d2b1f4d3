"""Ladder, ClearToolResults and SummaryTree as callbacks of a store: what is on record, and what comes back."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from support.faces import Face, Faces

from compaction_store import TokenBudget
from compaction_store.strategies import ClearToolResults, Ladder, Pipeline, SlidingWindow, SummaryTree

BUDGET = TokenBudget(context_window=10_000)


def words(count: int) -> str:
    return " ".join(["word"] * count)


def talk(turns: int, size: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"role": "system", "content": "You are terse."}]
    for turn in range(turns):
        made.append({"role": "user", "content": f"question {turn} {words(size)}"})
        made.append({"role": "assistant", "content": f"answer {turn} {words(size)}"})
    return made


def short(_elements: Any) -> str:
    return "They talked."


def of(faces: Faces, summarize: Any) -> Any:
    """Returns the summarizer, as an async function for an AsyncStore."""
    if faces.kind == "sync":
        return summarize

    async def summarize_later(elements: Any) -> Any:
        await asyncio.sleep(0)
        return summarize(elements)

    return summarize_later


def test_a_ladder_leaves_one_record_for_each_span(faces: Faces, store: Face) -> None:
    messages = talk(40, 600)
    store.append("t", messages)
    run = store.compact("t", Ladder(of(faces, short), reserve=1000, part_chars=None), budget=BUDGET)
    assert run.view.tokens <= 4000
    spans = sorted((record.start_seq, record.end_seq) for record in run)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))
    summary = run[0]
    assert (summary.kind, summary.start_seq, summary.end_seq) == ("summary", 2, 66)
    assert summary.summary_text == "They talked."
    assert summary.reason == "old messages summarized"
    assert summary.callback is not None
    assert summary.callback.startswith("Ladder(summarize=")
    truncations = [record for record in run if record.kind == "truncation"]
    assert truncations
    assert all("tokens" in (record.reason or "") for record in truncations)
    assert [message.payload for message in store.replay("t")] == messages
    assert store.audit.verify("t").findings == ()
    # The view fits: there is nothing more to do.
    assert (
        len(store.compact("t", Ladder(of(faces, short), reserve=1000, part_chars=None), budget=BUDGET, force=True)) == 0
    )


def test_a_ladder_without_a_summarizer_removes(store: Face) -> None:
    store.append("t", [{"role": "user", "content": words(300)} for _ in range(100)])
    run = store.compact("t", Ladder(), budget=TokenBudget(context_window=8000))
    assert {record.kind for record in run} == {"removal"}
    # It removes down to the trigger, so that the next requests need no removal.
    assert 4000 < run.view.tokens <= 6400
    assert store.fit("t", TokenBudget(context_window=8000)).tokens <= 6400


@pytest.mark.parametrize("window", [8000, 32_000])
@pytest.mark.parametrize("kind", ["none", "summaries", "last of several"])
def test_a_system_message_that_fits_is_not_cut(faces: Faces, store: Face, window: int, kind: str) -> None:
    budget = TokenBudget(window)
    prompt = {"role": "system", "content": words(window * 64 // 100)}
    store.append("t", [prompt, *talk(window // 2000, 180)[1:]])
    assert budget.trigger_tokens < store.view("t").tokens <= budget.limit
    summarize = of(faces, short)
    made = {
        "none": Ladder(),
        "summaries": Ladder(summarize),
        "last of several": Pipeline(ClearToolResults(), SlidingWindow(summarize, retain=6), Ladder()),
    }
    run = store.compact("t", made[kind], budget=budget)
    assert [record for record in run if record.kind != "summary"] == []
    assert run.view.elements[0].message == prompt


def test_a_failing_summarizer_leaves_a_record_and_the_ladder_goes_on(faces: Faces, store: Face) -> None:
    def fails(_elements: Any) -> str:
        raise TimeoutError("secret")

    store.append("t", talk(40, 200))
    run = store.compact("t", Ladder(of(faces, fails), reserve=1000), budget=BUDGET)
    assert (run[0].kind, run[0].outcome, run[0].start_seq, run[0].end_seq) == ("summary", "failed", 2, 67)
    assert "secret" not in str(run[0].body)
    assert any(record.outcome == "applied" for record in run)
    assert run.view.tokens <= BUDGET.trigger_tokens


def test_part_after_part_of_a_long_old_part(faces: Faces, store: Face) -> None:
    calls = 0

    def summarize(_elements: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise TimeoutError
        return f"part {calls}"

    store.append("t", talk(40, 200))
    run = store.compact("t", Ladder(of(faces, summarize), part_chars=15_000, reserve=0), budget=BUDGET)
    assert [(record.kind, record.outcome) for record in run[:2]] == [("summary", "failed"), ("summary", "applied")]
    assert run[1].summary_text == "part 1\n\npart 2"
    assert run[1].body is not None
    assert run[1].coverage == {"parts": [{}, {}]}


def test_an_async_summarizer_needs_an_async_store(faces: Faces, store: Face) -> None:
    async def summarize(_elements: Any) -> str:
        return "notes"

    for strategy in (Ladder(summarize), SummaryTree(summarize)):
        name = type(strategy).__name__
        store.append(name, talk(40, 200))
        if faces.kind == "async":
            assert strategy.needs_async
            assert store.compact(name, strategy, budget=BUDGET).applied
        else:
            try:
                store.compact(name, strategy, budget=BUDGET)
            except TypeError:
                continue
            raise AssertionError("it was taken")


def test_cleared_results_keep_their_calls(store: Face) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for n in range(6):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": words(200)})
    store.append("t", messages)
    run = store.compact("t", ClearToolResults(keep=2))
    assert [(record.kind, record.start_seq) for record in run] == [("truncation", seq) for seq in (3, 5, 7, 9)]
    assert run.view.messages[2]["content"].startswith("[Result of look cleared: 2")
    assert run.view.messages[2]["content"].endswith("seq 3]")
    assert run.view.messages[-3:] == messages[-3:]
    assert len(store.compact("t", ClearToolResults(keep=2))) == 0
    # Cleared results come back when the record is revoked.
    store.revoke("t", run[0].number)
    assert store.view("t").messages[2] == messages[2]


def test_a_tree_grows_over_several_runs(faces: Faces, store: Face) -> None:
    tree = SummaryTree(of(faces, short), leaf_tokens=500, fan_in=3, keep_recent=4)
    budget = TokenBudget(context_window=3000)
    for _ in range(12):
        store.append("t", [message for message in talk(5, 60) if message["role"] != "system"])
        store.compact("t", tree, budget=budget)
        assert store.view("t").tokens < 3000
    records = list(store.compactions("t"))
    levels = {record.callback.rpartition(" ")[2] for record in records}
    assert {"1", "2"} <= levels
    merged = next(record for record in records if record.callback.endswith("level 2"))
    assert len(merged.inputs) >= 3
    assert store.audit.verify("t").findings == ()
    assert len(list(store.replay("t"))) == 120


def test_a_window_gets_below_the_trigger_or_says_why_not(faces: Faces, store: Face) -> None:
    budget = TokenBudget(8000)
    window = SlidingWindow(of(faces, short), retain=20)
    store.append("t", talk(20, 180))
    assert budget.is_over(store.view("t").tokens)
    run = store.compact("t", window, budget=budget)
    assert (run.reason, budget.is_over(run.view.tokens)) == ("compacted", False)
    # The next request needs no further run.
    store.append("t", talk(1, 180)[1:])
    assert len(store.compact("t", window, budget=budget)) == 0
    prompt = {"role": "system", "content": words(7000)}
    store.append("u", [prompt, *talk(2, 50)[1:]])
    run = store.compact("u", window, budget=budget)
    assert len(run) == 0
    assert "tokens must stay" in run.reason
    assert "trigger" in run.reason
