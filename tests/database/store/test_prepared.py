"""Calls of SQL functions are prepared on a direct connection, nothing else is, and nothing is behind a pooler."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus
from reliability.rigs.pooler import pooler, program
from support.faces import Face, Faces

import compaction_store as cs

pytestmark = [
    pytest.mark.one_server("on a cluster, nothing is prepared"),
    pytest.mark.skipif("COMPACTION_STORE_TEST_POOLER" in os.environ, reason="the stores are behind a pooler"),
]
HI = {"role": "user", "content": "some words about an order " * 9}
_LATER = datetime(2999, 1, 1, tzinfo=UTC)
_CALL = re.compile(r"\s*SELECT (\* FROM )?compaction_store\.\w+\(")


def pgconn(store: Face) -> Any:
    """The connection of a store that has one."""
    checked_out = store.store._db.engine.raw_connection()
    try:
        return checked_out.driver_connection.pgconn
    finally:
        checked_out.close()


def statements(store: Face) -> list[tuple[str, str]]:
    """The names and the texts of what the connection has prepared."""
    found = pgconn(store).exec_(b"SELECT name, statement FROM pg_prepared_statements")
    return [(found.get_value(i, 0).decode(), found.get_value(i, 1).decode()) for i in range(found.ntuples)]


def use(store: Face, times: int = 6) -> None:
    """Makes calls of many kinds, each often enough to be prepared."""
    for number in range(times):
        store.append("t", HI)
        store.append("t", [HI, HI])
        store.view("t")
        list(store.replay("t"))
        store.thread("t")
        list(store.threads())
        list(store.threads(order="recent"))
        list(store.due(cs.TokenBudget(context_window=100)))
        store.compact("t", lambda ctx, n=number: ctx.compact(n + 1, n + 1, "one"))
        list(store.compactions("t"))
        assert store.audit.verify("t").findings == ()


def test_calls_of_functions_are_prepared_on_a_direct_connection_and_nothing_else(faces: Faces, url: str) -> None:
    store = faces.open(url, pool_size=1)
    use(store)
    found = statements(store)
    called = {name for _, text in found for name in re.findall(r"compaction_store\.(\w+)\(", text)}
    assert {"append", "append_many", "view", "replay", "thread", "entries", "commit_compactions"} <= called
    assert [text for _, text in found if not _CALL.match(text)] == []
    assert all(name.startswith("compaction_store_") for name, _ in found)


def test_a_statement_used_a_few_times_is_not_prepared(faces: Faces, url: str) -> None:
    store = faces.open(url, pool_size=1)
    for _ in range(4):
        store.append("t", HI)
    assert statements(store) == []


def test_prepared_statements_that_are_gone_cost_no_call(faces: Faces, url: str) -> None:
    store = faces.open(url, pool_size=1)
    use(store)
    assert pgconn(store).exec_(b"DEALLOCATE ALL").status == ExecStatus.COMMAND_OK
    [written] = store.append("t", HI)
    assert written.seq == store.thread("t").last_seq == 19
    assert len(store.view("t").elements) == 19
    # The connection has lost them once, so it prepares no more.
    use(store, 1)
    assert statements(store) == []


def test_a_statement_that_another_client_prepared_costs_no_call(faces: Faces, url: str) -> None:
    store = faces.open(url, pool_size=1)
    use(store)
    [(name, text)] = [pair for pair in statements(store) if ".append(" in pair[1]]
    other = faces.open(url, pool_size=1)
    made = pgconn(other).exec_(b"PREPARE %b AS SELECT 1" % name.encode())
    assert made.status == ExecStatus.COMMAND_OK
    before = store.thread("t").last_seq
    assert [other.append("t", HI)[0].seq for _ in range(8)] == list(range(before + 1, before + 9))
    assert text.startswith("SELECT compaction_store.append($1")


def test_a_function_with_other_columns_is_called_on_a_new_connection(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    store = faces.open(url, pool_size=1)
    store.append("t", [HI, HI, HI])
    for _ in range(6):
        assert store.view("t", at=_LATER).pos == 3
    superuser.execute("DROP FUNCTION compaction_store.pos_at")
    superuser.execute("""
        CREATE FUNCTION compaction_store.pos_at(p_uid uuid, p_tenant text, p_id text, p_moment timestamptz)
        RETURNS integer LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT 2'
    """)
    superuser.execute("GRANT EXECUTE ON FUNCTION compaction_store.pos_at TO PUBLIC")
    assert store.view("t", at=_LATER).pos == 2


@pytest.mark.skipif(program() is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_nothing_is_prepared_behind_a_pooler(faces: Faces, url: str, mode: str) -> None:
    with pooler(url, mode=mode) as through:
        store = faces.open(through, pool_size=1)
        use(store)
        assert statements(store) == []
        store.close()


@pytest.mark.skipif(program() is None, reason="pgbouncer is not installed")
def test_a_pooler_that_looks_like_a_direct_connection_costs_no_call(url: str) -> None:
    """Each client's connections believe that they are direct, and pgbouncer gives each transaction another server."""
    with pooler(url) as through, cs.Store.open(through, pool_size=2) as one, cs.Store.open(through, pool_size=2) as two:
        for store in (one, two):
            store.append("first", HI)
        for store in (one, two):
            taken: list[Any] = [store._db.engine.raw_connection() for _ in range(2)]
            for connection in taken:
                connection.driver_connection.wait.prepared.is_possible = True
            for connection in taken:
                connection.close()

        def work(number: int) -> list[int]:
            store = (one, two)[number % 2]
            seen = [store.append(f"t{number}", HI)[0].seq for _ in range(40)]
            assert [message.seq for message in store.replay(f"t{number}")] == seen
            assert len(store.view(f"t{number}").elements) == 40
            return seen

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [list(range(1, 41))] * 8
        assert [v.findings for v in one.audit.verify() if v.findings] == []
