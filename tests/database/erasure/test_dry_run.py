"""A plan: what a compaction would do, with nothing written."""

from __future__ import annotations

from typing import Any

import pytest
from support.faces import Face

import compaction_store as cs
from compaction_store import Summary
from compaction_store.errors import NotSmaller
from compaction_store.strategies import AssistantRuns

_LONG = "The tide tables say high water is at seven, and again at half past nineteen, by the old pier. " * 4


def _filled(store: Face) -> None:
    store.append("t", [{"role": "user" if i % 4 == 0 else "assistant", "content": f"{i}: {_LONG}"} for i in range(12)])
    store.append("t", {"role": "user", "content": "and now?"})


def test_a_plan_is_what_the_compaction_then_does_and_writes_nothing(store: Face) -> None:
    _filled(store)
    before = store.view("t")
    strategy = AssistantRuns(Summary("Three reports on the tides."))
    plan = store.plan("t", strategy)
    assert store.thread("t").last_pos == before.pos
    assert list(store.compactions("t")) == []
    assert plan.before == before
    run = store.compact("t", strategy)
    assert [(a.kind, a.outcome, a.start_seq, a.end_seq, a.tokens_after) for a in plan.attempts] == [
        (r.kind, r.outcome, r.start_seq, r.end_seq, r.tokens_after) for r in run.records
    ]
    assert plan.after.messages == run.view.messages
    assert plan.after.tokens == run.view.tokens < plan.before.tokens
    assert (plan.reason, plan.errors) == ("compacted", ())


def test_a_plan_runs_nothing_on_a_view_that_is_within_the_budget_unless_forced(store: Face) -> None:
    _filled(store)
    calls = []

    def callback(ctx: cs.CompactionContext) -> None:
        calls.append(ctx.budget)

    budget = cs.TokenBudget(100_000)
    plan = store.plan("t", callback, budget=budget)
    assert (plan.attempts, plan.reason, plan.after, calls) == ((), "the view is within its budget", plan.before, [])
    assert store.plan("t", callback, budget=budget, force=True).reason == "the callbacks found nothing to compact"
    assert calls == [budget]


def test_a_plan_reports_failures_and_refusals(store: Face) -> None:
    _filled(store)

    def refused(ctx: cs.CompactionContext) -> None:
        ctx.compact(2, 4, _LONG * 20)

    def broken(_: cs.CompactionContext) -> None:
        raise ValueError("no such luck")

    plan = store.plan("t", refused, broken)
    assert [(a.outcome, (a.error or {})["type"]) for a in plan.attempts] == [
        ("rejected", "NotSmaller"), ("failed", "ValueError"),
    ]  # fmt: skip
    assert [type(error) for error in plan.errors] == [NotSmaller, ValueError]
    assert plan.after == plan.before
    assert "tide" not in repr(plan)


def test_a_plan_uses_the_registered_callbacks_and_refuses_what_compact_refuses(store: Face) -> None:
    _filled(store)
    assert store.plan("t").reason == "no callback is registered"
    store.on_compact(AssistantRuns(Summary("Tides."), first_only=True))
    assert [(a.start_seq, a.end_seq) for a in store.plan("t").attempts] == [(2, 4)]
    wrong: Any = 5
    with pytest.raises(TypeError, match="callable or a strategy"):
        store.plan("t", wrong)
    with pytest.raises(cs.ThreadNotFound):
        store.plan("other")

    def crossing(ctx: cs.CompactionContext) -> None:
        ctx.compact(2, 3, "tides")
        ctx.compact(3, 4, "tides")

    with pytest.raises(cs.SpanConflict):
        store.plan("t", crossing)
