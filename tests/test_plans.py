"""What the planner makes of the statements inside the functions, and how many statements a call sends.

The statements are taken out of `migrations/sql` as they stand, with their variables as parameters, and are planned both
ways PL/pgSQL may plan them: for these values, and once for all values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compaction_store import Store, chain, migrate

_SQL = Path(__file__).parent.parent / "migrations" / "sql" / "functions"
_MESSAGES = 20_000
_RECORDS = 100
_TYPES = {
    "p_thread_uid": "uuid", "p_after": "bigint", "p_until": "bigint", "p_limit": "integer", "p_at": "bigint",
    "v_last_pos": "bigint", "v_last_seq": "bigint", "v_numbers": "bigint[]", "v_starts": "bigint[]",
    "v_ends": "bigint[]",
}  # fmt: skip
_names = count(1)


def _statements(function: str) -> list[str]:
    """The queries of a function that read messages or compactions, without the PL/pgSQL around them."""
    body = (_SQL / f"{function}.sql").read_text(encoding="utf-8").split("$$")[1]
    if function == "active":
        return [body.strip()]
    queries = re.findall(r"RETURN QUERY\s+(SELECT .*?);", body, re.DOTALL)
    assert queries, function
    return queries


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _explain(
    connection: Any, query: str, values: dict[str, Any], mode: str = "force_custom_plan", *, run: bool = False
) -> dict[str, Any]:
    """The plan of a statement as the functions' owner gets it, under row-level security."""
    query = re.sub(r"^\s*--.*$", "", query, flags=re.MULTILINE)
    used = [name for name in _TYPES if re.search(rf"\b{name}\b", query)]
    for i, name in enumerate(used, 1):
        query = re.sub(rf"\b{name}\b", f"${i}", query)
    statement = f"plan_{next(_names)}"
    literals = ", ".join("NULL" if values[name] is None else f"'{values[name]}'::{_TYPES[name]}" for name in used)
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL ROLE compaction_store_owner")
        connection.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        connection.execute(f"PREPARE {statement} ({', '.join(_TYPES[name] for name in used)}) AS {query}")
        options = "ANALYZE, BUFFERS, FORMAT JSON" if run else "FORMAT JSON"
        found = connection.execute(f"EXPLAIN ({options}) EXECUTE {statement} ({literals})").fetchone()[0]
    plan: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


def _values(thread_id: str) -> dict[str, Any]:
    """Parameters in the middle of a long thread; for the view, its hundred records as the function passes them."""
    starts = [i * 100 + 1 for i in range(_RECORDS)]
    return {
        "p_thread_uid": chain.thread_uid("default", thread_id), "p_after": 5_000, "p_until": None, "p_limit": 256,
        "p_at": _MESSAGES + _RECORDS, "v_last_pos": _MESSAGES + _RECORDS, "v_last_seq": _MESSAGES,
        "v_numbers": "{" + ",".join(str(i + 1) for i in range(_RECORDS)) + "}",
        "v_starts": "{" + ",".join(map(str, starts)) + "}",
        "v_ends": "{" + ",".join(str(start + 49) for start in starts) + "}",
    }  # fmt: skip


def _fill(url: str) -> None:
    with Store.open(url) as store:
        for thread_id, size in (("short", 100), ("long", _MESSAGES), ("a", 1_000), ("b", 1_000), ("c", 1_000)):
            for first in range(0, size, 1_000):
                last = min(size, first + 1_000)
                store.append(thread_id, [{"role": "user", "content": f"message {i}"} for i in range(first, last)])
    records = [
        {
            "columns": {
                "kind": "summary", "outcome": "applied", "start_seq": i * 100 + 1, "end_seq": i * 100 + 50,
                "tokens_after": 10, "callback": "test", "trigger": "test", "counter": "test",
            },
            "salt": os.urandom(16).hex(),
            "body": json.dumps({"replacement": [{"role": "user", "content": f"summary {i} " * 120}]}),
        }
        for i in range(_RECORDS)
    ]  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection:
        # The other threads have records too: in a table of one thread, reading all of it would be right.
        for thread_id, size, those in (("long", _MESSAGES, records), *((t, 1_000, records[:10]) for t in "abc")):
            written = connection.execute(
                "SELECT count(*) FROM compaction_store.commit_compactions(%s, 'default', gen_random_uuid(), %s, %s)",
                (chain.thread_uid("default", thread_id), size, json.dumps(those)),
            ).fetchone()
            assert written == (len(those),)
        connection.execute("ANALYZE")


@pytest.fixture(scope="module")
def full(server: Any) -> Iterator[str]:
    """A database with a long thread, a short one and three more, a hundred compactions, and statistics."""
    name = f"cs_plans_{os.getpid()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        migrate.upgrade(server.database(name))
        _fill(server.database(name))
        yield server.database(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _check(url: str, function: str, mode: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for query in _statements(function):
            plan = _explain(connection, query, _values("a"), mode)
            scanned = {n.get("Relation Name") for n in _nodes(plan) if n["Node Type"] == "Seq Scan"}
            assert scanned.isdisjoint({"messages", "compactions"}), json.dumps(plan, indent=1)
            if function in {"replay", "newest"}:
                assert not [n for n in _nodes(plan) if "Sort" in n["Node Type"]], json.dumps(plan, indent=1)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("function", ["replay", "newest", "view", "active"])
def test_fresh_tables_without_statistics_are_read_by_index(url: str, function: str, mode: str) -> None:
    _check(url, function, mode)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("function", ["replay", "newest", "view", "active"])
def test_full_tables_with_statistics_are_read_by_index(full: str, function: str, mode: str) -> None:
    _check(full, function, mode)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_the_active_records_are_found_without_reading_a_row_of_the_log(full: str, mode: str) -> None:
    with psycopg.connect(full, autocommit=True) as connection:
        connection.execute("VACUUM compaction_store.compactions")
        plan = _explain(connection, _statements("active")[0], _values("a"), mode)
    scans = [n for n in _nodes(plan) if "Scan" in n["Node Type"] and "Index Name" in n]
    indexes = {(n["Node Type"], n["Index Name"]) for n in scans if "compactions" in n["Index Name"]}
    assert indexes == {("Index Only Scan", "compactions_in_force_idx"), ("Index Only Scan", "compactions_revokes_idx")}


def test_the_newest_twenty_cost_the_same_in_a_thread_two_hundred_times_as_long(full: str) -> None:
    costs: dict[str, int] = {}
    with psycopg.connect(full, autocommit=True) as connection:
        connection.execute("VACUUM compaction_store.messages")
        for thread_id in ("short", "long"):
            values = _values(thread_id) | {"p_limit": 20}
            plan = _explain(connection, _statements("newest")[0], values, run=True)
            assert plan["Actual Rows"] == 20
            # Two entries to the index, then the rows: no row is read that is not returned.
            assert sum(n["Actual Rows"] for n in _nodes(plan) if n.get("Relation Name") == "messages") == 20
            costs[thread_id] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert costs["long"] <= costs["short"] + 4, costs


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that either kind of connection sends, as it is sent."""
    found: list[str] = []

    def note(cursor: Any) -> None:
        execute: Any = cursor.execute

        def noted(self: Any, query: Any, *arguments: Any, **keywords: Any) -> Any:
            found.append(query.decode() if isinstance(query, bytes) else str(query))
            return execute(self, query, *arguments, **keywords)

        monkeypatch.setattr(cursor, "execute", noted)

    note(psycopg.Cursor)
    note(psycopg.AsyncCursor)
    return found


@pytest.mark.parametrize(
    ("act", "function"),
    [
        (lambda s: s.append("t", {"role": "user", "content": "b"}), "append"),
        (lambda s: s.append("t", [{"role": "user", "content": "b"}] * 100, key="k", expected_seq=8), "append_many"),
        (lambda s: s.append("new", {"role": "user", "content": "b"}), "append"),
        (lambda s: s.view("t"), "view"),
        (lambda s: s.view("t", at=2), "view"),
        (lambda s: list(s.replay("t")), "replay"),
        (lambda s: list(s.replay("t", last=5)), "newest"),
        (lambda s: s.message("t", 3), "replay"),
        (lambda s: s.thread("t"), "thread"),
        (lambda s: s.set_metadata("t", {}), "set_metadata"),
    ],
)
def test_a_call_sends_one_statement(store: Any, sent: list[str], act: Any, function: str) -> None:
    store.append("t", [{"role": "user", "content": "a"}] * 8)
    sent.clear()
    act(store)
    assert len(sent) == 1, sent
    assert f"compaction_store.{function}(" in sent[0]


def test_a_long_replay_sends_one_statement_a_page(full: str, faces: Any, sent: list[str]) -> None:
    store = faces.open(full)
    sent.clear()
    assert sum(1 for _ in store.replay("long")) == _MESSAGES
    # 16, 256, then 2,000 at a time.
    assert len(sent) == 2 + -(-(_MESSAGES - 16 - 256) // 2_000)
