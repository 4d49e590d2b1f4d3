"""Which statements a connection has prepared. Only calls of SQL functions are prepared: they have one plan.

Behind a transaction pooler, each transaction may go to another server process, which has not what was prepared in the
last one. There, pg_backend_pid() is not the pid that the connection got in its handshake, and nothing is prepared. If
the comparison were wrong, the server would not know a statement, or would know it already, and the call would be
repeated without preparing. It cannot execute another statement instead: the name is the hash of the text and the types.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

import psycopg

Key = tuple[bytes, tuple[int, ...]]

#: Says whether this server process has the pid of the handshake. Citus must see the values, to send calls to nodes.
IS_DIRECT = (
    b"SELECT pg_catalog.pg_backend_pid() = $1"
    b" AND NOT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'citus')"
)
# A statement is prepared at this use, because preparing it takes a round trip.
_USES = 5
_MOST = 200
_NAME = "compaction_store_"
# The server does not know the statement, or knows it already.
_NOT_HERE = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)


class Prepared:
    """The prepared statements of one connection."""

    def __init__(self) -> None:
        self.names: dict[Key, bytes] = {}
        #: Whether statements may be prepared, or None if that is not known yet.
        self.is_possible: bool | None = None
        self._uses: Counter[Key] = Counter()

    def is_wanted(self, key: Key) -> bool:
        """Returns whether a statement, which is about to be executed unprepared, should be prepared now."""
        if self.is_possible is False or len(self.names) >= _MOST:
            return False
        self._uses[key] += 1
        return self._uses[key] >= _USES

    def give_up(self) -> None:
        self.names.clear()
        self.is_possible = False


def name_of(key: Key) -> bytes:
    statement, types = key
    return _NAME.encode() + sha256(b"%b %b" % (statement, repr(types).encode())).hexdigest()[:40].encode()


def is_lost(error: BaseException) -> bool:
    """Returns whether the server refused a statement that this module has named, and executed nothing."""
    return (isinstance(error, _NOT_HERE) and _NAME in (error.diag.message_primary or "")) or is_outdated(error)


def is_outdated(error: Any) -> bool:
    """Returns whether a function was replaced by one with other columns after its call was prepared."""
    return isinstance(error, psycopg.errors.FeatureNotSupported) and (
        error.diag.source_function == "RevalidateCachedQuery"
    )
