"""Entries of kinds that a later release may write: they are read, and refused where they decide what a view is."""

from __future__ import annotations

from typing import Any

import pytest
from support.faces import Face
from support.handmade_bundles import Thread

import compaction_store as cs
from compaction_store import evaluation, tokens
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
    store.import_bundle(thread.lines())
    assert [event.kind for event in store.events("t")] == ["later_event"]
    assert [(record.kind, record.outcome) for record in store.compactions("t")] == [("later_kind", "later_outcome")]
    run = store.compact("t", lambda ctx: ctx.remove(1, 2))
    assert len(run.view.elements) == len(store.view("t").elements) == 3
    assert store.verify("t").findings == ()


@pytest.mark.parametrize("add", [with_record, with_event])
def test_after_an_entry_that_may_have_changed_the_view_there_is_none(store: Face, add: Any) -> None:
    thread = of_four()
    add(thread)
    store.import_bundle(thread.lines())
    store.append("t", {"role": "user", "content": "one more"})
    for at in (None, 5, 6):
        with pytest.raises(UnknownEntry, match=r"the entry at pos 5 is of kind later_kind.*'t'"):
            store.view("t", at=at)
    assert len(store.view("t", at=4).elements) == 4
    assert [message.seq for message in store.replay("t")] == [1, 2, 3, 4, 5]
    assert [entry.kind for entry in (*store.compactions("t"), *store.events("t"))] == ["later_kind"]
    report = store.verify("t")
    assert report.findings == ()
    assert any("later_kind" in note for note in report.notes)


@pytest.mark.parametrize("add", [with_record, with_event])
def test_nothing_is_compacted_after_it_and_no_record_revoked(store: Face, add: Any) -> None:
    thread = of_four()
    thread.compaction('{"replacement":[]}', start=1, end=1, kind="removal", tokens_after=0)
    add(thread)
    store.import_bundle(thread.lines())
    before = store.thread("t")
    with pytest.raises(UnknownEntry):
        store.compact("t", lambda ctx: ctx.remove(4, 4))
    with pytest.raises(UnknownEntry):
        store.revoke("t", 1)
    assert store.thread("t") == before


@pytest.mark.parametrize("add", [with_record, with_event])
def test_a_thread_with_such_an_entry_is_not_evaluated(url: str, add: Any) -> None:
    thread = of_four()
    add(thread)
    with cs.Store.open(url) as store:
        store.import_bundle(thread.lines())
        store.append("other", {"role": "user", "content": "hi"})
        threads = [evaluation.read_thread(store, name) for name in ("t", "other")]
    found = evaluation.evaluate(threads, [evaluation.RECORDED], counter=tokens.bytes_over_four())
    assert (found.threads, found.skipped) == (1, {"a newer release wrote an entry that changes views": 1})
