"""Does the same work with plain psycopg. This is the floor, with which everything is compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, LiteralString

import psycopg

INSERT = "INSERT INTO raw (thread_id, seq, role, payload) VALUES (%s, %s, %s, %s)"
_COPY = "COPY raw (thread_id, seq, role, payload) FROM STDIN"
Message = Mapping[str, Any]


def create(connection: psycopg.Connection) -> None:
    connection.execute(
        "CREATE TABLE raw (thread_id text, seq bigint, role text, payload json,"
        " created_at timestamptz DEFAULT now(), PRIMARY KEY (thread_id, seq))"
    )


class AsyncFloor:
    """Does the same as `Floor` with an async connection, for many callers at once."""

    def __init__(self, connection: psycopg.AsyncConnection, thread: str) -> None:
        self._connection = connection
        self._thread = thread
        self._seqs = count(1)

    async def insert(self, message: Message) -> None:
        row = (self._thread, next(self._seqs), message["role"], json.dumps(message))
        await self._connection.execute(INSERT, row)


class Floor:
    """A connection and one thread, whose messages the class numbers itself."""

    def __init__(self, connection: psycopg.Connection, thread: str) -> None:
        self.connection = connection
        self.thread = thread
        self._seqs = count(1)

    def _row(self, message: Message) -> tuple[str, int, str, str]:
        return self.thread, next(self._seqs), message["role"], json.dumps(message)

    def insert(self, message: Message) -> None:
        self.connection.execute(INSERT, self._row(message))

    def insert_many(self, messages: Sequence[Message]) -> None:
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(INSERT, [self._row(message) for message in messages])

    def copy(self, messages: Sequence[Message]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            for message in messages:
                copy.write_row(self._row(message))

    def select(self, query: LiteralString) -> list[Any]:
        """Returns the payloads that a query finds, parsed by the standard library."""
        return [json.loads(text) for (text,) in self.connection.execute(query, {"thread": self.thread})]
