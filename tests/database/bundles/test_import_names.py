"""Names and keys in bundles: whose thread it is, whether the name is free, and what is left of an erased thread."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from support.faces import Face, Faces
from support.handmade_bundles import Thread, new_key, said, sealed

import compaction_store as cs
from compaction_store import offline
from compaction_store.integrity import chain, erasure
from compaction_store.models import Imported

HI = {"role": "user", "content": "hi"}


@pytest.fixture
def other(faces: Faces, other_url: str) -> Face:
    """A store of the same kind on another database."""
    return faces.open(other_url)


def found(lines: list[bytes]) -> bool:
    """Whether the verifiers find something; neither may be alone."""
    mine = bool(cs.verify_bundle(lines).findings)
    assert mine == bool(offline.check(io.BytesIO(b"".join(lines))).findings)
    return mine


def filled(store: Any, thread_id: str = "t") -> list[bytes]:
    store.append(thread_id, [{"role": "user", "content": f"message {i}"} for i in range(5)])
    store.compact(thread_id, lambda ctx: ctx.compact(2, 3, "short", allow={"larger"}))
    store.custody.hold(thread_id, reason="audit")
    store.custody.release(thread_id, reason="done")
    return list(store.audit.export(thread_id))


# ---- the key and the name


@pytest.mark.parametrize("name", ["erased:", "erased:1", "erased:00000000-0000-7000-8000-000000000007"])
def test_a_live_thread_that_is_called_erased_is_found(name: str) -> None:
    """Its commitment fits its name, and no store takes such a name."""
    assert found(_called(name))
    assert not found(_called("is erased:1"))


def _called(name: str) -> list[bytes]:
    made = Thread(thread_id=name)
    made.message('{"role":"user"}')
    return made.lines()


def test_the_manifest_has_the_key_and_the_commitment_to_the_name(store: Face) -> None:
    manifest = said(filled(store))[0]
    assert list(manifest)[3:8] == ["tenant", "thread_id", "thread_uid", "name_salt", "name_commitment"]
    assert manifest["thread_uid"] == str(store.thread("t").thread_uid)
    salt, commitment = bytes.fromhex(manifest["name_salt"]), bytes.fromhex(manifest["name_commitment"])
    assert chain.is_name(salt, "t", commitment)


def test_an_imported_thread_keeps_its_key(store: Face, other: Face) -> None:
    other.load.bundle(filled(store))
    assert other.thread("t") == store.thread("t")
    assert other.thread("t").thread_uid == store.thread("t").thread_uid


def test_a_bundle_whose_name_another_thread_has_is_refused(store: Face, other: Face) -> None:
    lines = filled(store)
    other.append("t", HI)
    before = list(other.threads())
    with pytest.raises(cs.ThreadExists, match="another thread") as caught:
        other.load.bundle(lines)
    assert "'t'" in str(caught.value)
    assert list(other.threads()) == before
    assert other.audit.verify("t").findings == ()
    other.custody.erase("t", reason="r")
    # Now the name is free.
    assert other.load.bundle(lines).added
    assert other.thread("t") == store.thread("t")
    assert [report.findings for report in other.audit.verify()] == [(), ()]


def test_the_bundle_of_a_thread_with_a_name_used_again_can_be_imported_elsewhere(store: Face, other: Face) -> None:
    """The old thread and the new one, the one as a stub."""
    filled(store)
    stub = store.custody.erase("t", reason="r").thread_id
    store.append("t", HI)
    for name in ("t", stub):
        assert other.load.bundle(list(store.audit.export(name))).thread_id == name
    assert list(other.threads()) == list(store.threads())
    assert [report.findings for report in other.audit.verify()] == [(), ()]


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"},
        {"thread_id": "u"},
        {"thread_uid": str(new_key("default", "u"))},
        {"thread_uid": "6c84fb90-12c4-11e1-840d-7b25c5ee775a"},
        {"name_salt": None},
        {"name_salt": "00" * 16},
        {"name_commitment": "00" * 32},
        {"thread_id": "u", "name_salt": "00" * 16, "name_commitment": chain.name_commitment(bytes(16), "u").hex()},
    ],
    ids=str,
)
@pytest.mark.parametrize("erased", [False, True])
def test_a_bundle_under_another_name_key_or_tenant_is_found_and_refused(
    store: Face, faces: Faces, other_url: str, change: dict[str, Any], erased: bool
) -> None:
    """Of a stub too: its genesis follows from its key, its tenant and the commitment to its name."""
    lines = filled(store)
    if erased:
        lines = list(store.audit.export(store.custody.erase("t", reason="r").thread_id))
        if "thread_uid" in change:
            change = change | {"thread_id": f"erased:{change['thread_uid']}"}
        elif change == {"name_salt": None}:
            change = {"thread_id": "t"}
    assert not found(lines)
    manifest, *entries = said(lines)
    changed = sealed([manifest | change, *entries])
    assert found(changed)
    elsewhere = faces.open(other_url, tenant=change.get("tenant", "default"))
    with pytest.raises(cs.InvalidBundle):
        elsewhere.load.bundle(changed)
    assert list(elsewhere.threads()) == []


def test_a_key_must_have_the_time_of_the_first_entry(store: Face) -> None:
    """Whoever makes a bundle by hand cannot choose a key at will: it must be one that a store would have made then."""
    at = new_key("default", "t-1")
    for uid in (
        uuid.uuid4(), uuid.UUID(int=at.int + (1 << 80)), uuid.UUID(int=at.int ^ (1 << 78)),
        uuid.UUID(int=at.int ^ (1 << 63)),
    ):  # fmt: skip
        thread = Thread(uid=uid)
        thread.message('{"role":"user"}')
        assert found(thread.lines())
        with pytest.raises(cs.InvalidBundle, match="UUID of version 7"):
            store.load.bundle(thread.lines())
    thread = Thread(uid=uuid.UUID(int=at.int ^ 1))
    thread.message('{"role":"user"}')
    assert not found(thread.lines())
    assert store.load.bundle(thread.lines()).added


@pytest.mark.parametrize(
    "moment", [-62_135_596_799_999_000, -1, 0, 999, 150_000_000_000_000_000, 253_402_300_799_999_999]
)
def test_a_key_can_have_any_time_of_the_years_1_to_9999(moment: int) -> None:
    """48 bits hold 8,900 years of milliseconds; the later ones are those of the first years again."""
    for at, fits in ((moment, True), (moment + 1_000_000 if moment < 10**17 else moment - 1_000_000, False)):
        thread = Thread(uid=new_key("default", "t-1", at))
        thread.message('{"role":"user"}', microseconds=moment)
        assert found(thread.lines()) is not fits


# ---- stubs


def test_an_erased_thread_is_exported_as_what_is_left_of_it(store: Face, other: Face) -> None:
    filled(store, "the name")
    stub = store.custody.erase("the name", reason="asked").thread_id
    lines = list(store.audit.export(stub))
    manifest = said(lines)[0]
    assert (manifest["thread_id"], manifest["name_salt"]) == (stub, None)
    assert b"the name" not in b"".join(lines)
    report = cs.verify_bundle(lines)
    assert (report.thread_id, report.level, report.findings, report.withheld) == (stub, "content", (), 0)
    assert (report.notes, report.thread_uid) == ((), store.thread(stub).thread_uid)
    assert not found(lines)
    state = store.thread(stub)
    done = other.load.bundle(lines)
    assert done == Imported(stub, state.last_seq, state.last_number, state.last_pos, state.head, added=True)
    assert other.thread(stub) == state
    assert other.audit.verify(stub).findings == other.audit.verify(stub).notes == ()
    assert [r.findings for r in other.audit.verify()] == [()]
    assert list(other.audit.export(stub))[1:-1] == lines[1:-1]
    assert not other.load.bundle(lines).added
    for write in (lambda: other.append(stub, HI), lambda: other.set_metadata(stub, {})):
        with pytest.raises(cs.ThreadErased):
            write()  # type: ignore[no-untyped-call]


def test_an_imported_stub_occupies_no_name(store: Face, other: Face) -> None:
    filled(store)
    stub = store.custody.erase("t", reason="asked").thread_id
    other.load.bundle(list(store.audit.export(stub)))
    with pytest.raises(cs.ThreadNotFound):
        other.thread("t")
    assert other.append("t", HI)[0].seq == 1
    assert {t.thread_id for t in other.threads()} == {"t", stub}
    for name in ("t", stub):
        assert other.audit.verify(name).findings == ()
    assert erasure.stub_uid(stub) != other.thread("t").thread_uid


def test_a_bundle_from_before_an_erasure_does_not_undo_it(store: Face) -> None:
    """Whether its name is free or used again: the key says that it is the erased thread."""
    lines = filled(store)
    stub = store.custody.erase("t", reason="asked").thread_id
    for _ in range(2):
        with pytest.raises(cs.ThreadExists):
            store.load.bundle(lines)
        assert all(message.redacted for message in store.replay(stub))
        store.append("t", HI)
    assert [message.payload for message in store.replay("t")] == [HI, HI]


def test_a_live_thread_named_as_a_stub_is_found_and_refused(store: Face, other: Face) -> None:
    manifest, *entries = said(filled(store))
    changed = sealed([manifest | {"thread_id": f"erased:{manifest['thread_uid']}", "name_salt": None}, *entries])
    assert found(changed)
    with pytest.raises(cs.InvalidBundle):
        other.load.bundle(changed)
    assert list(other.threads()) == []
