"""After a redaction and the page's commands, no file of the server holds the content."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.faces import Face
from support.paths import ROOT
from support.redactable_thread import SECRET, events, rows, span


def _statements() -> tuple[str, list[str]]:
    """Returns the query and the commands of the page."""
    page = (ROOT / "docs" / "erasure.md").read_text(encoding="utf-8")
    query, commands = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return query, [command for command in commands.split(";") if command.strip()]


def test_the_query_of_the_page_says_where_to_look(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.custody.redact("t", 5, reason="r")
    found = dict(superuser.execute(_statements()[0].encode()).fetchall())
    assert {"last redaction", "table messages", "table compactions", "write-ahead log", "archive", "log"} <= set(found)
    assert datetime.fromisoformat(found["last redaction"]) == events(thread)[0].created_at


def undisturbed(superuser: psycopg.Connection[Any]) -> None:
    """Waits until no other transaction, such as the server's own ANALYZE, can see the old rows."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_xmin IS NOT NULL"
    )
    end = time.monotonic() + 20
    while rows(superuser, query):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.one_server("it reads the server's files")
def test_after_the_commands_of_the_page_the_servers_files_hold_no_content(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    [(folder, base)] = rows(
        superuser, "SELECT current_setting('data_directory'), pg_relation_filepath('compaction_store.messages')"
    )
    if not Path(folder, base).exists():
        pytest.skip("the server's files are not on this machine")

    def held() -> int:
        superuser.execute("CHECKPOINT")
        paths = rows(
            superuser, "SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname IN ('messages', 'compactions')"
        )
        return sum(Path(folder, path).read_bytes().count(SECRET.encode()) for (path,) in paths)

    thread.compact("t", span(4, 6, SECRET))
    assert held() > 0
    thread.custody.redact("t", 5, reason="r")
    assert held() > 0
    # Try several times: the server's own work may start just then, and its snapshot keeps the old rows.
    for _ in range(5):
        for command in _statements()[1]:
            undisturbed(superuser)
            superuser.execute(command.encode())
        if not held():
            break
    assert held() == 0


@pytest.mark.one_server("it reads the server's files")
def test_after_the_commands_nothing_of_an_erased_thread_is_on_disk_not_even_its_name(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    [(data, oid)] = rows(
        superuser,
        "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()",
    )
    folders = [Path(data, "pg_wal"), Path(data, "base", str(oid))]
    if not folders[1].exists():
        pytest.skip("the server's files are not on this machine")
    mark = uuid4().hex.encode()

    def held() -> list[str]:
        superuser.execute("CHECKPOINT")
        files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
        return [str(path) for path in files if mark in path.read_bytes()]

    name = f"case {mark.decode()}"
    turn = uuid4()
    superuser.execute("SELECT compaction_store.take_turn('default', %s, %s, 'a', 60, false)", (name, turn))
    for _ in range(20):
        thread.append(name, [{"role": "user", "content": f"more of {mark.decode()}"}] * 50)
    # As autovacuum does.
    for table in ("threads", "turns", "messages"):
        superuser.execute(f"ANALYZE compaction_store.{table}".encode())
    superuser.execute("SELECT compaction_store.leave_turn('default', %s, %s)", (name, turn))
    thread.set_metadata(name, {"who": mark.decode()})
    thread.custody.erase(name, reason="asked for")
    assert {Path(path).parent for path in held()} == set(folders)
    for _ in range(5):
        for command in _statements()[1]:
            undisturbed(superuser)
            superuser.execute(command.encode())
        if not held():
            break
    assert held() == []
    assert superuser.execute("SHOW wal_recycle").fetchone() == ("on",)
