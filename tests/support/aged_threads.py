"""Threads that were written days ago. They are imported, because nobody can append in the past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from support.handmade_bundles import Thread, new_key

DAY = 24 * 3600 * 1_000_000


def add(store: Any, name: str, days: float, *, messages: int = 2, then: float | None = None) -> UUID:
    """Adds a thread whose last message is `days` old. With `then`, a hold and its release follow at that age."""
    now = int(datetime.now(UTC).timestamp()) * 1_000_000
    start = now - int(days * DAY) - 2_000_000 * messages
    thread = Thread("default", name, new_key("default", name, start))
    thread.start = start
    for i in range(messages):
        thread.message(f'{{"role":"user","content":"message {i} of {name}"}}')
    if then is not None:
        thread.start = now - int(then * DAY)
        thread.event("hold", '{"reason":"a claim"}')
        thread.event("release", '{"reason":"settled"}')
    store.load.bundle(thread.lines())
    return thread.uid


def names(store: Any) -> set[str]:
    """Returns the names of the threads that are not erased, hidden ones included."""
    return {t.thread_id for t in store.threads(hidden=True)}


HALF_A_YEAR = timedelta(days=180)
