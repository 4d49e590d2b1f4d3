"""Makes the roles of managed Postgres services on a plain server, as the services' documentation describes them.

`scripts/platforms` sets COMPACTION_STORE_TEST_PLATFORM to the name of a service. The administrator of that service then
migrates the tests' databases and grants the roles. The tests' stores connect with a login that the administrator made,
or as the administrator if COMPACTION_STORE_TEST_ONE_LOGIN is set. The real services are not used, so this tests only
what their roles allow.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import psycopg
import sqlalchemy as sa

from compaction_store import grants, migrate
from compaction_store.models.roles import Role

#: The login of the tests' stores: the administrator makes it in SQL, and grants it every role but the owner's.
APPLICATION = "cs_platform_agents"
_PASSWORD = "pw"
_ADMIN = f"LOGIN PASSWORD '{_PASSWORD}' NOSUPERUSER CREATEDB CREATEROLE"
_WATCHES = "pg_monitor, pg_signal_backend"


class Platform(NamedTuple):
    """The statements by which a service's superuser sets up roles, and the names of two logins.

    `admin` is the customer's login, and `console` is a login that the customer made in the service's console.
    """

    title: str
    setup: tuple[str, ...]
    admin: str = "cs_platform_admin"
    console: str | None = "cs_platform_console"


def _with_console(group: str, *, attributes: str = "", console: str = "", of_group: str = "") -> tuple[str, ...]:
    """Returns statements that make a group, and the administrator and a login of the console as its members."""
    return (
        f"CREATE ROLE {group} NOLOGIN {of_group}",
        f"GRANT {_WATCHES} TO {group}",
        f"CREATE ROLE cs_platform_admin {_ADMIN} {attributes} IN ROLE {group}",
        f"CREATE ROLE cs_platform_console {console or f'{_ADMIN} {attributes} IN ROLE {group}'}",
    )


PLATFORMS = {
    "rds": Platform(
        "Amazon RDS, Aurora",
        (
            "CREATE ROLE rds_superuser NOLOGIN",
            f"GRANT {_WATCHES} TO rds_superuser",
            f"CREATE ROLE cs_platform_admin {_ADMIN} IN ROLE rds_superuser",
        ),
        console=None,
    ),
    "cloud-sql": Platform("Google Cloud SQL", _with_console("cloudsqlsuperuser", of_group="CREATEDB CREATEROLE")),
    "alloydb": Platform("Google AlloyDB", _with_console("alloydbsuperuser", console=f"LOGIN PASSWORD '{_PASSWORD}'")),
    "neon": Platform(
        "Neon",
        (
            *_with_console("neon_superuser", attributes="BYPASSRLS", of_group="CREATEDB CREATEROLE BYPASSRLS"),
            "GRANT pg_read_all_data, pg_write_all_data TO neon_superuser",
        ),
    ),
    "supabase": Platform(
        "Supabase",
        (
            "CREATE ROLE anon NOLOGIN",
            "CREATE ROLE authenticated NOLOGIN",
            "CREATE ROLE service_role NOLOGIN BYPASSRLS",
            f"CREATE ROLE cs_platform_admin {_ADMIN} BYPASSRLS IN ROLE pg_read_all_data, {_WATCHES}",
            "GRANT anon, authenticated, service_role TO cs_platform_admin WITH ADMIN OPTION",
            f"CREATE ROLE authenticator LOGIN NOINHERIT PASSWORD '{_PASSWORD}'",
            "GRANT anon, authenticated, service_role TO authenticator",
        ),
        console="authenticator",
    ),
    "azure": Platform("Azure Database, flexible server", _with_console("azure_pg_admin")),
}


def given() -> Platform | None:
    name = os.environ.get("COMPACTION_STORE_TEST_PLATFORM")
    return None if name is None else PLATFORMS[name]


def as_login(url: str, login: str) -> str:
    return sa.make_url(url).set(username=login, password=_PASSWORD).render_as_string(hide_password=False)


def login() -> str | None:
    """Returns the login of the tests' stores. None means the server's own login."""
    platform = given()
    if platform is None:
        return None
    return platform.admin if has_one_login() else APPLICATION


def has_one_login() -> bool:
    """Whether the stores use the administrator's login, which may not take the schema's roles."""
    return bool(os.environ.get("COMPACTION_STORE_TEST_ONE_LOGIN"))


def for_stores(url: str) -> str:
    """Returns the URL for a test's store, with the login that `login` returns."""
    name = login()
    return url if name is None else as_login(url, name)


def set_up(platform: Platform, url: str) -> None:
    """Makes the roles of a service on a server that does not have them."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in platform.setup:
            connection.execute(statement.encode())


def make_database(platform: Platform, url: str, name: str) -> str:
    """Makes a database as the administrator, as a customer does, and migrates it. Returns the administrator's URL."""
    admin = sa.make_url(as_login(url, platform.admin))
    with psycopg.connect(admin.set(database="postgres").render_as_string(hide_password=False), autocommit=True) as own:
        own.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0".encode())
    address = admin.set(database=name).render_as_string(hide_password=False)
    migrate.upgrade(address)
    return address


def make_login(admin_url: str, login: str, *granted: Role) -> None:
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{_PASSWORD}'".encode())
    for role in granted:
        grants.grant(admin_url, login, role)
