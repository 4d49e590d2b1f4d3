"""A forged bundle with an absent parent's key does not reach its forks, and does not make them look changed."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from support.faces import Face, Faces
from support.handmade_bundles import Thread

import compaction_store as cs
from compaction_store import offline
from compaction_store.integrity import chain

from .conftest import message


def origin(store: Face, fork: str) -> dict[str, object]:
    return next(dict(event.body) for event in store.audit.events(fork) if event.kind == "origin")


def forged(store: Face, fork: str, *, head: str, name: str = "innocent") -> list[bytes]:
    """A bundle with the key of the fork's parent, messages of its own, and an event that claims the fork."""
    said = origin(store, fork)
    uid = UUID(str(said["parent"]))
    born = chain.born_at(uid)
    assert born is not None
    thread = Thread(thread_id=name, uid=uid)
    thread.start = born * 1000
    for n in range(int(str(said["pos"]))):
        thread.message(json.dumps({"role": "user", "content": f"nonsense {n}"}))
    child = store.thread(fork).thread_uid
    thread.event(
        "fork",
        f'{{"child":"{child}","pos":{said["pos"]},"seq":{said["seq"]},"head":"{head}"}}',
    )
    lines = thread.lines()
    assert cs.verify_bundle(lines).findings == ()
    assert offline.check(io.BytesIO(b"".join(lines))).findings == []
    return lines


@pytest.fixture
def other(faces: Faces, other_url: str) -> Face:
    return faces.open(other_url)


@pytest.mark.one_server("on a cluster, a fork may be in another shard")
@pytest.mark.parametrize("true_head", [False, True])
def test_a_forged_parent_of_a_stored_fork_is_refused(whole: Face, other: Face, true_head: bool) -> None:
    whole.fork("p", "f")
    bundle = list(whole.audit.export("f"))
    other.load.bundle(bundle)
    head = whole.thread("f").head.hex() if true_head else "0" * 64
    with pytest.raises(cs.InvalidBundle, match="the entry at which a stored fork of it was made"):
        other.load.bundle(forged(other, "f", head=head))
    assert other.audit.verify("f").findings == ()
    other.load.bundle(list(whole.audit.export("p")))
    assert [fork.thread_id for fork in other.custody.redact("p", 3, reason="case 3").forks] == ["f"]
    assert [report.findings for report in other.audit.verify()] == [(), ()]


@pytest.mark.parametrize("true_head", [False, True])
def test_a_fork_that_comes_after_a_forged_parent_is_not_reached(whole: Face, other: Face, true_head: bool) -> None:
    whole.fork("p", "f")
    head = whole.thread("f").head.hex() if true_head else "0" * 64
    other.load.bundle(forged(whole, "f", head=head))
    other.load.bundle(list(whole.audit.export("f")))
    for dry_run in (True, False):
        done = other.custody.redact("innocent", [1, 2, 3], reason="mine", dry_run=dry_run)
        assert done.forks == ()
    assert [said.redacted for said in other.replay("f")] == [False] * 12
    other.custody.erase("innocent", reason="mine")
    assert [said.text for said in other.replay("f")] == [said.text for said in whole.replay("f")]


def test_true_forks_are_reached_whatever_follows_their_copies(whole: Face, other: Face) -> None:
    """A fork that repeats an erasure, a hold and a retention of its parent ends with these when it is made."""
    whole.fork("p", "early", at=whole.thread("p").last_pos)
    at = whole.thread("p").last_pos
    whole.custody.redact("p", 3, reason="case 3")
    whole.custody.hold("p", reason="case 4")
    whole.custody.retain("p", until=datetime(2030, 1, 1, tzinfo=UTC), reason="case 4")
    whole.fork("p", "late", at=at)
    whole.append("late", message(13))
    for name in ("p", "early", "late"):
        other.load.bundle(list(whole.audit.export(name)))
    done = other.custody.redact("p", 5, reason="case 5", override="a court's order")
    assert [fork.thread_id for fork in done.forks] == ["early", "late"]
    assert [report.findings for report in other.audit.verify()] == [()] * 3
