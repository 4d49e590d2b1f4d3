"""Queries for a checkpoint. All of them run inside the transaction of `checkpointing`, and see one snapshot.

A lock on Alembic's version table makes checkpoints and migrations run one at a time. An advisory lock needs no
privilege, so with one, any login of the database could block them forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from compaction_store.errors import DatabaseUnavailable, NotPrimary, PermissionDenied
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch, literal
from compaction_store.postgres.queries.across_threads import NESTED

_SQL = ModuleData(__file__).values
_ALL_HEADS: str = _SQL["all_heads"]
_HEADS = _ALL_HEADS.replace("ORDER", "AND h.tenant = (SELECT compaction_store.tenant()) ORDER")
# Every thread is found by its key. Without statistics, the planner might read whole tables instead.
_BY_KEY = "SET LOCAL enable_seqscan = off"
HOLDER: str = _SQL["holder"]


class Holder(NamedTuple):
    pid: int | None
    application: str | None
    login: str | None


def held_by(holder: Holder | None) -> str:
    """Returns the end of an error message, which names the holder. The names are quoted, as they can be any text."""
    if holder is None:
        return ""
    if holder.pid is None:
        return ": a prepared transaction holds the lock"
    return f": process {holder.pid} ({holder.application!r}, login {holder.login!r}) holds the lock"


def take_checkpoint_turn(connection: Connection, patience: float) -> None:
    """Blocks other checkpoints and migrations until the end of this transaction."""
    fetch(connection, f"SET LOCAL lock_timeout = {max(1, round(patience * 1000))}")
    fetch(connection, "SAVEPOINT turn")
    try:
        fetch(connection, "SELECT compaction_store.checkpoint_turn()")
    except psycopg.errors.LockNotAvailable as error:
        state = error.sqlstate
    else:
        fetch(connection, "SET LOCAL lock_timeout = DEFAULT")
        return
    fetch(connection, "ROLLBACK TO SAVEPOINT turn")
    rows = fetch(connection, HOLDER)
    holder = Holder._make(rows[0]) if rows else None
    raise DatabaseUnavailable(
        f"another checkpoint or a migration did not finish in time{held_by(holder)}", sqlstate=state
    )


@contextmanager
def checkpointing(connection: Connection, tenant: str | None, patience: float) -> Iterator[None]:
    """Opens a transaction on the primary for a checkpoint over one tenant or all tenants. Blocks other checkpoints.

    Waits up to `patience` seconds for the lock. Then raises an error that names the holder of the lock. The snapshot is
    from before the wait, so the caller must find out whether another checkpoint was made meanwhile.
    """
    if fetch(connection, "SELECT pg_is_in_recovery()")[0][0]:
        raise NotPrimary("the server must be the primary to make a checkpoint, but it is a standby")
    # The transaction is READ WRITE, because a read-only transaction cannot take this lock.
    fetch(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE")
    try:
        if tenant is None:
            # With this setting, the queries raise an error if a policy would hide rows of a tenant.
            fetch(connection, "SET LOCAL row_security = off")
        else:
            fetch(connection, f"SET LOCAL compaction_store.tenant = {literal(tenant)}")
        take_checkpoint_turn(connection, patience)
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        fetch(connection, "ROLLBACK")
        what = _SQL["all_tenants"] if tenant is None else "grant this login compaction_store_auditor"
        raise PermissionDenied(what, sqlstate=error.sqlstate) from None
    except BaseException:
        fetch(connection, "ROLLBACK")
        raise
    fetch(connection, "COMMIT")


def heads(connection: Connection, *, all_tenants: bool, page: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yields pages of the heads of a tenant's threads or of all threads, ordered by thread_uid."""
    fetch(connection, _ALL_HEADS if all_tenants else _HEADS)
    # The functions run as the owner of the tables, for whom the policies hold. They set the tenant of each thread.
    fetch(connection, "SET LOCAL row_security = on")
    fetch(connection, NESTED)
    fetch(connection, _BY_KEY)
    while rows := fetch(connection, f"FETCH {page:d} FROM heads"):
        yield rows
    fetch(connection, "CLOSE heads")


def states(connection: Connection, places: Sequence[tuple[UUID, str, int | None]]) -> list[tuple[Any, ...]]:
    """Returns the rows of `thread_state` for threads that are given as thread_uid, tenant and pos."""
    uids, tenants, pos = map(list, zip(*places, strict=True))
    return fetch(connection, _SQL["states"], {"uids": uids, "tenants": tenants, "pos": pos})


def entries_of_many(
    connection: Connection, kind: str, places: Sequence[tuple[UUID, str, int, int]]
) -> list[tuple[Any, ...]]:
    """Returns thread_uids with rows of `entries`, without content, for places: uid, tenant, start and limit."""
    uids, tenants, starts, limits = map(list, zip(*places, strict=True))
    values = {"uids": uids, "tenants": tenants, "starts": starts, "limits": limits, "kind": kind}
    return fetch(connection, _SQL["entries"], values)
