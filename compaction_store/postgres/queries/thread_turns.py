"""Takes, renews and ends turns. A turn is stored under the thread's name, because the thread may not exist yet."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from compaction_store.postgres.driver.cursor import Connection, fetch
from compaction_store.postgres.queries.one_thread import ThreadKey


class TurnState(NamedTuple):
    """The state of a turn. `place` is its place in the queue, or 0 if it has the thread.

    `held_since`, `held_until`, `actor` and `login` describe the turn that has the thread. If this turn has it,
    `last_seq` and `head` are the current end of the thread.
    """

    place: int
    held_since: datetime | None
    held_until: datetime | None
    actor: str | None
    login: str | None
    last_seq: int | None
    head: bytes | None


def take_turn(
    connection: Connection, key: ThreadKey, turn_id: UUID, actor: str | None, seconds: float, waits: bool
) -> TurnState:
    """Requests the thread for a turn, or returns the current place of a waiting turn. The call is safe to repeat."""
    rows = fetch(
        connection,
        "SELECT * FROM compaction_store.take_turn(%b::text, %b::text, %b, %b::text, %b::float8, %b::bool)",
        (key.tenant, key.thread_id, turn_id, actor, seconds, waits),
    )
    return TurnState._make(rows[0])


def renew_turn(connection: Connection, key: ThreadKey, turn_id: UUID, seconds: float) -> datetime:
    """Extends the lease of a turn. Returns the new end of the lease."""
    rows = fetch(
        connection,
        "SELECT compaction_store.renew_turn(%b::text, %b::text, %b, %b::float8)",
        (key.tenant, key.thread_id, turn_id, seconds),
    )
    until: datetime = rows[0][0]
    return until


def leave_turn(connection: Connection, key: ThreadKey, turn_id: UUID) -> bool:
    """Ends a turn, or removes a waiting turn from the queue. Returns whether the turn had the thread until now."""
    rows = fetch(
        connection, "SELECT compaction_store.leave_turn(%b::text, %b::text, %b)", (key.tenant, key.thread_id, turn_id)
    )
    return bool(rows[0][0])
