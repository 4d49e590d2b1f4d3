"""Reads sessions of the OpenAI Agents SDK: those of SQLAlchemySession in Postgres, and SQLite sessions.

A session becomes a thread with the items that the SDK returns, in the same order. Items that were removed from a
session, for example by `pop_item`, are also gone from its table, so they cannot be imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compaction_store.importers.databases import Database, is_postgres
from compaction_store.importers.line_files import json_object
from compaction_store.importers.sources import Item, Notes, SourceThread, moment, text, to_load
from compaction_store.module_data import ModuleData

FORMAT = "openai-agents"
MESSAGES = "agent_messages"

_SQL = ModuleData(__file__)


class AgentSessions:
    """A database with sessions of the Agents SDK. `messages_table` is the name of the table of messages."""

    format = FORMAT
    unit = "messages"

    def __init__(self, database: Database, *, skip_bad: bool = False, messages_table: str = MESSAGES) -> None:
        self._database = database
        self._skip_bad = skip_bad
        self._messages_table = messages_table
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
            meta = {
                "source": FORMAT, "occurred_at": moment(created_at), "row_id": number,
                "external_id": text(item.get("id")),
            }  # fmt: skip
            yield from to_load(item, meta, notes, where)

    def close(self) -> None:
        self._database.close()
