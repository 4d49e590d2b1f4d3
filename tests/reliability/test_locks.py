"""Locks that need no privilege: with them, another login can only delay an append by a second, and not even that
without the privilege to call the functions.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.keys import key_of
from support.paths import ROOT

import compaction_store as cs
from compaction_store import migrate
from compaction_store.errors import PermissionDenied

KEY = cs.SigningKey.from_bytes("example.org/audit", bytes(range(32)))
# The former lock numbers of checkpoints and migrations.
_FORMER = (0x636865636B706F69, 0x636F6D7061637400)


@pytest.fixture
def log(tmp_path: Path) -> cs.CheckpointLog:
    return cs.CheckpointLog(tmp_path / "log", KEY.key)


@pytest.fixture
def stranger(url: str, superuser: Any) -> Iterator[psycopg.Connection[Any]]:
    """A login that may connect, and has been granted nothing."""
    name = f"cs_stranger_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    address = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_advisory_locks_hold_up_no_checkpoint_and_no_migration(
    faces: Any, url: str, log: cs.CheckpointLog, stranger: Any
) -> None:
    for number in _FORMER:
        stranger.execute("SELECT pg_advisory_lock(%s)", [number])
    store = faces.open(url, deadline=5)
    store.append("t", {"n": 1}, raw=True)
    assert store.audit.checkpoint(KEY, log).size == 1
    migrate.upgrade(url)


def test_a_long_transaction_of_a_stranger_holds_up_no_checkpoint_and_no_migration(
    faces: Any, url: str, superuser: Any, log: cs.CheckpointLog, stranger: Any
) -> None:
    """With an old snapshot, an id, and every lock that a login without a grant can take."""
    with stranger.transaction():
        stranger.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        stranger.execute("SELECT pg_current_xact_id()")
        for name in ("pg_class", "pg_proc", "pg_namespace", "pg_roles", "pg_auth_members", "pg_trigger", "pg_policy"):
            stranger.execute(f"LOCK TABLE pg_catalog.{name} IN ACCESS SHARE MODE")
        stranger.execute("CREATE TEMP TABLE heads ON COMMIT DROP AS SELECT 1 AS thread_uid")
        store = faces.open(url, deadline=5)
        store.append("t", {"n": 1}, raw=True)
        assert store.audit.checkpoint(KEY, log).size == 1
        migrate.upgrade(url)
        superuser.execute("SET lock_timeout = '2s'; DROP SCHEMA compaction_store CASCADE")
        migrate.upgrade(url)


@pytest.mark.parametrize(
    "statement",
    [
        "LOCK TABLE compaction_store.alembic_version IN ACCESS SHARE MODE",
        "SELECT FROM compaction_store.alembic_version FOR KEY SHARE",
        "SELECT compaction_store.checkpoint_turn()",
        "LOCK TABLE compaction_store.heads IN ACCESS SHARE MODE",
    ],
)
def test_a_stranger_can_lock_nothing_of_ours(stranger: Any, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
        stranger.execute(statement)


@pytest.mark.parametrize("role", ["compaction_store_app", "compaction_store_loader"])
def test_the_application_and_the_loader_can_keep_no_checkpoint_waiting(superuser: Any, role: str) -> None:
    with superuser.transaction():
        superuser.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
            superuser.execute("SELECT compaction_store.checkpoint_turn()")


def test_a_checkpoint_is_an_auditors(faces: Any, url: str, superuser: Any, log: cs.CheckpointLog) -> None:
    name = f"cs_audits_{os.getpid()}"
    faces.open(url).append("t", {"n": 1}, raw=True)
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_app")
    try:
        login = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
        store = faces.open(login)
        with pytest.raises(PermissionDenied, match="grant this login compaction_store_auditor"):
            store.audit.checkpoint(KEY, log)
        superuser.execute(f"GRANT compaction_store_auditor TO {name}; REVOKE compaction_store_app FROM {name}")
        assert store.audit.checkpoint(KEY, log).size == 1
        store.close()
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("role", ["compaction_store_app", "compaction_store_auditor", "compaction_store_loader"])
@pytest.mark.parametrize("mode", ["ROW SHARE", "ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"])
def test_reading_the_version_is_not_enough_to_lock_it(superuser: Any, role: str, mode: str) -> None:
    with superuser.transaction():
        superuser.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
            superuser.execute(f"LOCK TABLE compaction_store.alembic_version IN {mode} MODE")


def test_readers_of_the_version_keep_nobody_waiting(faces: Any, url: str, log: cs.CheckpointLog) -> None:
    with psycopg.connect(url) as reading:
        reading.execute("SELECT FROM compaction_store.alembic_version")
        store = faces.open(url, deadline=5)
        store.append("t", {"n": 1}, raw=True)
        assert store.audit.checkpoint(KEY, log).size == 1
        migrate.upgrade(url)


def test_a_store_opens_while_a_checkpoint_is_made(faces: Any, url: str) -> None:
    with psycopg.connect(url) as holding:
        holding.execute("SELECT compaction_store.checkpoint_turn()")
        store = faces.open(url, deadline=5)
        store.append("t", {"n": 1}, raw=True)
        assert store.audit.verify("t").findings == ()


def test_a_checkpoint_that_gets_no_turn_says_who_has_it(faces: Any, url: str, log: cs.CheckpointLog) -> None:
    store = faces.open(url, deadline=2)
    store.append("t", {"n": 1}, raw=True)
    with psycopg.connect(url, application_name="night\njob") as holding:
        holding.execute("SELECT compaction_store.checkpoint_turn()")
        user = holding.execute("SELECT current_user").fetchall()[0][0]
        with pytest.raises(cs.DatabaseUnavailable) as caught:
            store.audit.checkpoint(KEY, log)
        # An application's name cannot start a new line.
        assert re.search(
            rf"process {holding.info.backend_pid} \('night.*job', login '{user}'\) holds the lock", str(caught.value)
        )
        assert "\n" not in str(caught.value)
        assert caught.value.sqlstate == "55P03"
        assert log.last() is None
    assert store.audit.checkpoint(KEY, log).size == 1


def test_a_checkpoint_waits_for_another_that_ends(faces: Any, url: str, log: cs.CheckpointLog) -> None:
    store = faces.open(url)
    store.append("t", {"n": 1}, raw=True)
    with psycopg.connect(url) as holding:
        holding.execute("SELECT compaction_store.checkpoint_turn()")
        ends = threading.Timer(0.5, holding.rollback)
        ends.start()
        assert store.audit.checkpoint(KEY, log).size == 1
        ends.join()


def test_a_migration_that_gets_no_turn_says_who_has_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "TURN_TIMEOUT_MS", 300)
    with psycopg.connect(url, application_name="deploy") as holding:
        holding.execute("LOCK TABLE compaction_store.alembic_version IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(cs.DatabaseUnavailable, match=rf"process {holding.info.backend_pid} \('deploy', login"):
            migrate.upgrade(url)
    migrate.upgrade(url)


def test_a_first_migration_waits_for_another(empty_url: str) -> None:
    with psycopg.connect(empty_url) as other:
        other.execute("CREATE SCHEMA compaction_store")
        thread = threading.Thread(target=migrate.upgrade, args=(empty_url,))
        thread.start()
        time.sleep(0.3)
        other.commit()
        thread.join(20)
    migrate.check(empty_url)


def test_a_login_that_may_only_read_finds_that_there_is_nothing_to_do(url: str, superuser: Any) -> None:
    name = f"cs_reads_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE compaction_store_app")
    try:
        login = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
        migrate.upgrade(login)
    finally:
        superuser.execute(f"DROP ROLE {name}")


def test_only_the_queue_of_appends_is_an_advisory_lock() -> None:
    files = [
        path.relative_to(root).as_posix()
        for root in (migrate.scripts(), Path(cs.__file__).parent)
        for pattern in ("*.sql", "*.py")
        for path in root.rglob(pattern)
        if re.search(r"pg_(try_)?advisory", path.read_text(encoding="utf-8"))
    ]
    assert sorted(set(files)) == [
        "sql/functions/append.sql", "sql/functions/append_together.sql", "sql/functions/queue_up.sql",
    ]  # fmt: skip


def test_the_queue_of_appends_can_be_kept_from_strangers(faces: Any, url: str, superuser: Any, stranger: Any) -> None:
    """docs/threats.md says how."""
    store = faces.open(url)
    store.append("t", {"n": 1}, raw=True)
    functions = (
        "pg_advisory_lock(bigint)", "pg_advisory_lock(integer, integer)", "pg_advisory_lock_shared(bigint)",
        "pg_advisory_lock_shared(integer, integer)", "pg_advisory_xact_lock(bigint)",
        "pg_advisory_xact_lock(integer, integer)", "pg_advisory_xact_lock_shared(bigint)",
        "pg_advisory_xact_lock_shared(integer, integer)", "pg_try_advisory_lock(bigint)",
        "pg_try_advisory_lock(integer, integer)", "pg_try_advisory_lock_shared(bigint)",
        "pg_try_advisory_lock_shared(integer, integer)", "pg_try_advisory_xact_lock(bigint)",
        "pg_try_advisory_xact_lock(integer, integer)", "pg_try_advisory_xact_lock_shared(bigint)",
        "pg_try_advisory_xact_lock_shared(integer, integer)",
    )  # fmt: skip
    page = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    block = re.search(r"```sql\n(DO .*?)```", page, re.DOTALL)
    assert block is not None
    superuser.execute(block[1])
    uid = key_of(superuser, "t")
    for function in functions:
        name, arguments = function.rstrip(")").split("(")
        values = "uuid_hash_extended(%(uid)s, 0)" if arguments == "bigint" else "1, 2"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(f"SELECT {name}({values})", {"uid": uid})
    store.append("t", {"n": 2}, raw=True)
    store.append("t", [{"n": 3}, {"n": 4}], raw=True)
    assert store.audit.verify("t", level="schema").findings == ()
