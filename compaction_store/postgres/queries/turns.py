"""Takes the lock that makes checkpoints and migrations run one at a time. It is a lock on Alembic's version table.

A lock on the table needs a privilege. An advisory lock needs none, so with one, any login of the database could block
checkpoints and migrations forever.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from compaction_store.errors import DatabaseUnavailable
from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, fetch

HOLDER = ModuleData(__file__).text("holder")


class Holder(NamedTuple):
    pid: int | None
    application: str | None
    login: str | None


def held_by(holder: Holder | None) -> str:
    """Returns the end of an error message, which names the holder.

    Quotes the names, because these can be any text.
    """
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
