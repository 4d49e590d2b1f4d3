"""Reads LangGraph's checkpoints. A thread gets every message that was ever in its state, in the order of appearance.

A checkpoint contains the messages of one moment, so all kept checkpoints are read, from the oldest to the latest.
Messages that a later checkpoint no longer contains are still imported. A record says that they were removed or
rewritten, and contains the message that replaced them, if one did. If a checkpoint only adds messages, only the new
messages are decoded.

Only the checkpoints that led to the latest one in the root graph are read, not those of abandoned branches. UNION ends
the search even if checkpoints name each other as parents.

In Postgres, each version of the messages is in a separate row; in SQLite, every checkpoint contains the whole state.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

from compaction_store.errors import InvalidSource
from compaction_store.importers import checkpoint_values, langgraph_states
from compaction_store.importers.checkpoint_values import Undecodable
from compaction_store.importers.databases import Database, is_postgres
from compaction_store.importers.langgraph_states import StateComparison, read_state
from compaction_store.importers.line_files import parsed
from compaction_store.importers.sources import Item, Notes, SourceThread

FORMAT = langgraph_states.FORMAT
CHECKPOINTS, BLOBS = "checkpoints", "checkpoint_blobs"

_THREADS = "SELECT DISTINCT thread_id FROM {checkpoints} WHERE checkpoint_ns = '' ORDER BY thread_id"
_COUNT = "SELECT count(DISTINCT thread_id) FROM {checkpoints} WHERE checkpoint_ns = ''"
_STATES = """
    WITH RECURSIVE chain AS (
        (
            SELECT checkpoint_id, parent_checkpoint_id, checkpoint -> 'channel_versions' ->> %(channel)s AS version,
                checkpoint ->> 'ts' AS at
            FROM {checkpoints} WHERE thread_id = %(thread)s AND checkpoint_ns = ''
            ORDER BY checkpoint_id DESC LIMIT 1
        )
        UNION
        SELECT p.checkpoint_id, p.parent_checkpoint_id, p.checkpoint -> 'channel_versions' ->> %(channel)s,
            p.checkpoint ->> 'ts'
        FROM chain AS c JOIN {checkpoints} AS p
            ON p.thread_id = %(thread)s AND p.checkpoint_ns = '' AND p.checkpoint_id = c.parent_checkpoint_id
    ), states AS (
        SELECT version, min(checkpoint_id) AS checkpoint_id, min(at) AS at FROM chain
        WHERE version IS NOT NULL GROUP BY version
    )
    SELECT s.checkpoint_id, s.at, b.type, b.blob
    FROM states AS s LEFT JOIN {blobs} AS b
        ON b.thread_id = %(thread)s AND b.checkpoint_ns = '' AND b.channel = %(channel)s AND b.version = s.version
    ORDER BY s.checkpoint_id
"""


_SQLITE_CHAIN = """
    WITH RECURSIVE chain AS (
        SELECT * FROM (
            SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = :thread AND checkpoint_ns = ''
            ORDER BY checkpoint_id DESC LIMIT 1
        )
        UNION
        SELECT p.checkpoint_id, p.parent_checkpoint_id FROM chain AS c JOIN checkpoints AS p
            ON p.thread_id = :thread AND p.checkpoint_ns = '' AND p.checkpoint_id = c.parent_checkpoint_id
    )
    SELECT checkpoint_id FROM chain ORDER BY checkpoint_id
"""
_SQLITE_STATE = """
    SELECT type, checkpoint FROM checkpoints
    WHERE thread_id = :thread AND checkpoint_ns = '' AND checkpoint_id = :checkpoint
"""


def has_tables(database: Database) -> bool:
    """Returns whether a database has the tables of LangGraph's checkpointer."""
    wanted = {CHECKPOINTS, BLOBS} if is_postgres(database) else {CHECKPOINTS}
    return wanted <= database.tables()


def open_checkpoints(database: Database, *, skip_bad: bool = False, channel: str = "messages") -> Checkpoints:
    """Returns the checkpoints of a Postgres or SQLite database."""
    kind = PostgresCheckpoints if is_postgres(database) else SqliteCheckpoints
    return kind(database, skip_bad=skip_bad, channel=channel)


class Checkpoints(ABC):
    """A database with LangGraph's checkpoints. `channel` is the key of the state that holds the messages."""

    format = FORMAT
    unit = "threads"

    def __init__(self, database: Database, *, skip_bad: bool = False, channel: str = "messages") -> None:
        checkpoint_values.check_installed()
        self._database = database
        self._skip_bad = skip_bad
        self._channel = channel
        self.done = 0
        [(self.total,)] = list(database.rows(self._statement(_COUNT)))

    def threads(self) -> Iterator[SourceThread]:
        for (thread,) in self._database.rows(self._statement(_THREADS), page=1000):
            notes = Notes(self._skip_bad)
            yield SourceThread(thread, self._items(thread, notes), notes)
            self.done += 1

    def _items(self, thread: str, notes: Notes) -> Iterator[Item]:
        comparison = StateComparison(notes)
        for checkpoint, at, kind, blob in self._states(thread, comparison):
            if blob is None or kind == "empty":
                raise InvalidSource(
                    f"checkpoint {checkpoint} has no {self._channel}; a DeltaChannel cannot be imported"
                )
            yield from comparison.items(checkpoint, at, read_state(kind, bytes(blob), checkpoint, comparison))

    def close(self) -> None:
        self._database.close()

    def _statement(self, template: str) -> Any:
        return self._database.statement(template, checkpoints=CHECKPOINTS, blobs=BLOBS)

    @abstractmethod
    def _states(self, thread: str, comparison: StateComparison) -> Iterator[_Stored]:
        """Yields the versions of a thread's messages, in order."""


class _Stored(NamedTuple):
    """The messages of a checkpoint as they are stored; `blob` is None if they are missing."""

    checkpoint: str
    at: Any
    kind: str
    blob: bytes | None


class PostgresCheckpoints(Checkpoints):
    """The tables of `PostgresSaver`."""

    def _states(self, thread: str, comparison: StateComparison) -> Iterator[_Stored]:  # noqa: ARG002
        # A state may be large: fetch one at a time.
        parameters: Any = {"thread": thread, "channel": self._channel}
        for row in self._database.rows(self._statement(_STATES), parameters, page=1):
            yield _Stored(*row)


class SqliteCheckpoints(Checkpoints):
    """The tables of `SqliteSaver`."""

    def _states(self, thread: str, comparison: StateComparison) -> Iterator[_Stored]:
        parameters: Any = {"thread": thread}
        for (checkpoint,) in list(self._database.rows(_SQLITE_CHAIN, parameters)):
            [(kind, blob)] = self._database.rows(_SQLITE_STATE, parameters | {"checkpoint": checkpoint})
            try:
                stored = self._stored(checkpoint, kind, blob, comparison)
            except ValueError as error:
                failure = str(error)
            else:
                if stored is not None:
                    yield stored
                continue
            raise InvalidSource(f"checkpoint {checkpoint} cannot be read: {failure}")

    def _stored(self, checkpoint: str, kind: str, blob: bytes, comparison: StateComparison) -> _Stored | None:
        """Returns the messages in a checkpoint; None if the thread had no messages yet."""
        if kind == "json":
            whole = parsed(blob)
            values, versions = (whole.get(name) or {} for name in ("channel_values", "channel_versions"))
            found = values.get(self._channel)
            data = None if found is None else json.dumps(found).encode()
            return None if self._channel not in versions else _Stored(checkpoint, whole.get("ts"), kind, data)
        if kind != "msgpack":
            raise Undecodable(f"the checkpoint is stored as {kind}")
        messages = checkpoint_values.find(
            blob, "channel_values", self._channel, known=comparison.body, known_count=comparison.length
        )
        if messages is None and checkpoint_values.find(blob, "channel_versions", self._channel) is None:
            return None
        written = checkpoint_values.find(blob, "ts")
        return _Stored(checkpoint, None if written is None else checkpoint_values.decode(written), kind, messages)
