"""Entries of kinds that a later release may write: kept, verified as far as the chain goes, and never guessed at."""

from __future__ import annotations

import io
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.handmade_bundles import Thread, said
from support.redactable_thread import commit, record

import compaction_store as cs
from compaction_store import offline
from compaction_store.errors import UnknownEntry

KIND = "later_kind"
# The pos of the entry, after three messages; a record of a known kind and a message follow it.
POS = 4
CASES = {
    "event": False, "critical event": True, "record": False, "applied record": True,
    "record of an unknown outcome": False,
}  # fmt: skip


def thread(case: str) -> Thread:
    made = Thread("default", "t")
    for i in range(3):
        made.message(f'{{"role":"user","content":"message {i}"}}')
    if case.endswith("event"):
        made.event(KIND, '{"any":["thing"]}', "app", critical=case.startswith("critical"))
    elif case == "applied record":
        made.compaction('{"any":["thing"]}', start=1, end=2, kind=KIND)
    else:
        outcome = "failed" if case == "record" else "later_outcome"
        made.compaction('{"any":["thing"]}', kind=KIND, outcome=outcome)
    made.compaction('{"error":{"type":"SplitPair"}}', outcome="rejected", start=1, end=2)
    made.message('{"role":"user","content":"message 3"}')
    return made


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def imported(store: Face, case: str) -> Face:
    assert store.load.bundle(thread(case).lines()).added
    return store


def expected(notes: Any, case: str) -> None:
    """One note on the entry, and another one on the views if it is critical. Neither has content."""
    about, *more = notes
    assert f"pos {POS}" in about
    assert KIND in about
    assert len(more) == CASES[case]
    assert all(f"pos {POS}" in note and "cannot be judged" in note for note in more)
    assert "thing" not in str(notes)


def test_both_verifiers_of_bundles_say_that_they_do_not_know_it(case: str) -> None:
    lines = thread(case).lines()
    for given in (lines, thread(case).lines(lambda _line: False)):
        report, walk = cs.verify_bundle(given), offline.check(io.BytesIO(b"".join(given)))
        assert (report.findings, walk.findings) == ((), [])
        expected(report.notes, case)
        expected(walk.notes, case)


def test_a_change_to_it_is_found(case: str) -> None:
    """The chain covers its kind, whether it is critical, its outcome, and its content by the commitment."""
    for field, value in (
        ("kind", "other_kind"), ("critical", True), ("critical", False), ("outcome", "failed"), ("outcome", "applied"),
        ("body", "{}"), ("login", "nobody"), ("actor", "nobody"),
    ):  # fmt: skip
        made = thread(case)
        line = made.entries[POS - 1]
        if field not in line or line[field] == value:
            continue
        line[field] = value
        lines = made.lines()
        assert [f.pos for f in cs.verify_bundle(lines).findings] == [POS]
        assert [pos for _, pos, _ in offline.check(io.BytesIO(b"".join(lines))).findings] == [POS]


def test_many_of_them_are_counted(case: str) -> None:
    made = thread(case)
    for _ in range(100):
        made.event(KIND)
    notes = cs.verify_bundle(made.lines()).notes
    assert len(notes) == 21 + CASES[case]
    assert "81 more entries are of unknown kinds" in notes[20]
    assert "81 more entries are of unknown kinds" in str(offline.check(io.BytesIO(b"".join(made.lines()))).notes)


def test_it_is_imported_listed_and_exported_as_it_is(imported: Face, case: str) -> None:
    lines = thread(case).lines()
    assert list(imported.audit.export("t"))[1:-1] == lines[1:-1]
    line = said(lines)[POS]
    if line["type"] == "event":
        [event] = imported.audit.events("t")
        assert (event.pos, event.kind, event.critical) == (POS, KIND, CASES[case])
        assert (event.actor, event.login, event.body) == ("app", line["login"], {"any": ["thing"]})
    else:
        [found, _] = imported.compactions("t")
        assert (found.pos, found.kind, found.outcome) == (POS, KIND, line["outcome"])
        assert (found.login, found.body, found.fault) == (line["login"], {"any": ["thing"]}, None)
        assert imported.compaction("t", 1) == found


def test_verify_says_that_it_does_not_know_it(imported: Face, case: str) -> None:
    for level in ("structure", "content"):
        report = imported.audit.verify("t", level=level)
        assert report.findings == ()
        expected(report.notes, case)
    [report] = imported.audit.verify()
    assert report.findings == ()
    expected(report.notes, case)


def test_a_view_is_right_or_there_is_none(imported: Face, case: str) -> None:
    before = [f"message {i}" for i in range(3)]
    assert [m["content"] for m in imported.view("t", at=POS - 1).messages] == before
    for at in (None, POS, POS + 1, POS + 2):
        if CASES[case]:
            with pytest.raises(UnknownEntry, match=f"pos {POS} .*{KIND}.*'t'") as caught:
                imported.view("t", at=at)
            assert "thing" not in str(caught.value)
        else:
            now = before if at in {POS, POS + 1} else [*before, "message 3"]
            assert [m["content"] for m in imported.view("t", at=at).messages] == now


def _span(ctx: cs.CompactionContext) -> None:
    ctx.compact(1, 2, "short", allow={"larger"})


def test_a_compaction_is_refused_where_there_is_no_view(
    imported: Face, superuser: psycopg.Connection[Any], case: str
) -> None:
    before = imported.thread("t")
    if not CASES[case]:
        assert imported.compact("t", _span).applied
        assert imported.view("t").messages[1:] == [{"role": "user", "content": f"message {i}"} for i in (2, 3)]
        imported.revoke("t", imported.thread("t").last_number)
        assert len(imported.view("t").messages) == 4
        assert imported.audit.verify("t").findings == ()
        return
    for write in (
        lambda: imported.compact("t", _span), lambda: imported.plan("t", _span),
        lambda: imported.compact("t", _span, budget=cs.TokenBudget(20), force=True),
    ):  # fmt: skip
        with pytest.raises(UnknownEntry):
            write()  # type: ignore[no-untyped-call]
    # A release that does not ask for the view first is refused by the database.
    with pytest.raises(psycopg.Error) as caught:
        commit(superuser, record(1, 2))
    assert caught.value.sqlstate == "CS021"
    assert imported.thread("t") == before


def test_messages_are_appended_and_replayed(imported: Face, case: str) -> None:
    """A program that shares a thread with a newer one loses nothing that it is told."""
    assert imported.append("t", {"role": "user", "content": "more"}, key="k")[0].seq == 5
    assert imported.append("t", [{"role": "user", "content": "more"}] * 2)[-1].seq == 7
    assert imported.append("t", {"role": "user", "content": "more"}, key="k")[0].seq == 5
    assert imported.load.messages("t", [{"role": "user", "content": "loaded"}]).last_seq == 8
    contents = [m.payload["content"] for m in imported.replay("t")]
    assert contents == [*(f"message {i}" for i in range(4)), "more", "more", "more", "loaded"]
    assert [found.seq for found in imported.audit.search("message 3")] == [4]
    report = imported.audit.verify("t")
    assert report.findings == ()
    expected(report.notes, case)
    assert cs.verify_bundle(list(imported.audit.export("t"))).findings == ()


def test_messages_and_the_thread_can_be_erased(imported: Face, case: str) -> None:
    """What is asked to be erased must go, whatever else is in the thread."""
    assert imported.custody.redact("t", 3, reason="asked").seqs == (3,)
    assert imported.audit.verify("t").findings == ()
    stub = imported.custody.erase("t", reason="asked").thread_id
    report = imported.audit.verify(stub)
    assert report.findings == ()
    expected(report.notes, case)
    assert [c.body for c in imported.compactions(stub)] == [None] * imported.thread(stub).last_number
