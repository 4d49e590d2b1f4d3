"""Threads of every kind are evaluated, or left out for a reason: forks, erasures, entries of later releases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.handmade_bundles import Thread
from support.superuser_edits import as_role

import compaction_store as cs
from compaction_store import tokens
from compaction_store.evaluation import RECORDED, Evaluation, Policy, evaluate, read_thread
from compaction_store.strategies import SlidingWindow
from compaction_store.summarizers import StateSummary

COUNTER = tokens.bytes_over_four()
BUDGET = cs.TokenBudget(900)


def conversation(count: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for turn in range(count):
        rule = " Never delete the backups." if turn == 1 else ""
        made.append({"role": "user", "content": f"Where is ORD-{turn % 5:04d}?{rule} {'It is late. ' * 12}"})
        made.append({"role": "assistant", "content": f"ORD-{turn % 5:04d} was sent. {'It is on its way. ' * 12}"})
    return made


def strategy() -> Any:
    return SlidingWindow(StateSummary(), retain=4)


def evaluated(store: cs.Reader, *names: str) -> Evaluation:
    policies: list[Policy | str] = [RECORDED, Policy("window", (strategy(),), BUDGET)]
    return evaluate((read_thread(store, name) for name in names), policies, counter=COUNTER)


@pytest.fixture
def store(url: str) -> Any:
    with cs.Store.open(url, counter=COUNTER) as opened:
        yield opened


def filled(store: cs.Store, name: str, turns: int = 14) -> None:
    for place, message in enumerate(conversation(turns)):
        if place % 2 and place > 8:
            store.compact(name, strategy(), budget=BUDGET)
        store.append(name, message)


def test_a_fork_is_evaluated_as_a_thread_with_all_its_messages(store: cs.Store) -> None:
    filled(store, "parent")
    [at] = [message.pos for message in store.replay("parent") if message.seq == 20]
    store.fork("parent", "child", at=at)
    for message in conversation(4):
        store.append("child", message)
    found = evaluated(store, "parent", "child")
    assert (found.threads, found.skipped) == (2, {})
    runs = {run.thread_id: run for run in found.of("window").runs}
    assert len(runs["child"].calls) == 10 + 4
    assert runs["child"].folds
    recorded = {run.thread_id: run for run in found.of(RECORDED).runs}
    assert recorded["parent"].folds


@pytest.mark.parametrize("what", ["message", "span", "thread"])
def test_what_was_erased_is_left_out_with_its_reason(store: cs.Store, what: str) -> None:
    filled(store, "t")
    filled(store, "whole")
    if what == "thread":
        store.custody.erase("t", reason="asked for")
        with pytest.raises(cs.ThreadNotFound):
            read_thread(store, "t")
        return
    store.custody.redact("t", 3 if what == "message" else range(3, 7), reason="asked for")
    found = evaluated(store, "t", "whole")
    assert (found.threads, found.skipped) == (1, {"some of its messages were erased": 1})


def test_an_entry_of_a_later_release_leaves_a_thread_out_only_if_it_changes_views(store: cs.Store) -> None:
    made = {}
    for name, critical in (("critical", True), ("harmless", False)):
        made[name] = Thread(thread_id=name)
        for place in range(6):
            role = "assistant" if place % 2 else "user"
            made[name].message(f'{{"role":"{role}","content":"message {place}"}}')
        made[name].event("later_kind", '{"reason":"r"}', critical=critical)
        store.load.bundle(made[name].lines())
    found = evaluated(store, "critical", "harmless")
    assert (found.threads, found.skipped) == (1, {"a newer release wrote an entry that changes views": 1})


def test_an_application_reads_and_finds_the_same_with_few_statements(store: cs.Store, url: str) -> None:
    for turns in (14, 60):
        filled(store, f"of {turns}", turns)
    mine = evaluated(store, "of 14", "of 60").as_dict()
    counted = Counter[str]()
    with cs.Reader.open(as_role(url, "compaction_store_app")) as reader:
        call = reader._db.call

        def count(query: Any, *arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return call(query, *arguments, **options)

        reader._db.call = count  # type: ignore[method-assign, assignment]
        for name in ("of 14", "of 60"):
            read_thread(reader, name)
        del reader._db.call
        assert evaluated(reader, "of 14", "of 60").as_dict() == mine
    # Pages of messages, records and events: no statement for each message or record.
    assert max(counted.values()) <= 12
    assert counted["of 60"] <= counted["of 14"] + 3
