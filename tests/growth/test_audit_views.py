"""The views for people who write SQL: what they show, to whom, and by which plans; and the comments on everything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.keys import key_of
from support.superuser_edits import unlock
from support.view_base import base

import compaction_store as cs
from compaction_store.postgres import tables

APP, AUDITOR, LOADER = "compaction_store_app", "compaction_store_auditor", "compaction_store_loader"
_UNTIL = datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)
_ODD = "NUL \x00, lone \ud800, a pair \U0001f600, escaped \\u0000, low \udc00"
_SHOWN = "NUL \ufffd, lone \ufffd, a pair \U0001f600, escaped \\u0000, low \ufffd"


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def fill(url: str, tenant: str = "default") -> None:
    """Stores a thread whose records have every status."""
    with cs.Store.open(url, tenant=tenant, actor="nightly") as store:
        store.append("t", [said(f"{tenant} {i} " * 20) for i in range(1, 13)])
        store.compact("t", lambda ctx: ctx.compact(1, 2, "inner"), authority={"ticket": "T-1"})
        store.compact("t", lambda ctx: ctx.compact(1, 4, f"outer of {tenant}"))
        store.compact("t", lambda ctx: ctx.compact(5, 6, "undone"))
        store.revoke("t", 3, reason="wrong")
        store.compact("t", lambda ctx: ctx.compact(7, 8, "erased"))
        store.custody.redact("t", 7, reason="asked for")
        store.compact("t", lambda ctx: ctx.compact(9, 10, ""))
        store.compact("t", lambda _: 1 // 0)
        store.append("t", said(_ODD))


def as_role(url: str, role: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, options=f"-c role={role}")


@pytest.fixture
def asked(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    superuser.execute("SET compaction_store.tenant = 'default'")
    return superuser


def dicts(connection: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    found = connection.execute(query.encode())
    names = [column.name for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found]


def test_records_have_the_status_and_the_parts_that_python_gives_them(url: str, asked: psycopg.Connection[Any]) -> None:
    fill(url)
    rows = dicts(asked, "SELECT * FROM compaction_store.audit_compactions WHERE thread_id = 't' ORDER BY number")
    with cs.Store.open(url) as store:
        records = list(store.compactions("t"))
    assert [row["status"] for row in rows] == [
        "superseded", "active", "revoked", "applied", "redacted", "rejected", "failed",
    ]  # fmt: skip
    for row, record in zip(rows, records, strict=True):
        for name in row.keys() - {
            "tenant", "error_type", "error_text", "redacted", "stored_body", "checks", "duration",
        }:  # fmt: skip
            assert row[name] == (list(record.inputs) if name == "inputs" else getattr(record, name)), name
        assert row["redacted"] == record.redacted
        assert row["stored_body"] == record.body
        assert row["error_type"] == (record.error or {}).get("type")
        assert row["error_text"] == (record.error or {}).get("text")
    assert rows[0]["authority"] == {"ticket": "T-1"}
    assert rows[0]["superseded_by"] == 2
    assert rows[1]["summary_text"] == "outer of default"


def test_threads_messages_and_events_have_plain_columns(url: str, asked: psycopg.Connection[Any]) -> None:
    fill(url)
    with cs.Store.open(url) as store:
        store.set_metadata("t", {"customer": 7})
        store.custody.retain("t", _UNTIL, reason="a law")
        store.custody.hold("t", reason="a case")
        [thread] = dicts(asked, "SELECT * FROM compaction_store.audit_threads")
        whole = store.thread("t")
        held = [event.pos for event in store.audit.events("t") if event.kind == "hold"]
        events = list(store.audit.events("t"))
        messages = list(store.replay("t"))
        store.custody.release("t", reason="over")
    assert (thread["messages"], thread["records"], thread["entries"]) == (13, 7, whole.last_pos)
    assert [thread["held_pos"]] == held
    assert thread["retained_until"] == _UNTIL
    assert (thread["erased"], thread["metadata"], thread["head"]) == (False, {"customer": 7}, whole.head)
    assert dicts(asked, "SELECT held_pos FROM compaction_store.audit_threads") == [{"held_pos": None}]
    rows = dicts(asked, "SELECT * FROM compaction_store.audit_events ORDER BY pos")[: len(events)]
    assert [(r["pos"], r["kind"], r["login"], r["reason"], r["body"]) for r in rows] == [
        (e.pos, e.kind, e.login, e.reason, e.body) for e in events
    ]
    assert rows[0]["seqs"] == [[7, 7]]
    rows = dicts(asked, "SELECT * FROM compaction_store.audit_messages ORDER BY seq")
    assert [(r["seq"], r["role"], r["tokens"], r["redacted"]) for r in rows] == [
        (m.seq, m.role, m.tokens, m.redacted) for m in messages
    ]
    assert [row["payload"] for row in rows[:-1]] == [m.payload for m in messages[:-1]]
    assert rows[-1]["content"] == _SHOWN


@pytest.mark.parametrize(
    "odd",
    [
        {"payload": '{"content":"\\u0000"}'}, {"payload": "[1]"}, {"payload": "7"}, {"payload": '{"n":1e999999}'},
        {"payload": "[" * 600 + "]" * 600}, {"meta": '"\\ud800"'}, {"receipt": "not JSON"}, {"receipt": "{"},
        {"payload": '{"n":1e5000}'}, {"payload": '{"n":[-7E+4300]}'}, {"payload": f'{{"n":{"9" * 4290}e99}}'},
        {"receipt": f'{{"pos":{"9" * 5000}}}'}, {"meta": f'[-{"9" * 5000}.5]'},
    ],
)  # fmt: skip
def test_no_odd_row_hides_the_others(url: str, asked: psycopg.Connection[Any], odd: dict[str, str]) -> None:
    fill(url)
    unlock(asked)
    [(column, text)] = odd.items()
    kind = "text" if column == "receipt" else "json"
    asked.execute(f"UPDATE compaction_store.messages SET {column} = %s::{kind} WHERE seq = 2".encode(), (text,))
    for body in (
        '{"summary_text":"\\u0000"}',
        '"text"',
        '{"duration":"x","error":[1],"settings":7}',
        '{"duration":1e9999}',
    ):
        asked.execute("UPDATE compaction_store.compactions SET body = %s::json WHERE number = 2", (body,))
        asked.execute("UPDATE compaction_store.events SET body = %s::json", (body,))
        for view, count in (("threads", 1), ("messages", 13), ("compactions", 7), ("events", 1)):
            assert len(dicts(asked, f"SELECT * FROM compaction_store.audit_{view}")) == count


def test_a_number_with_an_exponent_that_python_reads_is_shown(url: str, asked: psycopg.Connection[Any]) -> None:
    text = '{"content":"\\"1e5000\\" %s","n":12e3}'
    fill(url)
    unlock(asked)
    update = "UPDATE compaction_store.messages SET payload = %s::json WHERE seq = 2"
    asked.execute(update, (text % ("9" * 5000),))
    [found] = dicts(asked, "SELECT payload FROM compaction_store.audit_messages WHERE seq = 2")
    assert found["payload"] == {"content": '"1e5000" ' + "9" * 5000, "n": 12000}


def test_a_superuser_is_shown_one_tenant_and_all_only_on_request(url: str, superuser: psycopg.Connection[Any]) -> None:
    fill(url)
    fill(url, "other")

    def tenants(view: str) -> set[str]:
        return {row["tenant"] for row in dicts(superuser, f"SELECT tenant FROM compaction_store.{view}")}

    for view in tables.VIEWS:
        superuser.execute("RESET compaction_store.tenant; RESET compaction_store.all_tenants")
        with pytest.raises(psycopg.Error, match=r"compaction_store\.tenant is not set"):
            tenants(view)
        superuser.execute("SET compaction_store.tenant = 'other'")
        assert tenants(view) == {"other"}
        superuser.execute("SET compaction_store.tenant = ''; SET compaction_store.all_tenants = on")
        assert tenants(view) == {"default", "other"}


@pytest.mark.one_server("Citus connects to the nodes as the role, which may not log in")
@pytest.mark.parametrize("role", [APP, AUDITOR])
def test_a_login_under_row_level_security_sees_its_tenant_and_is_refused_all(url: str, role: str) -> None:
    fill(url)
    fill(url, "other")
    with as_role(url, role) as connection:
        for view in tables.VIEWS:
            connection.execute("SET compaction_store.tenant = 'other'; SET compaction_store.all_tenants = off")
            assert {row["tenant"] for row in dicts(connection, f"SELECT * FROM compaction_store.{view}")} == {"other"}
            connection.execute("SET compaction_store.all_tenants = on")
            wanted = r"must have BYPASSRLS to see all tenants: .*, or name one tenant"
            with pytest.raises(psycopg.Error, match=wanted) as refused:
                dicts(connection, f"SELECT * FROM compaction_store.{view}")
            assert refused.value.sqlstate == "CS023"


def test_a_loader_may_not_read_the_views(url: str) -> None:
    with as_role(url, LOADER) as connection:
        for view in tables.VIEWS:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM compaction_store.{view}".encode())


def many_records(url: str, superuser: psycopg.Connection[Any], size: int, *, analyzed: bool) -> None:
    """Stores three threads with many records each."""
    for table in ("threads", "heads", "messages", "compactions"):
        # Statistics that come in the middle of the test would change its plans.
        superuser.execute(f"ALTER TABLE compaction_store.{table} SET (autovacuum_enabled = off)".encode())
    with cs.Store.open(url) as store:
        for thread_id in ("a", "b", "c"):
            for first in range(0, size * 3, 1000):
                store.append(thread_id, [said("x")] * min(1000, size * 3 - first))
            records = [
                {
                    "columns": {
                        "kind": "summary", "outcome": "applied", "start_seq": i * 3 + 1, "end_seq": i * 3 + 2,
                        "tokens_after": 10, "callback": "test", "trigger": "test", "counter": "test",
                    },
                    "salt": os.urandom(16).hex(),
                    "body": json.dumps({"summary_text": f"summary {i}", "replacement": [said("s")]}),
                }
                for i in range(size)
            ]  # fmt: skip
            uid = key_of(superuser, thread_id)
            for first in range(0, size, 200):
                superuser.execute(
                    "SELECT count(*) FROM compaction_store.commit_compactions(%s, 'default', %s, %s, %s, %s, %s)",
                    (uid, thread_id, uuid4(), *base(superuser, uid), json.dumps(records[first : first + 200])),
                )
    if analyzed:
        superuser.execute("VACUUM ANALYZE")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.mark.one_server("the plan is that of the coordinator")
@pytest.mark.parametrize("role", [APP, AUDITOR, None])
@pytest.mark.parametrize("analyzed", [True, False])
def test_a_query_for_one_thread_reads_no_other_thread(
    url: str, superuser: psycopg.Connection[Any], role: str | None, analyzed: bool
) -> None:
    many_records(url, superuser, 400, analyzed=analyzed)
    superuser.execute(f"SET ROLE {role or 'NONE'}".encode())
    superuser.execute("SET compaction_store.tenant = 'default'")
    for view, most in (("compactions", 400), ("messages", 1200), ("events", 0)):
        query = f"SELECT * FROM compaction_store.audit_{view} WHERE thread_id = 'b'"
        found: Any = superuser.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode()).fetchone()
        plan = found[0][0]["Plan"]
        [scan] = [n for n in nodes(plan) if n.get("Relation Name") == view and n.get("Alias") == view[0]]
        if view != "events":
            assert scan["Node Type"] in {"Index Scan", "Bitmap Heap Scan"}, json.dumps(plan, indent=1)
        assert (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] <= most


@pytest.mark.one_server("the plan is that of the coordinator")
def test_a_query_by_time_reads_the_index_on_time(url: str, superuser: psycopg.Connection[Any]) -> None:
    many_records(url, superuser, 400, analyzed=True)
    superuser.execute(f"SET ROLE {AUDITOR}".encode())
    superuser.execute("SET compaction_store.tenant = 'default'")
    query = (
        "SELECT thread_id, number FROM compaction_store.audit_compactions"
        " WHERE created_at > now() + interval '1 hour'"
    )  # fmt: skip
    found: Any = superuser.execute(f"EXPLAIN (FORMAT JSON) {query}".encode()).fetchone()
    names = {node.get("Index Name") for node in nodes(found[0][0]["Plan"])}
    assert "compactions_audit_idx" in names, json.dumps(found[0], indent=1)


def test_tables_views_columns_and_the_functions_that_a_role_may_call_have_comments(
    superuser: psycopg.Connection[Any],
) -> None:
    missing = superuser.execute(
        """
        SELECT format('%s.%s', c.relname, a.attname)
        FROM pg_class AS c
        LEFT JOIN LATERAL (
            SELECT 0 AS attnum, NULL AS attname
            UNION ALL
            SELECT a.attnum, a.attname FROM pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ) AS a ON true
        WHERE c.relnamespace = 'compaction_store'::regnamespace AND c.relkind IN ('r', 'v')
            AND coalesce(
                CASE a.attnum WHEN 0 THEN obj_description(c.oid, 'pg_class') ELSE col_description(c.oid, a.attnum) END,
                ''
            ) = ''
        UNION ALL
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE p.pronamespace = 'compaction_store'::regnamespace
            AND EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee <> p.proowner)
            AND coalesce(obj_description(p.oid, 'pg_proc'), '') = ''
        """
    ).fetchall()
    assert missing == []
