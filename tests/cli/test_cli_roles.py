"""`roles` lists who has each of the schema's roles, and every grant and revocation is an event of the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from cli.program import Run
from compaction_store import grants
from compaction_store.arguments import DATABASE, LOG
from compaction_store.models.roles import ROLES

pytestmark = pytest.mark.superuser_store("it makes logins")


@pytest.fixture
def login(superuser: psycopg.Connection[Any]) -> Iterator[str]:
    name = f"cs_granted_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
    yield name
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def recorded(url: str) -> list[tuple[str, dict[str, Any]]]:
    with cs.Reader.open(url, tenant=DATABASE) as reader:
        try:
            found: list[tuple[str, dict[str, Any]]] = [(event.kind, event.body) for event in reader.audit.events(LOG)]
        except cs.ThreadNotFound:
            return []
        assert not reader.audit.verify(LOG).findings
        return found


def test_every_change_of_a_membership_is_an_event_of_the_database(run: Run, url: str, login: str) -> None:
    run("grant", login, "eraser")
    run("grant", login, "eraser")
    grants.grant(url, login, "auditor")
    run("grant", login, "eraser", "--revoke")
    grants.revoke(url, login, "custodian")
    assert recorded(url) == [
        ("grant", {"login": login, "role": "eraser"}), ("grant", {"login": login, "role": "auditor"}),
        ("ungrant", {"login": login, "role": "eraser"}),
    ]  # fmt: skip


def test_a_grant_that_is_refused_is_no_event(run: Run, url: str, login: str) -> None:
    run("grant", login, "application")
    run("grant", login, "owner", code=2)
    run("grant", "nobody_of_this_name", "auditor", code=2)
    assert recorded(url) == [("grant", {"login": login, "role": "application"})]


def test_a_login_that_may_grant_but_not_record_grants(url: str, superuser: psycopg.Connection[Any], login: str) -> None:
    other = f"{login}_admin"
    superuser.execute(f"CREATE ROLE {other} LOGIN PASSWORD 'x'".encode())
    try:
        superuser.execute(f"GRANT compaction_store_auditor TO {other} WITH ADMIN OPTION".encode())
        grants.grant(f"{url}&options=-crole%3D{other}", login, "auditor")
        assert recorded(url) == []
        held = "SELECT pg_has_role(%s, 'compaction_store_auditor', 'MEMBER')"
        assert superuser.execute(held, (login,)).fetchone() == (True,)
    finally:
        superuser.execute(f"REVOKE compaction_store_auditor FROM {other} CASCADE; DROP ROLE {other}".encode())


def test_roles_lists_the_members_and_what_each_role_may_do(run: Run, url: str, login: str) -> None:
    for role in ("eraser", "custodian"):
        grants.grant(url, login, role)
    listed = {row["role"]: row for row in run.json("roles")}
    assert list(listed) == list(ROLES)
    for name, row in listed.items():
        there = login in [member["login"] for member in row["members"]]
        assert there is (name in {"eraser", "custodian"})
        assert (row["group"], row["may"]) == (ROLES[name].group, ROLES[name].may)
    table = run("roles", "--table").stdout
    assert login in table
    assert ROLES["eraser"].may.split(",")[0] in " ".join(table.split())
