"""Translates the database's errors into this package's, and decides whether to retry and whether a write may have
happened.

Errors never contain what was sent. Postgres's own message may quote the row, so only SQLSTATE and constraint are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
import sqlalchemy as sa

from compaction_store.errors import (
    CompactionNotFound,
    CompactionStoreError,
    Conflict,
    DatabaseError,
    DatabaseUnavailable,
    HeadConflict,
    Held,
    IdempotencyConflict,
    InvalidInput,
    InvalidThreadId,
    MessageNotFound,
    PermissionDenied,
    PositionNotFound,
    SequenceConflict,
    SpanConflict,
    ThreadDamaged,
    ThreadErased,
    ThreadExists,
    ThreadNotFound,
    TurnLost,
    UnknownEntry,
    UnsupportedDatabase,
)
from compaction_store.postgres.timeouts import DeadlinePassed

# Serialization failure, deadlock, lock not available, server starting, too many connections, and a unique violation
# outside of the log's keys.
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57P03", "53300", "23505"})
_UNIQUE_VIOLATION = "23505"
# Writers take the next position under the head's lock. If a row already has this position, it is beyond the head: the
# thread is damaged. On a cluster the shard's number follows the name.
_LOG_KEYS = ("messages_pkey", "messages_key_idx", "compactions_pkey", "events_pkey")
# A shutdown or a crash, before the commit or after it.
_WENT_DOWN = frozenset({"57P01", "57P02"})
# The server ended the session before it executed the statement: an administrator's timeout, or it became read-only.
_READ_ONLY = "25006"
_TURNED_AWAY = frozenset({"57P05", "25P03", "25P04", _READ_ONLY})
_CANCELLED = "57014"
_NO_TENANT = "CS009"
_SEES_ONE_TENANT = "CS023"

_BY_SQLSTATE: dict[str, type[CompactionStoreError]] = {
    "CS001": ThreadNotFound,
    "CS002": IdempotencyConflict,
    "CS004": SpanConflict,
    "CS005": PositionNotFound,
    "CS006": Conflict,
    "CS007": InvalidInput,
    "CS012": ThreadErased,
    "CS014": MessageNotFound,
    "CS015": UnsupportedDatabase,
    "CS016": CompactionNotFound,
    "CS020": ThreadDamaged,
    "CS021": UnknownEntry,
    "CS022": ThreadExists,
    "CS030": TurnLost,
    "CS018": InvalidThreadId,
    "CS019": InvalidInput,
}


class InDoubt(psycopg.OperationalError):
    """The server reported a commit, but may not have waited for its standby: a failover could lose it."""


class Verdict(NamedTuple):
    """The error to raise, whether a retry may help, and whether a write may have happened nevertheless."""

    failure: CompactionStoreError
    again: bool
    unknown: bool


def judge(error: BaseException, of_thread: str, *, spread: bool) -> Verdict:
    """Judges a failed call. On a `spread` database, one of several servers, a worker may have committed although the
    coordinator was cancelled or failed.
    """
    state = sqlstate(error)
    if isinstance(error, InDoubt | DeadlinePassed):
        return Verdict(DatabaseUnavailable(f"{error}{of_thread}"), again=True, unknown=True)
    if is_gone(error):
        unknown = state not in _TURNED_AWAY
        what = f"the connection was lost{of_thread}"
        if state == _READ_ONLY:
            what = (
                f"the server accepts no writes{of_thread}: it is a standby, or read-only;"
                " target_session_attrs=read-write in the URL finds the primary"
            )
        return Verdict(DatabaseUnavailable(what, sqlstate=state), again=True, unknown=unknown)
    if state == _CANCELLED or (spread and _is_of_a_node(state)):
        what = "the server did not answer by the deadline" if state == _CANCELLED else "a node of the cluster failed"
        failure = DatabaseUnavailable(f"{what}{of_thread}", sqlstate=state)
        return Verdict(failure, again=spread, unknown=spread)
    if state == _UNIQUE_VIOLATION and _is_of_log(error, spread=spread):
        what = "the thread has an entry beyond its head, where the new one belongs: run verify"
        return Verdict(ThreadDamaged(f"{what}{of_thread}", sqlstate=state), again=False, unknown=False)
    if state in _TRANSIENT:
        failure = DatabaseUnavailable(f"the server was busy: SQLSTATE {state}{of_thread}", sqlstate=state)
        return Verdict(failure, again=True, unknown=False)
    return Verdict(translated(error, of_thread), again=False, unknown=False)


def sqlstate(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def _is_of_a_node(state: str | None) -> bool:
    """Returns whether this is a cluster's internal error, or a statement that reached a node without the tenant that
    every call sets.
    """
    return state is not None and (state.startswith("XX") or state == _NO_TENANT)


def _is_of_log(error: BaseException, *, spread: bool) -> bool:
    """Returns whether a unique violation is one of the log's keys. A cluster's coordinator does not pass the key's name
    on; there all other keys are inserted with ON CONFLICT.
    """
    name = error.diag.constraint_name if isinstance(error, psycopg.Error) else None
    return spread if name is None else name.startswith(_LOG_KEYS)


def is_gone(error: BaseException) -> bool:
    """Returns whether the connection was lost, or its server became read-only."""
    state = sqlstate(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _WENT_DOWN or state in _TURNED_AWAY or state.startswith("08")


def original(error: BaseException) -> BaseException:
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


def translated(error: BaseException, of_thread: str) -> CompactionStoreError:
    """Translates a driver's error. Only the texts of our own SQL functions are kept: they contain only numbers."""
    state = sqlstate(error)
    if not isinstance(error, psycopg.Error) or state is None:
        return DatabaseError(f"the driver failed with {type(error).__name__}{of_thread}")
    if state.startswith("CS"):
        text = error.diag.message_primary or ""
        return _of_our_function(state, f"{text}{of_thread}", text, error.diag.message_detail or "")
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    # Recognized by the name of Postgres's C function, because the message is in the server's language.
    if state == "42501" and error.diag.source_function == "check_enable_rls":
        return PermissionDenied(
            f"row_security is off for this login or database, but the tenant policies need it: set it to on{of_thread}",
            sqlstate=state,
        )
    if state == "42501":
        return PermissionDenied(
            f"Postgres refused the statement: SQLSTATE {state}; grant this login compaction_store_app{of_thread}",
            sqlstate=state,
        )
    return DatabaseError(f"Postgres refused the statement: SQLSTATE {state}{constraint}{of_thread}", sqlstate=state)


def _of_our_function(state: str, text: str, primary: str, detail: str) -> CompactionStoreError:
    """Translates an error that one of our own SQL functions raised."""
    if state == "CS003":
        return SequenceConflict(text, expected=int(primary.split()[2]), actual=int(detail or 0))
    if state == "CS013":
        return Held(text, pos=int(detail or 0))
    if state == "CS017":
        return HeadConflict(text, expected=bytes.fromhex(primary.split()[2]), actual=bytes.fromhex(detail) or None)
    if state == _SEES_ONE_TENANT:
        return PermissionDenied(text, sqlstate=state)
    return _BY_SQLSTATE[state](text) if state in _BY_SQLSTATE else DatabaseError(text, sqlstate=state)
