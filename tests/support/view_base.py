"""The base of a view, as commit_compactions takes it: a pos, and the entry of the thread's chain there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg


def base(connection: psycopg.Connection[Any], uid: UUID, pos: int | None = None) -> tuple[int, bytes | None]:
    """Returns the base of the view at a pos, or of the newest view, as a superuser reads it."""
    found = connection.execute(
        "SELECT b.pos, compaction_store.entry_at(%s, b.pos) FROM ("
        " SELECT coalesce(%s, (SELECT h.last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = %s), 0) AS pos"
        ") AS b",
        (uid, pos, uid),
    ).fetchone()
    assert found is not None
    return int(found[0]), found[1]
