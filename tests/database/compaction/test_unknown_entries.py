"""Entries of kinds that a later release may write: they are read, and refused where they decide what a view is."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.handmade_bundles import Thread
from support.later_releases import POS, add_event, add_record, change_views, folded

import compaction_store as cs
from compaction_store import TokenBudget, evaluation, tokens
from compaction_store.errors import UnknownEntry


def of_four() -> Thread:
    """A thread of four messages."""
    thread = Thread(thread_id="t")
    for i in range(4):
        thread.message(f'{{"role":"user","content":"message {i}"}}')
    return thread


def with_record(thread: Thread) -> None:
    thread.compaction('{"replacement":[]}', start=2, end=3, kind="later_kind", tokens_after=0)


def with_event(thread: Thread) -> None:
    thread.event("later_kind", critical=True)


def test_kinds_and_outcomes_that_change_no_view_are_read_as_they_are(store: Face) -> None:
    thread = of_four()
    thread.event("later_event", '{"reason":"r"}')
    thread.compaction(kind="later_kind", outcome="later_outcome")
    store.load.bundle(thread.lines())
    assert [event.kind for event in store.audit.events("t")] == ["later_event"]
    assert [(record.kind, record.outcome) for record in store.compactions("t")] == [("later_kind", "later_outcome")]
    run = store.compact("t", lambda ctx: ctx.remove(1, 2))
    assert len(run.view.elements) == len(store.view("t").elements) == 3
    assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize("add", [with_record, with_event])
def test_after_an_entry_that_may_have_changed_the_view_there_is_none(store: Face, add: Any) -> None:
    thread = of_four()
    add(thread)
    store.load.bundle(thread.lines())
    store.append("t", {"role": "user", "content": "one more"})
    for at in (None, 5, 6):
        with pytest.raises(UnknownEntry, match=r"the entry at pos 5 is of kind later_kind.*'t'"):
            store.view("t", at=at)
    assert len(store.view("t", at=4).elements) == 4
    assert [message.seq for message in store.replay("t")] == [1, 2, 3, 4, 5]
    assert [entry.kind for entry in (*store.compactions("t"), *store.audit.events("t"))] == ["later_kind"]
    report = store.audit.verify("t")
    assert report.findings == ()
    assert any("later_kind" in note for note in report.notes)


@pytest.mark.parametrize("add", [with_record, with_event])
def test_nothing_is_compacted_after_it_and_no_record_revoked(store: Face, add: Any) -> None:
    thread = of_four()
    thread.compaction('{"replacement":[]}', start=1, end=1, kind="removal", tokens_after=0)
    add(thread)
    store.load.bundle(thread.lines())
    before = store.thread("t")
    with pytest.raises(UnknownEntry):
        store.compact("t", lambda ctx: ctx.remove(4, 4))
    with pytest.raises(UnknownEntry):
        store.revoke("t", 1)
    assert store.thread("t") == before


@pytest.mark.parametrize("add", [add_record, add_event])
def test_nothing_says_what_the_view_or_a_status_is_after_it(store: Face, add: Any) -> None:
    store.load.bundle(folded("t", add).lines())
    store.append("plain", {"role": "user", "content": "hi"})
    [plain, found] = store.threads()
    assert (plain.unknown_pos, plain.view_tokens) == (None, 4)
    assert found == store.thread("t")
    assert (found.unknown_pos, found.view_tokens) == (POS, None)
    for log in (store.compactions("t"), store.compactions()):
        first, *_, last = log
        assert {(r.status, r.superseded_by, r.unknown_pos) for r in (first, last)} == {("unknown", None, POS)}
    assert [step.pos for step in store.audit.token_steps("t")] == [1, 2, 3, 4]
    assert store.audit.tree(first).inside == ()
    with pytest.raises(UnknownEntry, match=f"compaction {last.number} was made after pos {POS}.*'t'"):
        store.audit.tree(last)
    with pytest.raises(UnknownEntry):
        store.repair("t", 1, "again")
    with pytest.raises(UnknownEntry):
        store.audit.explain("t", 1)
    [due] = [thread for thread in store.due(TokenBudget(5)) if thread.thread_id == "t"]
    assert due.view_tokens is None


def test_a_hidden_thread_is_not_called_absent_after_it(store: Face, superuser: psycopg.Connection[Any]) -> None:
    """The entry may have shown the thread again."""
    store.append("t", {"role": "user", "content": "hi"})
    store.clear("t", hide=True)
    change_views(superuser, "t")
    for read, given in ((store.view, ()), (store.thread, ()), (store.fit, (TokenBudget(100),))):
        with pytest.raises(UnknownEntry, match="pos 3 is of"):
            read("t", *given)
    assert store.thread("t", hidden=True).unknown_pos == 3
    assert len(store.view("t", at=1).messages) == 1
    store.append("t", {"role": "user", "content": "again"})
    with pytest.raises(UnknownEntry):
        store.view("t")


@pytest.mark.parametrize("add", [add_record, add_event])
def test_a_fork_ends_before_it(store: Face, add: Any) -> None:
    store.load.bundle(folded("t", add).lines())
    for at in (None, POS, POS + 1):
        with pytest.raises(UnknownEntry):
            store.fork("t", "fork", at=at)
    store.fork("t", "fork", at=POS - 1)
    assert (store.thread("fork").unknown_pos, store.thread("fork").view_tokens) == (None, 10)
    assert next(store.compactions("fork")).status == "active"


@pytest.mark.parametrize("add", [add_record, add_event])
def test_the_views_for_sql_say_it_too(
    store: Face, superuser: psycopg.Connection[Any], add: Any
) -> None:  # fmt: skip
    store.load.bundle(folded("t", add).lines())
    superuser.execute("SET compaction_store.tenant = 'default'")
    threads = superuser.execute("SELECT view_tokens, unknown_pos FROM compaction_store.audit_threads").fetchall()
    assert threads == [(None, POS)]
    records = superuser.execute("SELECT DISTINCT status, superseded_by FROM compaction_store.audit_compactions")
    assert records.fetchall() == [("unknown", None)]


@pytest.mark.parametrize("add", [with_record, with_event])
def test_a_thread_with_such_an_entry_is_not_evaluated(url: str, add: Any) -> None:
    thread = of_four()
    add(thread)
    with cs.Store.open(url) as store:
        store.load.bundle(thread.lines())
        store.append("other", {"role": "user", "content": "hi"})
        threads = [evaluation.read_thread(store, name) for name in ("t", "other")]
    found = evaluation.evaluate(threads, [evaluation.RECORDED], counter=tokens.bytes_over_four())
    assert (found.threads, found.skipped) == (1, {"a newer release wrote an entry that changes views": 1})
