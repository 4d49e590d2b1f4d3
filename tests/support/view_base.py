"""Reads the base of a view as commit_compactions needs it: a pos, and the entry of the thread's chain at that pos."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg


def base(connection: psycopg.Connection[Any], uid: UUID, pos: int | None = None) -> tuple[int, bytes | None]:
    """Returns the base of the view at a pos, or of the newest view. The connection must be a superuser's."""
    if pos is None:
        rows = connection.execute(
            "SELECT h.last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = %s", (uid,)
        ).fetchall()
        pos = rows[0][0] if rows else 0
    # Use two statements, because a cluster cannot run a function that reads tables inside another query.
    found = connection.execute("SELECT compaction_store.entry_at(%s, %s)", (uid, pos)).fetchone()
    assert found is not None
    return pos, found[0]
