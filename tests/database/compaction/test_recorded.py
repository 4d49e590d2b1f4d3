"""`on_recorded` gets each record that a store writes, once it is committed, and can neither undo nor hide it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import Face, Faces

import compaction_store as cs

SECRET = "pelican"
MESSAGES = [{"role": "user", "content": f"{SECRET} {i} " * 9} for i in range(8)]
BUDGET = cs.TokenBudget(120, trigger=0.5, target=0.4)


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(ctx.elements[0].seq, ctx.elements[-2].end_seq, "short")


def several(ctx: cs.CompactionContext) -> None:
    ctx.remove(1, 1)
    ctx.remove(3, 4)


WRITES: dict[str, Callable[[Face], Any]] = {
    "compact": lambda store: store.compact("t", fold),
    "fit": lambda store: store.fit("t", BUDGET, fold),
    "send": lambda store: store.send("t", lambda _: "so", BUDGET, fold),
    "rewind": lambda store: store.rewind("t", 3),
    "clear": lambda store: store.clear("t"),
    "a rejected attempt": lambda store: store.compact("t", lambda ctx: ctx.compact(1, 2, "long " * 500)),
    "a failed attempt": lambda store: store.compact("t", lambda ctx: ctx.compact(1, 2, lambda _: 1 / 0)),
    "several": lambda store: store.compact("t", several),
}


@pytest.mark.parametrize("what", WRITES)
def test_each_record_is_told_once_after_its_commit(faces: Faces, url: str, what: str) -> None:
    store = faces.open(url)
    store.append("t", MESSAGES)
    told: list[tuple[cs.Compaction, int]] = []
    with cs.Store.open(url) as other:

        def heard(record: cs.Compaction) -> None:
            # Another connection sees it, so it is committed.
            told.append((record, other.compaction("t", record.number).number))

        store.on_recorded(heard)
        WRITES[what](store)
        written = list(other.compactions("t"))
    assert written
    assert [(record.number, number) for record, number in told] == [(r.number, r.number) for r in written]
    assert [record.outcome for record, _ in told] == [record.outcome for record in written]


def test_revocations_repairs_and_adoptions_are_told_too(faces: Faces, url: str) -> None:
    store = faces.open(url)
    store.append("t", MESSAGES)
    told: list[str] = []
    store.on_recorded(lambda record: told.append(record.kind))
    store.compact("t", fold)
    store.repair("t", 1, lambda _: "shorter")
    store.revoke("t", 3)
    store.adopt("t", [{"role": "user", "content": "all"}], view=store.view("t"))
    assert told == ["summary", "revocation", "summary", "revocation", "adoption"]


def test_an_error_is_logged_by_its_type_and_hides_nothing(
    faces: Faces, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = faces.open(url)
    store.append("t", MESSAGES)
    told = []

    def broken(record: cs.Compaction) -> None:
        raise ValueError(f"{SECRET} {record.number}")

    store.on_recorded(broken)
    store.on_recorded(lambda record: told.append(record.number))
    with caplog.at_level(logging.DEBUG, "compaction_store"):
        run = store.compact("t", fold)
    assert (run.applied, told) == (True, [1])
    assert store.view("t").elements[0].number == 1
    assert "a callback of on_recorded failed: ValueError after record 1 (thread 't')" in caplog.text
    assert "in broken" in caplog.text
    assert SECRET not in caplog.text


def test_lines_of_a_run_that_folded_say_so(store: Face, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: cs.CompactionContext) -> None:
        raise ValueError(SECRET)

    store.append("t", MESSAGES)
    store.compact("t", broken)
    store.compact("t", fold, broken)
    before, after = caplog.records
    assert not hasattr(before, "gen_ai.conversation.compacted")
    assert getattr(after, "gen_ai.conversation.compacted") is True


def test_stores_of_other_tenants_tell_it_too_and_those_that_write_nothing_do_not(faces: Faces, url: str) -> None:
    store = faces.open(url)
    told: list[str] = []
    store.on_recorded()(lambda record: told.append(record.thread_id))
    store.append("t", MESSAGES)
    store.compact("t", lambda _: None)
    assert told == []
    other = store.of_tenant("other")
    other = Face(other, store.runner)
    other.append("u", MESSAGES)
    other.compact("u", fold)
    assert told == ["u"]


def test_an_async_callback_is_awaited_by_an_async_store_and_refused_by_another(faces: Faces, url: str) -> None:
    store = faces.open(url)
    store.append("t", MESSAGES)
    told: list[int] = []

    async def heard(record: cs.Compaction) -> None:
        told.append(record.number)

    if faces.kind == "sync":
        with pytest.raises(cs.errors.InvalidCallback, match="must be synchronous"):
            store.on_recorded(heard)
        return
    store.on_recorded(heard)
    store.compact("t", fold)
    assert told == [1]


@pytest.mark.parametrize("wrong", [None, 5, "x", int, lambda: None, lambda _a, _b: None])
def test_what_is_no_callback_is_refused(store: Face, wrong: Any) -> None:
    with pytest.raises(cs.errors.InvalidCallback, match="a callback must"):
        store.on_recorded(wrong)


def test_a_view_that_does_not_fit_says_why_it_was_not_compacted(
    faces: Faces, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = faces.open(url)
    store.append("t", MESSAGES * 3)

    def stale(ctx: cs.CompactionContext) -> None:
        with cs.Store.open(url) as other:
            other.compact("t", lambda own: own.remove(1, 2))
        fold(ctx)

    with caplog.at_level(logging.DEBUG, "compaction_store"), pytest.raises(cs.BudgetExceeded, match="SpanConflict"):
        store.fit("t", BUDGET, stale)
    assert "the view was not compacted: SpanConflict (thread 't')" in caplog.text
