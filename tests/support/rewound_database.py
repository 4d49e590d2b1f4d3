"""Sets a database back to an earlier state while stores are open, as a failover or a restore does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa


class Fork:
    """A database and a copy of it, which replaces the database when `restore` is called."""

    def __init__(self, url: str) -> None:
        self.name = str(sa.make_url(url).database)
        self.admin = sa.make_url(url).set(database="postgres").render_as_string(hide_password=False)
        self._do("CREATE DATABASE {0}_copy TEMPLATE {0}")

    def restore(self) -> None:
        """Replaces the database by the copy. Later writes are lost; the address stays the same."""
        self._do("ALTER DATABASE {0} RENAME TO {0}_lost", "ALTER DATABASE {0}_copy RENAME TO {0}")

    def remove(self) -> None:
        self._do("DROP DATABASE IF EXISTS {0}_copy WITH (FORCE)", "DROP DATABASE IF EXISTS {0}_lost WITH (FORCE)")

    def _do(self, *statements: str) -> None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
            connection.execute(
                "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = %s", (self.name,)
            )
            for statement in statements:
                connection.execute(statement.format(self.name))
            for found in connection.execute(
                "SELECT datname::text FROM pg_database WHERE datname LIKE %s", (f"{self.name}%",)
            ).fetchall():
                connection.execute(f"ALTER DATABASE {found[0]} ALLOW_CONNECTIONS true")


@contextmanager
def forked(url: str) -> Iterator[Any]:
    fork = Fork(url)
    try:
        yield fork
    finally:
        fork.remove()
