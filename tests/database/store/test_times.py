"""Stored times that no clock can have shown fail no query and no append, and `verify` finds them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.faces import Face

HI = {"role": "user", "content": "hi"}
_TABLES = ("threads", "heads", "messages")


@pytest.fixture
def behind(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A superuser with the triggers disabled."""
    for table in _TABLES:
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
    return superuser


@pytest.mark.parametrize(
    ("time", "what"),
    [
        ("10031-01-01 00:00+00", "the time is before the year 1 or after the year 9999"),
        ("2999-01-01 00:00+00", "the time is days ahead of this machine's clock"),
        ("0044-03-15 00:00+00 BC", "the time is before the year 1 or after the year 9999"),
    ],
)
def test_a_time_that_no_clock_showed_ends_nothing_and_is_found(
    store: Face, behind: psycopg.Connection[Any], time: str, what: str
) -> None:
    store.append("other", HI)
    store.append("t", [HI, HI])
    behind.execute("UPDATE compaction_store.messages SET created_at = %s WHERE seq = 2", [time])
    behind.execute("UPDATE compaction_store.heads SET last_at = %s WHERE last_seq = 2", [time])
    assert [thread.thread_id for thread in store.threads()] == ["other", "t"]
    assert len(list(store.replay("t"))) == 2
    assert store.thread("t").last_seq == 2
    written = store.append("t", HI)[0]
    assert written.seq == 3
    if "BC" not in time:
        assert written.created_at > datetime(2998, 1, 1, tzinfo=UTC)
    assert what in {finding.what for finding in store.audit.verify("t").findings}
    assert store.audit.verify("other").findings == ()
