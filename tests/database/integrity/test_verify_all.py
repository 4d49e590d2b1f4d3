"""`verify_all` skips nothing that is stored under a tenant, even if a thread's name, head or key was changed.

A superuser makes each forgery with all protection disabled. The auditor's role, which row-level security restricts, and
a superuser, whom it does not restrict, must both find it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.faces import Face, Faces
from support.superuser_edits import TABLES, as_role, unlock

import compaction_store as cs
from compaction_store.checkpoints import SigningKey
from compaction_store.integrity import chain, erasure
from compaction_store.postgres import cursor
from compaction_store.postgres.queries import listing

NAMES = ("alpha", "beta", "gamma", "delta")
UIDS = {name: chain.thread_uid("acme", name) for name in NAMES}
KEY = SigningKey.from_bytes("example.org/audit", bytes(range(32)))
AUDITOR = "compaction_store_auditor"


@pytest.fixture
def log(tmp_path: Path) -> cs.CheckpointLog:
    return cs.CheckpointLog(tmp_path / "log.jsonl", KEY.key)


@pytest.fixture
def forger(url: str, superuser: psycopg.Connection[Any], log: cs.CheckpointLog) -> psycopg.Connection[Any]:
    """A superuser without obstacles, on four threads of one tenant and one of another, with a checkpoint over them."""
    with cs.Store.open(url, tenant="acme") as store, cs.Store.open(url, tenant="globex") as other:
        for name in NAMES:
            store.append(name, [{"role": "user", "content": f"{name} says something {n}"} for n in range(6)])
            store.compact(name, lambda ctx: ctx.compact(1, 3, "short"), force=True)
            store.hold(name, reason="audit")
        other.append("alpha", {"role": "user", "content": "of the other tenant"})
        store.checkpoint(KEY, log)
    unlock(superuser)
    return superuser


@pytest.fixture(params=["sync, auditor", "async, superuser"])
def readers(request: pytest.FixtureRequest, url: str) -> Iterator[dict[str, Face]]:
    """A store for each tenant: one kind with the auditor's role, the other as a superuser."""
    face, role = request.param.split(", ")
    with asyncio.Runner() as runner:
        faces = Faces(face, runner if face == "async" else None)
        address = as_role(url, AUDITOR) if role == "auditor" else url
        yield {tenant: faces.open(address, tenant=tenant) for tenant in ("acme", "globex")}
        for opened in faces.opened:
            opened.close()


def change(connection: psycopg.Connection[Any], statement: str, *values: Any) -> None:
    assert connection.execute(statement.encode(), values or None).rowcount > 0


def reports(reader: Face, **options: Any) -> dict[UUID | None, cs.Report]:
    """Returns the reports by key, one for each. Leaves out the one on the schema, which the test has changed."""
    found = [r for r in reader.verify_all(**options) if r.thread_uid is not None or r.level != "schema"]
    assert len({report.thread_uid for report in found}) == len(found)
    return {report.thread_uid: report for report in found}


def wrong(reader: Face, **options: Any) -> set[UUID | None]:
    return {uid for uid, report in reports(reader, **options).items() if report.findings}


def said(reader: Face, uid: UUID) -> str:
    return "; ".join(finding.what for finding in reports(reader)[uid].findings)


def test_what_is_sound_has_a_report_for_each_key_and_no_finding(
    forger: psycopg.Connection[Any], readers: dict[str, Face], log: cs.CheckpointLog
) -> None:
    stored = {row[0] for row in forger.execute("SELECT thread_uid FROM compaction_store.heads WHERE tenant = 'acme'")}
    found = list(readers["acme"].verify_all())
    assert [report.thread_uid for report in found] == sorted(stored)
    assert {report.thread_id: report.thread_uid for report in found} == UIDS
    assert wrong(readers["acme"]) == wrong(readers["globex"]) == set()
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) == set()


@pytest.mark.parametrize("name", ["alpha", "", "x" * 300, "nobody", "\x7f", f"erased:{UIDS['alpha']}", "x" * 5000])
def test_a_thread_under_a_name_that_is_not_its_own_is_walked_and_reported(
    forger: psycopg.Connection[Any], readers: dict[str, Face], log: cs.CheckpointLog, name: str
) -> None:
    """Its content is verified too: the same report has a message that was rewritten."""
    change(forger, "UPDATE compaction_store.threads SET thread_id = %s WHERE thread_uid = %s", name, UIDS["beta"])
    change(
        forger,
        'UPDATE compaction_store.messages SET payload = \'{"role":"user"}\' WHERE thread_uid = %s AND seq = 5',
        UIDS["beta"],
    )
    found = reports(readers["acme"])
    assert set(found) == set(UIDS.values())
    assert wrong(readers["acme"]) == {UIDS["beta"]}
    assert wrong(readers["acme"], level="structure") == {UIDS["beta"]}
    what = said(readers["acme"], UIDS["beta"])
    assert "under a name that does not lead to its thread_uid" in what
    assert "not what was committed to" in what
    assert found[UIDS["beta"]].entries == 8
    assert UIDS["beta"] in wrong(readers["acme"], level="checkpoint", checkpoints=log)


def test_two_threads_that_change_keys_are_both_reported(
    forger: psycopg.Connection[Any], readers: dict[str, Face]
) -> None:
    for table in ("threads", "heads"):
        for old, new in (("alpha", None), ("beta", "alpha"), (None, "beta")):
            uids = [UIDS.get(name or "", UUID(int=5)) for name in (new, old)]
            change(forger, f"UPDATE compaction_store.{table} SET thread_uid = %s WHERE thread_uid = %s", *uids)
        assert {UIDS["alpha"], UIDS["beta"]} <= wrong(readers["acme"], level="structure")


@pytest.mark.parametrize("tables", [("threads",), ("heads",), ("threads", "heads"), TABLES[2:], TABLES])
def test_a_thread_under_another_tenant_is_reported_on_both_sides_or_missed_at_the_checkpoint(
    forger: psycopg.Connection[Any], readers: dict[str, Face], log: cs.CheckpointLog, tables: tuple[str, ...]
) -> None:
    for table in tables:
        change(forger, f"UPDATE compaction_store.{table} SET tenant = 'globex' WHERE thread_uid = %s", UIDS["beta"])
    assert wrong(readers["acme"]) == (set() if tables == TABLES else {UIDS["beta"]})
    assert wrong(readers["globex"]) == {UIDS["beta"]}
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) & {UIDS["beta"], None}


@pytest.mark.parametrize("names", [("globex", "alpha"), ("globex", "beta")])
def test_a_thread_in_the_guise_of_another_tenants_is_reported(
    forger: psycopg.Connection[Any], readers: dict[str, Face], names: tuple[str, str]
) -> None:
    change(
        forger,
        "UPDATE compaction_store.threads SET tenant = %s, thread_id = %s WHERE thread_uid = %s",
        *names, UIDS["beta"],
    )  # fmt: skip
    assert wrong(readers["acme"]) == wrong(readers["globex"]) == {UIDS["beta"]}


@pytest.mark.parametrize(
    ("statements", "what"),
    [
        (("DELETE FROM {threads}",), "its name is gone"),
        (("DELETE FROM {heads}",), "no head"),
        (("DELETE FROM {heads}", "DELETE FROM {threads}"), "neither a head nor a name"),
        (("DELETE FROM {heads}", "DELETE FROM {threads}", "DELETE FROM {messages} AND seq < 5"), "neither a head nor"),
        (
            ("DELETE FROM {heads}", "DELETE FROM {threads}", "DELETE FROM {messages}", "DELETE FROM {events}"),
            "neither a head nor a name",
        ),
        (
            ("DELETE FROM {heads}", "DELETE FROM {threads}", "DELETE FROM {messages}", "DELETE FROM {compactions}"),
            "neither a head nor a name",
        ),
        (("DELETE FROM {messages}", "DELETE FROM {compactions}", "DELETE FROM {events}"), "the head is at pos 8"),
    ],
)
def test_rows_left_of_a_thread_are_reported(
    forger: psycopg.Connection[Any],
    readers: dict[str, Face],
    log: cs.CheckpointLog,
    statements: tuple[str, ...],
    what: str,
) -> None:
    tables = {table: f"compaction_store.{table} WHERE thread_uid = '{UIDS['beta']}'" for table in TABLES}
    for statement in statements:
        change(forger, statement.format(**tables))
    assert wrong(readers["acme"], level="structure") == {UIDS["beta"]}
    assert what in said(readers["acme"], UIDS["beta"])
    found = reports(readers["acme"], level="checkpoint", checkpoints=log)
    assert any("checkpoint" in finding.what for finding in found[UIDS["beta"]].findings)


def test_a_thread_of_which_nothing_is_left_is_missed_at_the_checkpoint(
    forger: psycopg.Connection[Any], readers: dict[str, Face], log: cs.CheckpointLog
) -> None:
    for table in TABLES:
        forger.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s".encode(), [UIDS["beta"]])
    assert wrong(readers["acme"]) == set()
    [finding] = reports(readers["acme"], level="checkpoint", checkpoints=log)[None].findings[-1:]
    assert str(UIDS["beta"]) in finding.what


def test_a_thread_of_the_checkpoint_must_have_been_walked_and_not_only_be_there(
    forger: psycopg.Connection[Any], readers: dict[str, Face], log: cs.CheckpointLog
) -> None:
    """Only threads after the start of the walk are reported as missing."""
    for uid in UIDS.values():
        change(forger, "UPDATE compaction_store.threads SET thread_id = 'alpha' WHERE thread_uid = %s", uid)
    first, *others = sorted(UIDS.values())
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) == set(UIDS.values()) - {UIDS["alpha"]}
    for table in TABLES:
        forger.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = ANY (%s)".encode(), [[*UIDS.values()]])
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) == {None}
    told = [reports(readers["acme"], level="checkpoint", checkpoints=log, after=uid) for uid in (None, first)]
    assert [len(found[None].findings) for found in told] == [4, 3]
    assert str(others[0]) in told[1][None].findings[0].what


def test_an_erased_thread_and_another_that_is_called_as_its_stub(
    forger: psycopg.Connection[Any], readers: dict[str, Face], url: str
) -> None:
    with cs.Store.open(url, tenant="acme") as store:
        store.release("beta", reason="r")
        store.erase("beta", reason="r")
    stub = erasure.stub_name(UIDS["beta"])
    assert wrong(readers["acme"]) == set()
    change(forger, "UPDATE compaction_store.threads SET thread_id = %s WHERE thread_uid = %s", stub, UIDS["gamma"])
    found = reports(readers["acme"])
    assert [found[UIDS[name]].thread_id for name in ("beta", "gamma")] == [stub, stub]
    assert wrong(readers["acme"]) == {UIDS["gamma"]}


_VALUES = {
    "threads": ("created_at = '294276-12-31'", "created_at = 'infinity'", "created_at = '4713-01-01 BC'"),
    "heads": (
        "last_at = '294276-12-31'", "head = ''", "last_seq = 9223372036854775807", "last_pos = -9223372036854775808",
        "last_pos = 9223372036854775807", "last_number = -1", "erased_pos = -9223372036854775808",
    ),
    "messages": (
        "created_at = '294276-12-31'", "created_at = '10031-01-01'", "created_at = '-infinity'", "payload = '[1]'",
        "payload = ('{\"role\":\"user\",\"n\":' || repeat('9', 5000) || '}')::json", "payload = 'null'",
        "payload = (repeat('[', 3000) || repeat(']', 3000))::json", "meta = '1'", "salt = ''", "entry = ''",
        "commitment = ''", "role = repeat('x', 100000)", "key = E'\\n'", "receipt = '{'", "tokens = -1",
        "redacted_pos = -9223372036854775808", "call_size = -1", "meta_commitment = ''", "pos = -9223372036854775808",
        "seq = -9223372036854775808", "seq = 9223372036854775807",
    ),
    "compactions": (
        "created_at = '294276-12-31'", "body = '[]'", "body = ('{\"a\":' || repeat('9', 5000) || '}')::json",
        "body = '{}'", "inputs = '{NULL}'", "inputs = '{{1,2},{3,4}}'", "source_end = ''", "start_seq = NULL",
        "outcome = ''", "end_seq = -9223372036854775808", "number = 9223372036854775807", "tokens_after = -1",
    ),
    "events": (
        "created_at = '294276-12-31'", "body = '1'", "kind = 'redaction'", "kind = ''", "salt = NULL",
        "body = (repeat('{\"a\":', 3000) || '1' || repeat('}', 3000))::json", "pos = 9223372036854775807",
    ),
}  # fmt: skip


def test_no_value_in_any_column_ends_the_walk(
    forger: psycopg.Connection[Any], readers: dict[str, Face], log: cs.CheckpointLog
) -> None:
    missed = []
    for table, values in _VALUES.items():
        for value in values:
            row = {"messages": " AND seq = 5", "compactions": " AND number = 1"}.get(table, "")
            with forger.transaction(force_rollback=False):
                forger.execute(f"CREATE TEMP TABLE kept AS TABLE compaction_store.{table}".encode())
                change(forger, f"UPDATE compaction_store.{table} SET {value} WHERE thread_uid = %s{row}", UIDS["beta"])
            for options in ({}, {"level": "structure"}, {"level": "checkpoint", "checkpoints": log}):
                content = options == {"level": "structure"} and value.startswith(("payload", "body", "meta ="))
                if not content and UIDS["beta"] not in wrong(readers["acme"], **options):
                    missed.append((table, value, options))
            change(forger, f"DELETE FROM compaction_store.{table}")
            names = ", ".join(
                row[0]
                for row in forger.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = 'compaction_store'"
                    " AND table_name = %s AND is_generated = 'NEVER'",
                    [table],
                )
            )
            change(forger, f"INSERT INTO compaction_store.{table} ({names}) SELECT {names} FROM kept")
            forger.execute("DROP TABLE kept")
    assert missed == []
    assert wrong(readers["acme"]) == set()


@pytest.mark.parametrize("column", ["messages.payload", "messages.meta", "compactions.body", "events.body"])
def test_a_column_that_holds_no_json_ends_no_walk(
    forger: psycopg.Connection[Any], readers: dict[str, Face], column: str
) -> None:
    table, name = column.split(".")
    forger.execute(f"ALTER TABLE compaction_store.{table} ALTER {name} TYPE text".encode())
    for text in ("x", "", '{"a":', "NaN", '{"a":1}{'):
        change(forger, f"UPDATE compaction_store.{table} SET {name} = %s", text)
        assert wrong(readers["acme"]) == set(UIDS.values())


def test_a_walk_of_many_threads_goes_in_pages_and_comes_by_each_once(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    """There are 2,500 keys: heads of a thousand threads, names of others, and rows of threads without either."""
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL")
    superuser.execute(
        "INSERT INTO compaction_store.heads (thread_uid, tenant, head)"
        " SELECT gen_random_uuid(), 'acme', '' FROM generate_series(1, 1000)"
    )
    superuser.execute(
        "INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id)"
        " SELECT gen_random_uuid(), 'acme', 'n' || i FROM generate_series(1, 700) AS i"
    )
    superuser.execute(
        "INSERT INTO compaction_store.messages"
        " (thread_uid, seq, pos, created_at, tokens, tenant, counter, commitment, entry)"
        " SELECT gen_random_uuid(), 2 ^ (i % 11), 1, now(), 1, 'acme', 'c', '', '' FROM generate_series(1, 800) AS i"
    )
    superuser.execute(
        "INSERT INTO compaction_store.heads (thread_uid, tenant, head)"
        " SELECT gen_random_uuid(), 'globex', '' FROM generate_series(1, 50)"
    )
    keys = []
    for address in (url, as_role(url, AUDITOR)):
        with cs.Reader.open(address, tenant="acme") as reader:
            found = list(reader.verify_all(level="structure"))
        assert all(report.findings for report in found)
        keys.append([str(report.thread_uid) for report in found])
    assert len(keys[0]) == 2500
    assert keys[0] == keys[1] == sorted(set(keys[0]))


def test_keys_are_listed_from_indexes_without_reading_the_logs(url: str, superuser: psycopg.Connection[Any]) -> None:
    """Reads a few index entries for a thread of ten thousand messages, and none of another tenant."""
    with cs.Store.open(url, tenant="acme") as store, cs.Store.open(url, tenant="globex") as other:
        for name in NAMES:
            store.append(name, {"role": "user"})
        other.load("long", ({"role": "user", "content": str(n)} for n in range(10_000)), tokens=1)
    superuser.execute("VACUUM ANALYZE compaction_store.messages")
    superuser.execute("SET role compaction_store_auditor")
    for tenant, most in (("acme", 4), ("globex", 14)):
        superuser.execute(f"SET compaction_store.tenant = '{tenant}'".encode())
        query = listing._listings(tenant, None, 1000)[2].compile(
            dialect=cursor.DIALECT, compile_kwargs={"literal_binds": True}
        )
        [[plan]] = superuser.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode()).fetchall()
        text = json.dumps(plan)
        assert "messages_listed_idx" in text
        assert '"Index Only Scan"' in text
        assert "Seq Scan" not in text
        assert max(_rows(plan[0]["Plan"])) <= most


def _rows(node: dict[str, Any]) -> Iterator[float]:
    yield node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    for child in node.get("Plans", ()):
        yield from _rows(child)
