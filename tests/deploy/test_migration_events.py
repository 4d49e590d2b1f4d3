"""A migration from one revision to another is an event of the database; the first one makes the log's tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import compaction_store as cs
from compaction_store import migrate
from compaction_store.arguments import DATABASE, LOG
from compaction_store.postgres import tables

_NEXT = """
revision, down_revision = "{next}", "{now}"


def upgrade() -> None: ...


def downgrade() -> None: ...
"""


def test_an_upgrade_is_recorded_with_its_revisions_and_the_release(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)
    with cs.Reader.open(empty_url, tenant=DATABASE) as reader, pytest.raises(cs.ThreadNotFound):
        reader.thread(LOG)
    folder = tmp_path / "migrations"
    shutil.copytree(tables.scripts(), folder)
    (folder / "versions" / "0002_next.py").write_text(_NEXT.format(next="0002", now=tables.REVISION))
    with monkeypatch.context() as later:
        later.setattr(migrate, "scripts", lambda: folder)
        later.setattr(tables, "REVISION", "0002")
        later.setattr("compaction_store.postgres.queries.server.tables.REVISION", "0002")
        migrate.upgrade(empty_url)
        assert migrate.current(empty_url) == "0002"
        with cs.Reader.open(empty_url, tenant=DATABASE) as reader:
            [event] = reader.audit.events(LOG)
            assert not reader.audit.verify(LOG).findings
    said = {"from": "0001", "to": "0002", "release": cs.__version__}
    assert (event.kind, event.body) == ("migration", said)
