"""Calls the SQL function through libpq, with binary parameters and almost no work in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence

import psycopg
from psycopg import pq

from compaction_store.messages import keys

INSERT = b"INSERT INTO raw (thread_id, seq, role, payload) VALUES ($1, $2, $3, $4)"
_APPEND = (
    b"SELECT compaction_store.append(NULL, 'default', $1, $2, $3, 'user', 150, 'bytes/4', $4, NULL, NULL, NULL, true)"
)
_FORMATS = (pq.Format.TEXT, pq.Format.TEXT, pq.Format.BINARY, pq.Format.TEXT)


class Wire:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection.pgconn

    def run(self, statement: bytes, parameters: Sequence[bytes], formats: Sequence[pq.Format] | None = None) -> None:
        done = self._connection.exec_params(statement, parameters, None, formats, pq.Format.BINARY)
        if done.status not in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
            raise psycopg.OperationalError(done.error_message.decode(errors="replace"))

    def append(self, thread: Named, payload: bytes) -> None:
        """Calls the SQL function that the store calls, with a new salt and key."""
        parameters = (thread.name, payload, os.urandom(16), keys.new().encode())
        self.run(_APPEND, parameters, _FORMATS)


class Named:
    """A thread's name, encoded as a parameter."""

    def __init__(self, name: str) -> None:
        self.name = name.encode()
