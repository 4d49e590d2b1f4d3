"""Owners and privileges, as the database's own catalogue has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store.models.roles import GROUPS

_TABLES = {"threads", "heads", "messages", "compactions", "events"}


def _all(superuser: Any, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = superuser.execute(query, parameters).fetchall()
    return found


def _granted(superuser: Any, role: str | None) -> set[tuple[str, str]]:
    """Returns every privilege of a role in the schema; without a role, those of PUBLIC."""
    query = """
        SELECT o.name, a.privilege_type
        FROM (
            SELECT c.relname AS name, coalesce(c.relacl, acldefault('r', c.relowner)) AS acl
            FROM pg_class AS c WHERE c.relnamespace = 'compaction_store'::regnamespace AND c.relkind IN ('r', 'v', 'S')
            UNION ALL
            SELECT p.proname || '()', coalesce(p.proacl, acldefault('f', p.proowner))
            FROM pg_proc AS p WHERE p.pronamespace = 'compaction_store'::regnamespace
            UNION ALL
            SELECT 'schema', n.nspacl FROM pg_namespace AS n WHERE n.nspname = 'compaction_store'
            UNION ALL
            SELECT t.attname, t.attacl FROM pg_attribute AS t JOIN pg_class AS c ON c.oid = t.attrelid
            WHERE c.relnamespace = 'compaction_store'::regnamespace AND t.attacl IS NOT NULL
        ) AS o, aclexplode(o.acl) AS a
        WHERE a.grantee = CASE WHEN %s::text IS NULL THEN 0 ELSE (SELECT oid FROM pg_roles WHERE rolname = %s) END
    """
    return {(name, privilege) for name, privilege in _all(superuser, query, role, role)}


@pytest.mark.parametrize("role", GROUPS)
def test_nobody_logs_in_as_one_of_the_roles_and_none_passes_row_security(superuser: Any, role: str) -> None:
    found = _all(
        superuser,
        "SELECT rolcanlogin, rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls FROM pg_roles"
        " WHERE rolname = %s",
        role,
    )
    assert found == [(False, False, False, False, False, False)]


def test_every_table_and_function_belongs_to_the_owner(superuser: Any) -> None:
    owners = _all(
        superuser,
        "SELECT c.relname, c.relowner::regrole::text FROM pg_class AS c"
        " WHERE c.relnamespace = 'compaction_store'::regnamespace AND c.relkind = 'r'"
        " AND c.relname <> 'alembic_version'"
        " UNION ALL SELECT p.proname || '()', p.proowner::regrole::text FROM pg_proc AS p"
        " WHERE p.pronamespace = 'compaction_store'::regnamespace",
    )
    assert {name for name, _ in owners if not name.endswith("()")} == {*_TABLES, "staged", "turns"}
    assert [name for name, owner in owners if owner != "compaction_store_owner"] == []


def test_every_function_that_runs_as_its_owner_pins_its_search_path(superuser: Any) -> None:
    functions = _all(
        superuser,
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'compaction_store'::regnamespace AND prosecdef",
    )
    assert {"append", "append_many", "replay", "view", "commit_compactions"} <= {name for name, _ in functions}
    wanted = "search_path=pg_catalog, pg_temp"
    assert [name for name, settings in functions if wanted not in (settings or [])] == []


def test_the_public_has_been_granted_nothing_in_the_schema(superuser: Any) -> None:
    assert _granted(superuser, None) == set()


def test_row_level_security_is_forced_on_every_table_with_a_policy_both_ways(superuser: Any) -> None:
    found = _all(
        superuser,
        "SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity,"
        " (SELECT count(*) FROM pg_policy AS p WHERE p.polrelid = c.oid AND p.polcmd = '*' AND p.polroles = '{0}'"
        " AND p.polqual IS NOT NULL AND p.polwithcheck IS NOT NULL)"
        " FROM pg_class AS c WHERE c.relnamespace = 'compaction_store'::regnamespace AND c.relkind = 'r'"
        " AND c.relname <> 'alembic_version'",
    )
    # COPY refuses tables with row-level security. Nobody can read the one that it fills.
    assert sorted(found) == [
        *[(name, True, 1) for name in sorted(_TABLES - {"threads"})],
        ("staged", False, 0),
        ("threads", True, 1),
        ("turns", True, 1),
    ]


def test_every_trigger_fires_always(superuser: Any) -> None:
    triggers = _all(
        superuser,
        "SELECT c.relname, t.tgname, t.tgenabled::text FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid"
        " WHERE c.relnamespace = 'compaction_store'::regnamespace AND NOT t.tgisinternal",
    )
    assert {(table, name) for table, name, _ in triggers} == {
        (table, name) for table in _TABLES for name in ("refuse_change", "refuse_truncate")
    }
    assert {enabled for _, _, enabled in triggers} == {"A"}


@pytest.mark.parametrize("role", ["compaction_store_app", "compaction_store_auditor"])
def test_an_application_and_an_auditor_may_read_tables_and_call_functions_only(superuser: Any, role: str) -> None:
    granted = _granted(superuser, role)
    assert ("schema", "USAGE") in granted
    for name, privilege in granted - {("schema", "USAGE")}:
        assert privilege == ("EXECUTE" if name.endswith("()") else "SELECT"), name
    writes = {"append()", "append_many()", "set_metadata()", "commit_compactions()", "take_turn()", "hold_turn()"}
    given = {name for name, _ in granted} & writes
    assert given == (writes if role == "compaction_store_app" else set())


def test_the_loader_may_stage_an_import_and_call_functions_only(superuser: Any) -> None:
    granted = _granted(superuser, "compaction_store_loader")
    doors = ("find_load()", "load()", "observe()", "begin_import()", "finish_import()")
    assert {(door, "EXECUTE") for door in doors} <= granted
    assert {"append()", "append_many()", "commit_compactions()"}.isdisjoint({name for name, _ in granted})
    assert {(name, p) for name, p in granted if p == "SELECT"} == {("alembic_version", "SELECT")}
    columns = _all(
        superuser,
        "SELECT attname FROM pg_attribute WHERE attrelid = 'compaction_store.staged'::regclass AND attnum > 0"
        " AND attname <> 'staged_by'",
    )
    inserts = {(name, "INSERT") for (name,) in columns}
    assert {(name, p) for name, p in granted if p not in {"SELECT", "EXECUTE", "USAGE"}} == inserts
    on = "SELECT has_table_privilege('compaction_store_loader', %s::regclass, 'INSERT')"
    for table in (*_TABLES, "staged", "turns"):
        assert _all(superuser, on, f"compaction_store.{table}") == [(False,)]
    for role in ("compaction_store_app", "compaction_store_auditor"):
        assert ("staged", "SELECT") not in _granted(superuser, role)


@pytest.fixture
def login(url: str, superuser: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a login that is a member of one of the roles."""
    name = f"cs_login_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE {request.param}")
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        [name],
    )
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("login", ["compaction_store_app"], indirect=True)
def test_a_member_of_the_application_role_can_do_everything_the_store_does(faces: Any, login: str) -> None:
    store = faces.open(login)
    first = store.append("t", {"role": "user", "content": "a"}, key="k", meta={"m": 1}, expected_seq=0)[0]
    assert store.append("t", {"role": "user", "content": "a"}, key="k", meta={"m": 1})[0] == first
    store.append("t", [{"role": "user", "content": str(i)} for i in range(3)])
    store.append("t", {"role": "assistant", "content": "b"}, view=store.view("t"))
    store.set_metadata("t", {"title": "x"})
    assert [m.seq for m in store.replay("t")] == [1, 2, 3, 4, 5]
    assert [m.seq for m in store.replay("t", last=2)] == [4, 5]
    assert store.message("t", 1) == first
    assert len(store.view("t").messages) == 5
    assert store.view("t", at=1).messages == [{"role": "user", "content": "a"}]
    assert store.view("t", at=store.thread("t").last_at).pos == 6
    assert store.thread("t").metadata == {"title": "x"}
    assert [t.thread_id for t in store.threads()] == ["t"]
    report = store.audit.verify("t")
    assert (report.findings, report.level) == ((), "content")


@pytest.mark.parametrize("login", ["compaction_store_app"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO compaction_store.events (thread_uid, pos) VALUES (gen_random_uuid(), 1)",
        "UPDATE compaction_store.messages SET payload = NULL",
        "UPDATE compaction_store.heads SET last_seq = 0",
        "DELETE FROM compaction_store.messages",
        "TRUNCATE compaction_store.messages",
        "ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL",
        "ALTER TABLE compaction_store.messages NO FORCE ROW LEVEL SECURITY",
        "SET ROLE compaction_store_owner",
        "SET ROLE compaction_store_loader",
        "CREATE TABLE compaction_store.mine (id int)",
    ],
)
def test_a_member_of_the_application_role_cannot_go_round_the_functions(login: str, statement: str) -> None:
    with psycopg.connect(login, autocommit=True) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


@pytest.mark.parametrize("login", ["compaction_store_auditor"], indirect=True)
def test_an_auditor_reads_and_verifies_but_cannot_append(faces: Any, url: str, login: str) -> None:
    faces.open(url).append("t", {"role": "user", "content": "a"})
    store = faces.open(login)
    assert [m.seq for m in store.replay("t")] == [1]
    assert store.audit.verify("t").findings == ()
    with pytest.raises(cs.DatabaseError) as caught:
        store.append("t", {"role": "user", "content": "b"})
    assert caught.value.sqlstate == "42501"
