"""How many statements compacting a thread sends, on both faces: each is a round trip to the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from compaction_store.postgres.driver import cursor

_BUDGET = cs.TokenBudget(context_window=300)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements sent so far."""
    found: list[str] = []

    def counted(execute: Callable[..., Any]) -> Callable[..., Any]:
        def counting(driver: Any, statement: object, *arguments: Any, **keywords: Any) -> Any:
            # On a cluster, each call has one more before it, which looks up the name.
            if "compaction_store.named_thread(" not in str(statement):
                found.append(str(statement))
            return execute(driver, statement, *arguments, **keywords)

        return counting

    for kind in (psycopg.Cursor, psycopg.AsyncCursor):
        monkeypatch.setattr(kind, "execute", counted(kind.execute))
    # A call of a SQL function needs no cursor.
    monkeypatch.setattr(cursor, "_send", counted(cursor._send))
    return found


@pytest.fixture
def filled(store: Any) -> Any:
    said = [{"role": "user" if i % 2 else "assistant", "content": f"number {i}, and more words"} for i in range(60)]
    store.append("t", said)
    return store


def fold(ctx: cs.CompactionContext) -> None:
    ctx.compact(1, 20, "twenty")
    ctx.remove(31, 40, allow={"last_user"})


def test_a_compaction_costs_three_statements(filled: Any, sent: list[str]) -> None:
    run = filled.compact("t", fold)
    assert len(sent) == 3, sent
    assert run.view == filled.view("t")
    assert list(run) == list(filled.compactions("t"))


def test_with_a_budget_it_costs_five(filled: Any, sent: list[str]) -> None:
    run = filled.compact("t", fold, budget=_BUDGET)
    assert len(sent) == 5, sent
    assert run.view == filled.view("t")


def test_an_append_meanwhile_costs_one_more(filled: Any, sent: list[str], url: str) -> None:
    def fold_and_append(ctx: cs.CompactionContext) -> None:
        fold(ctx)
        with cs.Store.open(url) as other:
            other.append("t", {"role": "user", "content": "meanwhile"})
        sent.clear()

    run = filled.compact("t", fold_and_append)
    assert len(sent) == 2, sent
    assert run.view == filled.view("t")
    assert run.view.elements[-1].seq == 61


def test_to_fit_costs_as_much_and_nothing_twice(filled: Any, sent: list[str]) -> None:
    view = filled.fit("t", _BUDGET, fold, lambda ctx: ctx.compact(41, 58, "more"))
    assert len(sent) == 5, sent
    assert view == filled.view("t")
    sent.clear()
    filled.fit("t", cs.TokenBudget(context_window=100_000))
    assert len(sent) == 2, sent


def test_a_revocation_costs_one(filled: Any, sent: list[str]) -> None:
    filled.compact("t", fold)
    sent.clear()
    record = filled.revoke("t", 1, reason="wrong")
    assert len(sent) == 1, sent
    assert record == filled.compaction("t", 3)


def test_the_same_run_again_returns_the_same_records(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", [{"role": "user", "content": f"message {i}"} for i in range(20)])
    first = store.compact("t", lambda ctx: ctx.compact(1, 5, "five"))
    again = "SELECT * FROM compaction_store.commit_compactions(%s, 'default', 't', %s, 1, NULL, '[]')"
    uid = superuser.execute("SELECT thread_uid FROM compaction_store.heads").fetchall()[0][0]
    rows = [superuser.execute(again, (uid, first[0].run_id)).fetchall() for _ in range(2)]
    assert rows[0] == rows[1]
    assert [row[:3] for row in rows[0]] == [(1, 21, first[0].created_at)]


def test_records_of_a_run_inside_each_other_say_so(filled: Any) -> None:
    def nested(ctx: cs.CompactionContext) -> None:
        ctx.compact(2, 5, "four")
        ctx.compact(8, 9, "two")
        ctx.compact(1, 10, "ten, and the others")
        ctx.compact(12, 13, "apart")

    run = filled.compact("t", nested)
    assert [record.superseded_by for record in run] == [record.superseded_by for record in filled.compactions("t")]
    assert list(run) == list(filled.compactions("t"))
    assert run.view == filled.view("t")
