"""Bundles of forks verify with both verifiers, and can be imported without the parent."""

from __future__ import annotations

import io
from uuid import UUID

import pytest
from support.faces import Face, Faces
from support.handmade_bundles import Thread

import compaction_store as cs
from compaction_store import offline

from .conftest import message, shown
from .conftest import said as said_by


@pytest.fixture
def other(faces: Faces, other_url: str) -> Face:
    return faces.open(other_url)


def exported(store: Face, name: str, **options: object) -> list[bytes]:
    return list(store.audit.export(name, **options))


def test_bundles_of_forks_verify(parent: Face) -> None:
    parent.fork("p", "f")
    parent.append("f", message(13))
    parent.fork("f", "g", at=15)
    parent.custody.redact("p", 2, reason="case 3")
    for name in ("p", "f", "g"):
        for options in ({}, {"bodies": False}):
            lines = exported(parent, name, **options)
            assert cs.verify_bundle(lines).findings == ()
            checked = offline.check(io.BytesIO(b"".join(lines)))
            assert (checked.findings, checked.notes) == ([], list(cs.verify_bundle(lines).notes))


@pytest.mark.parametrize("order", [("p", "f", "g"), ("g", "f", "p")])
def test_parent_and_forks_are_imported_in_any_order(whole: Face, other: Face, order: tuple[str, ...]) -> None:
    whole.fork("p", "f")
    whole.fork("f", "g")
    for name in order:
        other.load.bundle(exported(whole, name))
    for name in order:
        assert other.audit.verify(name).findings == ()
        assert other.thread(name).head == whole.thread(name).head
        assert other.thread(name).view_tokens == whole.thread(name).view_tokens
        assert shown(other.view(name)) == shown(whole.view(name))
    assert other.seen_by("g", 9).view.thread_id == "p"
    assert [fork.thread_id for fork in other.custody.redact("p", 3, reason="case 3").forks] == ["f", "g"]
    assert all(report.findings == () for report in other.audit.verify())


def test_a_fork_is_whole_without_its_parent(whole: Face, other: Face) -> None:
    whole.fork("p", "f")
    other.load.bundle(exported(whole, "f"))
    assert said_by(other.replay("f")) == said_by(whole.replay("p"))
    assert other.seen_by("f", 9).evidence == "proved"
    assert other.audit.verify("f").findings == ()
    assert "not in this database" in other.audit.verify("f").notes[0]
    origin = other.audit.explain("f", 3).origin
    assert (origin.thread_id, origin.created_at, origin.thread_uid) == (None, None, whole.thread("p").thread_uid)


def test_a_redaction_leaves_out_forks_that_are_not_here(whole: Face, other: Face) -> None:
    whole.fork("p", "f")
    other.load.bundle(exported(whole, "p"))
    assert other.custody.redact("p", 3, reason="case 3").forks == ()


def named(kind: str, other: UUID, pos: int) -> tuple[str, str]:
    """Returns the kind and the body of an origin or a fork."""
    name, entry = ("parent", "entry") if kind == "origin" else ("child", "head")
    return kind, f'{{"{name}":"{other}","pos":{pos},"seq":{pos},"{entry}":"{"00" * 32}"}}'


def handmade(name: str, *events: tuple[str, str]) -> list[bytes]:
    made = Thread("default", name)
    for kind, body in events:
        made.event(kind, body)
    for i in range(1, 4):
        made.message(f'{{"role":"user","content":"message {i}"}}')
    return made.lines()


@pytest.mark.one_server("a cluster refuses the erasure if the other thread is in another shard")
def test_an_imported_thread_that_calls_another_its_fork_has_no_part_of_it_erased(parent: Face) -> None:
    """The other thread must say so too: here, one says nothing, and one is a fork of another thread."""
    parent.fork("p", "f")
    for victim in ("p", "f"):
        parent.load.bundle(handmade(f"of {victim}", named("fork", parent.thread(victim).thread_uid, 10**17)))
        before = said_by(parent.replay(victim))
        assert parent.custody.redact(f"of {victim}", [1, 2], reason="case 9").forks == ()
        assert said_by(parent.replay(victim)) == before
        assert parent.custody.erase(f"of {victim}", reason="case 9").forks == ()
    parent.custody.hold("p", reason="case 10")
    parent.load.bundle(handmade("held", named("fork", parent.thread("p").thread_uid, 3)))
    assert parent.custody.redact("held", 1, reason="case 9").seqs == (1,)


@pytest.mark.parametrize("pos", [4, 5, 10**17])
def test_an_origin_of_more_copies_than_there_are_is_found_and_refused(parent: Face, pos: int) -> None:
    """Forks of the thread that are made later would be taken for copies, which a redaction does not reach."""
    lines = handmade("x", named("origin", UUID(int=7), pos))
    assert [finding.pos for finding in cs.verify_bundle(lines).findings] == [1]
    assert [found[1] for found in offline.check(io.BytesIO(b"".join(lines))).findings] == [1]
    with pytest.raises(cs.InvalidBundle):
        parent.load.bundle(lines)


def test_forks_of_an_imported_fork_are_reached(parent: Face) -> None:
    parent.load.bundle(handmade("x", named("origin", UUID(int=7), 3)))
    parent.fork("x", "y")
    assert [fork.thread_id for fork in parent.custody.redact("x", 1, reason="case 9").forks] == ["y"]


@pytest.mark.parametrize(
    "body",
    [
        '{"pos":1,"parent":"00000000-0000-0000-0000-000000000007"}', "{}", '{"parent":5,"pos":1e400}',
        '{"parent":"00000000-0000-0000-0000-000000000007","pos":' + "9" * 30 + ',"seq":1,"entry":"' + "00" * 32 + '"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["origin", "fork"])
def test_an_origin_or_a_fork_that_does_not_say_what_was_copied_is_found_and_refused(
    parent: Face, kind: str, body: str
) -> None:
    lines = handmade("x", (kind, body))
    assert [finding.pos for finding in cs.verify_bundle(lines).findings] == [1]
    assert [found[1] for found in offline.check(io.BytesIO(b"".join(lines))).findings] == [1]
    with pytest.raises(cs.InvalidBundle):
        parent.load.bundle(lines)
