"""Reads another program's Postgres in one read-only snapshot, with cursors on the server to save memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import Any

import psycopg
from psycopg import sql

from compaction_store.errors import DatabaseUnavailable, InvalidSource

_CONNECT_SECONDS = 10


class ForeignPostgres:
    """A connection to the database of another program."""

    def __init__(self, url: str) -> None:
        failure = ""
        try:
            self._connection = psycopg.connect(
                url, connect_timeout=_CONNECT_SECONDS, prepare_threshold=None, client_encoding="utf8"
            )
        except psycopg.Error as error:
            lines = str(error).strip().splitlines()
            failure = lines[0] if lines else type(error).__name__
        if failure:
            raise DatabaseUnavailable(f"cannot reach the database to import from: {failure}")
        self._connection.read_only = True
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._cursors = count(1)

    def tables(self) -> set[str]:
        """Returns the names of the tables and views in the search path."""
        with _translated():
            found = self._connection.execute(
                "SELECT relname FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p', 'v', 'm')"
                " AND pg_catalog.pg_table_is_visible(oid)"
                " AND relnamespace <> 'pg_catalog'::pg_catalog.regnamespace"
            ).fetchall()
        return {row[0] for row in found}

    def statement(self, template: str, **tables: str) -> sql.Composed:
        """Inserts quoted table names into a statement. A name may begin with a schema and a dot."""
        return sql.SQL(template).format(**{field: sql.Identifier(*name.split(".")) for field, name in tables.items()})

    def rows(self, statement: Any, parameters: Any = (), *, page: int = 100) -> Iterator[Sequence[Any]]:
        """Runs a statement with its own cursor, which fetches `page` rows at a time."""
        with _translated(), closing(self._connection.cursor(f"import_{next(self._cursors)}")) as cursor:
            cursor.itersize = page
            cursor.execute(statement, parameters)
            yield from cursor

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Replaces errors of the driver, whose texts may quote data, with errors that have only the SQLSTATE."""
    try:
        yield
    except psycopg.Error as error:
        failure = f"SQLSTATE {error.sqlstate}" if error.sqlstate else type(error).__name__
    else:
        return
    raise InvalidSource(f"the database cannot be read: {failure}")
