"""Copies of a database that were made before a key was destroyed: a dump, a base backup and the write-ahead log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from reliability.rigs.ground import Postgres

import compaction_store as cs
from compaction_store.sealing import Keys, owner_of

pytestmark = pytest.mark.skipif(not Postgres.possible(), reason="needs the embedded server's programs")

TEXTS = 1000


@pytest.fixture
def archiving() -> Iterator[Postgres]:
    server = Postgres()
    archive = server.folder / "archive"
    server.settings |= {"archive_mode": "on", "archive_command": f"test ! -f {archive}/%f && cp %p {archive}/%f"}
    with server:
        archive.mkdir()
        shutil.chown(archive, server.data.owner())
        yield server


def summarizing(first: int, summary: str, reason: str) -> Callable[[cs.CompactionContext], object]:
    return lambda ctx: ctx.compact(first, first + 8, summary, reason=reason)


def plant(store: cs.Store) -> list[str]:
    """Writes texts into payloads, metas, metadata, summaries and reasons of the threads of one person."""
    marks = [uuid4().hex for _ in range(TEXTS)]
    words = iter(marks)
    for thread in ("a", "b", "c", "d"):
        store.append(thread, {"role": "user", "content": next(words)}, subject="person", meta={"note": next(words)})
        store.load.messages(thread, ({"role": "user", "content": next(words)} for _ in range(200)))
        for n in range(8):
            store.compact(thread, summarizing(9 * n + 1, next(words), next(words)))
        store.custody.hold(thread, reason=next(words))
        store.set_metadata(thread, {"who": next(words)})
    store.append("a", [{"role": "user", "content": word} for word in words])
    return marks


def test_no_copy_has_a_text_and_none_can_be_opened_afterwards(archiving: Postgres, tmp_path: Path) -> None:
    url = archiving.database()
    keys = Keys.make(tmp_path / "keys")
    with cs.Store.open(url, seal=keys) as store:
        marks = plant(store)
        archiving.run(
            "pg_basebackup", f"--pgdata={archiving.folder / 'base'}", "--checkpoint=fast", "--wal-method=fetch",
            "-h", str(archiving.data), "-p", "5432", "-U", "postgres",
        )  # fmt: skip
        archiving.run("pg_dump", "--file", str(archiving.folder / "dump.sql"), "--dbname", url)
        # The search below finds what is there: a dump of a store without keys has the text.
        open_url = archiving.database()
        with cs.Store.open(open_url) as plain:
            plain.append("t", {"role": "user", "content": "in the clear"})
        archiving.run("pg_dump", "--file", str(archiving.folder / "open.sql"), "--dbname", open_url)
        assert b"in the clear" in (archiving.folder / "open.sql").read_bytes()
        assert keys.destroy(owner_of("default", "person"))
    places = [archiving.folder / "base", archiving.folder / "archive", archiving.folder / "dump.sql"]
    for place in places:
        files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
        assert files
        for path in files:
            data = path.read_bytes()
            assert not [mark for mark in marks if mark.encode() in data], path
    archiving.stop()
    restored = Postgres()
    try:
        restored._owned()
        shutil.move(archiving.folder / "base", restored.data)
        restored.start()
        with cs.Store.open(
            restored.at(url.partition("@/")[2].partition("?")[0]), seal=Keys(tmp_path / "keys")
        ) as store:
            read = [message for name in ("a", "b", "c", "d") for message in store.replay(name)]
            assert len(read) >= 800
            assert {(message.payload, message.meta) for message in read} == {(None, None)}
            assert {record.summary_text for record in store.compactions("a")} == {None}
            assert [f for report in store.audit.verify() for f in report.findings] == []
    finally:
        restored.remove()
