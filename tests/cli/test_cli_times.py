"""Every time in JSON and CSV is UTC with a Z, wherever the server and the program's machine are."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from cli.program import THREAD, Run

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[^\s\"',/]*")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_LISTS = (
    ("threads",), ("compactions",), ("compactions", THREAD, "--text"), ("events",), ("events", THREAD),
    ("search", "tide", "--text"), ("explain", THREAD, "--lost"), ("compactions", "--all-tenants"), ("stats",),
)  # fmt: skip
_OTHERS = (
    ("threads", "--metadata"), ("view", THREAD), ("replay", THREAD), ("show", THREAD, "1"), ("tree", THREAD, "1"),
    ("explain", THREAD, "2"), ("stats", THREAD), ("verify", THREAD), ("verify", "--all"), ("export", THREAD),
    ("hold", THREAD, "--reason", "a"), ("release", THREAD, "--reason", "b"),
    ("retain", THREAD, "--until", "2031-07-01T12:00", "--reason", "c"), ("fork", THREAD, "again", "--at", "9"),
    ("rewind", "again", "3", "--reason", "d"), ("clear", "again"), ("redact", "other", "1", "--reason", "e", "--yes"),
    ("events",),
)  # fmt: skip


@pytest.fixture
def far(run: Run, filled: cs.Store, superuser: psycopg.Connection[Any]) -> Run:
    """The program far from UTC, on a server that is elsewhere."""
    database = sa.make_url(run.url or "").database
    superuser.execute(f"ALTER DATABASE \"{database}\" SET timezone = 'Europe/Berlin'")
    filled.append("other", {"role": "user", "content": "hello"})
    filled.custody.hold(THREAD, reason="a lawsuit")
    filled.custody.release(THREAD, reason="it is settled")
    return run


def _check(text: str, arguments: tuple[str, ...]) -> int:
    found = _TIME.findall(text)
    assert [each for each in found if _UTC.fullmatch(each) is None] == [], arguments
    return len(found)


def test_every_json_and_csv_has_utc(far: Run) -> None:
    times = 0
    for arguments in (*_LISTS, *_OTHERS):
        times += _check(far(*arguments, *(["--json"] if arguments[0] != "export" else []),
                            TZ="America/New_York").stdout, arguments)  # fmt: skip
    for arguments in _LISTS:
        times += _check(far(*arguments, "--csv", TZ="America/New_York").stdout, arguments)
    assert times > 100


def test_a_table_has_the_time_of_the_machine(far: Run) -> None:
    at = json.loads(far("threads", "--json", TZ="America/New_York").stdout.splitlines()[0])["created_at"]
    table = far("events", "--table", TZ="Asia/Tokyo").stdout
    assert "+09:00" in table
    assert datetime.fromisoformat(at).tzinfo == UTC


def test_values_of_the_library_have_utc(far: Run) -> None:
    assert far.url
    with cs.Store.open(far.url) as store:
        values: list[Any] = [
            *store.threads(),
            *store.audit.events(THREAD),
            *store.compactions(THREAD),
            *store.replay(THREAD),
        ]
        written = json.dumps([*(value.as_dict() for value in values), store.view(THREAD).as_dict()])
    assert _check(written, ("as_dict",)) > 20
