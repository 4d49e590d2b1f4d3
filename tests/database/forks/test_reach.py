"""An erasure in a thread reaches the copies that its forks hold, and says which."""

from __future__ import annotations

import pytest
from support.faces import Face, Faces

import compaction_store as cs

from .conftest import message, said


@pytest.fixture
def family(parent: Face) -> Face:
    """Threads f and early are forks of p, early of its first five messages; g is a fork of f. All have gone on."""
    parent.fork("p", "f")
    parent.fork("p", "early", at=5)
    parent.append("f", message(13))
    parent.fork("f", "g")
    for name in ("f", "early", "g"):
        parent.append(name, message(14))
    return parent


def redacted(store: Face, thread: str) -> list[int]:
    return [m.seq for m in store.replay(thread) if m.redacted]


def sound(store: Face) -> bool:
    return all(report.findings == () for report in store.audit.verify())


def test_a_redaction_reaches_forks_and_their_forks(family: Face) -> None:
    done = family.custody.redact("p", [3, 8], reason="case 7", actor="ada", legal_basis="Art. 17")
    assert {fork.thread_id: fork.seqs for fork in done.forks} == {"f": (3, 8), "early": (3,), "g": (3, 8)}
    assert {fork.thread_id: fork.records for fork in done.forks} == {"f": (1,), "early": (), "g": (1,)}
    assert redacted(family, "f") == redacted(family, "g") == [3, 7, 8]
    assert redacted(family, "early") == [3]
    event = list(family.audit.events("p"))[-1]
    assert event.body["forks"] == [str(family.thread(name).thread_uid) for name in ("f", "early", "g")]
    for fork in done.forks:
        event = list(family.audit.events(fork.thread_id))[-1]
        assert (event.pos, event.actor, event.reason) == (fork.pos, "ada", "case 7")
        assert event.body["parent"] == str(family.thread("p").thread_uid)
        assert event.body["legal_basis"] == "Art. 17"
    assert sound(family)


def test_records_made_in_the_fork_are_erased_with_the_copies(family: Face) -> None:
    family.compact("f", lambda ctx: ctx.compact(10, 13, "Ten to thirteen."))
    done = family.custody.redact("p", 11, reason="case 7")
    assert {fork.thread_id: fork.records for fork in done.forks} == {"f": (4,), "g": ()}
    assert family.compaction("f", 4).redacted
    assert sound(family)


def test_messages_of_a_fork_with_the_same_seq_are_not_reached(family: Face) -> None:
    done = family.custody.redact("p", 9, reason="case 7")
    assert [fork.thread_id for fork in done.forks] == ["f", "g"]
    family.append("p", message(13))
    assert family.custody.redact("p", 13, reason="case 8").forks == ()
    assert redacted(family, "f") == [7, 9]


def test_forks_can_be_left_alone_and_reached_later(family: Face) -> None:
    done = family.custody.redact("p", 3, reason="case 7", forks=False)
    assert [(fork.thread_id, fork.pos, fork.seqs) for fork in done.forks] == [
        ("f", None, (3,)), ("early", None, (3,)), ("g", None, (3,)),
    ]  # fmt: skip
    event = list(family.audit.events("p"))[-1]
    assert len(event.body["spared_forks"]) == 3
    assert redacted(family, "p") == [3, 7]
    assert redacted(family, "f") == [7]
    again = family.custody.redact("p", 3, reason="case 9")
    assert (again.pos, again.seqs) == (None, ())
    assert [fork.thread_id for fork in again.forks] == ["f", "early", "g"]
    assert redacted(family, "g") == [3, 7]
    assert family.custody.redact("p", 3, reason="case 9").forks == ()
    assert sound(family)


def test_a_redaction_in_a_fork_reaches_its_own_forks_only(family: Face) -> None:
    done = family.custody.redact("f", [3, 13], reason="case 7")
    assert [(fork.thread_id, fork.seqs) for fork in done.forks] == [("g", (3, 13))]
    assert redacted(family, "p") == [7]
    assert redacted(family, "early") == []


def test_a_dry_run_names_the_forks_and_erases_nothing(family: Face) -> None:
    would = family.custody.redact("p", 3, reason="case 7", dry_run=True)
    assert (would.forks[0].thread_id, would.forks[0].pos, would.forks[0].seqs) == ("f", None, (3,))
    assert would.forks[0].records == would.records == (1,)
    assert redacted(family, "f") == [7]
    assert family.custody.erase("p", reason="case 7", dry_run=True).forks[0].thread_id == "f"


def test_a_hold_of_a_fork_forbids_reaching_it(family: Face) -> None:
    family.custody.hold("g", reason="claim 1")
    before = family.thread("f").last_pos
    with pytest.raises(cs.Held, match="the fork"):
        family.custody.redact("p", 3, reason="case 7")
    with pytest.raises(cs.Held):
        family.custody.redact("p", 3, reason="case 7", dry_run=True)
    assert redacted(family, "p") == redacted(family, "f") == [7]
    assert family.thread("f").last_pos == before
    family.custody.redact("p", 3, reason="case 7", forks=False)
    done = family.custody.redact("p", 3, reason="case 7", override="order of the court")
    assert [fork.thread_id for fork in done.forks] == ["f", "early", "g"]
    assert list(family.audit.events("g"))[-1].body["overrides"]
    assert sound(family)


def test_erasing_a_thread_erases_the_copies_and_leaves_the_forks(family: Face) -> None:
    done = family.custody.erase("p", reason="case 7")
    assert {fork.thread_id: len(fork.seqs) for fork in done.forks} == {"f": 11, "early": 5, "g": 11}
    assert redacted(family, "f") == redacted(family, "g") == list(range(1, 13))
    assert [m.seq for m in family.replay("f") if not m.redacted] == [13, 14]
    assert [m.seq for m in family.replay("early") if not m.redacted] == [6]
    assert family.thread("f").erased_pos is None
    assert sound(family)
    assert said(family.replay("g"))[-1][2] is not None


def test_erasing_a_thread_can_leave_forks_alone(family: Face) -> None:
    done = family.custody.erase("p", reason="case 7", forks=False)
    assert [fork.pos for fork in done.forks] == [None] * 3
    assert redacted(family, "f") == [7]
    # The forks of an erased fork are still found.
    assert [fork.thread_id for fork in family.custody.erase("f", reason="case 8").forks] == ["g"]
    assert sound(family)


def test_forks_of_an_erased_fork_are_reached(family: Face) -> None:
    family.custody.erase("f", reason="case 7", forks=False)
    done = family.custody.redact("p", 3, reason="case 8")
    assert [fork.thread_id for fork in done.forks] == ["early", "g"]


def test_copies_of_fork_events_name_no_forks_of_the_copy(family: Face) -> None:
    family.fork("p", "late")
    assert [event.kind for event in family.audit.events("late")].count("fork") == 2
    assert family.custody.redact("late", 3, reason="case 7").forks == ()


def test_a_search_finds_copies_too(family: Face) -> None:
    found = [place.thread_id for place in family.audit.search("The first four.")]
    assert sorted(found) == ["f", "g", "p"]


def test_bad_arguments_are_refused(family: Face) -> None:
    with pytest.raises(cs.InvalidInput, match="forks must be a bool"):
        family.custody.redact("p", 3, reason="case", forks="no")
    with pytest.raises(cs.InvalidInput, match="forks must be a bool"):
        family.custody.erase("p", reason="case", forks=1)


def test_names_in_a_result_are_those_of_now(family: Face) -> None:
    stub = family.custody.erase("early", reason="case 7").thread_id
    family.append("early", message(1))
    done = family.custody.redact("p", 3, reason="case 8")
    assert stub not in [fork.thread_id for fork in done.forks]
    assert redacted(family, "early") == []


def test_the_result_is_ready_for_json(family: Face) -> None:
    done = family.custody.redact("p", 3, reason="case 7").as_dict()
    assert done["forks"][0]["seqs"] == [3]


@pytest.mark.one_server("a cluster refuses to redact a thread whose fork is not beside it")
@pytest.mark.parametrize("between", [("f",), ("f", "f2")])
def test_a_fork_below_a_fork_that_is_not_here_is_reached(
    family: Face, faces: Faces, other_url: str, between: tuple[str, ...]
) -> None:
    above = "f"
    for name in between[1:]:
        family.fork(above, name, at=family.thread("p").last_pos)
        above = name
    # One of the leaves has messages of the absent fork, at seqs that the parent has too.
    family.append("p", [message(n) for n in range(20, 26)])
    family.append(above, [message(n) for n in range(30, 36)])
    family.fork(above, "leaf")
    family.compact("leaf", lambda ctx: ctx.compact(5, 6, "Five and six."), force=True)
    family.fork("leaf", "leaf of leaf")
    other = faces.open(other_url)
    for name in ("p", "leaf", "leaf of leaf", "early"):
        other.load.bundle(list(family.audit.export(name)))
    other.append("innocent", [message(n) for n in range(1, 20)])
    other.fork("innocent", "fork of innocent")
    done = other.custody.redact("p", [3, 14, 15, 16], reason="case 7", dry_run=True)
    assert {fork.thread_id: fork.seqs for fork in done.forks} == {"early": (3,), "leaf": (3,), "leaf of leaf": (3,)}
    done = other.custody.redact("p", [3, 14, 15, 16], reason="case 7")
    assert {fork.thread_id: fork.seqs for fork in done.forks} == {"early": (3,), "leaf": (3,), "leaf of leaf": (3,)}
    assert redacted(other, "leaf") == redacted(other, "leaf of leaf") == [3, 7]
    assert redacted(other, "innocent") == redacted(other, "fork of innocent") == []
    assert other.custody.redact("p", 3, reason="case 7").forks == ()
    erased = other.custody.erase("p", reason="case 8").forks
    assert {fork.thread_id for fork in erased} == {"early", "leaf", "leaf of leaf"}
    assert [m.text for m in other.replay("leaf") if not m.redacted] == [
        m.text for m in family.replay("leaf") if m.seq > 12
    ]
    assert sound(other)
