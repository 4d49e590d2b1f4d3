"""Helpers to test calls that wait for a lock: take the lock, wait for the waiting call, and time a block."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

import psycopg

HI = {"role": "user", "content": "hi"}
LATER = {"role": "user", "content": "later"}


def hold(holder: psycopg.Connection[Any]) -> None:
    """Locks the heads of all threads, as another client's append would."""
    holder.execute("SELECT * FROM compaction_store.heads FOR UPDATE")


def waiting(superuser: psycopg.Connection[Any]) -> list[int]:
    """Waits for backends of stores that wait for a lock in this database, and returns them."""
    rows = superuser.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name = 'compaction-store'"
    ).fetchall()
    return [row[0] for row in rows]


def until_waiting(superuser: psycopg.Connection[Any]) -> int:
    for _ in range(500):
        if found := waiting(superuser):
            return found[0]
        time.sleep(0.01)
    raise AssertionError("no call waits for a lock")


def contents(store: Any) -> list[Any]:
    return [m.payload["content"] for m in store.replay("t")]


class Clock:
    """Measures how long a block takes."""

    def __enter__(self) -> Self:
        self.start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.start


async def until_waiting_async(superuser: psycopg.Connection[Any]) -> None:
    for _ in range(500):
        if waiting(superuser):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no call waits for a lock")
