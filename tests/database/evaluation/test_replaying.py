"""A replay compacts where a store would, and finds the same: each thread is run twice, in a store and in memory."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import compaction_store as cs
from compaction_store import tokens
from compaction_store.evaluation import RECORDED, Policy, Replayed, evaluate, read_thread
from compaction_store.strategies import AssistantRuns, ClearToolResults, Ladder, Pipeline, SlidingWindow, idle
from compaction_store.summarizers import StateSummary

COUNTER = tokens.bytes_over_four()
BUDGET = cs.TokenBudget(2500)
STRATEGIES: dict[str, Callable[[], Any]] = {
    "sliding-window": lambda: SlidingWindow(StateSummary(), retain=6),
    "ladder": lambda: Ladder(StateSummary()),
    "clear-tool-results": ClearToolResults,
    "assistant-runs": lambda: AssistantRuns(StateSummary(), tool_results=True, retain=6),
}


def conversation(seed: int, turns: int = 40) -> list[dict[str, Any]]:
    """A user, an agent that reads files, and names that come again."""
    dice = random.Random(seed)
    made: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful assistant."}]
    for number in range(turns):
        order = f"ORD-{dice.randrange(30):04d}"
        rule = " Never delete the backups." if number == 3 else ""
        made.append({"role": "user", "content": f"What is with {order}?{rule} {'please ' * dice.randrange(20)}"})
        path = f"src/mod_{dice.randrange(9)}.py"
        function = {"name": "read_file", "arguments": json.dumps({"path": path})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        made.append({"role": "assistant", "content": None, "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"{order} " + "row 17 of it " * 20})
        made.append({"role": "assistant", "content": f"{order} is in {path}. {'It is fine. ' * dice.randrange(9)}"})
    return made


def run_in_a_store(store: cs.Store, name: str, messages: list[dict[str, Any]], strategy: Any) -> None:
    """Appends the messages, and compacts before each reply, as an application does."""
    before = None
    for message in messages:
        if message["role"] == "assistant" and before not in ("assistant", None):
            store.compact(name, strategy, budget=BUDGET)
        store.append(name, message)
        before = message["role"]


def folds(run: Replayed) -> list[tuple[Any, ...]]:
    return [(f.start_seq, f.end_seq, f.kind, f.tokens_before, f.tokens_after, f.first_call) for f in run.folds]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_replay_is_what_a_store_would_have_done(url: str, strategy: str) -> None:
    messages = conversation(7)
    with cs.Store.open(url, counter=COUNTER) as store:
        run_in_a_store(store, "t", messages, STRATEGIES[strategy]())
        store.append("plain", messages)
        recorded, plain = read_thread(store, "t"), read_thread(store, "plain")
    policy = Policy(strategy, (STRATEGIES[strategy](),), BUDGET)
    [done] = evaluate([recorded], [RECORDED], counter=COUNTER).policies
    [tried] = evaluate([plain], [policy], counter=COUNTER).policies
    assert len(folds(done.runs[0])) > 2
    assert folds(tried.runs[0]) == folds(done.runs[0])
    assert tried.runs[0].calls == done.runs[0].calls
    assert tried.outcomes == done.outcomes
    assert tried.rates == done.rates
    assert tried.rounds == done.rounds
    assert {kind: rate.asked for kind, rate in tried.rates.items()}["needed_later"] > 10


def test_a_replay_has_the_time_of_the_messages(url: str) -> None:
    with cs.Store.open(url, counter=COUNTER) as store:
        store.append("t", conversation(7))
        thread = read_thread(store, "t")
    later = replace(thread, messages=tuple(_a_day_earlier(message) for message in thread.messages))
    warm = Pipeline(SlidingWindow(StateSummary(), retain=6), when=idle(minutes=5))
    [done] = evaluate([later], [Policy("cold", (warm,), BUDGET)], counter=COUNTER).policies
    assert folds(done.runs[0]) == [], "the messages were written one after the other, a day ago"


def _a_day_earlier(message: Any) -> Any:
    return message._replace(created_at=message.created_at - timedelta(days=1))


def test_revocations_and_rewinds_are_replayed(url: str) -> None:
    with cs.Store.open(url, counter=COUNTER) as store:
        store.append("t", conversation(1, turns=6)[1:])
        store.compact("t", lambda ctx: ctx.compact(1, 8, "An order was looked at."))
        store.revoke("t", 1)
        store.rewind("t", 20)
        store.append("t", [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Nothing."}])
        thread = read_thread(store, "t")
        view = store.view("t")
    [result] = evaluate([thread], [RECORDED], counter=COUNTER).policies
    [run] = result.runs
    assert [(f.record, f.start_seq, f.end_seq) for f in run.folds] == [(1, 1, 8)]
    assert run.ends == {1: len(run.calls) - 1}
    # What a user took back is not lost.
    assert {probe.record for probe in run.probes} <= {1}
    assert run.calls[-1].tokens == view.tokens - thread.messages[-1].tokens


def test_threads_with_erased_messages_are_left_out_and_counted(url: str) -> None:
    with cs.Store.open(url, counter=COUNTER) as store:
        for name in ("a", "b"):
            store.append(name, conversation(1, turns=3))
        store.custody.redact("b", 2, reason="asked for")
        found = evaluate((read_thread(store, name) for name in "ab"), [RECORDED], counter=COUNTER)
    assert (found.threads, found.skipped) == (1, {"some of its messages were erased": 1})


def test_a_failing_callback_is_counted_and_the_replay_goes_on(url: str) -> None:
    def breaks(_ctx: cs.CompactionContext) -> None:
        raise RuntimeError("no")

    with cs.Store.open(url, counter=COUNTER) as store:
        store.append("t", conversation(2))
        thread = read_thread(store, "t")
    [result] = evaluate([thread], [Policy("breaks", (breaks,), BUDGET)], counter=COUNTER).policies
    assert result.outcomes["failed"] == result.errors["RuntimeError"] > 5
    assert result.over_window > 5
    assert result.rates == {}
