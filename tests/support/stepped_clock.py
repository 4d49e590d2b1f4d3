"""A clock of one database that can be set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg


def stepped(superuser: psycopg.Connection[Any]) -> Callable[[str], None]:
    """Steps the clock of a database: what its functions call is put in the place of Postgres's own."""
    name = superuser.info.dbname
    superuser.execute("SET allow_system_table_mods = on")
    superuser.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO unstepped_clock_timestamp")
    superuser.execute(
        "CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
        " $$ SELECT unstepped_clock_timestamp()"
        " + coalesce(nullif(current_setting('rig.step', true), ''), '0')::interval $$"
    )

    def step(by: str) -> None:
        superuser.execute(f"ALTER DATABASE {name} SET rig.step = '{by}'".encode())
        superuser.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'compaction-store'"
        )

    return step
