"""A page of records costs what is on it, however many records the thread has, for the logins of an application."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.keys import key_of
from support.view_base import base

import compaction_store as cs

_FEW, _MANY = 120, 2_400
_COMMIT = (
    "SELECT count(*) FROM compaction_store.commit_compactions"
    "(%s, 'default', %s, gen_random_uuid(), %s, %s, %s)"
)  # fmt: skip
# The spans of the records, in the order in which they are written.
_SHAPES: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "side by side": lambda n: [(i, i) for i in range(1, n + 1)],
    "each folds the one before": lambda n: [(1, i) for i in range(1, n + 1)],
    "each hides one more from the end": lambda n: [(i, n) for i in range(n, 0, -1)],
    "a tree": lambda n: [
        (first, first + size - 1)
        for size in (1, 4, 16, 64)
        for first in range(1, n // 2 - size + 2, size)
    ],
    "half side by side, then each folds the one before": lambda n: [
        *((i, i) for i in range(1, n // 2 + 1)), *((n // 2 + 1, i) for i in range(n // 2 + 1, n + 1)),
    ],
}  # fmt: skip


def _write(url: str, connection: psycopg.Connection[Any], name: str, spans: list[tuple[int, int]]) -> None:
    with cs.Store.open(url) as store:
        last = max(end for _, end in spans)
        for first in range(0, last, 600):
            store.append(name, [{"role": "assistant", "content": "a word"}] * min(600, last - first), tokens=100)
    records = [
        {
            "columns": {
                "kind": "summary", "outcome": "applied", "start_seq": start, "end_seq": end, "tokens_after": 1,
                "inputs": [],
            },
            "salt": "00" * 16,
            "body": '{"replacement":[{"role":"user","content":"s"}]}',
        }
        for start, end in spans
    ]  # fmt: skip
    uid = key_of(connection, name)
    for first in range(0, len(records), 300):
        connection.execute(_COMMIT, (uid, name, *base(connection, uid), json.dumps(records[first : first + 300])))


@pytest.fixture
def app_url(url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a login with the rights of an application, which is under row-level security."""
    name = f"{superuser.info.dbname}_app"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'app' IN ROLE compaction_store_app")
    yield sa.make_url(url).set(username=name, password="app").render_as_string(hide_password=False)
    superuser.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name])
    superuser.execute(f"DROP ROLE {name}")


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The queries on records that stores send, with their parameters."""
    found: list[tuple[str, Any]] = []
    execute: Any = psycopg.Cursor.execute

    def noted(self: Any, query: Any, parameters: Any = None, **keywords: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        if text.lstrip().startswith("SELECT") and "span_node" in text:
            found.append((text, parameters))
        return execute(self, query, parameters, **keywords)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    return found


def _blocks(url: str, query: str, parameters: Any) -> int:
    """How many blocks a query reads or finds in memory, without those that its planning needs."""
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        connection.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", parameters).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    found: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return found


@pytest.mark.parametrize("shape", _SHAPES)
def test_a_page_of_a_long_log_costs_what_one_of_a_short_log_does(
    url: str, app_url: str, superuser: psycopg.Connection[Any], queries: list[tuple[str, Any]], shape: str
) -> None:
    written = {f"{size} records": _SHAPES[shape](size) for size in (_FEW, _MANY)}
    for name, spans in written.items():
        _write(url, superuser, name, spans)
    superuser.execute("VACUUM ANALYZE")
    most: dict[str, int] = {}
    with cs.Reader.open(app_url) as store:
        for name, spans in written.items():
            last = list(store.compactions(name))[-1]
            assert last.number == len(spans)
            pages = [store.compactions(name), store.compactions(name, newest_first=True)]
            pages.append(store.compactions(name, after=store.compaction(name, len(spans) // 2)))
            for page in pages:
                queries.clear()
                next(page)
                most[name] = max(most.get(name, 0), _blocks(app_url, *queries[-1]))
    few, many = most.values()
    # The indexes are a level deeper, and a seq has five more bits. A walk over the records reads twenty times as much.
    assert many <= 3 * few, most


def test_a_filtered_page_of_a_long_log_costs_what_one_of_a_short_log_does(
    url: str, app_url: str, superuser: psycopg.Connection[Any], queries: list[tuple[str, Any]]
) -> None:
    filters: list[dict[str, Any]] = [
        {"status": "active"}, {"tokens_after": (1, 5)}, {"status": "active", "tokens_after": (None, 9)},
    ]  # fmt: skip
    most: dict[int, int] = {}
    for size in (_FEW, _MANY):
        _write(url, superuser, f"{size} records", _SHAPES["side by side"](size))
        superuser.execute("VACUUM ANALYZE")
        with cs.Reader.open(app_url) as store:
            for given in filters:
                for page in (
                    store.compactions(f"{size} records", **given),
                    store.compactions(newest_first=True, **given),
                ):
                    queries.clear()
                    next(page)
                    most[size] = max(most.get(size, 0), _blocks(app_url, *queries[-1]))
            # No index has these columns, so a page without a match reads the log once.
            for given in ({"tokens_after": (2, 5)}, {"counter": "another"}, {"status": "revoked"}, {"made_from": 1}):
                queries.clear()
                assert not list(store.compactions(f"{size} records", **given))
                assert len(queries) == 1, given
                assert _blocks(app_url, *queries[-1]) <= 12 * size, given
    assert most[_MANY] <= 3 * most[_FEW], most


@pytest.mark.parametrize("analyzed", [True, False])
def test_the_view_for_sql_finds_the_status_of_one_record_without_reading_the_others(
    url: str, app_url: str, superuser: psycopg.Connection[Any], *, analyzed: bool
) -> None:
    blocks = {}
    for size in (_FEW, _MANY):
        name = f"{size} records"
        _write(url, superuser, name, _SHAPES["side by side"](size))
        superuser.execute("VACUUM ANALYZE" if analyzed else "VACUUM")
        query = "SELECT status FROM compaction_store.audit_compactions WHERE thread_id = %s AND number = %s"
        blocks[size] = _blocks(app_url, query, (name, size))
    assert blocks[_MANY] <= 3 * blocks[_FEW], blocks


@pytest.mark.parametrize("columns", ["number, status, superseded_by", "*"])
@pytest.mark.parametrize("order", ["number", "created_at"])
def test_the_view_for_sql_looks_around_the_records_that_are_asked_for_only(
    url: str, superuser: psycopg.Connection[Any], columns: str, order: str
) -> None:
    _write(url, superuser, "t", _SHAPES["each folds the one before"](_FEW))
    superuser.execute("VACUUM ANALYZE")
    with psycopg.connect(url) as connection:
        connection.execute("SET track_functions = 'all'; SET ROLE compaction_store_app")
        connection.execute("SET compaction_store.tenant = 'default'")
        query = f"SELECT {columns} FROM compaction_store.audit_compactions WHERE thread_id = 't' ORDER BY {order} DESC"
        assert len(connection.execute(f"{query} LIMIT 10".encode()).fetchall()) == 10
        calls = connection.execute(
            "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'superseded_by'"
        ).fetchone()
    # One for the status, one for the column.
    assert calls == (20,)


@pytest.mark.parametrize("shape", _SHAPES)
def test_explain_reads_one_element_of_a_long_view(
    url: str, app_url: str, superuser: psycopg.Connection[Any], shape: str
) -> None:
    blocks: dict[int, int] = {}
    for size in (_FEW, _MANY):
        name = f"{size} records"
        spans = _SHAPES[shape](size)
        _write(url, superuser, name, spans)
        superuser.execute("VACUUM ANALYZE")
        last = max(end for _, end in spans)
        with cs.Reader.open(app_url) as store:
            elements = store.view(name).elements
            for seq in (1, 7, 32, last // 2, last // 2 + 1, last - 1, last):
                [expected] = [element for element in elements if element.seq <= seq <= element.end_seq]
                assert store.audit.explain(name, seq).element == expected
        query = "SELECT FROM compaction_store.element(NULL, 'default', %s, %s)"
        blocks[size] = max(_blocks(app_url, query, (name, seq)) for seq in (1, last // 2, last))
    # The first call of a session reads the catalogue, about the same for both.
    assert blocks[_MANY] <= 2 * blocks[_FEW], blocks
