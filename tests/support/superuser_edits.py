"""Edits tables as a superuser, after removing checks, unique keys and triggers."""

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy as sa

from compaction_store.postgres import tables
from support import cluster

TABLES = ("threads", "heads", "messages", "compactions", "events")
#: The tables that have something of a thread. On a cluster its name is in another table.
WITH_NAMES = (*TABLES, "names") if cluster.given() else TABLES


def unlock(connection: psycopg.Connection[Any]) -> None:
    """Drops every check and every unique key except primary keys, and disables every trigger."""
    for table in TABLES:
        connection.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL".encode())
    rows = connection.execute(
        "SELECT conrelid::regclass::text, conname FROM pg_constraint"
        " WHERE contype IN ('c', 'u') AND connamespace = 'compaction_store'::regnamespace"
    ).fetchall()
    for table, name in rows:
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())
    rows = connection.execute(
        "SELECT i.indexrelid::regclass::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid"
        " WHERE c.relnamespace = 'compaction_store'::regnamespace AND i.indisunique AND NOT i.indisprimary"
    ).fetchall()
    for (name,) in rows:
        connection.execute(f"DROP INDEX {name}".encode())


def as_role(url: str, role: str) -> str:
    """Returns a URL with which a superuser's session has only the rights of a role.

    On a cluster, the session keeps all its rights, because Citus would connect to the nodes as the role, which may not
    log in.
    """
    if cluster.given():
        return url
    return sa.make_url(url).update_query_dict({"options": f"-c role={role}"}).render_as_string(hide_password=False)


def make_text(connection: psycopg.Connection[Any], table: str, column: str) -> None:
    """Changes the type of a column to text. Drops the views on the table first, because Postgres requires that."""
    connection.execute(
        "DROP VIEW IF EXISTS compaction_store.audit_messages, compaction_store.audit_compactions,"
        " compaction_store.audit_events, compaction_store.audit_threads;"
        f" ALTER TABLE compaction_store.{table} ALTER {column} TYPE text".encode()
    )


def columns(table: str) -> list[str]:
    """Returns the columns of a table that are not generated."""
    return [c.name for c in tables.metadata.tables[f"compaction_store.{table}"].columns if c.computed is None]
