"""The doctor on servers that have the roles of managed services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import psycopg
import pytest
import sqlalchemy as sa
from support import platforms
from support.databases import Server

import compaction_store as cs
from compaction_store import grants
from compaction_store.cli.operate import Service
from compaction_store.deploy import doctor
from compaction_store.deploy import platforms as known
from compaction_store.deploy.conditions import Remark, State

pytestmark = pytest.mark.alters_roles
_NAME = "cs_platform_doctor"
_ADMIN = "cs_platform_admin"
_GRANTED = (
    "compaction_store_app, compaction_store_loader, compaction_store_auditor, compaction_store_reviewer,"
    " compaction_store_eraser, compaction_store_custodian"
)


def found(url: str, *names: str, platform: str | None = None) -> list[Remark]:
    return [check for check in doctor.diagnose(url, platform=platform) if check.name in names]


def test_every_service_of_the_command_line_is_known() -> None:
    assert list(get_args(Service)) == list(known.PLATFORMS)
    assert set(platforms.PLATFORMS) == set(known.PLATFORMS) - {"aurora"}
    assert all(check.state in get_args(State) for check in doctor.installation())


def test_a_service_that_is_not_known_is_refused() -> None:
    with pytest.raises(cs.InvalidInput, match=r"platform must be one of rds, .*, not 'heroku'"):
        list(doctor.diagnose("postgresql://u@127.0.0.1:1/d", platform="heroku"))


def test_a_plain_server_has_no_checks_of_a_service(url: str) -> None:
    names = {"platform", "administrator", "all tenants", "platform logins", "platform api"}
    assert found(url, *names) == []
    [check] = found(url, "platform", platform="neon")
    assert (check.state, check.what) == ("problem", "this does not look like Neon: it has no role neon_superuser")


@pytest.fixture(params=platforms.PLATFORMS)
def service(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def admin(service: str, server: Server, empty_url: str) -> Iterator[str]:
    """The URL of a service's administrator, to whom the roles of the schema belong as if it had made them.

    `empty_url` keeps other tests from the server meanwhile.
    """
    assert empty_url
    platform = platforms.PLATFORMS[service]
    platforms.set_up(platform, server.url)
    with psycopg.connect(server.url, autocommit=True) as connection:
        try:
            if connection.info.server_version >= 160000:
                how = " WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"
                owns = " WITH ADMIN TRUE, INHERIT TRUE, SET TRUE"
                connection.execute(f"GRANT compaction_store_owner TO {_ADMIN}{owns}".encode())
                connection.execute(f"GRANT {_GRANTED} TO {_ADMIN}{how}".encode())
            yield platforms.make_database(platform, server.url, _NAME)
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {_NAME} WITH (FORCE)".encode())
            setups = " ".join(platform.setup)
            made = [*re.findall(r"CREATE ROLE (\w+)", setups), "cs_platform_second", "cs_platform_audits"]
            for name in (*made, platforms.APPLICATION):
                if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
                    connection.execute(f"DROP OWNED BY {name} CASCADE".encode())
            for name in (*made, platforms.APPLICATION):
                connection.execute(f"DROP ROLE IF EXISTS {name}".encode())


def _execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_each_service_is_recognized_and_its_administrator_may_do_what_is_needed(service: str, admin: str) -> None:
    [check] = found(admin, "platform")
    assert check.what == f"this looks like {known.PLATFORMS[service].title}: it has {known.PLATFORMS[service].group}"
    assert found(admin, "platform", platform=service) == [check]
    [check] = found(admin, "administrator")
    assert (check.state, check.what) == ("ok", f"{_ADMIN} may migrate, and grant the schema's roles")
    [check] = found(admin, "login")
    with psycopg.connect(admin) as connection:
        # Since Postgres 16, an administrator may grant the other roles, but does not have them.
        if service not in {"neon", "supabase"} and connection.info.server_version >= 160000:
            assert check.what == f"{_ADMIN} has the role owner"
    assert [check for check in doctor.diagnose(admin) if check.state == "problem"] == []
    if service == "supabase":
        assert [check.state for check in found(admin, "platform api")] == ["ok"]


def test_the_remedy_for_checkpoints_of_all_tenants_is_one_that_works(service: str, server: Server, admin: str) -> None:
    platforms.make_login(admin, "cs_platform_audits", "auditor")
    [check] = found(admin, "all tenants")
    with psycopg.connect(server.url) as connection:
        restricted = connection.info.server_version >= 160000
    with psycopg.connect(admin, autocommit=True) as connection:
        give = b"ALTER ROLE cs_platform_audits BYPASSRLS"
        if service in {"neon", "supabase"} and restricted:
            assert check.remedy == f"as {_ADMIN}: ALTER ROLE the_auditors_login BYPASSRLS"
            connection.execute(give)
            [check] = found(admin, "all tenants")
            assert (check.state, check.what) == ("ok", "'cs_platform_audits' may make a checkpoint of all tenants")
        else:
            assert check.remedy == "make a checkpoint for each tenant: compaction-store checkpoint --tenant"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(give)


def test_another_administrator_gets_the_grants_that_it_needs(service: str, server: Server, admin: str) -> None:
    del service
    _execute(server.url, "CREATE ROLE cs_platform_second LOGIN PASSWORD 'pw' CREATEDB CREATEROLE")
    second = platforms.as_login(admin, "cs_platform_second")
    checks = found(second, "administrator")
    remedies = [check.remedy or "" for check in checks]
    assert {check.state for check in checks} == {"note"}
    assert all(remedy.startswith(f"as {_ADMIN}: GRANT ") for remedy in remedies if "_app" in remedy)
    # The remedies are complete: when they were run as they are, nothing is missing.
    _execute(admin, *(remedy.partition(": ")[2] for remedy in remedies))
    assert [check.what for check in found(second, "administrator")] == [
        "cs_platform_second may migrate, and grant the schema's roles"
    ]


def test_whoever_may_not_migrate_an_empty_database_is_told(server: Server, admin: str) -> None:
    postgres = sa.make_url(admin).set(database="postgres").render_as_string(hide_password=False)
    _execute(postgres, f"DROP DATABASE {_NAME} WITH (FORCE)", f"CREATE DATABASE {_NAME}")
    _execute(server.url, "CREATE ROLE cs_platform_second LOGIN PASSWORD 'pw' CREATEDB CREATEROLE")
    second = platforms.as_login(admin, "cs_platform_second")
    checks = found(second, "administrator")
    assert "cs_platform_second may not make the schema in this database" in {check.what for check in checks}
    for check in checks:
        statement = re.search("GRANT .*", check.remedy or "")
        assert statement
        _execute(postgres, statement[0].replace("…", _NAME))
    assert [check.state for check in found(second, "administrator")] == ["ok"]


@pytest.mark.parametrize("service", ["cloud-sql", "azure", "alloydb"])
def test_a_login_of_the_console_with_a_role_of_the_schema_is_named(service: str, server: Server, admin: str) -> None:
    group = known.PLATFORMS[service].group
    platforms.make_login(admin, platforms.APPLICATION, "application")
    assert found(admin, "platform logins") == []
    _execute(server.url, f"GRANT {group} TO {platforms.APPLICATION}")
    [check] = found(admin, "platform logins")
    assert check.what.startswith(f"login '{platforms.APPLICATION}' is also a member of {group}")
    grants.revoke(admin, platforms.APPLICATION, "application")
    assert found(admin, "platform logins") == []


@pytest.mark.parametrize("service", ["rds"])
def test_a_login_with_tokens_is_named(service: str, server: Server, admin: str) -> None:
    del service
    platforms.make_login(admin, platforms.APPLICATION, "application")
    _execute(server.url, "CREATE ROLE rds_iam", f"GRANT rds_iam TO {platforms.APPLICATION}")
    try:
        [check] = found(admin, "platform logins")
    finally:
        _execute(server.url, "DROP ROLE rds_iam")
    assert "its password is a token" in check.what
    assert "engine=" in (check.remedy or "")


@pytest.mark.parametrize("service", ["rds"])
def test_aurora_is_told_from_rds_and_its_storage_is_known(service: str, server: Server, admin: str) -> None:
    del service
    on_this = sa.make_url(server.url).set(database=_NAME).render_as_string(hide_password=False)
    _execute(on_this, f"ALTER DATABASE {_NAME} SET rds.force_ssl = '0'")
    [check] = found(admin, "platform encryption")
    assert check.remedy == "switch rds.force_ssl on in the DB parameter group of the instance"
    _execute(on_this, "CREATE FUNCTION public.aurora_version() RETURNS text LANGUAGE sql RETURN '17'")
    assert [check.what for check in found(admin, "platform")] == ["this looks like Amazon Aurora: it has rds_superuser"]


@pytest.mark.parametrize("service", ["supabase"])
def test_the_api_must_not_reach_the_schema(service: str, server: Server, admin: str) -> None:
    del service
    _execute(admin, "GRANT USAGE ON SCHEMA compaction_store TO anon")
    [check] = found(admin, "platform api")
    assert (check.state, check.remedy) == ("problem", "REVOKE ALL ON SCHEMA compaction_store FROM anon")
    _execute(admin, check.remedy or "")
    exposed = "ALTER ROLE authenticator SET pgrst.db_schemas = 'public, {}'"
    _execute(server.url, exposed.format("compaction_store"))
    [check] = found(admin, "platform api")
    assert check.what == "the API exposes the schema: pgrst.db_schemas names it"
    _execute(server.url, exposed.format("my_compaction_store_2"))
    assert [check.state for check in found(admin, "platform api")] == ["ok"]


def _adapted(service: str | None, given: Remark) -> Remark:
    return known.adapted(given, None if service is None else known.PLATFORMS[service])


def test_a_remedy_is_one_that_a_customer_of_the_service_has() -> None:
    fsync = Remark("fsync", "problem", "fsync is off: …", "fsync = on in postgresql.conf")
    assert _adapted(None, fsync) == fsync
    assert _adapted("neon", fsync).state == "note"
    assert _adapted("azure", fsync) == Remark("fsync", "problem", fsync.what, "fsync = on among the server parameters")
    sums = Remark("data_checksums", "note", "data checksums are off", "pg_checksums --enable")
    assert _adapted("rds", sums).remedy == "customers cannot enable them: run verify --all regularly"
    other = Remark("schema", "problem", "old", "migrate")
    assert all(_adapted(name, other) == other for name in known.PLATFORMS)


_POOLED: Mapping[str, tuple[str, int]] = {
    "rds": ("p.proxy-abc.eu-west-1.rds.amazonaws.com", 5432),
    "aurora": ("p.proxy-abc.eu-west-1.rds.amazonaws.com", 5432),
    "cloud-sql": ("10.0.0.3", 6432),
    "alloydb": ("10.0.0.3", 6432),
    "neon": ("ep-quiet-1-pooler.eu-central-1.aws.neon.tech", 5432),
    "supabase": ("aws-0-eu-central-1.pooler.supabase.com", 6543),
    "azure": ("s.postgres.database.azure.com", 6432),
}


@pytest.mark.parametrize("name", known.PLATFORMS)
def test_a_service_s_pooler_is_known_by_its_address(name: str) -> None:
    host, port = _POOLED[name]
    platform = known.PLATFORMS[name]
    assert re.search(platform.pooled_at, f"{host}:{port}")
    for direct in ("i.abc.eu-west-1.rds.amazonaws.com", "ep-quiet-1.eu-central-1.aws.neon.tech", "db.p.supabase.co"):
        assert not re.search(platform.pooled_at, f"{direct}:5432")


def test_an_administrator_is_sent_past_the_pooler(service: str) -> None:
    """By what the doctor saw of a connection, as this server answers on a port of its own."""
    login: Any = known.Login("x", False, True, False, True, 180000, True, (), None)
    platform = known.PLATFORMS[service]
    [check] = known._pooler(platform, known.Address("127.0.0.1", 5432, True), login)
    assert (check.state, check.remedy) == ("note", f"to migrate, connect to {platform.direct}")
    [check] = known._pooler(
        platform, known.Address("127.0.0.1", 5432, True), login._replace(makes_roles=False, is_owner=False)
    )
    assert check.state == "ok"
    assert list(known._pooler(platform, known.Address("127.0.0.1", 5432, False), login)) == []
