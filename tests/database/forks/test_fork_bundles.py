"""Bundles of forks verify with both verifiers, and can be imported without the parent."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from support.databases import TEMPLATE, Server, database
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store import offline

from .conftest import message, said, shown


@pytest.fixture
def other(faces: Faces, server: Server, request: pytest.FixtureRequest) -> Iterator[Face]:
    for url in database(server, TEMPLATE, request):
        yield faces.open(url)


def exported(store: Face, name: str, **options: object) -> list[bytes]:
    return list(store.export(name, **options))


def test_bundles_of_forks_verify(parent: Face) -> None:
    parent.fork("p", "f")
    parent.append("f", message(13))
    parent.fork("f", "g", at=15)
    parent.redact("p", 2, reason="case 3")
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
        other.import_bundle(exported(whole, name))
    for name in order:
        assert other.verify(name).findings == ()
        assert other.thread(name).head == whole.thread(name).head
        assert other.thread(name).view_tokens == whole.thread(name).view_tokens
        assert shown(other.view(name)) == shown(whole.view(name))
    assert other.seen_by("g", 9).view.thread_id == "p"
    assert [fork.thread_id for fork in other.redact("p", 3, reason="case 3").forks] == ["f", "g"]
    assert all(report.findings == () for report in other.verify_all())


def test_a_fork_is_whole_without_its_parent(whole: Face, other: Face) -> None:
    whole.fork("p", "f")
    other.import_bundle(exported(whole, "f"))
    assert said(other.replay("f")) == said(whole.replay("p"))
    assert other.seen_by("f", 9).evidence == "proved"
    assert other.verify("f").findings == ()
    assert "not here" in other.verify("f").notes[0]
    origin = other.explain("f", 3).origin
    assert (origin.thread_id, origin.created_at, origin.thread_uid) == (None, None, whole.thread("p").thread_uid)


def test_a_redaction_leaves_out_forks_that_are_not_here(whole: Face, other: Face) -> None:
    whole.fork("p", "f")
    other.import_bundle(exported(whole, "p"))
    assert other.redact("p", 3, reason="case 3").forks == ()
