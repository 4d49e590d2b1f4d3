"""The base of a view, as commit_compactions takes it: a pos, and the entry of the thread's chain there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg


def base(connection: psycopg.Connection[Any], uid: UUID, pos: int | None = None) -> tuple[int, bytes | None]:
    """Returns the base of the view at a pos, or of the newest view, as a superuser reads it."""
    if pos is None:
        rows = connection.execute(
            "SELECT h.last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = %s", (uid,)
        ).fetchall()
        pos = rows[0][0] if rows else 0
    # Two statements, because a cluster does not run a function that reads inside a query that reads.
    found = connection.execute("SELECT compaction_store.entry_at(%s, %s)", (uid, pos)).fetchone()
    assert found is not None
    return pos, found[0]
