"""Threads are compacted early when the provider's prompt cache is cold."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from support.faces import Face

from compaction_store import InvalidInput, NotConfigured, Summary, TokenBudget
from compaction_store.strategies import AssistantRuns, Pipeline, SlidingWindow, idle, over, thresholds
from compaction_store.strategies.thresholds import Threshold

LONG = "which goes on for quite some time " * 30
BUDGET = TokenBudget(10_000)


class Later:
    """A clock that is ten minutes ahead."""

    @staticmethod
    def now(zone: Any) -> datetime:
        return datetime.now(zone) + timedelta(minutes=10)


def talk(store: Face) -> None:
    who = ("user", "assistant", "assistant") * 4
    store.append("t", [{"role": role, "content": f"{i} {LONG}"} for i, role in enumerate(who)])


def test_fit_compacts_a_cold_thread_that_fits(store: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(store)
    window = SlidingWindow(Summary("old"), retain=2)
    when = over(fraction=0.1) & idle(minutes=5)
    assert store.fit("t", BUDGET, window, when=when).run is None, "the cache is warm"
    monkeypatch.setattr(thresholds, "datetime", Later)
    assert store.fit("t", BUDGET, window).run is None, "without when, the view is within the trigger"
    assert store.fit("t", BUDGET, window, when=over(fraction=0.9) & idle()).run is None, "it is too small"
    with pytest.raises(NotConfigured, match="has reached the threshold of when="):
        store.fit("t", BUDGET, when=when)
    view = store.fit("t", BUDGET, window, when=when)
    assert view.run is not None
    assert view.run.applied
    assert view.run[0].trigger == "forced"


@pytest.mark.parametrize("wrong", [5, "idle", lambda _: True, Threshold])
def test_when_must_be_a_threshold(store: Face, wrong: Any) -> None:
    talk(store)
    with pytest.raises(InvalidInput, match="when must be a threshold"):
        store.fit("t", BUDGET, when=wrong)


def test_strategies_wait_for_a_cold_cache(store: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(store)
    runs = AssistantRuns(Summary("run"), when=idle(minutes=5))
    pipeline = Pipeline(AssistantRuns(Summary("run")), when=idle(minutes=5))
    assert not store.compact("t", runs).applied
    assert not store.compact("t", pipeline).applied
    monkeypatch.setattr(thresholds, "datetime", Later)
    assert store.plan("t", pipeline).attempts != ()
    assert store.compact("t", runs).applied


def test_due_can_leave_out_threads_that_are_in_use(store: Face) -> None:
    talk(store)
    small = TokenBudget(500)
    assert [thread.thread_id for thread in store.due(small)] == ["t"]
    assert [thread.thread_id for thread in store.due(small, idle_minutes=0.000001)] == ["t"]
    assert list(store.due(small, idle_minutes=5)) == []


@pytest.mark.parametrize("wrong", [-1, True, "5", float("nan"), 10**9])
def test_a_wrong_time_is_refused(store: Face, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="idle_minutes must be a number from 0"):
        list(store.due(BUDGET, idle_minutes=wrong))
