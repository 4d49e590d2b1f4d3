"""Logins that `grant` gives a role, and those that it refuses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store import migrate
from compaction_store.deploy import roles
from compaction_store.errors import PermissionDenied
from compaction_store.models.roles import ROLES, Role
from compaction_store.postgres import tables

KEY = cs.SigningKey.from_bytes("example.org/audit", bytes(range(32)))


@pytest.fixture
def login(superuser: psycopg.Connection[Any]) -> Iterator[str]:
    name = f'odd "name" %s; {uuid.uuid4().hex[:8]}'
    quoted = '"' + name.replace('"', '""') + '"'
    superuser.execute(f"CREATE ROLE {quoted} LOGIN PASSWORD 'pw'".encode())
    yield name
    superuser.execute(f"DROP OWNED BY {quoted}; DROP ROLE {quoted}".encode())


def memberships(superuser: psycopg.Connection[Any], login: str) -> set[str]:
    return {
        name
        for (name,) in superuser.execute(
            "SELECT g.rolname FROM pg_auth_members AS a JOIN pg_roles AS g ON g.oid = a.roleid"
            " JOIN pg_roles AS m ON m.oid = a.member WHERE m.rolname = %s",
            [login],
        )
    }


@pytest.mark.parametrize("role", list(ROLES))
def test_a_login_is_given_a_role_and_loses_it(url: str, superuser: Any, login: str, role: Role) -> None:
    for _ in range(2):
        roles.grant(url, login, role)
        assert memberships(superuser, login) == {ROLES[role].group}
    for _ in range(2):
        roles.revoke(url, login, role)
        assert memberships(superuser, login) == set()


@pytest.mark.parametrize("role", list(ROLES))
def test_a_login_that_writes_loses_a_transaction_that_it_forgot(
    url: str, superuser: Any, login: str, role: Role
) -> None:
    quoted = '"' + login.replace('"', '""') + '"'
    roles.grant(url, login, role)
    with psycopg.connect(url, user=login) as connection:
        [(found,)] = connection.execute("SHOW idle_in_transaction_session_timeout").fetchall()
    assert found == ("0" if role in ("owner", "auditor") else "1min")
    # A choice of the administrator stays.
    superuser.execute(f"ALTER ROLE {quoted} SET idle_in_transaction_session_timeout = '7s'".encode())
    superuser.execute(f"ALTER ROLE {quoted} IN DATABASE {superuser.info.dbname} RESET ALL".encode())
    roles.grant(url, login, role)
    [(settings,)] = superuser.execute(
        "SELECT array_agg(c) FROM pg_db_role_setting AS s, unnest(s.setconfig) AS c"
        " WHERE s.setrole = (SELECT oid FROM pg_roles WHERE rolname = %s)",
        [login],
    ).fetchall()
    assert settings == ["idle_in_transaction_session_timeout=7s"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("nobody there", "application"), ("", "application"), ("a\0b", "application"), ("x" * 64, "application"),
        (None, "application"), ("\ud800", "application"), ("compaction_store_app", "application"),
        ("compaction_store_app", "owner"), ("x; DROP SCHEMA compaction_store CASCADE", "owner"), ("a", "admin"),
        ("a", None), ("a", ["owner"]),
    ],
)  # fmt: skip
def test_what_is_no_login_or_no_role_is_refused(url: str, name: Any, role: Any) -> None:
    for change in (roles.grant, roles.revoke):
        with pytest.raises(cs.InvalidInput):
            change(url, name, role)


@pytest.mark.parametrize("attribute", ["SUPERUSER", "BYPASSRLS"])
def test_a_login_that_no_policy_binds_is_refused(url: str, superuser: Any, login: str, attribute: str) -> None:
    quoted = '"' + login.replace('"', '""') + '"'
    superuser.execute(f"ALTER ROLE {quoted} {attribute}".encode())
    for role in ("application", "loader", "auditor"):
        with pytest.raises(cs.InvalidInput, match="it could do more than its role allows"):
            roles.grant(url, login, role)
    assert memberships(superuser, login) == set()
    roles.grant(url, login, "owner")


@pytest.mark.parametrize("attribute", ["SUPERUSER", "BYPASSRLS"])
def test_a_login_that_can_become_such_a_role_is_refused(url: str, superuser: Any, login: str, attribute: str) -> None:
    quoted = '"' + login.replace('"', '""') + '"'
    group = f"cs_group_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {group} NOLOGIN {attribute}; GRANT {group} TO {quoted}".encode())
    try:
        for role in ("application", "loader", "auditor"):
            with pytest.raises(cs.InvalidInput, match=f"is a member of '{group}', which is"):
                roles.grant(url, login, role)
        assert memberships(superuser, login) == {group}
    finally:
        superuser.execute(f"DROP ROLE {group}")


def test_a_login_that_owns_the_schema_is_refused(url: str, superuser: Any, login: str) -> None:
    """As one does that migrated and lost the owner's role since."""
    quoted = '"' + login.replace('"', '""') + '"'
    change = "ALTER SCHEMA compaction_store OWNER TO {0}; ALTER TABLE compaction_store.alembic_version OWNER TO {0}"
    superuser.execute(change.format(quoted).encode())
    try:
        with pytest.raises(cs.InvalidInput, match="is the owner of the schema, or of a table in it"):
            roles.grant(url, login, "application")
        superuser.execute(f"GRANT compaction_store_app TO {quoted}".encode())
        wanted = (
            f"login {login!r} is a member of compaction_store_app, and the owner of the schema, or of a table in it"
        )
        assert wanted in schema_findings(url)
    finally:
        superuser.execute(change.format("CURRENT_USER").encode())
        superuser.execute(f"REVOKE compaction_store_app FROM {quoted}".encode())


def test_before_postgres_16_a_login_that_makes_roles_is_refused(url: str, superuser: Any, login: str) -> None:
    quoted = '"' + login.replace('"', '""') + '"'
    superuser.execute(f"ALTER ROLE {quoted} CREATEROLE".encode())
    if superuser.info.server_version >= 160000:
        roles.grant(url, login, "application")
        assert list(schema_findings(url)) == []
        return
    with pytest.raises(cs.InvalidInput, match="able to give itself any role"):
        roles.grant(url, login, "application")


def schema_findings(url: str) -> list[str]:
    with cs.Reader.open(url) as reader:
        return [finding.what for report in reader.audit.verify(level="schema") for finding in report.findings]


def test_no_login_is_owner_and_application_at_once(url: str, superuser: Any, login: str) -> None:
    for one, other in (("owner", "application"), ("application", "owner")):
        roles.grant(url, login, one)  # type: ignore[arg-type]
        with pytest.raises(cs.InvalidInput, match="a login for each"):
            roles.grant(url, login, other)  # type: ignore[arg-type]
        roles.grant(url, login, "auditor")
        roles.revoke(url, login, one)  # type: ignore[arg-type]
        roles.revoke(url, login, "auditor")
    assert memberships(superuser, login) == set()


def test_the_refusal_of_a_grant_names_who_may_grant(logins: dict[str, str], login: str) -> None:
    with pytest.raises(PermissionDenied, match="ADMIN OPTION") as caught:
        roles.grant(logins["application"], login, "application")
    assert caught.value.sqlstate == "42501"


def test_an_owner_migrates(logins: dict[str, str]) -> None:
    migrate.upgrade(logins["owner"])
    assert migrate.current(logins["owner"]) == tables.REVISION


def test_a_granted_application_does_its_work_and_an_auditor_signs_and_verifies(
    url: str, logins: dict[str, str], superuser: Any, tmp_path: Path
) -> None:
    with cs.Store.open(logins["application"]) as store:
        store.append("t", {"n": 1}, raw=True)
        assert store.audit.verify("t", level="schema").findings == ()
    name = f"cs_auditor_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    try:
        roles.grant(url, name, "auditor")
        auditor = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
        log = cs.CheckpointLog(tmp_path / "log", KEY.key)
        with cs.Reader.open(auditor) as reader:
            assert reader.audit.checkpoint(KEY, log).size == 1
            assert reader.audit.verify("t", level="checkpoint", checkpoints=log).level == "checkpoint"
            with pytest.raises(PermissionDenied, match="BYPASSRLS"):
                reader.audit.checkpoint(KEY, cs.CheckpointLog(tmp_path / "all", KEY.key), all_tenants=True)
            superuser.execute(f"ALTER ROLE {name} BYPASSRLS")
            made = reader.audit.checkpoint(KEY, cs.CheckpointLog(tmp_path / "all", KEY.key), all_tenants=True)
            assert made.origin == KEY.name
        with cs.Store.open(auditor) as store, pytest.raises(PermissionDenied):
            store.append("t", {"n": 2}, raw=True)
    finally:
        superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = %s AND datname = current_database()",
            [name],
        )
        superuser.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
