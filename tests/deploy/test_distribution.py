"""One thread is one shard: every key and every statement names the thread, and `distribute` asks Citus for that.

There is no Citus here. A stand-in records what Citus would be asked to do; `scripts/test-cluster` runs on a real
cluster.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.compactable_thread import span
from support.handmade_bundles import Thread, golden
from support.paths import SUPPORT

import compaction_store as cs
from compaction_store import migrate
from compaction_store.deploy import citus
from compaction_store.errors import (
    NotConfigured,
    PermissionDenied,
    SchemaOutOfDate,
    ThreadExists,
    TurnLost,
    TurnTimeout,
    UnsupportedDatabase,
)
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries, tables
from compaction_store.postgres.schema import layout, schema_check

_SQL = tables.scripts() / "sql"
_STAND_IN = (SUPPORT / "stand_in.sql").read_text(encoding="utf-8")
_TABLES = [table.name for table in tables.metadata.sorted_tables]
# Queries across threads; each runs in a read transaction with the tenant in it.
_ACROSS = {
    "same_names": "for verify_all, how many threads have one of a page's names",
    "all_heads": "a checkpoint's list",
    "counts": "the names that the records of a tenant have most often",
    "heads": "the figures of a tenant",
    "_HEADS": "the same of one tenant",
    "uid": "the key of a name",
}
# The functions that look for the key of a name, in all shards.
_BY_NAME = ["append", "find_thread"]


# ---- keys and statements


def test_every_unique_key_and_every_foreign_key_has_the_thread(superuser: psycopg.Connection[Any]) -> None:
    keys = superuser.execute("""
        SELECT x.relname, array_agg(a.attname::text)
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indrelid JOIN pg_class AS x ON x.oid = i.indexrelid
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
        WHERE c.relnamespace = 'compaction_store'::regnamespace AND c.relname <> 'alembic_version' AND i.indisunique
        GROUP BY x.relname
    """).fetchall()
    assert len(keys) >= len(_TABLES)
    # `distribute` makes another index of this one, which is not unique.
    without = [name for name, columns in keys if "thread_uid" not in columns]
    # Turns are distributed by the name of the thread.
    assert sorted(without) == ["threads_tenant_thread_id_idx", "turns_pkey"]
    foreign = superuser.execute("""
        SELECT k.conname, array_agg(a.attname::text)
        FROM pg_constraint AS k JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
        WHERE k.connamespace = 'compaction_store'::regnamespace AND k.contype IN ('f', 'x', 'u') GROUP BY k.conname
    """).fetchall()
    assert [name for name, columns in foreign if "thread_uid" not in columns] == []


# On a cluster they run on the node that has the name.
_OF_TURNS = {"take_turn", "renew_turn", "leave_turn", "hold_turn"}
# Three functions are for many threads, and a store on a cluster does not call them.
_OF_NO_THREAD = {"append_together", "feed", "load_threads", "tenant", "tenants", "checkpoint_turn", *_OF_TURNS}


def _first_arguments() -> dict[str, str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (_SQL / "functions").glob("*.sql"))
    found = re.findall(r"CREATE FUNCTION compaction_store\.(\w+)\(\s*(\w*)", text)
    return dict(found)


def _owners(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yields the functions of a module, its constants, and the queries of the data file beside it."""
    if path.with_suffix(".toml").exists():
        yield from ((name, ast.Constant(text)) for name, text in ModuleData(str(path)).values.items())
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _texts(node: ast.AST) -> str:
    """Returns the strings of a piece of code, without its docstrings."""
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        node = ast.Module(node.body[1:], [])
    return " ".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def test_every_statement_of_the_ledger_names_the_thread_or_is_one_across_threads() -> None:
    first = _first_arguments()
    seen: set[str] = set()
    for owner, node in chain.from_iterable(map(_owners, Path(queries.__file__).parent.glob("*.py"))):
        text = _texts(node)
        tables = re.findall(rf"(?:FROM|JOIN|INTO|UPDATE) compaction_store\.({'|'.join(_TABLES)})\b(?! *\()", text)
        for name in re.findall(r"compaction_store\.(\w+) ?\(", text):
            if name in first and name not in _OF_NO_THREAD:
                assert first[name] == "p_thread_uid", (owner, name)
        if not tables:
            continue
        if owner in _ACROSS:
            seen.add(owner)
        else:
            assert "thread_uid" in text, owner
    assert seen | {"_HEADS"} == set(_ACROSS), "a statement across threads that is listed and not there"


@pytest.mark.parametrize("folder", ["functions", "citus"])
def test_every_statement_inside_the_functions_names_the_thread(folder: str) -> None:
    loose = []
    by_name = []
    for path in sorted((_SQL / folder).glob("*.sql")):
        text = re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8").partition("AS $$")[2])
        for statement in text.split(";"):
            for table, alias in re.findall(
                rf"\b(?:FROM|JOIN|UPDATE) compaction_store\.({'|'.join(_TABLES)})(?:\s+AS (\w+))", statement
            ):
                if f"{alias}.thread_uid = p_thread_uid" in statement:
                    continue
                if f"{alias}.thread_id = p_thread_id" in statement:
                    by_name.append(path.stem)
                elif f"{alias}.thread_uid" not in statement:
                    loose.append((path.stem, table, alias))
            into = re.findall(rf"INSERT INTO compaction_store\.({'|'.join(_TABLES)})\s*\(([^)]*)\)", statement)
            loose += [(path.stem, *found) for found in into if "thread_uid" not in found[1]]
    # The first lists all tenants, and runs on the coordinator. The others do not run on a cluster.
    feed = {("feed", table, table[0]) for table in ("messages", "compactions", "events")}
    known = {("tenants", "threads", "t"), ("finish_import", "events", "e"), *feed}
    assert [found for found in loose if found not in known] == []
    assert by_name == (_BY_NAME if folder == "functions" else [])


def test_every_function_that_a_client_calls_begins_with_the_thread() -> None:
    first = _first_arguments()
    called = [
        path.stem
        for path in (_SQL / "functions").glob("*.sql")
        if "SECURITY DEFINER" in path.read_text(encoding="utf-8")
    ]
    assert len(called) > 15
    assert {name for name in called if first[name] != "p_thread_uid"} == _OF_NO_THREAD - {"tenant", "tenants"}


# ---- what is different on a cluster


@pytest.mark.parametrize("name", sorted(path.stem for path in (_SQL / "citus").glob("*.sql")))
def test_a_function_of_a_cluster_takes_and_gives_what_the_other_does(name: str) -> None:
    def said(where: layout.Layout) -> list[str]:
        parts = schema_check._functions(where)[f"{name}()"][f"function {name}()"].split(", ")
        return [part for part in parts if part not in {"sql", "plpgsql"}]

    assert said(layout.CLUSTER) == said(layout.SERVER)


def test_a_function_of_a_cluster_runs_the_same_query_as_the_other() -> None:
    def query(folder: str, name: str) -> str:
        body = (_SQL / folder / f"{name}.sql").read_text(encoding="utf-8").split("$$")[1]
        return " ".join(re.sub(r"\b(BEGIN|END|RETURN QUERY)\b|;", "", body).split())

    names = sorted(path.stem for path in (_SQL / "citus").glob("*.sql"))
    assert names == ["in_force"], "keep a second form only where one cannot serve both, and say why in the file"
    assert [name for name in names if query("citus", name) != query("functions", name)] == []


# ---- distribute


@pytest.fixture
def cluster(superuser: psycopg.Connection[Any], url: str) -> str:
    superuser.execute(_STAND_IN)
    return url


def asked(superuser: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in superuser.execute("SELECT what FROM public.asked ORDER BY i")]


def test_where_there_is_no_citus_nothing_is_done(url: str, empty_url: str, superuser: psycopg.Connection[Any]) -> None:
    with pytest.raises(UnsupportedDatabase, match="no Citus: run CREATE EXTENSION citus"):
        citus.distribute(url)
    with pytest.raises(SchemaOutOfDate):
        citus.distribute(empty_url)
    for shards in (0, True, "6", 64_001):
        with pytest.raises(cs.InvalidInput, match="shards must be"):
            citus.distribute(url, shards=shards)  # type: ignore[arg-type]
    rules = superuser.execute("SELECT DISTINCT pg_get_expr(polqual, polrelid) FROM pg_policy").fetchall()
    assert rules == [("(tenant = ( SELECT compaction_store.tenant() AS tenant))",)]


def test_what_is_asked_of_citus(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    assert citus.distribute(cluster, shards=6) == (True, 1)
    said = asked(superuser)
    with_ = ["none", *["compaction_store.threads"] * 5]
    tables = ("threads", "heads", "messages", "compactions", "events", "staged")
    assert said[:8] == [
        *(
            f"table compaction_store.{table} by thread_uid with {other}, 6 shards, sequential"
            for table, other in zip(tables, with_, strict=True)
        ),
        "table compaction_store.names by name_uid with compaction_store.threads, 6 shards, sequential",
        "table compaction_store.turns by thread_id with none, 6 shards, sequential",
    ]
    assert said[8:14] == [
        f"emptied compaction_store.{table}, trigger D, propagation off" for table in (*tables[:5], "names")
    ]
    functions = [re.fullmatch(r"function compaction_store\.(\w+)\(.*\) by (\w*) with (.*)", one) for one in said[14:]]
    by = {found[1]: (found[2], found[3]) for found in functions if found is not None}
    only = {path.stem for path in (_SQL / "citus" / "functions").glob("*.sql")}
    assert by.keys() == only | {path.stem for path in (_SQL / "functions").glob("*.sql")}
    together = "compaction_store.threads, in transactions"
    assert {name for name, how in by.items() if how == ("p_name_uid", together)} == {
        "name_thread", "unname_thread", "claim_name",
    }  # fmt: skip
    assert by["named_thread"] == ("p_name_uid", "compaction_store.threads")
    assert {name for name, how in by.items() if how == ("p_thread_uid", together)} == {
        "append", "append_many", "append_observed", "load", "open_named_thread", "stage", "finish_import",
        "join_transaction", "record_in_log",
    }  # fmt: skip
    of_turns = {name: how for name, (argument, how) in by.items() if argument == "p_thread_id"}
    assert of_turns == {
        **dict.fromkeys(("take_turn", "renew_turn", "leave_turn"), "compaction_store.turns"),
        **dict.fromkeys(("hold_turn", "end_turns"), "compaction_store.turns, in transactions"),
    }
    called = {name for name, (argument, _) in by.items() if argument}
    assert {"append", "append_many", "view", "replay", "commit_compactions", "redact", "verify"} - called == {"verify"}
    assert {how for name, how in by.items() if name not in called} == {("", "default")}
    setting = "SELECT setconfig::text FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase"
    assert superuser.execute(f"{setting} WHERE datname = current_database()").fetchall() == [
        ("{citus.propagate_set_commands=local}",)
    ]
    generic = "SELECT count(*) FROM pg_proc WHERE 'plan_cache_mode=force_generic_plan' = ANY (proconfig)"
    assert superuser.execute(generic).fetchone() == (0,)
    triggers = "SELECT DISTINCT tgenabled::text FROM pg_trigger WHERE tgname LIKE 'refuse%' AND NOT tgisinternal"
    assert superuser.execute(triggers).fetchall() == [("A",)]


def test_done_again_it_spreads_nothing(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    assert citus.distribute(cluster).now
    count = len(asked(superuser))
    assert citus.distribute(cluster) == (False, 1)
    assert [one for one in asked(superuser)[count:] if not one.startswith("function")] == []


@pytest.mark.alters_roles
def test_shards_are_moved_by_an_owner_who_may_log_in_meanwhile(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    with pytest.raises(NotConfigured, match="run compaction-store distribute first"):
        citus.rebalance(cluster)
    citus.distribute(cluster)
    assert citus.rebalance(cluster) == 3
    assert asked(superuser)[-1] == "moved, block_writes, by_shard_count, owner t"
    owner = "SELECT rolcanlogin FROM pg_roles WHERE rolname = 'compaction_store_owner'"
    assert superuser.execute(owner).fetchone() == (False,)
    superuser.execute("DROP FUNCTION pg_catalog.rebalance_table_shards")
    with pytest.raises(cs.CompactionStoreError):
        citus.rebalance(cluster)
    assert superuser.execute(owner).fetchone() == (False,)


def test_tables_that_are_spread_some_other_way_are_left_alone(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    for table in citus.TABLES[:4]:
        superuser.execute(
            "INSERT INTO pg_dist_partition VALUES (%s::regclass, 'h', 'thread_uid', 1)", (f"compaction_store.{table}",)
        )
    with pytest.raises(cs.NotConfigured, match="newly migrated"):
        citus.distribute(cluster)
    superuser.execute(
        "INSERT INTO pg_dist_partition VALUES ('compaction_store.events', 'h', 'thread_uid', 2)"
    )  # fmt: skip
    with pytest.raises(cs.NotConfigured, match="newly migrated"):
        citus.distribute(cluster)


def test_what_is_missing_is_said(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("UPDATE pg_dist_node SET hasmetadata = false")
    with pytest.raises(cs.NotConfigured, match="citus_add_node"):
        citus.distribute(cluster)
    superuser.execute(
        "SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '11.3-1' WHERE oid = 99001"
    )
    with pytest.raises(UnsupportedDatabase, match=r"Citus 12 or newer is needed; this is 11\.3-1"):
        citus.distribute(cluster)


def test_it_is_all_or_nothing(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("DROP FUNCTION pg_catalog.create_distributed_function")
    with pytest.raises(cs.DatabaseError) as raised:
        citus.distribute(cluster)
    assert raised.value.sqlstate == "42883"
    assert asked(superuser) == []
    assert superuser.execute("SELECT count(*) FROM pg_dist_partition").fetchone() == (0,)


def test_another_than_the_owner_is_refused(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    name = f"somebody_{sa.make_url(cluster).database}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT compaction_store_app TO {name}")
    try:
        login = sa.make_url(cluster).set(username=name, password="x").render_as_string(hide_password=False)
        with pytest.raises(PermissionDenied, match="a superuser"):
            citus.distribute(login)
    finally:
        superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_verify_knows_a_cluster_and_looks_at_every_shard_and_node(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    citus.distribute(cluster)
    with cs.Store.open(cluster) as store:
        store.append("t", {"n": 1}, raw=True)
        assert store.audit.verify("t", level="schema").findings == ()
        superuser.execute("ALTER TABLE compaction_store.messages NO FORCE ROW LEVEL SECURITY")
        superuser.execute(
            "CREATE OR REPLACE FUNCTION pg_catalog.run_command_on_workers(p_command text) RETURNS TABLE (nodename text,"
            " nodeport int4, success bool, result text) LANGUAGE sql AS $$ SELECT 'node-2', 1, false, 'refused' $$"
        )
        whats = [finding.what for finding in store.audit.verify("t", level="schema").findings]
        assert any(what.startswith("shard 102008 of table messages: row security; policies") for what in whats)
        assert "node node-2:1: its functions differ from the coordinator's (refused)" in whats


def test_on_a_cluster_messages_are_loaded_and_bundles_imported(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    lines = golden()["bundle-1.jsonl"]
    citus.distribute(cluster)
    with cs.Store.open(cluster) as store:
        assert store.load.messages("u", [{"n": 1}], key="k", raw=True).added == 1
        assert store.load.messages("u", [{"n": 1}], key="k", raw=True).added == 0
        assert store.audit.verify("u").findings == ()
        assert store.load.bundle(lines).added
        assert not store.load.bundle(lines).added
        assert list(store.audit.export("t-1"))[1:-1] == lines[1:-1]
        assert [f for report in store.audit.verify() for f in report.findings] == []
        assert superuser.execute("SELECT count(*) FROM compaction_store.staged").fetchone() == (0,)
        thread = Thread(thread_id="u")
        thread.message('{"role":"user","content":"hi"}')
        with pytest.raises(ThreadExists):
            store.load.bundle(thread.lines())
        assert superuser.execute("SELECT count(*) FROM compaction_store.names").fetchone() == (2,)


def test_on_a_cluster_appends_in_a_turn_are_written_in_it_or_not_at_all(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    citus.distribute(cluster)
    with cs.Store.open(cluster) as store:
        with store.turn("t") as turn:
            assert (turn.last_seq, turn.head) == (0, None)
            turn.append({"n": 1}, key="first", raw=True)
            turn.append([{"n": 2}, {"n": 3}], raw=True)
            with pytest.raises(TurnTimeout):
                store.turn("t", wait=0.0).__enter__()
        assert (turn.last_seq, turn.head) == (3, store.thread("t").head)
        with pytest.raises(TurnLost), store.turn("t") as turn:  # noqa: PT012 — the turn is lost in it
            assert (turn.last_seq, turn.head) == (3, store.thread("t").head)
            superuser.execute("DELETE FROM compaction_store.turns")
            assert [m.seq for m in turn.append({"n": 1}, key="first", raw=True)] == [1]
            for key in (None, "another"):
                with pytest.raises(TurnLost):
                    turn.append({"n": 4}, key=key, raw=True)
            assert turn.lost
        with pytest.raises(TurnLost), store.turn("t") as turn:  # noqa: PT012 — the turn is lost in it
            store.custody.erase("t", reason="r")
            turn.append({"n": 5}, raw=True)
        assert not superuser.execute("SELECT FROM compaction_store.names").fetchall()


def test_on_a_cluster_every_call_has_a_key_and_names_lead_to_threads(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    with cs.Store.open(cluster) as store:
        store.append("stored before", {"n": 1}, raw=True)
        stub = store.custody.erase((store.append("erased before", {"n": 1}, raw=True), "erased before")[1], reason="r")
    citus.distribute(cluster)
    # Without a key, Citus itself would crash; here the functions look for the name.
    superuser.execute("""
        CREATE OR REPLACE FUNCTION compaction_store.find_thread(p_tenant text, p_thread_id text) RETURNS uuid
        LANGUAGE plpgsql STABLE AS $$ BEGIN RAISE EXCEPTION 'a call without a key'; END $$
    """)
    with cs.Store.open(cluster) as store:
        assert [e.seq for e in store.view("stored before").elements] == [1]
        assert store.thread(stub.thread_id).erased_pos == 2
        for nobody in ("nobody", f"erased:{store.thread('stored before').thread_uid}"):
            with pytest.raises(cs.ThreadNotFound):
                store.view(nobody)
        with pytest.raises(cs.SequenceConflict):
            store.append("refused", {"n": 1}, expected_seq=3, raw=True)
        store.append("t", {"n": 1}, raw=True)
        first = store.thread("t").thread_uid
        store.custody.hold("t", reason="r")
        with pytest.raises(cs.Held):
            store.custody.erase("t", reason="r")
        assert store.thread("t").thread_uid == first
        store.custody.release("t", reason="r")
        with cs.Store.open(cluster) as other:
            erased = other.custody.erase("t", reason="r")
            assert [m.payload for m in other.replay(erased.thread_id)] == [None]
        # This store still has the key of the erased thread.
        assert store.append("t", {"n": 2}, raw=True)[0].seq == 1
        assert store.thread("t").thread_uid != first
        assert [m.payload for m in store.replay("t")] == [{"n": 2}]
        names = superuser.execute("SELECT thread_id FROM compaction_store.names ORDER BY thread_id").fetchall()
        assert names == [("stored before",), ("t",)]
        assert [f for report in store.audit.verify() for f in report.findings] == []


def test_on_a_cluster_the_view_of_records_shows_the_same(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    def rows() -> list[tuple[Any, ...]]:
        found = superuser.execute(
            "SELECT a::text, status, superseded_by, revoked_by FROM compaction_store.audit_compactions AS a"
        )
        return sorted(found.fetchall())

    with cs.Store.open(cluster) as store:
        store.load.bundle(golden()["bundle-1.jsonl"])
        for thread_id in ("t", "u"):
            store.append(thread_id, [{"role": "user", "content": f"message {i}"} for i in range(30)])
            spans = [(2, 5), (8, 10), (2, 12), (1, 12), (14, 15), (1, 20), (22, 23)]
            for start, end in spans:
                store.compact(thread_id, span(start, end, "short"))
            store.revoke(thread_id, 6, reason="r")
            store.custody.redact(thread_id, [22], reason="r")
    superuser.execute("SET compaction_store.tenant = 'default'")
    before = rows()
    citus.distribute(cluster)
    assert rows() == before
    assert {row[1] for row in before} >= {"active", "superseded", "revoked", "redacted", "failed"}
    assert len({row[2] for row in before}) > 2


def test_a_downgrade_takes_the_names_with_it(cluster: str, superuser: psycopg.Connection[Any]) -> None:
    citus.distribute(cluster)
    migrate.downgrade(cluster, "base", delete_everything=True)
    migrate.upgrade(cluster)
    assert superuser.execute("SELECT to_regclass('compaction_store.names')").fetchone() == (None,)


def test_verify_all_compares_the_names_of_a_cluster_with_its_threads(
    cluster: str, superuser: psycopg.Connection[Any]
) -> None:
    citus.distribute(cluster)
    with cs.Store.open(cluster) as store:
        for name in ("gone", "kept", "twice", "moved"):
            store.append(name, {"n": 1}, raw=True)
        stub = store.custody.erase((store.append("erased", {"n": 1}, raw=True), "erased")[1], reason="r")
        key = {name: store.thread(name).thread_uid for name in ("gone", "kept", "twice", "moved")}
        insert = (
            "INSERT INTO compaction_store.names SELECT compaction_store.name_uid('default', %(name)s), 'default',"
            " %(name)s, %(uid)s"
        )
        superuser.execute("DELETE FROM compaction_store.names WHERE thread_id IN ('gone', 'moved')")
        superuser.execute(insert, {"name": "another", "uid": key["twice"]})
        superuser.execute(insert, {"name": "erased", "uid": store.thread(stub.thread_id).thread_uid})
        superuser.execute(
            "INSERT INTO compaction_store.names SELECT gen_random_uuid(), 'default', 'moved', %s", (key["moved"],)
        )
        superuser.execute(insert, {"name": "no thread", "uid": "01000000-0000-7000-8000-000000000000"})
        # A second thread of a name.
        superuser.execute(
            "SELECT compaction_store.open_thread('default', 'kept',"
            " compaction_store.new_thread_uid(now()), date_trunc('milliseconds', now()))"
        )
        found: dict[str, list[str]] = {}
        for report in store.audit.verify(level="structure"):
            found.setdefault(report.thread_id, []).extend(finding.what for finding in report.findings)
    leads = "the table of names leads to the thread by another name"
    without = "the table of names does not lead to the thread by its name"
    assert found == {
        "": ["there are rows of a thread that has neither a head nor a name", leads],
        "gone": [without],
        "kept": [without],
        "twice": [leads],
        "moved": [without, leads],
        stub.thread_id: ["the table of names still has the name of an erased thread"],
    } | {"kept": ["other threads of the tenant have the same name"] * 2 + [without]}


def reported(store: cs.Store, thread_id: str) -> Iterator[Any]:
    """Returns the reported usage that a budget uses."""
    yield from store._db.call(queries.reported, store._scope.key(thread_id), 5)


def test_the_functions_of_a_cluster_give_what_the_others_give(url: str, superuser: psycopg.Connection[Any]) -> None:
    def history(store: cs.Store, thread_id: str) -> Iterator[Any]:
        def said(i: int) -> dict[str, Any]:
            return {"role": "user" if i % 2 else "assistant", "content": f"number {i} of what was said. " * (i % 5 + 2)}

        def twice(ctx: cs.CompactionContext) -> None:
            ctx.compact(2, 9, "eight")
            ctx.compact(12, 15, "four")
            ctx.compact(1, 10, "ten, with the eight")

        def larger(ctx: cs.CompactionContext) -> None:
            ctx.compact(20, 21, "no shorter than that " * 40)

        store.append(thread_id, [said(i) for i in range(1, 31)], key="many")
        yield store.append(thread_id, [said(i) for i in range(1, 31)], key="many")[0].seq
        store.append(thread_id, {"role": "user", "content": "one"}, meta={"a": 1})
        store.compact(thread_id, twice)
        for _ in range(2):
            run = store.compact(thread_id, larger, budget=cs.TokenBudget(context_window=300))
            yield run.reason, [record.outcome for record in run], [type(error).__name__ for error in run.errors]
        store.revoke(thread_id, 3)
        store.compact(thread_id, lambda ctx: ctx.compact(16, 19, "more"))
        told = {"role": "assistant", "content": [{"type": "compaction", "content": "all of it"}]}
        store.append(thread_id, told | {"usage": {"input_tokens": 900}}, view=store.view(thread_id), raw=True)
        yield list(reported(store, thread_id))
        redacted = store.custody.redact(thread_id, [13, *range(4, 7)], reason="r")
        yield redacted.seqs, redacted.records
        for at in range(1, store.thread(thread_id).last_pos + 1, 3):
            view = store.view(thread_id, at=at)
            yield [(e.seq, e.end_seq, e.number, e.tokens) for e in view.elements], view.tokens
        yield [(c.number, c.outcome, c.status, c.tokens_before, c.tokens_after) for c in store.compactions(thread_id)]
        yield store.audit.explain(thread_id, 5).element.seq, store.seen_by(thread_id, 32).evidence
        yield store.view(thread_id, at=datetime.now(UTC)).pos, [m.seq for m in store.replay(thread_id, last=4)]
        thread = store.thread(thread_id)
        yield thread.view_tokens, thread.last_pos, len(list(store.audit.export(thread_id)))
        yield store.audit.verify(thread_id).findings
        erased = store.custody.erase(thread_id, reason="r")
        yield erased.records, store.audit.verify(erased.thread_id).findings
        with pytest.raises(cs.ThreadNotFound):
            list(store.replay("nobody"))

    with cs.Store.open(url) as store:
        before = list(history(store, "before"))
    superuser.execute(_STAND_IN)
    citus.distribute(url)
    with cs.Store.open(url) as store:
        assert list(history(store, "after")) == before


@pytest.mark.parametrize("folder", ["functions", "citus"])
def test_every_function_that_a_client_calls_reads_by_index_whatever_was_planned(folder: str) -> None:
    """A session may keep a plan from a time when the tables were empty."""
    called = {path.name: path.read_text(encoding="utf-8") for path in (_SQL / folder).glob("*.sql")}
    without = [
        name
        for name, text in called.items()
        if "SECURITY DEFINER" in text
        and "\nSET enable_seqscan = off\n" not in text
        and name.removesuffix(".sql") not in _OF_NO_THREAD
    ]
    assert called
    assert without == []


@pytest.mark.parametrize("folders", [["functions"], ["functions", "citus"]], ids=["single", "cluster"])
def test_every_function_that_only_reads_sees_one_moment(folders: list[str]) -> None:
    """A function that is not STABLE takes a new snapshot for each statement, so a view would mix several moments."""
    texts = {
        path.stem: path.read_text(encoding="utf-8") for folder in folders for path in (_SQL / folder).glob("*.sql")
    }
    bodies = {name: text.split("$$")[1] for name, text in texts.items()}
    writing = {n for n, body in bodies.items() if re.search(r"INSERT INTO|UPDATE\b|DELETE FROM|advisory", body)}
    while more := {
        n for n, body in bodies.items() if n not in writing and any(f"compaction_store.{w}(" in body for w in writing)
    }:
        writing |= more
    reading = {n for n, b in bodies.items() if n not in writing and re.search(r"(FROM|JOIN) compaction_store\.", b)}
    assert {"view", "replay", "newest", "stalled", "in_force", "seq_at"} <= reading
    assert {"append", "commit_compactions", "redact"} <= writing
    assert {name for name in reading if not re.search(r"LANGUAGE \w+ STABLE", texts[name])} == {
        # Functions that write call these, which must see the new rows.
        "copied_entry", "fold", "redacted_by", "refuse_bad_record", "refuse_unsound_records", "term_body",
        # Called only where a row of the head is missing.
        "refuse_no_head",
        # If it were STABLE, the planner would call it.
        "pos_at",
    }  # fmt: skip
