"""`audit.verify()` skips nothing that is stored under a tenant, even if a thread's name, head or key was changed.

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
from support.keys import key_of
from support.superuser_edits import TABLES, as_role, make_text, unlock

import compaction_store as cs
from compaction_store.checkpoints import SigningKey
from compaction_store.integrity import erasure
from compaction_store.postgres.queries import listing

NAMES = ("alpha", "beta", "gamma", "delta")
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
            store.custody.hold(name, reason="audit")
        other.append("alpha", {"role": "user", "content": "of the other tenant"})
        store.audit.checkpoint(KEY, log)
    unlock(superuser)
    return superuser


@pytest.fixture
def uids(forger: psycopg.Connection[Any]) -> dict[str, UUID]:
    """The keys of the four threads, by name."""
    return {name: key_of(forger, name, "acme") for name in NAMES}


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
    found = [r for r in reader.audit.verify(**options) if r.thread_uid is not None or r.level != "schema"]
    assert len({report.thread_uid for report in found}) == len(found)
    return {report.thread_uid: report for report in found}


def wrong(reader: Face, **options: Any) -> set[UUID | None]:
    return {uid for uid, report in reports(reader, **options).items() if report.findings}


def said(reader: Face, uid: UUID) -> str:
    return "; ".join(finding.what for finding in reports(reader)[uid].findings)


def test_what_is_sound_has_a_report_for_each_key_and_no_finding(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], log: cs.CheckpointLog
) -> None:
    stored = {row[0] for row in forger.execute("SELECT thread_uid FROM compaction_store.heads WHERE tenant = 'acme'")}
    found = list(readers["acme"].audit.verify())
    assert [report.thread_uid for report in found] == sorted(stored)
    assert {report.thread_id: report.thread_uid for report in found} == uids
    assert wrong(readers["acme"]) == wrong(readers["globex"]) == set()
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) == set()


_UNREAD = "the thread could not be read by the deadline: its rows were not checked"
_NOT_ITS_NAME = "the name is not the one that the thread was made with"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("alpha", f"other threads of the tenant have the same name; {_NOT_ITS_NAME}"),
        ("", f"the thread is stored under an invalid name; {_NOT_ITS_NAME}"),
        ("x" * 300, f"the thread is stored under an invalid name; {_NOT_ITS_NAME}"),
        ("nobody", _NOT_ITS_NAME),
        ("\x7f", _NOT_ITS_NAME),
        ("erased:{alpha}", "the thread has the name of another thread's stub; the thread is called erased"),
        ("erased:{beta}", "the thread is called erased, but its head does not say so"),
        ("x" * 5000, "the thread is stored under an invalid name; the thread is stored under another name"),
    ],
)
def test_a_thread_under_a_name_that_is_not_its_own_is_walked_and_reported(
    forger: psycopg.Connection[Any],
    readers: dict[str, Face],
    log: cs.CheckpointLog,
    uids: dict[str, UUID],
    name: str,
    what: str,
) -> None:
    """Its content as well: a message that was rewritten besides is found in the same report."""
    name = name.format(**uids)
    change(forger, "UPDATE compaction_store.threads SET thread_id = %s WHERE thread_uid = %s", name, uids["beta"])
    change(
        forger,
        'UPDATE compaction_store.messages SET payload = \'{"role":"user"}\' WHERE thread_uid = %s AND seq = 5',
        uids["beta"],
    )
    found = reports(readers["acme"])
    assert set(found) == set(uids.values())
    # Two threads of one name are both reported: nobody can tell which of them a reader gets by it.
    expected = {uids["beta"], uids["alpha"]} if name == "alpha" else {uids["beta"]}
    assert wrong(readers["acme"]) == wrong(readers["acme"], level="structure") == expected
    told = [finding.what for finding in found[uids["beta"]].findings]
    assert any("not what was committed to" in finding for finding in told)
    # On a cluster there are findings on the table of names besides.
    others = [finding for finding in told if "committed to" not in finding and "table of names" not in finding]
    assert "; ".join(others).startswith(what)
    assert found[uids["beta"]].entries == 8
    assert uids["beta"] in wrong(readers["acme"], level="checkpoint", checkpoints=log)


@pytest.mark.one_server("Citus does not change the key of a row")
def test_two_threads_that_change_keys_are_both_reported(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID]
) -> None:
    for table in ("threads", "heads"):
        for old, new in (("alpha", None), ("beta", "alpha"), (None, "beta")):
            keys = [uids.get(name or "", UUID(int=5)) for name in (new, old)]
            change(forger, f"UPDATE compaction_store.{table} SET thread_uid = %s WHERE thread_uid = %s", *keys)
        assert {uids["alpha"], uids["beta"]} <= wrong(readers["acme"], level="structure")


@pytest.mark.parametrize("tables", [("threads",), ("heads",), ("threads", "heads"), TABLES[2:], TABLES])
def test_a_thread_under_another_tenant_is_reported_on_both_sides_or_missed_at_the_checkpoint(
    forger: psycopg.Connection[Any],
    readers: dict[str, Face],
    uids: dict[str, UUID],
    log: cs.CheckpointLog,
    tables: tuple[str, ...],
) -> None:
    for table in tables:
        change(forger, f"UPDATE compaction_store.{table} SET tenant = 'globex' WHERE thread_uid = %s", uids["beta"])
    assert wrong(readers["acme"]) == (set() if tables == TABLES else {uids["beta"]})
    assert wrong(readers["globex"]) == {uids["beta"]}
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) & {uids["beta"], None}


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_thread_in_the_guise_of_another_tenants_is_reported(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], name: str
) -> None:
    theirs = key_of(forger, "alpha", "globex")
    change(
        forger,
        "UPDATE compaction_store.threads SET tenant = 'globex', thread_id = %s WHERE thread_uid = %s",
        name, uids["beta"],
    )  # fmt: skip
    assert wrong(readers["acme"]) == {uids["beta"]}
    assert wrong(readers["globex"]) == ({uids["beta"], theirs} if name == "alpha" else {uids["beta"]})


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
    uids: dict[str, UUID],
    log: cs.CheckpointLog,
    statements: tuple[str, ...],
    what: str,
) -> None:
    tables = {table: f"compaction_store.{table} WHERE thread_uid = '{uids['beta']}'" for table in TABLES}
    for statement in statements:
        change(forger, statement.format(**tables))
    assert wrong(readers["acme"], level="structure") == {uids["beta"]}
    assert what in said(readers["acme"], uids["beta"])
    found = reports(readers["acme"], level="checkpoint", checkpoints=log)
    assert any("checkpoint" in finding.what for finding in found[uids["beta"]].findings)


@pytest.mark.one_server("the table of names still has the thread")
def test_a_thread_of_which_nothing_is_left_is_missed_at_the_checkpoint(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], log: cs.CheckpointLog
) -> None:
    for table in TABLES:
        forger.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s".encode(), [uids["beta"]])
    assert wrong(readers["acme"]) == set()
    [finding] = reports(readers["acme"], level="checkpoint", checkpoints=log)[None].findings[-1:]
    assert str(uids["beta"]) in finding.what


@pytest.mark.one_server("the table of names still has the threads")
def test_a_thread_of_the_checkpoint_must_have_been_walked_and_not_only_be_there(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], log: cs.CheckpointLog
) -> None:
    """Behind the place where a walk goes on, and nowhere else."""
    for uid in uids.values():
        change(forger, "UPDATE compaction_store.threads SET thread_id = 'alpha' WHERE thread_uid = %s", uid)
    first, *others = sorted(uids.values())
    found = reports(readers["acme"], level="checkpoint", checkpoints=log)
    assert {uid for uid, report in found.items() if report.findings} == set(uids.values())
    assert [finding.what for finding in found[uids["alpha"]].findings] == [
        "other threads of the tenant have the same name"
    ]
    for table in TABLES:
        forger.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = ANY (%s)".encode(), [[*uids.values()]])
    assert wrong(readers["acme"], level="checkpoint", checkpoints=log) == {None}
    told = [reports(readers["acme"], level="checkpoint", checkpoints=log, after=uid) for uid in (None, first)]
    assert [len(found[None].findings) for found in told] == [4, 3]
    assert str(others[0]) in told[1][None].findings[0].what


def test_an_erased_thread_and_another_that_is_called_as_its_stub(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], url: str
) -> None:
    with cs.Store.open(url, tenant="acme") as store:
        store.custody.release("beta", reason="r")
        store.custody.erase("beta", reason="r")
    stub = erasure.stub_name(uids["beta"])
    assert wrong(readers["acme"]) == set()
    change(forger, "UPDATE compaction_store.threads SET thread_id = %s WHERE thread_uid = %s", stub, uids["gamma"])
    found = reports(readers["acme"])
    assert [found[uids[name]].thread_id for name in ("beta", "gamma")] == [stub, stub]
    assert wrong(readers["acme"]) == {uids["beta"], uids["gamma"]}
    assert [finding.what for finding in found[uids["beta"]].findings] == [
        "other threads of the tenant have the same name"
    ]
    assert "the thread has the name of another thread's stub" in said(readers["acme"], uids["gamma"])


_VALUES = {
    "threads": (
        "created_at = '294276-12-31'", "created_at = 'infinity'", "created_at = '4713-01-01 BC'", "salt = NULL",
        "salt = ''", "salt = salt || '\\x00'", "commitment = ''", "commitment = sha256('x')",
    ),
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
        "login = ''", "login = repeat('x', 100000)", "kind = 'of_a_later_release'", "outcome = 'of_a_later_release'",
    ),
    "events": (
        "created_at = '294276-12-31'", "body = '1'", "kind = 'redaction'", "kind = ''", "salt = NULL",
        "body = (repeat('{\"a\":', 3000) || '1' || repeat('}', 3000))::json", "pos = 9223372036854775807",
        "critical = NOT critical", "login = ''", "login = 'somebody else'", "kind = 'of_a_later_release'",
    ),
}  # fmt: skip


def test_no_value_in_any_column_ends_the_walk(
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], log: cs.CheckpointLog
) -> None:
    missed = []
    for table, values in _VALUES.items():
        for value in values:
            row = {"messages": " AND seq = 5", "compactions": " AND number = 1"}.get(table, "")
            with forger.transaction(force_rollback=False):
                forger.execute(f"CREATE TEMP TABLE kept AS TABLE compaction_store.{table}".encode())
                change(forger, f"UPDATE compaction_store.{table} SET {value} WHERE thread_uid = %s{row}", uids["beta"])
            for options in ({}, {"level": "structure"}, {"level": "checkpoint", "checkpoints": log}):
                content = options == {"level": "structure"} and value.startswith(("payload", "body", "meta ="))
                if not content and uids["beta"] not in wrong(readers["acme"], **options):
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
    forger: psycopg.Connection[Any], readers: dict[str, Face], uids: dict[str, UUID], column: str
) -> None:
    table, name = column.split(".")
    make_text(forger, table, name)
    for text in ("x", "", '{"a":', "NaN", '{"a":1}{'):
        change(forger, f"UPDATE compaction_store.{table} SET {name} = %s", text)
        assert wrong(readers["acme"]) == set(uids.values())


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
        "INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, created_at)"
        " SELECT compaction_store.new_thread_uid(now()), 'acme', 'n' || i, '', '', now()"
        " FROM generate_series(1, 700) AS i"
    )
    superuser.execute(
        "INSERT INTO compaction_store.messages"
        " (thread_uid, seq, pos, created_at, tokens, tenant, counter, login, commitment, entry)"
        " SELECT gen_random_uuid(), 2 ^ (i % 11), 1, now(), 1, 'acme', 'c', 'app', '', ''"
        " FROM generate_series(1, 800) AS i"
    )
    superuser.execute(
        "INSERT INTO compaction_store.heads (thread_uid, tenant, head)"
        " SELECT gen_random_uuid(), 'globex', '' FROM generate_series(1, 50)"
    )
    keys = []
    for address in (url, as_role(url, AUDITOR)):
        with cs.Reader.open(address, tenant="acme") as reader:
            found = list(reader.audit.verify(level="structure"))
        assert all(report.findings for report in found)
        keys.append([str(report.thread_uid) for report in found])
    assert len(keys[0]) == 2500
    assert keys[0] == keys[1] == sorted(set(keys[0]))


def test_a_thread_that_cannot_be_read_by_the_deadline_is_a_finding_and_the_audit_goes_on(
    forger: psycopg.Connection[Any], faces: Faces, url: str, uids: dict[str, UUID]
) -> None:
    [[definition]] = forger.execute("SELECT pg_get_functiondef('compaction_store.entries'::regproc)").fetchall()
    slow = f"BEGIN IF p_thread_uid = '{uids['beta']}' THEN PERFORM pg_sleep(60); END IF; "
    forger.execute(definition.replace("BEGIN", slow, 1).encode())
    reader = faces.open(as_role(url, AUDITOR), tenant="acme", deadline=0.5)
    found = reports(reader)
    assert set(found) == set(uids.values())
    assert [f.what for f in found[uids["beta"]].findings] == [_UNREAD]
    assert not [uid for uid, report in found.items() if report.findings and uid != uids["beta"]]
    assert [f.what for f in reader.audit.verify("beta").findings] == [_UNREAD]
    assert reader.audit.verify("alpha").findings == ()


def test_an_audit_ends_if_the_server_no_longer_answers_at_all(
    forger: psycopg.Connection[Any], faces: Faces, url: str
) -> None:
    for name in ("entries", "thread"):
        [[definition]] = forger.execute(
            "SELECT pg_get_functiondef(%s::regproc)", (f"compaction_store.{name}",)
        ).fetchall()
        forger.execute(definition.replace("BEGIN", "BEGIN PERFORM pg_sleep(60);", 1).encode())
    reader = faces.open(as_role(url, AUDITOR), tenant="acme", deadline=0.5)
    with pytest.raises(cs.DatabaseUnavailable, match="by the deadline"):
        list(reader.audit.verify())


def test_keys_are_listed_from_indexes_without_reading_the_logs(url: str, superuser: psycopg.Connection[Any]) -> None:
    """Reads a few index entries for a thread of ten thousand messages, and none of another tenant."""
    with cs.Store.open(url, tenant="acme") as store, cs.Store.open(url, tenant="globex") as other:
        for name in NAMES:
            store.append(name, {"role": "user"}, raw=True)
        other.load.messages("long", ({"role": "user", "content": str(n)} for n in range(10_000)), tokens=1)
    superuser.execute("VACUUM ANALYZE compaction_store.messages")
    superuser.execute("SET role compaction_store_auditor")
    for tenant, most in (("acme", 4), ("globex", 14)):
        superuser.execute(f"SET compaction_store.tenant = '{tenant}'".encode())
        query = listing.paged(listing._SQL["messages"], None)
        values = {"tenant": tenant, "after": UUID(int=0), "limit": 1000}
        [[plan]] = superuser.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode(), values).fetchall()
        text = json.dumps(plan)
        assert "messages_listed_idx" in text
        assert '"Index Only Scan"' in text
        assert "Seq Scan" not in text
        assert max(_rows(plan[0]["Plan"])) <= most


def _rows(node: dict[str, Any]) -> Iterator[float]:
    yield node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    for child in node.get("Plans", ()):
        yield from _rows(child)
