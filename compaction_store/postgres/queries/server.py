"""Checks the server's version and encoding, and the revision of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compaction_store.errors import SchemaOutOfDate, UnsupportedDatabase
from compaction_store.module_data import ModuleData
from compaction_store.postgres import tables
from compaction_store.postgres.driver.cursor import Connection, fetch

_SQL = ModuleData(__file__).values
OLDEST_SERVER = 150000
WORKER = "this is a worker of a Citus cluster: connect to the coordinator"
SETTINGS_LOST: str = _SQL["settings_lost"]
# The table pg_dist_local_group exists only if Citus is installed.
IS_WORKER_ASKED = "SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL"
IS_WORKER = "SELECT coalesce(pg_catalog.max(groupid), 0) <> 0 FROM pg_catalog.pg_dist_local_group"


class Citus(NamedTuple):
    """Whether Citus is installed in a database, and whether it distributes the tables."""

    is_installed: bool
    is_used: bool


def check(connection: Connection, settings: Mapping[str, str] | None = None) -> Citus:
    """Raises an error if the database cannot be used, or the session lacks `settings`. Returns how it uses Citus."""
    refuse_lost_settings(connection, settings or {})
    [(version, encoding, is_installed, has_names, role, may_log_in, client)] = fetch(connection, _SQL["checked"])
    if version < OLDEST_SERVER:
        raise UnsupportedDatabase(f"the server must be Postgres 15 or newer, not {version // 10000}")
    refuse_encoding(encoding)
    found = revision(connection)
    if found is None and is_worker(connection):
        # It has only shards of the tables.
        raise UnsupportedDatabase(WORKER)
    refuse_newer(found)
    if found != tables.REVISION:
        what = f"it is at revision {found}" if found else "it has no schema of this package"
        raise SchemaOutOfDate(
            f"the database must be at revision {tables.REVISION}, but {what}: run compaction-store migrate --url URL"
        )
    is_used = is_installed and has_names
    if is_used and not may_log_in:
        raise UnsupportedDatabase(_SQL["no_login"].format(role=role))
    if is_used and client != "UTF8":
        # With another encoding, Citus would convert texts twice.
        raise UnsupportedDatabase(f"the client_encoding of a connection to a cluster must be UTF8, not {client}")
    return Citus(is_installed, is_used)


def refuse_encoding(encoding: str) -> None:
    if encoding != "UTF8":
        raise UnsupportedDatabase(f"the encoding of the database must be UTF8, not {encoding}")


def refuse_newer(found: str | None) -> None:
    """Raises an error if a later release has migrated the database."""
    if found is not None and found > tables.REVISION:
        raise SchemaOutOfDate(_SQL["newer"].format(found=found, needed=tables.REVISION))


def refuse_lost_settings(connection: Connection, settings: Mapping[str, str]) -> None:
    """Raises an error if the session did not begin with all settings, and so may have more rights than it should."""
    if not settings:
        return
    [(role, lost)] = fetch(connection, _SQL["lost_settings"], ([name for name in settings if name != "role"],))
    if settings.get("role", role) != role:
        lost = ["role", *lost]
    if lost:
        raise UnsupportedDatabase(f"the server did not get {', '.join(lost)}: {SETTINGS_LOST}")


def is_worker(connection: Connection) -> bool:
    return bool(fetch(connection, IS_WORKER_ASKED)[0][0] and fetch(connection, IS_WORKER)[0][0])


def revision(connection: Connection) -> str | None:
    """Returns the revision of the schema in the database, or None if the database has no such schema."""
    if fetch(connection, "SELECT to_regclass('compaction_store.alembic_version')::text")[0][0] is None:
        return None
    rows = fetch(connection, "SELECT version_num FROM compaction_store.alembic_version")
    return str(rows[0][0]) if rows else None
