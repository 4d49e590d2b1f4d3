"""A clear empties the view; with hide, the thread reads as absent until the next append, and audits still see it."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.rewinding import SAID, many, said, shown

import compaction_store as cs
from compaction_store import offline


@pytest.fixture
def filled(store: Any) -> Any:
    store.append("t", SAID)
    return store


@pytest.fixture
def empty(faces: Faces, other_url: str) -> Face:
    """A store of the same kind on that database."""
    return faces.open(other_url)


@pytest.fixture
def hidden(filled: Any) -> Any:
    filled.compact("t", lambda ctx: ctx.compact(3, 6, "four of them"))
    filled.clear("t", hide=True, reason="deleted by its user", actor="anna")
    return filled


def names(store: Any, **options: Any) -> list[str]:
    return [thread.thread_id for thread in store.threads(**options)]


def test_the_view_is_empty_and_appends_go_on(filled: Any) -> None:
    [record] = filled.clear("t", reason="a new start", actor="anna", authority={"ticket": "X-1"})
    assert shown(filled.view("t")) == [(1, 10, "clear")]
    assert (record.kind, record.reason, record.actor, record.trigger) == ("clear", "a new start", "anna", "manual")
    assert record.authority == {"ticket": "X-1"}
    assert names(filled) == ["t"]
    assert filled.clear("t") == ()
    filled.append("t", said("hello again"))
    assert shown(filled.view("t")) == [(1, 10, "clear"), 11]
    filled.revoke("t", record.number)
    assert shown(filled.view("t")) == list(range(1, 12))


def test_a_hidden_thread_reads_as_absent(hidden: Any) -> None:
    with pytest.raises(cs.ThreadNotFound, match="no such thread"):
        hidden.view("t")
    with pytest.raises(cs.ThreadNotFound, match="no such thread"):
        hidden.thread("t")
    with pytest.raises(cs.ThreadNotFound):
        hidden.compact("t", lambda ctx: ctx.remove(1, 2))
    with pytest.raises(cs.ThreadNotFound):
        hidden.fit("t", cs.TokenBudget(context_window=1000))
    assert names(hidden) == []
    assert list(hidden.due(cs.TokenBudget(context_window=10, trigger=1, target=1))) == []


def test_audits_see_a_hidden_thread(hidden: Any) -> None:
    assert names(hidden, hidden=True) == ["t"]
    thread = hidden.thread("t", hidden=True)
    assert (thread.hidden, thread.hidden_seq, thread.last_seq, thread.view_tokens) == (True, 10, 10, 0)
    assert [m.payload for m in hidden.replay("t")] == SAID
    assert hidden.message("t", 3).seq == 3
    assert [r.kind for r in hidden.compactions("t")] == ["summary", "clear"]
    assert hidden.compaction("t", 2).reason == "deleted by its user"
    assert shown(hidden.view("t", at=11))[2] == (3, 6, "summary")
    assert shown(hidden.view("t", at=datetime.now(UTC))) == [(1, 10, "clear")]
    assert hidden.audit.explain("t", 4).element.kind == "clear"
    assert [found.seq for found in hidden.audit.search("number 7,")] == [7]
    assert hidden.audit.verify("t").findings == ()
    assert list(hidden.audit.events("t")) == []


def test_the_next_append_shows_it_again(hidden: Any) -> None:
    hidden.append("t", said("back"))
    assert shown(hidden.view("t")) == [(1, 10, "clear"), 11]
    assert names(hidden) == ["t"]
    assert (hidden.thread("t").hidden, hidden.thread("t").hidden_seq) == (False, 10)
    assert hidden.audit.verify("t").findings == ()


def test_revoking_the_clear_shows_it_again(hidden: Any) -> None:
    hidden.revoke("t", 2)
    assert shown(hidden.view("t")) == [1, 2, (3, 6, "summary"), 7, 8, 9, 10]
    assert hidden.thread("t").hidden_seq is None
    assert hidden.audit.verify("t").findings == ()


def test_it_can_be_hidden_again_and_after_it_was_cleared(hidden: Any) -> None:
    assert hidden.clear("t", hide=True) == hidden.clear("t") == hidden.rewind("t", 4) == ()
    hidden.append("t", many(11, 12))
    hidden.clear("t")
    assert names(hidden) == ["t"]
    [record] = hidden.clear("t", hide=True)
    assert (record.trigger, record.start_seq, record.end_seq) == ("hide", 1, 12)
    assert names(hidden) == []
    hidden.revoke("t", record.number)
    # The first one is in force again; it hides the thread only as it was then.
    assert hidden.thread("t").hidden_seq == 10
    assert shown(hidden.view("t")) == [(1, 12, "clear")]
    assert hidden.audit.verify("t").findings == ()


def test_it_is_told_by_the_chain_and_not_by_the_head(hidden: Any, superuser: psycopg.Connection[Any]) -> None:
    for forged in ("NULL", "9"):
        superuser.execute(f"UPDATE compaction_store.heads SET hidden_seq = {forged}".encode())
        for level in ("structure", "content"):
            [finding] = hidden.audit.verify("t", level=level).findings
            assert finding.what.startswith("the head's hidden_seq is ")
            assert finding.what.endswith("by the clears in force it must be 10")


def test_it_is_hidden_after_an_import(hidden: Any, empty: Face) -> None:
    bundle = b"".join(hidden.audit.export("t"))
    assert offline.check(io.BytesIO(bundle)).findings == []
    empty.load.bundle(bundle.splitlines(keepends=True))
    assert empty.thread("t", hidden=True) == hidden.thread("t", hidden=True)
    assert names(empty) == []
    assert empty.audit.verify("t").findings == ()


def test_it_is_forked_only_from_before_it_was_hidden(hidden: Any) -> None:
    hidden.fork("t", "before", at=11)
    with pytest.raises(cs.ThreadNotFound):
        hidden.fork("t", "after")
    assert names(hidden) == ["before"]
    assert names(hidden, hidden=True) == ["before", "t"]
    for thread_id in ("before", "t"):
        assert hidden.audit.verify(thread_id).findings == ()


def test_a_hidden_thread_can_be_redacted_and_erased(hidden: Any) -> None:
    hidden.custody.redact("t", 4, reason="asked for")
    assert names(hidden) == []
    erased = hidden.custody.erase("t", reason="asked for")
    stub = hidden.thread(erased.thread_id)
    assert (stub.hidden_seq, stub.erased_pos) == (None, stub.last_pos)
    assert hidden.audit.verify(erased.thread_id).findings == ()


def test_wrong_arguments_are_refused(filled: Any) -> None:
    for wrong in (1, "yes", None):
        with pytest.raises(cs.InvalidInput, match="hide must be a bool"):
            filled.clear("t", hide=wrong)
        with pytest.raises(cs.InvalidInput, match="hidden must be a bool"):
            filled.threads(hidden=wrong)
        with pytest.raises(cs.InvalidInput, match="hidden must be a bool"):
            filled.thread("t", hidden=wrong)
    with pytest.raises(cs.ThreadNotFound):
        filled.clear("nobody")
