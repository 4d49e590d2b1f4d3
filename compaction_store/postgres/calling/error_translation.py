"""Translates errors of the database, and decides whether to retry, and whether a write may have happened.

Errors never contain values that were sent. An error of Postgres itself may quote a row, so only its SQLSTATE and the
name of the constraint are kept.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import psycopg
import sqlalchemy as sa

from compaction_store import errors
from compaction_store.models.roles import ROLES
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.prepared import is_lost
from compaction_store.postgres.driver.timeouts import DeadlinePassed

# Serialization failure, deadlock, lock not available, server starting, too many connections, unique violation. A unique
# violation of the keys below is not transient.
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "57P03", "53300", "23505"})
_UNIQUE_VIOLATION = "23505"
# Unique keys of the log's tables. A writer takes the next pos while it holds the lock of the head. If a row already has
# this pos, the row is beyond the head, so the thread is damaged. On a cluster, the shard's number follows the name of
# the key.
_LOG_KEYS = ("messages_pkey", "messages_key_idx", "compactions_pkey", "events_pkey")
# The server was shut down or crashed. The commit may have happened.
_WENT_DOWN = frozenset({"57P01", "57P02"})
# The server did not execute the statement: a timeout that the administrator set ended the session, or the server became
# read-only.
_READ_ONLY = "25006"
_TURNED_AWAY = frozenset({"57P05", "25P03", "25P04", _READ_ONLY})
#: The statement was cancelled, because the server did not answer by the deadline or the administrator's timeout.
CANCELLED = "57014"
_NO_TENANT = "CS009"
_SEES_ONE_TENANT = "CS023"
_NO_CUSTODIAN = "CS024"
# The role that a login needs for some functions. The others need that of an application.
_ROLE_OF = {function: name for name, role in ROLES.items() for function in role.functions}

_DATA = ModuleData(__file__).values
_WORDS = _DATA["words"]
_BY_SQLSTATE: dict[str, type[errors.CompactionStoreError]] = {
    state: getattr(errors, name) for state, name in _DATA["errors"].items()
}


class InDoubt(psycopg.OperationalError):
    """The server reported a commit, but may not have waited for its standby. A failover could lose the commit."""


class CancelledByServer(psycopg.errors.QueryCanceled):
    """The server cancelled the statement, although the deadline had not passed."""


class Verdict(NamedTuple):
    """The error to raise, whether to try again, and whether the outcome of a write is unknown."""

    failure: errors.CompactionStoreError
    again: bool
    unknown: bool


def judge(error: BaseException, of_thread: str, *, has_nodes: bool) -> Verdict:
    """Judges the error of a failed call. With `has_nodes`, a worker may have committed if the coordinator failed."""
    state = sqlstate(error)
    if isinstance(error, InDoubt | DeadlinePassed):
        state = CANCELLED if isinstance(error, DeadlinePassed) else None
        return Verdict(errors.DatabaseUnavailable(f"{error}{of_thread}", sqlstate=state), again=True, unknown=True)
    if is_gone(error):
        unknown = state not in _TURNED_AWAY
        what = f"the connection was lost{of_thread}"
        if state == _READ_ONLY:
            what = _DATA["read_only"].format(of_thread=of_thread)
        return Verdict(errors.DatabaseUnavailable(what, sqlstate=state), again=True, unknown=unknown)
    # An error of a node is internal to Citus, or is for lack of a tenant, which the coordinator always has.
    if state == CANCELLED or (has_nodes and state is not None and (state.startswith("XX") or state == _NO_TENANT)):
        what = "the server did not answer by the deadline" if state == CANCELLED else "a node of the cluster failed"
        if isinstance(error, CancelledByServer):
            what = "the server cancelled the statement: by the statement_timeout of the login, or by an administrator"
        failure = errors.DatabaseUnavailable(f"{what}{of_thread}", sqlstate=state)
        return Verdict(failure, again=has_nodes, unknown=has_nodes)
    if state == _UNIQUE_VIOLATION and _is_of_log(error, has_nodes=has_nodes):
        what = "the thread has an entry beyond its head, at the pos of the new entry: run verify"
        return Verdict(errors.ThreadDamaged(f"{what}{of_thread}", sqlstate=state), again=False, unknown=False)
    if state in _TRANSIENT or (state is not None and is_lost(error)):
        failure = errors.DatabaseUnavailable(f"{said(state, 'the server was busy')}{of_thread}", sqlstate=state)
        return Verdict(failure, again=True, unknown=False)
    return Verdict(translated(error, of_thread), again=False, unknown=False)


def said(state: str, otherwise: str) -> str:
    """Returns what happened, in words if the SQLSTATE is a usual one, followed by the SQLSTATE."""
    return f"{_WORDS.get(state, otherwise)}: SQLSTATE {state}"


def sqlstate(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def _is_of_log(error: BaseException, *, has_nodes: bool) -> bool:
    """Returns whether a unique key of the log was violated. A cluster's coordinator does not name the key, which is
    always one of the log, because all other rows are inserted with ON CONFLICT.
    """
    name = error.diag.constraint_name if isinstance(error, psycopg.Error) else None
    return has_nodes if name is None else name.startswith(_LOG_KEYS)


def is_gone(error: BaseException) -> bool:
    """Returns whether the connection was lost, or its server became read-only."""
    state = sqlstate(error)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _WENT_DOWN or state in _TURNED_AWAY or state.startswith("08")


def with_canceller(error: BaseException, *, is_ours: bool) -> BaseException:
    """Returns the error, or `CancelledByServer` if the server cancelled the statement without our request."""
    return CancelledByServer() if sqlstate(error) == CANCELLED and not is_ours else error


def original(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error


def translated(error: BaseException, of_thread: str) -> errors.CompactionStoreError:
    """Translates an error of the driver. Keeps only texts of this package's SQL functions, which quote no content."""
    state = sqlstate(error)
    if not isinstance(error, psycopg.Error) or state is None:
        return errors.DatabaseError(f"the driver failed with {type(error).__name__}{of_thread}")
    if state.startswith("CS"):
        text = error.diag.message_primary or ""
        return _of_our_function(state, f"{text}{of_thread}", text, error.diag.message_detail or "")
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    # Recognize this error by the name of the C function in Postgres, because its message is in the server's language.
    if state == "42501" and error.diag.source_function == "check_enable_rls":
        return errors.PermissionDenied(
            f"row_security is off for this login or database, but it must be on for the tenant policies{of_thread}",
            sqlstate=state,
        )
    if state == "42501":
        # Postgres names the function in every language.
        called = re.search(rf"\b({'|'.join(_ROLE_OF)})\b", error.diag.message_primary or "")
        name = _ROLE_OF[called[1]] if called else "application"
        role = f"the role {ROLES[name].group}" if called else "a role, for example"
        needs = f"the login needs {role} by `compaction-store grant LOGIN {name}`{of_thread}"
        return errors.PermissionDenied(f"{said(state, 'Postgres refused the statement')}: {needs}", sqlstate=state)
    what = said(state, "Postgres refused the statement")
    return errors.DatabaseError(f"{what}{constraint}{of_thread}", sqlstate=state)


def _of_our_function(state: str, text: str, primary: str, detail: str) -> errors.CompactionStoreError:
    """Translates an error that one of this package's SQL functions raised."""
    if state == "CS003":
        return errors.SequenceConflict(text, expected=int(primary.split()[2]), actual=int(detail or 0))
    if state == "CS013":
        return errors.Held(text, pos=int(detail or 0) or None)
    if state == "CS017":
        return errors.HeadConflict(
            text, expected=bytes.fromhex(primary.split()[2]), actual=bytes.fromhex(detail) or None
        )
    if state in {_SEES_ONE_TENANT, _NO_CUSTODIAN}:
        return errors.PermissionDenied(text, sqlstate=state)
    return _BY_SQLSTATE[state](text) if state in _BY_SQLSTATE else errors.DatabaseError(text, sqlstate=state)
