"""Other programs' databases, only ever read: in one read-only transaction, by cursors of the server's.

Memory does not grow with a table, and everything is read as it stood when the reading began.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import sql

from compaction_store.errors import DatabaseUnavailable, InvalidSource

_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///")
_SQLITE_MAGIC = b"SQLite format 3\0"
_CONNECT_SECONDS = 10


class Database(Protocol):
    """What is asked of a database."""

    def tables(self) -> set[str]: ...

    def rows(self, statement: Any, parameters: Sequence[Any] = (), *, page: int = 100) -> Iterator[tuple[Any, ...]]: ...

    def close(self) -> None: ...


def opened(source: str | Path) -> Postgres | Sqlite | None:
    """The database that a URL or a file is; None where it is none."""
    text = str(source)
    if _POSTGRES.match(text):
        return Postgres(_POSTGRES.sub("postgresql://", text, count=1))
    path = Path(_SQLITE.sub("", text, count=1))
    if _SQLITE.match(text) or _is_sqlite(path):
        return Sqlite(path)
    return None


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False


class Postgres:
    """A Postgres that is read."""

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
        self._names = count(1)

    def tables(self) -> set[str]:
        with _reading():
            found = self._connection.execute(
                "SELECT relname FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p', 'v', 'm')"
                " AND pg_catalog.pg_table_is_visible(oid)"
                " AND relnamespace <> 'pg_catalog'::pg_catalog.regnamespace"
            ).fetchall()
        return {row[0] for row in found}

    def rows(self, statement: Any, parameters: Sequence[Any] = (), *, page: int = 100) -> Iterator[tuple[Any, ...]]:
        with _reading(), closing(self._connection.cursor(f"import_{next(self._names)}")) as cursor:
            cursor.itersize = page
            cursor.execute(statement, parameters)
            yield from cursor

    def close(self) -> None:
        self._connection.close()


class Sqlite:
    """A SQLite file that is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _reading():
            # Read in pages by a thread at a time, which need not be the same one.
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)

    def tables(self) -> set[str]:
        with _reading():
            return {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def rows(self, statement: Any, parameters: Sequence[Any] = (), *, page: int = 100) -> Iterator[tuple[Any, ...]]:
        with _reading(), closing(self._connection.cursor()) as cursor:
            cursor.arraysize = page
            yield from cursor.execute(statement, parameters)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _reading() -> Iterator[None]:
    """A database's error may quote what was read; of it the code is kept."""
    try:
        yield
    except psycopg.Error as error:
        failure = f"SQLSTATE {error.sqlstate}" if error.sqlstate else type(error).__name__
    except sqlite3.Error as error:
        failure = getattr(error, "sqlite_errorname", type(error).__name__)
    else:
        return
    raise InvalidSource(f"the database cannot be read: {failure}")


def table(name: str) -> sql.Identifier:
    """A table's name, which may say its schema."""
    return sql.Identifier(*name.split("."))
