"""A fork begins as a copy of its parent, and goes on by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from support.faces import Face

import compaction_store as cs
from compaction_store.errors import InvalidThreadId

from .conftest import message, said, shown


def test_at_every_pos_a_fork_equals_its_parent_there(parent: Face) -> None:
    last = parent.thread("p").last_pos
    for at in range(1, last + 1):
        done = parent.fork("p", f"f{at}", at=at)
        assert (done.at, done.pos, done.added) == (at, at + 1, True)
        assert shown(parent.view(f"f{at}", at=done.pos)) == shown(parent.view("p", at=at))
        assert said(parent.replay(f"f{at}")) == said(parent.replay("p", until=done.last_seq))
        assert parent.audit.verify(f"f{at}").findings == ()
        if at < 18:
            # Seq 7 was erased in the parent later.
            assert shown(parent.view(f"f{at}")) == shown(parent.view(f"f{at}", at=done.pos))
    assert parent.audit.verify("p").findings == ()


def test_views_of_the_past_are_those_of_the_parent_one_pos_earlier(parent: Face) -> None:
    done = parent.fork("p", "f")
    for at in range(1, done.at + 1):
        assert shown(parent.view("f", at=at + 1)) == shown(parent.view("p", at=at))


def test_the_two_threads_name_each_other_by_key(parent: Face) -> None:
    before = parent.view("p")
    done = parent.fork("p", "f", reason="try again", actor="ada", authority={"ticket": 7})
    origin = next(iter(parent.audit.events("f")))
    event = list(parent.audit.events("p"))[-1]
    assert (origin.pos, origin.kind, origin.critical, origin.reason) == (1, "origin", False, "try again")
    assert (event.pos, event.kind, event.critical, event.actor) == (done.event_pos, "fork", False, "ada")
    assert origin.authority == event.authority == {"ticket": 7}
    assert origin.body["parent"] == str(parent.thread("p").thread_uid) == str(done.parent_uid)
    assert (origin.body["pos"], origin.body["entry"]) == (before.pos, before.head.hex())
    assert event.body["child"] == str(parent.thread("f").thread_uid) == str(done.thread_uid)
    assert event.body["head"] == parent.thread("f").head.hex() == done.head.hex()
    assert '"p"' not in str(origin.body)
    assert '"f"' not in str(event.body)


def test_counters_metadata_and_tokens_are_those_of_the_parent(parent: Face) -> None:
    old, done = parent.thread("p"), parent.fork("p", "f")
    new = parent.thread("f")
    assert (new.last_seq, new.last_number, new.last_pos) == (old.last_seq, old.last_number, old.last_pos + 1)
    assert (new.view_tokens, new.metadata) == (old.view_tokens, old.metadata)
    assert new.created_at == next(iter(parent.replay("f"))).created_at == new.last_at
    assert done.last_seq == old.last_seq


def test_both_go_on_by_themselves(parent: Face) -> None:
    parent.fork("p", "f")
    parent.append("f", message(13), view=parent.view("f"))
    parent.append("p", message(14))
    assert parent.message("f", 13).payload != parent.message("p", 13).payload
    parent.compact("f", lambda ctx: ctx.compact(8, 10, "Eight to ten."))
    parent.revoke("f", 1)
    assert parent.seen_by("f", 13).evidence == "proved"
    assert parent.compaction("p", 1).status == "active"
    assert [parent.audit.verify(name).findings for name in ("p", "f")] == [(), ()]


def test_keys_are_copied(parent: Face) -> None:
    parent.fork("p", "f")
    again = parent.append("f", message(3), key="k3", meta={"n": 3}, tokens=100)
    assert again[0].seq == 3
    with pytest.raises(cs.IdempotencyConflict):
        parent.append("f", message(4), key="k3")


def test_a_fork_of_a_fork(parent: Face) -> None:
    parent.fork("p", "f")
    parent.append("f", message(13))
    done = parent.fork("f", "g")
    assert said(parent.replay("g")) == said(parent.replay("f"))
    assert shown(parent.view("g", at=done.pos)) == shown(parent.view("f", at=done.at))
    assert [event.kind for event in parent.audit.events("g")][:2] == ["origin", "origin"]
    assert parent.audit.verify("g").findings == ()


def test_records_keep_numbers_runs_and_tree(parent: Face) -> None:
    parent.compact("p", lambda ctx: ctx.compact(1, 6, "All of six.", allow=("larger",)))
    parent.fork("p", "f")
    old, new = list(parent.compactions("p")), list(parent.compactions("f"))
    for one, other in zip(old, new, strict=True):
        assert (one.number, one.kind, one.status, one.run_id, one.body, one.inputs, one.login) == (
            other.number, other.kind, other.status, other.run_id, other.body, other.inputs, other.login,
        )  # fmt: skip
    trees = [parent.audit.tree(log[-1]) for log in (old, new)]
    assert len({str([branch.record.number for branch in tree.inside]) for tree in trees}) == 1


def test_the_same_call_again_returns_the_first_result(parent: Face) -> None:
    first = parent.fork("p", "f", key="turn 7")
    parent.append("f", message(13))
    parent.append("p", message(14))
    again = parent.fork("p", "f", key="turn 7")
    assert again.added is False
    assert (again.thread_uid, again.at, again.head, again.created_at) == (
        first.thread_uid, first.at, first.head, first.created_at,
    )  # fmt: skip
    for call in ({"new_thread_id": "g"}, {"new_thread_id": "f", "at": 3}):
        with pytest.raises(cs.IdempotencyConflict):
            parent.fork("p", key="turn 7", **call)
    parent.fork("p", "g", key="turn 77")
    assert parent.fork("f", "h", key="turn 7").added
    with pytest.raises(cs.ThreadExists):
        parent.fork("p", "f")


def test_a_taken_name_is_refused_and_nothing_is_written(parent: Face) -> None:
    parent.append("other", message(1))
    before = [parent.thread(name) for name in ("p", "other")]
    for name in ("other", "p"):
        with pytest.raises(cs.ThreadExists):
            parent.fork("p", name)
    assert [parent.thread(name) for name in ("p", "other")] == before


def test_refusals(parent: Face, faces: Any, url: str) -> None:
    with pytest.raises(cs.PositionNotFound):
        parent.fork("p", "f", at=parent.thread("p").last_pos + 1)
    with pytest.raises(cs.ThreadNotFound):
        parent.fork("nobody", "f")
    with pytest.raises(cs.ThreadNotFound):
        faces.open(url, tenant="other").fork("p", "f")
    for at in (0, -1, True, "3"):
        with pytest.raises(cs.InvalidInput):
            parent.fork("p", "f", at=at)
    for name in ("", "erased:x", 7):
        with pytest.raises((InvalidThreadId, cs.InvalidInput)):
            parent.fork("p", name)
    parent.fork("p", "f")
    with pytest.raises(cs.PositionNotFound):
        parent.fork("f", "g", at=1)
    stub = parent.custody.erase("p", reason="case 3").thread_id
    for name, error in ((stub, cs.ThreadErased), ("p", cs.ThreadNotFound)):
        with pytest.raises(error):
            parent.fork(name, "g")


@pytest.mark.parametrize("at", [None, 3, 13])
def test_a_fork_is_held_as_its_parent_is_now(parent: Face, at: int | None) -> None:
    """Whatever was in force at that pos: a hold that ended since binds nobody, one that began since binds the copy."""
    parent.fork("p", "free", at=13)
    parent.custody.redact("free", 1, reason="case 5")
    parent.custody.hold("p", reason="case 4", authority={"ticket": 1})
    done = parent.fork("p", "f", at=at)
    with pytest.raises(cs.Held):
        parent.custody.redact("f", 1, reason="case 5")
    assert [e.authority for e in parent.audit.events("f") if e.kind == "hold"][-1] == {"ticket": 1}
    assert shown(parent.view("f", at=done.pos)) == shown(parent.view("p", at=done.at))
    parent.custody.release("f", reason="only the parent matters")
    parent.custody.redact("f", 1, reason="case 5")
    assert parent.audit.verify("f").findings == ()


def test_a_fork_is_retained_as_its_parent_is_now(parent: Face) -> None:
    parent.custody.retain("p", datetime(2040, 1, 1, tzinfo=UTC), reason="tax law")
    parent.custody.retain("p", datetime(2050, 1, 1, tzinfo=UTC), reason="tax law")
    parent.fork("p", "f", at=3)
    with pytest.raises(cs.Held, match="2050"):
        parent.custody.erase("f", reason="case 5")
    assert [event.kind for event in parent.audit.events("f")] == ["origin", "retention", "refusal"]
    assert parent.audit.verify("f").findings == ()


def test_what_a_fork_refuses_is_recorded_in_the_thread_that_was_asked(parent: Face) -> None:
    parent.fork("p", "free")
    parent.fork("p", "f")
    held = parent.custody.hold("f", reason="case 4")
    for dry_run in (True, False):
        with pytest.raises(cs.Held, match="fork") as caught:
            parent.custody.redact("p", 1, reason="case 5", dry_run=dry_run)
        assert caught.value.pos == held.pos
    refusal = list(parent.audit.events("p"))[-1]
    assert (refusal.kind, refusal.body["forbidden_by"], refusal.body["seqs"]) == ("refusal", [held.pos], [[1, 1]])
    assert str(parent.thread("f").thread_uid) in refusal.body["because"]
    assert [parent.message(name, 1).redacted for name in ("p", "free", "f")] == [False] * 3
    assert [event.kind for event in parent.audit.events("p")].count("refusal") == 1
    assert parent.audit.verify("p").findings == ()


def test_content_that_was_erased_later_is_erased_in_the_copy(parent: Face) -> None:
    parent.custody.redact("p", 2, reason="case 6")
    done = parent.fork("p", "f", at=9)
    assert [m.redacted for m in parent.replay("f")] == [False, True, False, False, False, False, True, False]
    assert shown(parent.view("f", at=done.pos)) == shown(parent.view("p", at=9))
    last = list(parent.audit.events("f"))[-1]
    assert (last.kind, last.body["seqs"], last.body["records"]) == ("redaction", [[2, 2], [7, 7]], [[1, 1]])
    assert last.body["parent_pos"] == [18, 20]
    assert parent.audit.verify("f").findings == ()


def test_commitments_prove_that_a_copy_is_the_original(parent: Face, superuser: Any) -> None:
    parent.fork("p", "f")
    rows = superuser.execute(
        "SELECT m.seq, array_agg(DISTINCT m.commitment), array_agg(DISTINCT m.salt), count(DISTINCT m.entry)"
        " FROM compaction_store.messages AS m GROUP BY m.seq"
    ).fetchall()
    assert len(rows) == 12
    assert all(len(commitments) == len(salts) == 1 and entries == 2 for _, commitments, salts, entries in rows)


def test_changed_rows_are_refused_rather_than_given_a_valid_chain(parent: Face, superuser: Any) -> None:
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER refuse_change")
    superuser.execute("UPDATE compaction_store.messages SET role = 'system' WHERE seq = 3")
    with pytest.raises(cs.DatabaseError, match="were changed after they were written"):
        parent.fork("p", "f")
    assert parent.fork("p", "g", at=2).last_seq == 2
    superuser.execute("UPDATE compaction_store.messages SET role = 'user', payload = '{}' WHERE seq = 3")
    with pytest.raises(cs.DatabaseError, match="were changed after they were written"):
        parent.fork("p", "f", at=3)


def test_a_long_thread_is_copied_in_parts(store: Face) -> None:
    for part in range(11):
        store.append("p", [{"role": "user", "content": f"{part} {i}"} for i in range(1000)], tokens=1)
        if part in (2, 9):
            store.compact(
                "p", lambda ctx, part=part: ctx.compact(part * 1000, part * 1000 + 990, "short", allow=("larger",))
            )
            store.custody.hold("p", reason="case")
    store.compact("p", lambda ctx: ctx.compact(1, 10500, "all", allow=("larger",)))
    done = store.fork("p", "f")
    assert done.last_seq == 11000
    assert store.audit.verify("f").findings == ()
    assert shown(store.view("f")) == shown(store.view("p"))
    assert store.thread("f").view_tokens == store.thread("p").view_tokens


def test_verify_compares_a_fork_with_its_parent(parent: Face, superuser: Any) -> None:
    parent.fork("p", "f")
    parent.fork("f", "g", at=14)
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER refuse_change")
    superuser.execute("ALTER TABLE compaction_store.compactions DISABLE TRIGGER refuse_change")
    uid = parent.thread("p").thread_uid
    superuser.execute(
        "UPDATE compaction_store.messages SET commitment = sha256('') WHERE thread_uid = %s AND seq = 3", [uid]
    )
    superuser.execute(
        "UPDATE compaction_store.compactions SET commitment = sha256('') WHERE thread_uid = %s AND number = 2", [uid]
    )
    assert [finding.what for finding in parent.audit.verify("f").findings] == [
        "seq 3 differs from its original in the parent", "compaction 2 differs from its original in the parent",
    ]  # fmt: skip
    assert parent.audit.verify("f", level="structure").findings == ()
    assert parent.audit.verify("g").findings == ()
    superuser.execute("ALTER TABLE compaction_store.events DISABLE TRIGGER refuse_change")
    superuser.execute("UPDATE compaction_store.events SET entry = sha256('') WHERE thread_uid = %s AND pos = 19", [uid])
    assert parent.audit.verify("f").findings[0].what == "the parent of this fork has another entry at pos 19"


def test_verify_compares_a_fork_with_an_erased_parent(parent: Face) -> None:
    parent.fork("p", "f")
    parent.custody.erase("p", reason="case 3", forks=False)
    report = parent.audit.verify("f")
    assert (report.findings, report.notes) == ((), ())


def test_rewound_and_cleared_threads_are_forked_as_they_are(parent: Face) -> None:
    parent.rewind("p", 10)
    parent.fork("p", "f")
    assert shown(parent.view("f")) == shown(parent.view("p"))
    parent.append("f", message(13))
    assert parent.view("f").elements[-1].seq == 13
    parent.clear("p")
    parent.fork("p", "g")
    assert shown(parent.view("g")) == shown(parent.view("p"))
    before = parent.thread("p").last_pos
    parent.clear("p", hide=True)
    parent.append("p", message(14))
    done = parent.fork("p", "h")
    assert shown(parent.view("h")) == shown(parent.view("p"))
    assert parent.fork("p", "i", at=before).pos == before + 1
    assert done.last_seq == 13
    assert all(report.findings == () for report in parent.audit.verify())


def test_a_hidden_thread_is_forked_only_where_it_was_not_hidden(parent: Face) -> None:
    before = parent.thread("p").last_pos
    parent.clear("p", hide=True)
    with pytest.raises(cs.ThreadNotFound):
        parent.fork("p", "f")
    with pytest.raises(cs.Conflict, match="hidden at pos 20"):
        parent.fork("p", "f", at=before + 1)
    with pytest.raises(cs.ThreadNotFound):
        parent.thread("f")
    parent.fork("p", "f", at=before)
    assert shown(parent.view("f")) == shown(parent.view("p", at=before))


def test_a_fork_has_no_view_before_its_first_message(parent: Face) -> None:
    parent.fork("p", "f")
    with pytest.raises(cs.PositionNotFound, match="no message up to pos 1"):
        parent.view("f", at=1)
