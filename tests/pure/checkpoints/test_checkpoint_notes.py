"""The tree of heads and the signed note: what is made, and which changes are refused."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import KEY, OTHER, heads
from support.paths import TESTS

import compaction_store as cs
from compaction_store.checkpoints import check_proof, keys, notes
from compaction_store.checkpoints.heads import Head, HeadsFile, tenant_hash
from compaction_store.checkpoints.tree import Tree, leads
from compaction_store.checkpoints.tree import leaf as leaf_of
from compaction_store.checkpoints.tree import path as path_of
from compaction_store.errors import InvalidCheckpoint
from compaction_store.integrity import chain

GOLDEN = json.loads((TESTS / "golden" / "checkpoint-1.json").read_text(encoding="utf-8"))
# The thread of the golden proof, and another of the same checkpoint.
UID, OTHER_UID = (uuid.UUID(GOLDEN["heads"][index]["thread_uid"]) for index in (GOLDEN["proof"]["leaf_index"], 0))


def root_by_definition(leaves: list[bytes]) -> bytes:
    """Computes the root by the definition in RFC 6962, 2.1."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\x01" + root_by_definition(leaves[:k]) + root_by_definition(leaves[k:])).digest()


@pytest.mark.parametrize("count", [*range(34), 100, 127, 128, 129])
def test_the_root_is_that_of_the_definition(count: int) -> None:
    leaves = [leaf_of(head.data()) for head in heads(count)]
    assert Tree(leaves).root() == root_by_definition(leaves)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 64, 65])
def test_a_path_leads_from_every_leaf_to_the_root_and_from_nothing_else(count: int) -> None:
    leaves = [leaf_of(head.data()) for head in heads(count)]
    root = Tree(leaves).root()
    for index, leaf in enumerate(leaves):
        path = path_of(lambda start, end: leaves[start:end], index, 0, count)
        assert len(path) <= (count - 1).bit_length()
        assert leads(leaf, index, count, path, root)
        assert not leads(sha256(leaf).digest(), index, count, path, root)
        assert not leads(leaf, index + count, count, path, root)
        assert not leads(leaf, -1, count, path, root)
        assert not leads(leaf, index, count, [*path, bytes(32)], root)
        if path:
            assert not leads(leaf, index, count, path[:-1], root)
            assert not leads(leaf, index ^ 1, count, path, root) or count == 1


def test_the_golden_checkpoint_is_made_as_ever(tmp_path: Path) -> None:
    listed = [Head(uuid.UUID(h["thread_uid"]), bytes.fromhex(h["tenant"]), h["pos"], bytes.fromhex(h["entry"]))
              for h in GOLDEN["heads"]]  # fmt: skip
    assert listed == sorted(listed)
    assert {chain.born_at(head.thread_uid) is not None for head in listed} == {True}
    writer = cs.CheckpointLog(tmp_path / "log", KEY.key).writer()
    for head in listed:
        writer.add(head)
    assert writer.keep().read_text() == "".join(head["line"] for head in GOLDEN["heads"])
    assert writer.hash == GOLDEN["heads_sha256"]
    assert [leaf_of(head.data()).hex() for head in listed] == [head["leaf"] for head in GOLDEN["heads"]]
    tree = Tree(leaf_of(head.data()) for head in listed)
    assert tree.root().hex() == GOLDEN["root"]
    assert tenant_hash("acme").hex() == GOLDEN["tenant_hash"]
    first = notes.sign(KEY, "acme", tree, GOLDEN["heads_sha256"], None, datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
    assert first.note == GOLDEN["first"]
    second = notes.sign(KEY, "acme", tree, GOLDEN["heads_sha256"], first, datetime(2026, 1, 2, 3, 5, tzinfo=UTC))
    assert (second.note, first.digest) == (GOLDEN["second"], GOLDEN["first_digest"])
    index = GOLDEN["proof"]["leaf_index"]
    path = path_of(lambda start, end: [leaf_of(h.data()) for h in listed[start:end]], index, 0, len(listed))
    proof = notes.proof(second, listed[index], index, path)
    assert proof == GOLDEN["proof"]
    proved = check_proof(proof, UID, KEY.key)
    assert (proved.pos, proved.entry) == (listed[index].pos, listed[index].entry)


def signed(tree: Tree | None = None, tenant: str | None = "default") -> cs.Checkpoint:
    return notes.sign(KEY, tenant, tree or Tree(), "0" * 64, None, datetime.now(UTC))


def test_a_note_is_read_only_with_the_key_that_signed_it() -> None:
    note = signed().note
    assert notes.read(note, KEY.key).note == note
    assert notes.read(note, OTHER.key, KEY.key).key == KEY.key
    for known in ((), (OTHER.key,)):
        with pytest.raises(InvalidCheckpoint):
            notes.read(note, *known)


def test_a_note_with_a_witness_below_is_read_and_has_the_same_digest() -> None:
    checkpoint = signed()
    text = checkpoint.note.rpartition("\n\n")[0] + "\n"
    name = "witness.example/w1"
    raw = keys.key_hash(name, OTHER.key) + OTHER.sign(text.encode())
    both = f"{checkpoint.note}— {name} {base64.b64encode(raw).decode()}\n"
    read = notes.read(both, KEY.key)
    assert (read.digest, read.root) == (checkpoint.digest, checkpoint.root)


@pytest.mark.parametrize("tenant", ["a/b", "größe", "with space", "line\nbreak", "%2F", "a" * 255, None])
def test_a_note_names_its_tenant_whatever_that_is_called(tenant: str | None) -> None:
    checkpoint = signed(tenant=tenant)
    assert notes.read(checkpoint.note, KEY.key).origin == checkpoint.origin
    assert "\n" not in checkpoint.origin


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_note_with_a_changed_byte_is_refused(data: st.DataObject) -> None:
    note = signed(Tree([bytes(32)])).note.encode()
    at = data.draw(st.integers(0, len(note) - 1))
    changed = bytearray(note)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidCheckpoint):
        notes.read(changed.decode("utf-8", "surrogateescape"), KEY.key)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.none(), st.integers(), st.binary()))
def test_garbage_is_no_note(garbage: object) -> None:
    with pytest.raises(InvalidCheckpoint):
        notes.read(garbage, KEY.key)


@pytest.mark.parametrize(
    "change",
    [
        {"note": 1}, {"proof": None}, {"proof": []}, {"proof": ["zz"]}, {"proof": ["00"]}, {"leaf_index": 5},
        {"leaf_index": "2"}, {"leaf_index": -1}, {"note": "x"},
    ],
)  # fmt: skip
def test_a_changed_proof_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidCheckpoint):
        check_proof(GOLDEN["proof"] | change, UID, KEY.key)
    with pytest.raises(InvalidCheckpoint):
        check_proof(GOLDEN["proof"], OTHER_UID, KEY.key)
    with pytest.raises(InvalidCheckpoint):
        check_proof(GOLDEN["proof"], UID, OTHER.key)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "ü", "x" * 101, "a\n", None])
def test_a_key_has_a_printable_name(name: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        cs.SigningKey.generate(name)


def test_a_key_comes_back_from_its_bytes_and_shows_no_secret() -> None:
    key = cs.SigningKey.generate("k")
    again = cs.SigningKey.from_bytes("k", key.private_bytes())
    assert again.key == key.key
    assert key.private_bytes().hex() not in repr(key)
    with pytest.raises(cs.InvalidInput):
        cs.SigningKey.from_bytes("k", b"short")


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import compaction_store as cs\n"
        "try:\n    cs.SigningKey.generate('k')\n"
        "except cs.errors.MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[audit]'" in done.stdout


def test_heads_are_found_in_a_file_without_reading_it(tmp_path: Path) -> None:
    log = cs.CheckpointLog(tmp_path / "checkpoints.jsonl", KEY.key)
    writer = log.writer()
    listed = heads(5000)
    for head in listed:
        writer.add(head)
    with pytest.raises(cs.InvalidInput):
        writer.add(listed[0])
    digest = writer.hash
    path = writer.keep()
    assert path.name == f"heads-{digest}"
    with HeadsFile(path) as found:
        assert list(found) == listed
        for index in random.sample(range(5000), 50):
            assert found.find(listed[index].thread_uid) == (index, listed[index])
        assert found.find(uuid.UUID(int=0)) is None
        assert found.find(uuid.UUID(int=2**128 - 1)) is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidCheckpoint):
        HeadsFile(path)
