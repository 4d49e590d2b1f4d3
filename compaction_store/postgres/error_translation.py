"""What a failure of the database means: which error of ours it is, whether to try again, and what it leaves open.

Nothing that was sent is repeated in an error: a database's own message may quote the row, so it is reduced to SQLSTATE
and constraint.
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
    ThreadNotFound,
    UnsupportedDatabase,
)
from compaction_store.postgres.timeouts import DeadlinePassed

# Serialisation, deadlock, lock not available, starting up, too many connections; and a unique violation that is not
# one of the log's.
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57P03", "53300", "23505"})
_UNIQUE_VIOLATION = "23505"
# Every writer takes its place in the log under the head's lock: what is in that place already is beyond the head. On a
# cluster the shard's number follows the name.
_LOG_KEYS = ("messages_pkey", "messages_key_idx", "compactions_pkey", "events_pkey")
# A shutdown or a crash, which may have come before the commit or after it.
_WENT_DOWN = frozenset({"57P01", "57P02"})
# The server ended the session before it did what was asked: an administrator's timeout, or it has become read-only.
_TURNED_AWAY = frozenset({"57P05", "25P03", "25P04", "25006"})
_CANCELLED = "57014"
_NO_TENANT = "CS009"

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
    "CS018": InvalidThreadId,
    "CS019": InvalidInput,
}


class InDoubt(psycopg.OperationalError):
    """The server reported a commit as done, and may have it alone: it did not wait for its standby."""


class Verdict(NamedTuple):
    """The failure as ours, whether another try may help, and whether a write may have happened all the same."""

    failure: CompactionStoreError
    again: bool
    unknown: bool


def judge(error: BaseException, about: str, *, spread: bool) -> Verdict:
    """What a failed call of the database means. On a `spread` one, a cancel or a failure may reach only the coordinator
    when a worker has committed.
    """
    state = sqlstate(error)
    if isinstance(error, InDoubt | DeadlinePassed):
        return Verdict(DatabaseUnavailable(f"{error}{about}"), again=True, unknown=True)
    if is_gone(error):
        unknown = state not in _TURNED_AWAY
        return Verdict(
            DatabaseUnavailable(f"the connection was lost{about}", sqlstate=state), again=True, unknown=unknown
        )
    if state == _CANCELLED:
        failure = DatabaseUnavailable(f"the server did not answer by the deadline{about}", sqlstate=state)
        return Verdict(failure, again=spread, unknown=spread)
    if state == _UNIQUE_VIOLATION and (_constraint(error) or "").startswith(_LOG_KEYS):
        what = "the thread has an entry beyond its head, where the new one belongs: run verify"
        return Verdict(ThreadDamaged(f"{what}{about}", sqlstate=state), again=False, unknown=False)
    if state in _TRANSIENT:
        failure = DatabaseUnavailable(f"the server was busy: SQLSTATE {state}{about}", sqlstate=state)
        return Verdict(failure, again=True, unknown=False)
    # A cluster's own error, or a statement that came to a node without the tenant that every call brings.
    astray = spread and state is not None and (state.startswith("XX") or state == _NO_TENANT)
    return Verdict(translated(error, about), again=astray, unknown=astray)


def sqlstate(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def _constraint(error: BaseException) -> str | None:
    return error.diag.constraint_name if isinstance(error, psycopg.Error) else None


def is_gone(error: BaseException) -> bool:
    """Whether the connection went away, or leads to a server that writes nothing."""
    state = sqlstate(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _WENT_DOWN or state in _TURNED_AWAY or state.startswith("08")


def original(error: BaseException) -> BaseException:
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return error.orig
    return error


def translated(error: BaseException, about: str) -> CompactionStoreError:
    """A driver's error as ours. Only the texts of our own SQL functions, which hold numbers alone, are passed on."""
    state = sqlstate(error)
    if not isinstance(error, psycopg.Error) or state is None:
        return DatabaseError(f"the driver failed with {type(error).__name__}{about}")
    if state.startswith("CS"):
        said = error.diag.message_primary or ""
        return _ours(state, f"{said}{about}", said, error.diag.message_detail or "")
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    # The server's own name for the place, since its message is in the language of the server.
    if state == "42501" and error.diag.source_function == "check_enable_rls":
        return PermissionDenied(
            f"row_security is off for this login or database, where the policies are needed: set it to on{about}",
            sqlstate=state,
        )
    if state == "42501":
        return PermissionDenied(
            f"Postgres refused the statement: SQLSTATE {state}; grant this login compaction_store_app{about}",
            sqlstate=state,
        )
    return DatabaseError(f"Postgres refused the statement: SQLSTATE {state}{constraint}{about}", sqlstate=state)


def _ours(state: str, text: str, said: str, detail: str) -> CompactionStoreError:
    """The error that one of our own SQL functions raised."""
    if state == "CS003":
        return SequenceConflict(text, expected=int(said.split()[2]), actual=int(detail or 0))
    if state == "CS013":
        return Held(text, pos=int(detail or 0))
    if state == "CS017":
        return HeadConflict(text, expected=bytes.fromhex(said.split()[2]), actual=bytes.fromhex(detail) or None)
    return _BY_SQLSTATE[state](text) if state in _BY_SQLSTATE else DatabaseError(text, sqlstate=state)
