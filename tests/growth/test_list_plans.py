"""A page of threads by recency reads few rows by one index, and that index does not slow appends down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import compaction_store as cs
from compaction_store.postgres.driver import cursor

_COMMAND, _FETCH = cursor._command, cursor.fetch
_THREADS = 40_000
_SUBJECTS = 400
_FILL = f"""
    SET session_replication_role = replica;
    INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, created_at)
    SELECT compaction_store.new_thread_uid(g.at), 'default', 't-' || g.i, '\\x00', '\\x00', g.at FROM (
        SELECT i, timestamptz '2026-01-01T00:00:00Z' + i * interval '3 minutes' AS at
        FROM generate_series(1, {_THREADS}) AS s (i)
    ) AS g;
    INSERT INTO compaction_store.heads (thread_uid, tenant, last_at, active_at, head, last_seq, last_pos, subject)
    SELECT t.thread_uid, t.tenant, t.created_at, t.created_at, '\\x00', 1, 1,
        's-' || substring(t.thread_id FROM 3)::integer % {_SUBJECTS}
    FROM compaction_store.threads AS t;
    RESET session_replication_role;
    VACUUM ANALYZE compaction_store.threads, compaction_store.heads;
"""


@pytest.fixture
def filled(url: str, superuser: psycopg.Connection[Any]) -> Iterator[cs.Store]:
    for statement in _FILL.split(";\n"):
        superuser.execute(statement.encode())
    with cs.Store.open(url) as store:
        yield store


@pytest.mark.one_server("the plans on the nodes of a cluster are hidden")
@pytest.mark.parametrize(
    ("wanted", "index"), [({"subject": "s-7"}, "heads_subject_idx"), ({}, "heads_recent_idx")], ids=["subject", "all"]
)
def test_the_newest_are_read_by_one_index(
    filled: cs.Store,
    superuser: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, str],
    index: str,
) -> None:
    """The plan is that of an application's login, under row-level security."""
    sent = watched(monkeypatch)
    first = list(filled.threads(order="recent", limit=50, **wanted))  # type: ignore[arg-type]
    second = list(filled.threads(order="recent", limit=50, after=first[-1], **wanted))  # type: ignore[arg-type]
    assert len({thread.thread_uid for thread in (*first, *second)}) == 100
    assert len(sent) == 2
    for one in sent:
        nodes = plan(superuser, *one)
        of_heads = {node["Index Name"] for node in nodes if node.get("Index Name", "").startswith("heads_")}
        assert of_heads - {"heads_pkey"} == {index}
        assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
        assert nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"] < 1500


@pytest.mark.one_server("the plans on the nodes of a cluster are hidden")
@pytest.mark.parametrize("is_analyzed", [True, False])
def test_a_page_by_name_is_read_in_the_order_of_the_index(
    filled: cs.Store, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, is_analyzed: bool
) -> None:
    if not is_analyzed:
        forget_statistics(superuser)
    sent = watched(monkeypatch)
    first = list(filled.threads(limit=50))
    second = list(filled.threads(limit=50, after=first[-1]))
    assert len({thread.thread_uid for thread in (*first, *second)}) == 100
    assert len(sent) == 2
    for one in sent:
        nodes = plan(superuser, *one)
        assert not [node for node in nodes if node["Node Type"] in {"Seq Scan", "Sort"}]
        assert nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"] < 5000


@pytest.mark.one_server("the plans on the nodes of a cluster are hidden")
@pytest.mark.parametrize("is_analyzed", [True, False])
def test_a_page_by_name_of_a_subject_is_read_by_the_index_of_subjects(
    filled: cs.Store, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, is_analyzed: bool
) -> None:
    if not is_analyzed:
        forget_statistics(superuser)
    sent = watched(monkeypatch)
    found = [thread.thread_id for thread in filled.threads(subject="s-7")]
    assert found == sorted(found)
    assert len(found) == _THREADS // _SUBJECTS
    nodes = plan(superuser, *sent[0])
    assert {"heads_subject_idx", "threads_pkey"} <= {node.get("Index Name") for node in nodes}
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"] < 1500


def forget_statistics(superuser: psycopg.Connection[Any]) -> None:
    tables = "('compaction_store.threads'::regclass, 'compaction_store.heads'::regclass)"
    superuser.execute(f"DELETE FROM pg_statistic WHERE starelid IN {tables}".encode())


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """Returns a list that gets each query for heads, with how its transaction began and the query's values."""
    sent: list[tuple[str, str, Any]] = []
    begun: list[str] = []

    def command(connection: Any, statements: str) -> None:
        begun.append(statements)
        _COMMAND(connection, statements)

    def fetch(connection: Any, statement: str, values: Any = ()) -> Any:
        if "FROM compaction_store." in statement:
            sent.append((begun[-1], statement, values))
        return _FETCH(connection, statement, values)

    monkeypatch.setattr(cursor, "_command", command)
    monkeypatch.setattr(cursor, "fetch", fetch)
    return sent


def plan(superuser: psycopg.Connection[Any], begin: str, statement: str, values: Any) -> list[dict[str, Any]]:
    """Returns the nodes of the plan that an application's login gets for a query."""
    with superuser.transaction(force_rollback=True):
        superuser.execute("SET LOCAL ROLE compaction_store_app")
        superuser.execute(begin.partition("; ")[2].encode())
        [(found,)] = superuser.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode(), values
        ).fetchall()
    return list(_nodes((json.loads(found) if isinstance(found, str) else found)[0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


@pytest.mark.one_server("the counters are those of the nodes")
def test_an_append_writes_to_no_index_of_heads(url: str, superuser: psycopg.Connection[Any]) -> None:
    with cs.Store.open(url) as store:
        store.append("t", {"role": "user", "content": "hello"}, subject="alice")
    with superuser.transaction():
        for i in range(8):
            superuser.execute(
                "SELECT compaction_store.append(NULL, 'default', 't', '{}', %s, NULL, 1, 'c', NULL, NULL, NULL, NULL)",
                (bytes([i] * 16),),
            )
        counts = superuser.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'heads'"
        ).fetchall()
    [(updated, hot)] = counts
    # One append may be the first in a new hour.
    assert (updated, hot >= 7) == (8, True)
