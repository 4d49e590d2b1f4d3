"""Opens databases of other programs, Postgres or SQLite, for reading only."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from compaction_store.errors import InvalidSource
from compaction_store.importers.line_files import json_object
from compaction_store.importers.sources import Item, Notes, SourceThread, moment, text, to_load
from compaction_store.module_data import ModuleData
from compaction_store.postgres.foreign_databases import ForeignPostgres

_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///")
# A row of a file from elsewhere may say that it is larger than all memory.
_LONGEST_VALUE = 64 * 1024 * 1024
_SQLITE_MAGIC = b"SQLite format 3\0"


class Database(Protocol):
    """The methods that `ForeignPostgres` and `Sqlite` share."""

    def tables(self) -> set[str]: ...

    def statement(self, template: str, **tables: str) -> Any: ...

    def rows(self, statement: Any, parameters: Any = (), *, page: int = 100) -> Iterator[Sequence[Any]]: ...

    def close(self) -> None: ...


def open_database(source: str | Path) -> Database | None:
    """Opens the database at a URL or a path; returns None if the source is not a database."""
    text = str(source)
    if _POSTGRES.match(text):
        return ForeignPostgres(_POSTGRES.sub("postgresql://", text, count=1))
    path = Path(_SQLITE.sub("", text, count=1))
    return Sqlite(path) if _SQLITE.match(text) or _is_sqlite(path) else None


def is_postgres(database: Database) -> bool:
    return isinstance(database, ForeignPostgres)


def _is_sqlite(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    return False


class Sqlite:
    """A SQLite file, opened read-only."""

    def __init__(self, path: Path) -> None:
        with _translated():
            # An async import reads from several OS threads, but never from two at once.
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            # Functions in the file's own schema, such as those of generated columns, must be harmless.
            self._connection.execute("PRAGMA trusted_schema = OFF")

    def tables(self) -> set[str]:
        with _translated():
            return {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def statement(self, template: str, **tables: str) -> str:
        return template.format(**{field: '"' + name.replace('"', '""') + '"' for field, name in tables.items()})

    def rows(self, statement: Any, parameters: Any = (), *, page: int = 100) -> Iterator[Sequence[Any]]:
        with _translated():
            # `map` hides the cursor, which `yield from` would close: after an error, the connection is closed first.
            cursor = self._connection.cursor()
            cursor.arraysize = page
            yield from map(tuple, cursor.execute(statement, parameters))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Replaces SQLite's errors, whose text may quote data, with errors that give only the code."""
    try:
        yield
    except sqlite3.Error as error:
        failure = getattr(error, "sqlite_errorname", type(error).__name__)
    else:
        return
    raise InvalidSource(f"the database cannot be read: {failure}")


# ---- sessions of the OpenAI Agents SDK: those of SQLAlchemySession in Postgres, and SQLite sessions. Items that were
# removed from a session, for example by `pop_item`, are also gone from its table, so they cannot be imported.


AGENTS = "openai-agents"
AGENT_MESSAGES = "agent_messages"

_SQL = ModuleData(__file__)


class AgentSessions:
    """A database with sessions of the Agents SDK. `messages_table` is the name of the table of messages."""

    format = AGENTS
    unit = "messages"

    def __init__(self, database: Database, *, skip_bad: bool = False, messages_table: str = AGENT_MESSAGES) -> None:
        self._database, self._skip_bad, self._messages_table = database, skip_bad, messages_table
        self.done = 0
        [(self.total,)] = list(database.rows(self._statement("count")))

    def threads(self) -> Iterator[SourceThread]:
        for (session,) in self._database.rows(self._statement("sessions"), page=1000):
            notes = Notes(self._skip_bad)
            yield SourceThread(session, self._items(session, notes), notes)

    def _statement(self, name: str) -> Any:
        return self._database.statement(_SQL.text(name), messages=self._messages_table)

    def _items(self, session: str, notes: Notes) -> Iterator[Item]:
        statement = self._statement("postgres" if is_postgres(self._database) else "sqlite")
        for number, data, created_at in self._database.rows(statement, {"session": session}):
            self.done += 1
            where = f"row {number} of {self._messages_table}"
            item = json_object(data) if isinstance(data, str) else "it must be text"
            if isinstance(item, str):
                notes.refuse(where, item)
                continue
            meta = {"source": AGENTS, "occurred_at": moment(created_at), "row_id": number}
            yield from to_load(item, {**meta, "external_id": text(item.get("id"))}, notes, where)

    def close(self) -> None:
        self._database.close()
