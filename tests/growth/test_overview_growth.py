"""The figures of a tenant are counted with two statements, and the one by day reads only the days asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.sent_statements import recorded

import compaction_store as cs
from compaction_store.audit._sync import overview as overview_page
from compaction_store.models.roles import AUDITOR
from compaction_store.postgres.queries import across_threads
from growth.test_audit_views import many_records, nodes

_SINCE = datetime(2026, 6, 1, tzinfo=UTC)


def _counted(url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    with cs.Store.open(url, role=AUDITOR) as store:
        store.thread("a")
        with monkeypatch.context() as patch:
            sent = recorded(patch)
            store.audit.figures(since=_SINCE)
            return len([each for each in sent if "FROM compaction_store." in each])


def test_the_number_of_statements_does_not_grow(
    url: str, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    many_records(url, superuser, 20, analyzed=False)
    assert _counted(url, monkeypatch) == 2
    with cs.Store.open(url) as store:
        for number in range(20):
            store.append(f"more {number}", [{"role": "user", "content": "hi"}] * 3)
            store.compact(f"more {number}", lambda ctx: ctx.compact(1, 2, "two"))
    assert _counted(url, monkeypatch) == 2


def test_the_first_page_sends_as_many_statements_for_many_threads_as_for_few(
    url: str, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    many_records(url, superuser, 510, analyzed=False)
    found: list[int] = []
    for _ in range(2):
        with cs.Store.open(url) as store:
            for number in range(15):
                name = f"thread {len(found)} {number}"
                store.append(name, [{"role": "user", "content": "hi"}] * 3)
                store.compact(name, lambda ctx: ctx.compact(1, 2, "two"))
                store.custody.hold(name, reason="a lawsuit")
                store.custody.redact(name, [3], reason="asked", override="a court order")
        with cs.Reader.open(url, role=AUDITOR) as reader, monkeypatch.context() as patch:
            sent = recorded(patch)
            page = overview_page.overview(reader, cs.TokenBudget(10), lambda _: None)
            assert len(page.records.rows) == page.unpriced == 500
            found.append(len([each for each in sent if "FROM compaction_store." in each]))
    assert found[0] == found[1] <= 20


@pytest.mark.one_server("the plan is that of the coordinator")
@pytest.mark.parametrize("role", [AUDITOR, None])
def test_the_days_are_read_by_the_index_on_time(url: str, superuser: psycopg.Connection[Any], role: str | None) -> None:
    many_records(url, superuser, 400, analyzed=True)
    superuser.execute("ALTER TABLE compaction_store.compactions DISABLE TRIGGER ALL")
    superuser.execute("UPDATE compaction_store.compactions SET created_at = '2026-01-01Z' WHERE number > 10")
    superuser.execute("UPDATE compaction_store.compactions SET created_at = '2026-06-02Z' WHERE number <= 10")
    superuser.execute("ANALYZE compaction_store.compactions")
    superuser.execute(f"SET ROLE {role or 'NONE'}".encode())
    superuser.execute("SET compaction_store.tenant = 'default'")
    given = {"tenant": "default", "since": _SINCE}
    found: Any = superuser.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {across_threads._DAYS}".encode(), given).fetchone()
    plan = found[0][0]["Plan"]
    [scan] = [node for node in nodes(plan) if node.get("Relation Name") == "compactions"]
    names = [node.get("Index Name") for node in nodes(plan)]
    assert "compactions_audit_idx" in names, json.dumps(plan, indent=1)
    assert scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) <= 30
