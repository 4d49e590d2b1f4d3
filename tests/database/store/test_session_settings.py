"""Settings of a database or a login change nothing of what is stored, found or refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store.errors import PermissionDenied

_DELEGATED = pytest.mark.one_server("Citus delegates no call with this setting")
SETTINGS = [
    pytest.param("standard_conforming_strings = off", marks=_DELEGATED),
    "backslash_quote = off",
    "bytea_output = escape",
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = sql_standard",
    "TimeZone = 'Asia/Kathmandu'",
    "extra_float_digits = -15",
    "search_path = pg_temp",
    "transform_null_equals = on",
    "array_nulls = off",
    "default_transaction_isolation = 'serializable'",
    pytest.param("plan_cache_mode = force_generic_plan", marks=_DELEGATED),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_door_works_under_every_setting(
    setting: str, faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute(f"ALTER DATABASE {sa.make_url(url).database} SET {setting}".encode())
    store: Any = faces.open(url)
    content = "back\\slash, 'quote', \x00 and \ud800"
    store.append("t", {"role": "user", "content": content}, meta={"a": "\\"}, key="k")
    store.append("t", [{"role": "assistant", "content": [{"type": "compaction", "content": content}]}] * 2)
    store.load.messages("t", [{"role": "user", "content": content}] * 3)
    assert store.append("t", {"role": "user", "content": content}, meta={"a": "\\"}, key="k")[0].seq == 1
    store.compact("t", lambda ctx: ctx.compact(1, 3, content, allow="larger"))
    store.custody.retain("t", datetime(2090, 1, 1, tzinfo=UTC), reason="law \\ order")
    with pytest.raises(cs.Held):
        store.custody.redact("t", 4, reason="r")
    store.custody.redact("t", 4, reason="\\", override="\\")
    assert [m.payload["content"] for m in store.replay("t") if m.role == "user" and m.payload] == [content] * 3
    assert store.audit.verify("t", level="schema").findings == ()


@pytest.mark.one_server("the setting is not that of the node that has the thread")
def test_where_policies_are_switched_off_the_error_says_so(
    faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute(f"ALTER DATABASE {sa.make_url(url).database} SET row_security = off".encode())
    store: Any = faces.open(url)
    with pytest.raises(PermissionDenied, match="row_security is off"):
        store.append("t", {"role": "user", "content": "hi"})
