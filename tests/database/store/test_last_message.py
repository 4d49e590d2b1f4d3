"""`last_message_at` is the time of the newest message. Nothing else that is written to a thread changes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.faces import Face

import compaction_store as cs

MESSAGES = [{"role": "user", "content": f"message {i} " * 9} for i in range(8)]
NO_ACTIVITY: dict[str, Callable[[Face], Any]] = {
    "a compaction": lambda store: store.compact("t", lambda ctx: ctx.compact(1, 4, "Folded.")),
    "a rewind": lambda store: store.rewind("t", 5),
    "a clear": lambda store: store.clear("t"),
    "a hold": lambda store: store.custody.hold("t", reason="claim"),
    "a term": lambda store: store.custody.retain("t", datetime.now(UTC) + timedelta(days=1), reason="law"),
    "a fork": lambda store: store.fork("t", "u"),
    "a redaction": lambda store: store.custody.redact("t", [8], reason="asked for"),
    "metadata": lambda store: store.set_metadata("t", {"title": "x"}),
    "an erasure": lambda store: store.custody.erase("t", reason="asked for"),
}


def seen(store: Face, superuser: psycopg.Connection[Any], name: str = "t") -> datetime | None:
    """Returns the time that the thread, the list of threads and the SQL view agree about."""
    thread = store.thread(name)
    assert thread in list(store.threads())
    superuser.execute("SET compaction_store.tenant = 'default'")
    query = "SELECT last_message_at, last_at FROM compaction_store.audit_threads WHERE thread_id = %s"
    assert superuser.execute(query, [name]).fetchall() == [(thread.last_message_at, thread.last_at)]
    found: datetime | None = thread.last_message_at
    return found


@pytest.mark.parametrize("what", NO_ACTIVITY)
def test_what_is_no_message_does_not_change_it(store: Face, superuser: psycopg.Connection[Any], what: str) -> None:
    written = store.append("t", MESSAGES)[-1].created_at
    uid = store.thread("t").thread_uid
    NO_ACTIVITY[what](store)
    name = "t" if what != "an erasure" else f"erased:{uid}"
    assert seen(store, superuser, name) == written


def test_an_append_changes_it_however_many_entries_came_before(store: Face, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", MESSAGES)
    NO_ACTIVITY["a hold"](store)
    NO_ACTIVITY["a compaction"](store)
    written = store.append("t", MESSAGES[0])[0].created_at
    assert seen(store, superuser) == written
    store.load.messages("t", MESSAGES)
    assert seen(store, superuser) == list(store.replay("t"))[-1].created_at > written


def test_a_fork_begins_at_the_time_of_the_fork(store: Face, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", MESSAGES)
    store.fork("t", "u")
    assert seen(store, superuser, "u") == store.thread("u").created_at > store.thread("t").last_message_at


def test_threads_that_are_due_have_it_too(store: Face) -> None:
    written = store.append("t", MESSAGES)[-1].created_at
    NO_ACTIVITY["a hold"](store)
    [due] = store.due(cs.TokenBudget(100, trigger=50, target=20))
    assert due.last_message_at == written != due.last_at
