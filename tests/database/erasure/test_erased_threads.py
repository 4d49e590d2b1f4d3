"""Erasing a whole thread leaves a stub that still verifies."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.redactable_thread import LATER, PLAIN, SECRET, STUB, check, commit, dump, events, record, span

import compaction_store as cs
from compaction_store.integrity import chain


def test_an_erased_thread_leaves_a_stub_that_verifies_under_either_name(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    thread.set_metadata("t", {"title": SECRET})
    thread.compact("t", span(1, 4), lambda ctx: ctx.compact(5, 5, PLAIN * 20))
    thread.redact("t", 7, reason="before")
    done = thread.erase("t", reason="asked for", actor="clerk")
    assert done == cs.Redaction(16, (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12), (1, 2))
    state = thread.thread("t")
    assert (state.thread_id, state.metadata, state.erased_pos, state.last_pos) == (STUB, {}, 16, 16)
    assert [t.thread_id for t in thread.threads()] == [STUB]
    assert events(thread)[-1].body == {
        "seqs": [[1, 6], [8, 12]], "records": [[1, 2]], "genesis": chain.genesis("default", "t").hex(),
        "reason": "asked for",
    }  # fmt: skip
    everything = dump(superuser)
    assert SECRET not in everything
    assert "nothing to see" not in everything
    for name in ("t", STUB):
        check(thread, name)
        assert [(m.payload, m.redacted) for m in thread.replay(name)] == [(None, True)] * 12
        assert thread.view(name).messages == [None] * 12
        assert [c.body for c in thread.compactions(name)] == [None, None]
        assert thread.view(name, at=thread.compaction(name, 1)).elements[0].messages == (None,)
    assert [c.thread_id for c in thread.compactions()] == [STUB, STUB]
    assert thread.verify("t").notes == ()
    assert "genesis that the erasure kept" not in str(thread.verify(STUB, level="structure").notes)
    [note] = thread.verify(STUB).notes
    assert "could not be computed" in note
    assert "genesis" in note


def test_nothing_is_added_to_an_erased_thread(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.append("t", [{"role": "user", "content": "x"}] * 2, key="two")
    thread.erase("t", reason="r")
    before = thread.thread("t")
    hi = {"role": "user", "content": "hi"}
    budget = cs.TokenBudget(context_window=100)
    calls: list[Callable[[str], Any]] = [
        lambda name: thread.append(name, hi),
        lambda name: thread.append(name, [hi, hi]),
        lambda name: thread.append(name, {"role": "user", "content": PLAIN}, key="k4"),
        lambda name: thread.append(name, {"role": "user", "content": [{"type": "compaction", "content": "c"}]}),
        lambda name: thread.load(name, [hi]),
        lambda name: thread.set_metadata(name, {"a": 1}),
        lambda name: thread.compact(name, span(1, 2)),
        lambda name: thread.compact(name, span(1, 2), budget=budget),
        lambda name: thread.revoke(name, 1),
        lambda name: thread.hold(name, reason="r"),
        lambda name: thread.retain(name, LATER, reason="r"),
    ]
    for call in calls:
        for name in ("t", STUB, f"erased:{uuid.uuid4()}"):
            with pytest.raises(cs.ThreadErased):
                call(name)
    with pytest.raises(psycopg.Error) as caught:
        commit(superuser, record(1, 2))
    assert caught.value.sqlstate == "CS012"
    assert thread.erase("t", reason="again") == cs.Redaction(None, (), ())
    assert thread.redact("t", 5, reason="again") == cs.Redaction(None, (), ())
    assert thread.thread("t") == before
    assert list(thread.due(budget)) == []
    check(thread)


def test_a_thread_of_which_all_is_erased_already_loses_its_name(thread: Face) -> None:
    thread.redact("t", range(1, 13), reason="r")
    assert thread.erase("t", reason="r") == cs.Redaction(14, (), ())
    check(thread)
    check(thread, STUB)


def test_a_stub_is_one_of_its_tenant(faces: Faces, url: str) -> None:
    one, other = faces.open(url), faces.open(url, tenant="other")
    for store in (one, other):
        store.append("t", [{"role": "user", "content": "x"}] * 3, key="k")
        store.compact("t", lambda ctx: ctx.compact(1, 1, "s", allow={"larger"}))
    one.redact("t", 1, reason="r")
    one.erase("t", reason="r")
    assert [m.redacted for m in other.replay("t")] == [False] * 3
    assert other.thread("t").thread_id == "t"
    for call in (other.thread, other.verify, other.view, lambda name: list(other.replay(name))):
        with pytest.raises(cs.ThreadNotFound):
            call(STUB)
    assert [c.redacted for c in other.compactions("t")] == [False]
    check(one)
    check(other)
