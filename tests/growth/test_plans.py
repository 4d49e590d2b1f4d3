"""Plans of the statements inside the functions, and the number of statements that a call sends.

The statements are read from `migrations/sql`, with their variables as parameters. They are planned in both ways that
PL/pgSQL may plan them: for these values, and once for all values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support import cluster, sent_statements, statistics
from support.keys import key_of
from support.paths import ROOT
from support.view_base import base

from compaction_store import CompactionContext, Store, TokenBudget, migrate
from compaction_store.postgres import queries as ledger

_SQL = ROOT / "migrations" / "sql" / "functions"
_MESSAGES = 20_000
_RECORDS = 100
_TYPES = {
    "p_thread_uid": "uuid", "p_tenant": "text", "p_thread_id": "text", "p_after": "bigint", "p_until": "bigint",
    "p_limit": "integer", "p_at": "bigint", "p_last_number": "bigint", "p_to": "bigint", "v_last_number": "bigint",
    "v_last_pos": "bigint", "v_last_seq": "bigint", "v_next": "bigint", "v_number": "bigint",
    "v_start": "bigint", "v_head": "bytea",
}  # fmt: skip
_names = count(1)


def _statements(function: str) -> list[str]:
    """The queries of a function that read messages or compactions, without the PL/pgSQL around them."""
    body = (_SQL / f"{function}.sql").read_text(encoding="utf-8").split("$$")[1]
    queries = re.findall(r"(?:RETURN QUERY|FOR [^;]* IN)\s+(SELECT .*?)(?:;|\s+LOOP)", body, re.DOTALL)
    assert queries, function
    return queries


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _explain(
    connection: Any,
    query: str,
    values: dict[str, Any],
    mode: str = "force_custom_plan",
    *,
    run: bool = False,
    seqscan: str = "on",
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
        connection.execute(f"SET LOCAL enable_seqscan = {seqscan}")
        connection.execute(f"PREPARE {statement} ({', '.join(_TYPES[name] for name in used)}) AS {query}")
        options = "ANALYZE, BUFFERS, FORMAT JSON" if run else "FORMAT JSON"
        found = connection.execute(f"EXPLAIN ({options}) EXECUTE {statement} ({literals})").fetchone()[0]
    plan: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


def _known(connection: psycopg.Connection[Any], thread_id: str) -> UUID:
    """A thread's key; any key if the thread is not there."""
    found = connection.execute("SELECT compaction_store.find_thread('default', %s)", (thread_id,)).fetchall()[0][0]
    return found or uuid4()


def _values(connection: psycopg.Connection[Any], thread_id: str) -> dict[str, Any]:
    """Parameters in the middle of a long thread; for the view, between two of its records."""
    return {
        "p_thread_uid": _known(connection, thread_id), "p_tenant": "default", "p_thread_id": thread_id,
        "p_after": 5_000, "p_until": 2**62, "p_limit": 256,
        "p_at": _MESSAGES + _RECORDS, "v_last_pos": _MESSAGES + _RECORDS, "v_last_seq": _MESSAGES,
        "p_last_number": _RECORDS, "v_last_number": _RECORDS, "v_next": 5_051, "v_number": 52, "v_start": 5_101,
        "p_to": None, "v_head": r"\x00",
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
        for thread_id, those in (("long", records), *((t, records[:10]) for t in "abc")):
            uid = key_of(connection, thread_id)
            written = connection.execute(
                "SELECT count(*)"
                " FROM compaction_store.commit_compactions(%s, 'default', %s, gen_random_uuid(), %s, %s, %s)",
                (uid, thread_id, *base(connection, uid), json.dumps(those)),
            ).fetchone()
            assert written == (len(those),)
        with Store.open(url) as store:
            store.custody.hold("a", reason="a test")
            store.custody.release("a", reason="it is over")
        connection.execute("VACUUM ANALYZE")


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
            plan = _explain(connection, query, _values(connection, "a"), mode)
            scanned = {n.get("Relation Name") for n in _nodes(plan) if n["Node Type"] == "Seq Scan"}
            assert scanned.isdisjoint({"messages", "compactions"}), json.dumps(plan, indent=1)
            if function in {"replay", "newest"}:
                assert not [n for n in _nodes(plan) if "Sort" in n["Node Type"]], json.dumps(plan, indent=1)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("function", ["replay", "newest", "view", "active"])
def test_fresh_tables_without_statistics_are_read_by_index(superuser_url: str, function: str, mode: str) -> None:
    _check(superuser_url, function, mode)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("function", ["replay", "newest", "view", "active"])
def test_full_tables_with_statistics_are_read_by_index(full: str, function: str, mode: str) -> None:
    _check(full, function, mode)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_the_active_records_are_found_without_reading_a_row_of_the_log(full: str, mode: str) -> None:
    with psycopg.connect(full, autocommit=True) as connection:
        connection.execute("VACUUM compaction_store.compactions")
        plan = _explain(connection, _statements("active")[0], _values(connection, "a"), mode)
    scans = [n for n in _nodes(plan) if "Scan" in n["Node Type"] and "Index Name" in n]
    indexes = {(n["Node Type"], n["Index Name"]) for n in scans if "compactions" in n["Index Name"]}
    assert indexes == {("Index Only Scan", "compactions_in_force_idx"), ("Index Only Scan", "compactions_revokes_idx")}


def _assignments(function: str, table: str) -> list[str]:
    """The queries of a function that put what they find in a table into variables, without the variables."""
    body = (_SQL / f"{function}.sql").read_text(encoding="utf-8").partition("$$")[2]
    found = re.findall(r"SELECT [^;]*? INTO [^;]*?;", body, re.DOTALL)
    return [re.sub(r" INTO \w+", "", one).rstrip(";") for one in found if f"compaction_store.{table} AS" in one]


@pytest.mark.one_server("a cluster has a table of names")
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("database", ["url", "full"])
def test_the_key_of_a_name_is_found_by_the_unique_index(
    request: pytest.FixtureRequest, database: str, mode: str
) -> None:
    functions = [
        path.stem
        for path in sorted(_SQL.glob("*.sql"))
        if "threads AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id" in path.read_text(encoding="utf-8")
    ]
    assert functions == ["append", "find_thread"]
    with psycopg.connect(request.getfixturevalue(database), autocommit=True) as connection:
        for function in functions:
            [query] = _assignments(function, "threads")
            # Like every function that a client calls.
            plan = _explain(connection, query, _values(connection, "a"), mode, seqscan="off")
            [scan] = [n for n in _nodes(plan) if "Relation Name" in n]
            assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "threads_tenant_thread_id_idx")
            assert re.search(r"tenant = .* AND \(*thread_id = ", scan["Index Cond"])


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_view_finds_in_two_indexes_that_nothing_in_its_thread_is_unknown(full: str, mode: str) -> None:
    with psycopg.connect(full, autocommit=True) as connection:
        values = _values(connection, "a")
        [query] = _assignments("refuse_unknown", "compactions")
        nodes = list(_nodes(_explain(connection, query, values, mode, run=True, seqscan="off")))
    scans = [n for n in nodes if "Relation Name" in n]
    assert {n.get("Index Name") for n in scans} == {"compactions_unknown_idx", "events_unknown_idx"}
    assert all(n["Actual Rows"] == n.get("Rows Removed by Filter", 0) == 0 for n in scans), scans


def test_the_newest_twenty_cost_the_same_in_a_thread_two_hundred_times_as_long(full: str) -> None:
    costs: dict[str, int] = {}
    with psycopg.connect(full, autocommit=True) as connection:
        connection.execute("VACUUM compaction_store.messages")
        for thread_id in ("short", "long"):
            values = _values(connection, thread_id) | {"p_limit": 20}
            plan = _explain(connection, _statements("newest")[0], values, run=True)
            assert plan["Actual Rows"] == 20
            # Only rows that are returned are read.
            assert sum(n["Actual Rows"] for n in _nodes(plan) if n.get("Relation Name") == "messages") == 20
            costs[thread_id] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert costs["long"] <= costs["short"] + 4, costs


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return sent_statements.recorded(monkeypatch)


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
    called = [name for one in sent for name in re.findall(r"compaction_store\.(\w+)\(", one)]
    if cluster.given() and called[0] == "named_thread":
        # A name is looked up first. A new one is given, and its thread made, in one transaction with the append.
        making = ["name_thread", "open_named_thread"] if "name_thread" in called else []
        assert (called, len(sent)) == (["named_thread", *making, function], 6 if making else 2), sent
        return
    assert (called, len(sent)) == ([function], 1), sent


def test_a_long_replay_sends_one_statement_a_page(full: str, faces: Any, sent: list[str]) -> None:
    store = faces.open(full)
    sent.clear()
    assert sum(1 for _ in store.replay("long")) == _MESSAGES
    # 16, 256, then 2,000 at a time.
    assert len(sent) == 2 + -(-(_MESSAGES - 16 - 256) // 2_000)


# ---- a long thread among many short ones: the statistics only have the average length of a thread

_LONG = 10_000
_FOLDED = 9_900


def _summarize(*spans: range) -> Any:
    def compact(ctx: CompactionContext) -> None:
        for span in spans:
            ctx.compact(span[0], span[-1], f"summary of {len(span)}")

    return compact


def _fill_unevenly(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, Store.open(url) as store:
        for table in ("messages", "compactions", "heads", "threads"):
            connection.execute(f"ALTER TABLE compaction_store.{table} SET (autovacuum_enabled = false)")
        for i in range(1_000):
            tokens = 10 if i % 100 else 100_000
            store.append(f"short {i}", [{"role": "assistant", "content": "few words"}] * 4, tokens=tokens)
            if i % 10 == 0:
                store.compact(f"short {i}", _summarize(range(1, 3)))
        connection.execute("ANALYZE")
        for _ in range(0, _LONG, 1_000):
            store.append("long", [{"role": "assistant", "content": "many words " * 20}] * 1_000, tokens=100)
        store.compact("long", _summarize(*(range(i + 1, i + 51) for i in range(0, _FOLDED, 50))))
        store.compact("long", _summarize(*(range(i + 1, i + 1_101) for i in range(0, _FOLDED, 1_100))))
        store.revoke("long", next(store.compactions("long", newest_first=True)).number)
        connection.execute("VACUUM compaction_store.compactions")


@pytest.fixture(scope="module")
def uneven(server: Any) -> Iterator[str]:
    name = f"cs_uneven_{os.getpid()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        migrate.upgrade(server.database(name))
        _fill_unevenly(server.database(name))
        yield server.database(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _rows_read(connection: Any, call: str, parameters: Sequence[Any]) -> tuple[int, dict[str, int]]:
    """How many rows a call returns, and how many it read of each table to do so."""
    with connection.transaction(force_rollback=True):
        before = dict(connection.execute(_READ).fetchall())
        returned = len(connection.execute(call, parameters).fetchall())
        after = dict(connection.execute(_READ).fetchall())
    return returned, {table: after[table] - before[table] for table in after}


_READ = (
    "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
    " WHERE relname IN ('messages', 'compactions', 'threads')"
)


# The later calls of a connection are planned once for all values.
@pytest.mark.parametrize("calls_before", [0, 8])
@pytest.mark.parametrize("by", ["key", "name"])
@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        ("view(%s, 'default', 'long', NULL)", ()),
        ("view(%s, 'default', 'long', %s)", (_LONG + 150,)),
        ("view(%s, 'default', 'long', %s)", (200,)),
        ("replay(%s, 'default', 'long', %s, NULL, 16)", (4_000,)),
        ("replay(%s, 'default', 'long', %s, %s, 2000)", (4_000, 4_001)),
        ("newest(%s, 'default', 'long', %s)", (20,)),
        ("entries(%s, 'default', 'long', 'message', %s, false, 100)", (4_000,)),
        ("entries(%s, 'default', 'long', 'compaction', %s, true, 10)", (50,)),
    ],
)
def test_a_call_reads_the_rows_it_returns_and_hardly_any_other(
    uneven: str, call: str, parameters: tuple[int, ...], calls_before: int, by: str
) -> None:
    with psycopg.connect(uneven, autocommit=True) as connection:
        uid = key_of(connection, "long") if by == "key" else None
        statement = f"SELECT * FROM compaction_store.{call}"
        for _ in range(calls_before):
            connection.execute(statement, (uid, *parameters))
        returned, read = _rows_read(connection, statement, (uid, *parameters))
    assert returned > 0
    assert read.pop("threads") == (by == "name")
    # A pos is found among the records by bisection, once for its seq and once more if a record is there.
    assert sum(read.values()) <= returned + 20, read


@pytest.mark.parametrize("calls_before", [0, 8])
def test_the_newest_report_of_a_usage_is_looked_for_at_the_end_only(uneven: str, calls_before: int) -> None:
    with psycopg.connect(uneven, autocommit=True) as connection:
        statement = "SELECT * FROM compaction_store.reported(%s, 'default', 'long', 100)"
        for _ in range(calls_before):
            connection.execute(statement, (None,))
        returned, read = _rows_read(connection, statement, (None,))
    assert returned == 0
    assert read.pop("threads") == 1
    assert sum(read.values()) <= 110, read


def test_a_view_of_a_folded_thread_is_one_statement(uneven: str, sent: list[str]) -> None:
    with Store.open(uneven) as store:
        for at in (None, _LONG + 150):
            sent.clear()
            assert len(store.view("long", at=at).elements) > 100
            assert len(sent) == 1, sent


def _spans(*spans: range) -> str:
    """Makes records as commit_compactions accepts them."""
    return json.dumps(
        [
            {
                "columns": {
                    "kind": "summary", "outcome": "applied", "start_seq": span[0], "end_seq": span[-1],
                    "tokens_after": 1, "inputs": [],
                },
                "salt": "00" * 16,
                "body": '{"replacement":[{"role":"user","content":"s"}]}',
            }
            for span in spans
        ]
    )  # fmt: skip


_COMMIT = "SELECT * FROM compaction_store.commit_compactions(%s, 'default', %s, gen_random_uuid(), %s, %s, %s)"


def test_a_commit_reads_the_folds_it_swallows_and_the_messages_between_them(uneven: str) -> None:
    with psycopg.connect(uneven, autocommit=True) as connection:
        uid = key_of(connection, "long")
        for span, most in ((range(9_901, 9_911), 10 + 3), (range(1, 8_801), 3), (range(8_801, 9_911), 10 + 3)):
            returned, read = _rows_read(connection, _COMMIT, (uid, "long", *base(connection, uid), _spans(span)))
            assert returned == 1
            assert read["messages"] <= most, (span, read)


def test_a_run_of_many_spans_costs_a_span_what_a_run_of_few_does(uneven: str) -> None:
    per_span = {}
    with psycopg.connect(uneven, autocommit=True) as connection:
        uid = key_of(connection, "short 1")
        connection.execute(_COMMIT, (uid, "short 1", *base(connection, uid), _spans(range(1, 3))))
        for size in (50, 1_000):
            name = f"run of {size}"
            with Store.open(uneven) as store:
                store.append(name, [{"role": "assistant", "content": "word"}] * 1_000, tokens=100)
            uid = key_of(connection, name)
            spans = [range(i, i + 1) for i in range(1, size + 1)]
            returned, read = _rows_read(connection, _COMMIT, (uid, name, *base(connection, uid), _spans(*spans)))
            assert returned == size
            per_span[size] = sum(read.values()) / size
    assert per_span[1_000] <= per_span[50] + 1, per_span


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Every query with its parameters, as the store sends it."""
    found: list[tuple[str, Any]] = []
    execute: Any = psycopg.Cursor.execute

    def noted(self: Any, query: Any, parameters: Any = None, **keywords: Any) -> Any:
        found.append((query.decode() if isinstance(query, bytes) else str(query), parameters))
        return execute(self, query, parameters, **keywords)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    return found


def _plan_of_last(url: str, queries: list[tuple[str, Any]], *, analyzed: bool = True) -> list[dict[str, Any]]:
    """The nodes of the plan of the last query that reads a table, run as an application's login would."""
    query, parameters = [(q, p) for q, p in queries if q.startswith("SELECT") and "FROM compaction_store." in q][-1]
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction(force_rollback=True):
        if not analyzed:
            connection.execute(statistics.FORGET)
        connection.execute("SET LOCAL ROLE compaction_store_app")
        connection.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        row = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", parameters).fetchone()
        assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _read_by(nodes: list[dict[str, Any]], table: str) -> float:
    read: float = sum(
        (n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"]
        for n in nodes
        if n.get("Relation Name") == table
    )
    return read


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
@pytest.mark.parametrize(
    ("ask", "most"),
    [
        # The records of a page, and for each the records that cover or revoke it.
        (lambda s: next(s.compactions("long")), 100 * 4),
        (lambda s: next(s.compactions("long", newest_first=True)), 100 * 4),
        (lambda s: next(s.compactions("long", newest_first=True, after=s.compaction("long", 150))), 100 * 4),
        (lambda s: next(s.compactions()), 100 * 4),
        (lambda s: next(s.compactions(newest_first=True)), 100 * 4),
        (lambda s: s.compaction("long", 7), 8),
    ],
)
def test_a_page_of_records_reads_little_but_the_page(
    uneven: str, queries: list[tuple[str, Any]], ask: Any, most: int, analyzed: bool
) -> None:
    with Store.open(uneven) as store:
        ask(store)
        sent = len([q for q, _ in queries if "found" in q])
    nodes = _plan_of_last(uneven, queries, analyzed=analyzed)
    # Here these two tables are one page each.
    small = ("threads", "events")
    assert not [n for n in nodes if n["Node Type"] == "Seq Scan" and n["Relation Name"] not in small], nodes
    assert _read_by(nodes, "compactions") <= most, json.dumps(nodes, indent=1)
    assert sent <= 2


def test_the_threads_that_are_due_are_found_by_index(uneven: str, queries: list[tuple[str, Any]]) -> None:
    with Store.open(uneven) as store:
        queries.clear()
        budget = TokenBudget(500_000, trigger=150_000, target=100_000)
        assert len(list(store.due(budget))) == 10
    # One statement reads the newest replies of the page's threads too.
    assert ["reported" in query for query, _ in queries if query.startswith("SELECT")] == [True]
    nodes = _plan_of_last(uneven, queries)
    assert {n.get("Index Name") for n in nodes} >= {"heads_due_idx"}, nodes
    assert not [n for n in nodes if "Sort" in n["Node Type"]], nodes
    assert _read_by(nodes, "heads") <= 11, nodes


def test_a_receipt_is_found_by_key(uneven: str, queries: list[tuple[str, Any]]) -> None:
    with Store.open(uneven) as store:
        assert store.seen_by("long", 9_950).evidence == "reconstructed"
    nodes = _plan_of_last(uneven, [q for q in queries if "receipt" in q[0]])
    assert _read_by(nodes, "messages") == 1


def _everything(store: Store, n: int) -> None:
    """Every call on one thread that a session may keep a plan of."""
    budget = TokenBudget(context_window=10, trigger=1, target=1)
    say = {"role": "user", "content": f"message {n}"}
    store.append("early", say, key=f"one {n}")
    store.append("early", [say, say], key=f"two {n}")
    store.load.messages("early", [say], key=f"loaded {n}")
    list(store.replay("early", after=0, until=2))
    list(store.replay("early", last=2))
    store.view("early")
    store.view("early", at=store.thread("early").created_at)
    store.message("early", 1)
    store.set_metadata("early", {"n": n})
    store.custody.hold("early", reason="a test")
    store.custody.release("early", reason="it is over")
    list(store.audit.events("early"))

    def fold(ctx: CompactionContext) -> None:
        ctx.compact(ctx.elements[0].seq, ctx.elements[1].end_seq, "S", allow={"larger", "last_user"})

    [record] = store.compact("early", fold, budget=budget, force=True)
    store.revoke("early", record.number)
    store.custody.redact("early", [n + 1], reason="a test")
    store.audit.verify("early")


def _scans(connection: psycopg.Connection[Any]) -> dict[str, int]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    rows = connection.execute("SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = 'compaction_store'")
    return {name: scans for name, scans in rows if name != "alembic_version"}


def test_what_a_session_planned_when_there_was_little_is_right_when_there_is_much(superuser_url: str) -> None:
    """PL/pgSQL keeps its plans, and for a table of one page it plans to read everything."""
    with Store.open(superuser_url, pool_size=1) as early, psycopg.connect(superuser_url, autocommit=True) as connection:
        for table in ("threads", "heads", "messages", "compactions", "events"):
            connection.execute(f"ALTER TABLE compaction_store.{table} SET (autovacuum_enabled = off)")
        _everything(early, 0)
        connection.execute("VACUUM ANALYZE")
        for n in range(1, 8):
            _everything(early, n)
        _grow(superuser_url)
        before = _flushed(early, connection)
        _everything(early, 8)
        after = _flushed(early, connection)
        read = {name: count - before[name] for name, count in after.items() if count != before[name]}
        # The log is read twice, by a query that is planned each time. The planner may choose to read a few pages of
        # names or heads in full. Heads are read to leave out records beyond the head.
        assert read.pop("threads", 0) <= 2
        assert read.pop("heads", 0) <= 4
        assert read == {}


def _grow(url: str) -> None:
    with Store.open(url) as store:
        for n in range(60):
            store.append(f"late {n}", [{"role": "user", "content": f"message {i} " * 20} for i in range(40)])
            store.compact(f"late {n}", *[partial(_fold_five, start) for start in range(1, 36, 5)])


def _fold_five(start: int, ctx: CompactionContext) -> None:
    ctx.compact(start, start + 4, "They spoke.")


def _flushed(store: Store, connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Returns how often tables were read in full, including what the store's session has not reported yet."""
    store._db.call(ledger.fetch, "SELECT pg_stat_force_next_flush()")
    store._db.call(ledger.fetch, "SELECT 1")
    return _scans(connection)
