"""`verify` finds every change of a stored row, or the column is on the list that docs/integrity.md publishes."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support import platforms
from support.keys import key_of
from support.paths import ROOT
from support.view_base import base

import compaction_store as cs
from compaction_store import migrate
from compaction_store.integrity import chain, rows
from compaction_store.models import Level
from compaction_store.postgres import tables

DOCUMENT = ROOT / "docs" / "integrity.md"
UNPROTECTED = set(re.findall(r"^\| `(\w+\.\w+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
LEVELS: tuple[Level, ...] = ("structure", "content")
TABLES = ("messages", "compactions", "events", "threads", "heads")
CONTENT = {
    "messages.salt", "messages.payload", "messages.meta", "compactions.salt", "compactions.body", "events.salt",
    "events.body",
}  # fmt: skip
COLUMNS = [(table, c.name) for table in TABLES for c in tables.metadata.tables[f"compaction_store.{table}"].columns]

MESSAGES, NOT_APPLIED = 12, 2
LAST = MESSAGES + NOT_APPLIED + 2 + 1


@pytest.fixture(scope="module")
def shared(server: Any) -> Iterator[str]:
    """One migrated database for all threads that the tests tamper with."""
    name = f"cs_tampered_{os.getpid()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        migrate.upgrade(server.database(name))
        yield server.database(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def tampered(shared: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser with all triggers disabled, and without constraints except the keys."""
    with psycopg.connect(shared, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL")
        checks = connection.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint"
            " WHERE contype = 'c' AND connamespace = 'compaction_store'::regnamespace"
        ).fetchall()
        for table, check in checks:
            connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {check}")
        yield connection


@pytest.fixture(scope="module")
def keeper(shared: str) -> Iterator[cs.Store]:
    with cs.Store.open(platforms.for_stores(shared)) as store:
        yield store


def commit(connection: psycopg.Connection[Any], thread_id: str, *records: dict[str, Any]) -> list[tuple[Any, ...]]:
    texts = [
        {
            "columns": columns, "salt": uuid.uuid4().hex,
            "body": json.dumps({"replacement": [{"role": "user", "content": "in short"}]}),
        }
        for columns in records
    ]  # fmt: skip
    uid = key_of(connection, thread_id)
    return connection.execute(
        "SELECT * FROM compaction_store.commit_compactions(%s, 'default', %s, %s, %s, %s, %s)",
        (uid, thread_id, uuid.uuid4(), *base(connection, uid), json.dumps(texts)),
    ).fetchall()


def full_record(start: int, end: int) -> dict[str, Any]:
    return {
        "kind": "summary", "outcome": "applied", "start_seq": start, "end_seq": end, "tokens_after": 5,
        "callback": "app.compact", "trigger": "budget", "actor": "me", "model": "model-1", "counter": "bytes/4",
        "inputs": [0],
    }  # fmt: skip


@pytest.fixture
def thread(keeper: cs.Store, tampered: psycopg.Connection[Any]) -> str:
    """A sound thread of 12 messages, 2 records not applied, 2 applied, an event: with keys, meta and a receipt."""
    thread_id = uuid.uuid4().hex
    keeper.append(thread_id, {"role": "user", "content": "hi"}, key="one", meta={"source": "web"})
    view = keeper.view(thread_id)
    keeper.append(thread_id, {"role": "assistant", "content": "hi"}, view=view)
    keeper.append(thread_id, [{"role": "user", "content": str(i)} for i in range(9)], key="many", meta={"n": 1})
    keeper.append(thread_id, {"type": "reasoning"}, raw=True)
    failed = {"kind": "summary", "outcome": "failed"}
    commit(tampered, thread_id, failed, failed)
    commit(tampered, thread_id, full_record(2, 6))
    commit(tampered, thread_id, full_record(8, 9))
    keeper.custody.hold(thread_id, reason="audit", actor="me")
    return thread_id


def findings(keeper: cs.Store, thread_id: str, level: Level = "content") -> tuple[cs.Finding, ...]:
    try:
        return keeper.audit.verify(thread_id, level=level).findings
    except cs.ThreadNotFound:
        # The name leads nowhere: only a walk over everything that is stored shows what is left of the thread.
        return tuple(finding for report in keeper.audit.verify(level=level) for finding in report.findings)


def test_the_columns_under_test_are_all_there_are(tampered: psycopg.Connection[Any]) -> None:
    rows = tampered.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'compaction_store' AND table_name NOT IN ('alembic_version', 'staged', 'turns')"
        " AND table_name NOT LIKE 'audit%'"
    ).fetchall()
    assert set(rows) == set(COLUMNS)
    assert {f"{table}.{column}" for table, column in COLUMNS} >= UNPROTECTED
    assert len(UNPROTECTED) == 15


def test_the_thread_to_be_tampered_with_is_sound(keeper: cs.Store, thread: str) -> None:
    for level in LEVELS:
        report = keeper.audit.verify(thread, level=level)
        assert report.findings == ()
        assert (report.level, report.entries, report.redacted) == (level, LAST, 0)


# The rows that are changed: full and sparse, first, middle and last of their kind.
_ROWS = {"messages": "seq IN (1, 3, 12)", "compactions": "number IN (1, 3)"}
_OTHER = {
    "bigint": ["{c} + 1", "{c} + 1000", "7", "0", "-1"],
    "integer": ["{c} + 1", "7", "0", "-1"],
    "text": ["{c} || 'x'", "{c} || ' '", "upper({c})", "''", "'forged'"],
    "bytea": ["set_byte({c}, 0, get_byte({c}, 0) # 1)", "{c} || '\\x00'::bytea", "''::bytea", "sha256('forged')"],
    "boolean": ["NOT {c}"],
    "uuid": ["'00000000-0000-8000-8000-000000000000'::uuid"],
    "timestamp with time zone": [
        "{c} + interval '1 microsecond'", "{c} - interval '1 microsecond'", "{c} + interval '1 year'",
        "'2001-01-01T00:00:00Z'", "'infinity'", "'-infinity'",
    ],
    "json": [
        "('{{\"role\":\"user\",\"content\":\"forged\"}}')::json", "({c}::text || ' ')::json", "'[1]'::json", "'1'",
    ],
    "ARRAY": ["{c} || 3::bigint", "'{{}}'::bigint[]", "'{{NULL}}'::bigint[]", "'{{2,1}}'::bigint[]"],
}  # fmt: skip


class Tamperer:
    """A superuser's changes to one thread, each undone at the end of its block."""

    def __init__(self, connection: psycopg.Connection[Any], thread_id: str) -> None:
        self.connection = connection
        self.uid = key_of(connection, thread_id)

    def run(self, statement: str, *parameters: Any) -> int:
        return self.connection.execute(statement.encode(), parameters or None).rowcount

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows to change, each by its key."""
        key = [c.name for c in tables.metadata.tables[f"compaction_store.{table}"].primary_key]
        found = self.connection.execute(
            f"SELECT {', '.join(key)} FROM compaction_store.{table}"
            f" WHERE thread_uid = '{self.uid}' AND {_ROWS.get(table, 'true')}".encode()
        ).fetchall()
        return [dict(zip(key, row, strict=True)) for row in found]

    def variants(self, table: str, column: str) -> list[str]:
        kind, nullable = self.connection.execute(
            "SELECT data_type, is_nullable = 'YES' FROM information_schema.columns"
            " WHERE table_schema = 'compaction_store' AND table_name = %s AND column_name = %s",
            (table, column),
        ).fetchall()[0]
        values = [value.format(c=column) for value in _OTHER[kind]] + (["NULL"] if nullable else [])
        # Python has no infinite time, so readers refuse one even in a column that the chain does not protect. A value
        # that is not an object breaks the rule for documents in any column.
        left_out = ("infinity", "'[1]'", "'1'") if f"{table}.{column}" in UNPROTECTED else ()
        return [v for v in values if not any(part in v for part in left_out)]

    @contextmanager
    def undone(self, *names: str) -> Iterator[None]:
        for table in names:
            self.run(f"CREATE TEMP TABLE kept_{table} AS SELECT * FROM compaction_store.{table}")
        try:
            yield
        finally:
            for table in names:
                columns = tables.metadata.tables[f"compaction_store.{table}"].columns
                listed = ", ".join(c.name for c in columns if c.computed is None)
                self.run(f"TRUNCATE compaction_store.{table}")
                self.run(f"INSERT INTO compaction_store.{table} ({listed}) SELECT {listed} FROM kept_{table}")
                self.run(f"DROP TABLE kept_{table}")


@pytest.fixture
def tamperer(tampered: psycopg.Connection[Any], thread: str) -> Iterator[Tamperer]:
    yield Tamperer(tampered, thread)
    for table in TABLES:
        tampered.execute(f"TRUNCATE compaction_store.{table}".encode())


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[".".join(c) for c in COLUMNS])
def test_a_changed_column_is_found_or_on_the_published_list(
    keeper: cs.Store, tamperer: Tamperer, thread: str, table: str, column: str
) -> None:
    name = f"{table}.{column}"
    if name in {"heads.view_tokens_coarse", "heads.active_hour", "compactions.span_node"}:
        assert name in UNPROTECTED
        with pytest.raises(psycopg.errors.GeneratedAlways):
            tamperer.run(f"UPDATE compaction_store.{table} SET {column} = NULL")
        return
    is_protected = name not in UNPROTECTED
    wrong = set()
    changes = 0
    for value, row in itertools.product(tamperer.variants(table, column), tamperer.rows(table)):
        where = " AND ".join(f"{key} = '{part}'" for key, part in row.items())
        with tamperer.undone(table):
            try:
                changed = tamperer.run(
                    f"UPDATE compaction_store.{table} SET {column} = {value}"
                    f" WHERE {where} AND {column}::text IS DISTINCT FROM ({value})::text"
                )
            except (psycopg.errors.UniqueViolation, psycopg.errors.NotNullViolation, psycopg.DataError):
                continue
            changes += changed
            for level in LEVELS if changed else ():
                expected = is_protected and (level == "content" or name not in CONTENT)
                try:
                    is_found = bool(findings(keeper, thread, level))
                except Exception as error:  # noqa: BLE001 — a verifier that gives up has found nothing
                    wrong.add(f"{value}: {level} raises {type(error).__name__}")
                else:
                    # A row without its salt is found at both levels; the list only promises content.
                    if is_found != expected and not (is_found and name in CONTENT):
                        wrong.add(f"{value}: {level} finds {is_found}")
    assert changes
    assert sorted(wrong) == []
    assert findings(keeper, thread) == ()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {messages} AND seq = 1",
        "DELETE FROM {messages} AND seq = 6",
        "DELETE FROM {messages} AND seq = 12",
        "DELETE FROM {messages} AND seq > 9",
        "DELETE FROM {messages}",
        "DELETE FROM {compactions} AND number = 1",
        "DELETE FROM {compactions} AND number = 4",
        "DELETE FROM {compactions}",
        "DELETE FROM {events}",
        "DELETE FROM {heads}",
    ],
)
def test_a_removed_row_is_found(keeper: cs.Store, tamperer: Tamperer, thread: str, statement: str, level: Any) -> None:
    tables = {t: f"compaction_store.{t} WHERE thread_uid = '{tamperer.uid}'" for t in TABLES}
    assert tamperer.run(statement.format(**tables))
    assert findings(keeper, thread, level)


def forged_message(tamperer: Tamperer, *, seq: int, pos: int, previous: bytes) -> None:
    """Returns a well-formed message that is chained to an entry."""
    salt, payload = bytes(16), '{"role":"user","content":"forged"}'
    at = tamperer.connection.execute(
        "SELECT max(created_at) FROM compaction_store.messages WHERE thread_uid = %s", (tamperer.uid,)
    ).fetchall()[0][0]
    commitment = chain.commitment(salt, payload.encode())
    columns: dict[str, Any] = dict.fromkeys(chain.COLUMNS["message"]) | {"role": "user", "tokens": 1, "counter": "c"}
    header = chain.message_header(**columns | {"login": "app"}, meta_commitment=None)
    entry = chain.entry(previous, pos, seq, chain.microseconds(at), commitment, header)
    tamperer.run(
        "INSERT INTO compaction_store.messages"
        " (thread_uid, seq, pos, created_at, tokens, tenant, role, counter, login, salt, commitment, entry, payload)"
        " VALUES (%s, %s, %s, %s, 1, 'default', 'user', 'c', 'app', %s, %s, %s, %s)",
        tamperer.uid, seq, pos, at, salt, commitment, entry, payload,
    )  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_room_made", [True, False])
def test_a_row_forged_in_the_middle_is_found(
    keeper: cs.Store, tamperer: Tamperer, thread: str, is_room_made: bool, level: Any
) -> None:
    previous = tamperer.connection.execute(
        "SELECT entry FROM compaction_store.messages WHERE thread_uid = %s AND seq = 5", (tamperer.uid,)
    ).fetchall()[0][0]
    if is_room_made:
        for step in (1000, -999):
            tamperer.run(
                "UPDATE compaction_store.messages SET seq = seq + %s, pos = pos + %s WHERE thread_uid = %s AND seq > 5",
                step, step, tamperer.uid,
            )  # fmt: skip
    else:
        tamperer.run("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq = 6", tamperer.uid)
    forged_message(tamperer, seq=6, pos=6, previous=previous)
    assert findings(keeper, thread, level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_forged_past_the_head_is_found(keeper: cs.Store, tamperer: Tamperer, thread: str, level: Any) -> None:
    """`replay` would return it."""
    forged_message(tamperer, seq=13, pos=LAST + 1, previous=keeper.thread(thread).head)
    assert findings(keeper, thread, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seq", [0, -1, -(2**63)])
def test_a_row_forged_before_the_first_is_found(
    keeper: cs.Store, tamperer: Tamperer, thread: str, seq: int, level: Any
) -> None:
    """`view` would show it."""
    forged_message(tamperer, seq=seq, pos=0, previous=bytes(32))
    assert findings(keeper, thread, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("number", "pos"), [(0, 0), (-1, -1), (3, 3), (5, LAST), (5, LAST + 1)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_forged_record_is_found(
    keeper: cs.Store, tamperer: Tamperer, thread: str, number: int, pos: int, is_first: bool, level: Any
) -> None:
    """Such a record would fold the view. It is also found in a thread without records."""
    if is_first:
        other = uuid.uuid4().hex
        keeper.append(other, [{"n": i} for i in range(20)], raw=True)
    else:
        other = thread
        if number == 3:
            tamperer.run("DELETE FROM compaction_store.compactions WHERE thread_uid = %s AND number = 3", tamperer.uid)
    columns = ", ".join(column.name for column in tables.compactions.columns if column.computed is None)
    tamperer.run(
        f"INSERT INTO compaction_store.compactions ({columns}) SELECT {columns} FROM ("
        " SELECT (json_populate_record(c, json_build_object("
        " 'thread_uid', %s::text, 'number', %s::int8, 'pos', %s::int8, 'start_seq', 11, 'end_seq', 12))).*"
        " FROM compaction_store.compactions AS c WHERE thread_uid = %s AND number = 4) AS forged",
        str(key_of(tamperer.connection, other)), number, pos, tamperer.uid,
    )  # fmt: skip
    assert findings(keeper, other, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pos", [0, 3, 12])
def test_a_forged_event_is_found_in_a_thread_without_events(
    keeper: cs.Store, tamperer: Tamperer, thread: str, pos: int, level: Any
) -> None:
    other = uuid.uuid4().hex
    keeper.append(other, [{"n": i} for i in range(20)], raw=True)
    tamperer.run(
        "INSERT INTO compaction_store.events SELECT (json_populate_record(e, json_build_object("
        " 'thread_uid', %s::text, 'pos', %s::int8))).* FROM compaction_store.events AS e WHERE thread_uid = %s",
        str(key_of(tamperer.connection, other)), pos, tamperer.uid,
    )  # fmt: skip
    assert thread != other
    assert findings(keeper, other, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_pos_swapped_too", [True, False])
@pytest.mark.parametrize(("one", "other"), [(4, 5), (1, 12), (11, 12)])
def test_two_swapped_rows_are_found(
    keeper: cs.Store, tamperer: Tamperer, thread: str, one: int, other: int, is_pos_swapped_too: bool, level: Any
) -> None:
    for old, new in ((one, 1000), (other, one), (1000, other)):
        pos = f", pos = {new}" if is_pos_swapped_too else ""
        assert tamperer.run(
            f"UPDATE compaction_store.messages SET seq = {new}{pos} WHERE thread_uid = '{tamperer.uid}' AND seq = {old}"
        )
    assert findings(keeper, thread, level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_moved_to_another_thread_is_found_in_both(
    keeper: cs.Store, tamperer: Tamperer, thread: str, level: Any
) -> None:
    other = uuid.uuid4().hex
    keeper.append(other, [{"role": "user", "content": str(i)} for i in range(11)])
    tamperer.run(
        "UPDATE compaction_store.messages SET thread_uid = %s WHERE thread_uid = %s AND seq = 12",
        key_of(tamperer.connection, other), tamperer.uid,
    )  # fmt: skip
    tamperer.run("UPDATE compaction_store.heads SET last_seq = 12, last_pos = 12 WHERE last_seq = 11")
    assert findings(keeper, thread, level)
    assert findings(keeper, other, level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_chain_moved_to_another_key_of_the_same_time_is_found(
    keeper: cs.Store, tamperer: Tamperer, thread: str, level: Any
) -> None:
    uid = uuid.UUID(int=tamperer.uid.int ^ 1)
    for table in TABLES:
        tamperer.run(f"UPDATE compaction_store.{table} SET thread_uid = %s WHERE thread_uid = %s", uid, tamperer.uid)
    assert [(found.pos, found.what) for found in findings(keeper, thread, level)] == [
        (1, "the entry does not follow from its columns and the entry before")
    ]


def test_a_chain_under_another_name_is_found_where_the_name_was_and_where_it_is(
    keeper: cs.Store, tamperer: Tamperer, thread: str
) -> None:
    other = uuid.uuid4().hex
    tamperer.run("UPDATE compaction_store.threads SET thread_id = %s WHERE thread_uid = %s", other, tamperer.uid)
    with pytest.raises(cs.ThreadNotFound):
        keeper.audit.verify(thread)
    for name in (thread, other):
        assert [found.what for found in findings(keeper, name, "structure")] == [
            "the name is not the one that the thread was made with"
        ]


def test_a_tail_cut_with_its_head_is_seen_by_a_head_kept_elsewhere(
    keeper: cs.Store, tamperer: Tamperer, thread: str
) -> None:
    thread = uuid.uuid4().hex
    keeper.append(thread, [{"n": i} for i in range(10)], raw=True)
    kept = keeper.audit.verify(thread)
    uid = key_of(tamperer.connection, thread)
    tamperer.run("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq > 8", uid)
    assert findings(keeper, thread)
    tamperer.run(
        "UPDATE compaction_store.heads AS h SET last_seq = 8, last_pos = 8, head = m.entry"
        " FROM compaction_store.messages AS m WHERE m.thread_uid = h.thread_uid AND m.seq = 8 AND h.thread_uid = %s",
        uid,
    )
    cut = keeper.audit.verify(thread)
    assert cut.findings == ()  # as the document says
    assert (cut.entries, cut.head) != (kept.entries, kept.head)


def test_a_redaction_is_counted_and_is_no_finding(keeper: cs.Store, tamperer: Tamperer, thread: str) -> None:
    erased = keeper.custody.redact(thread, [1, 5], reason="asked", override="told to")
    # The two that failed have no span, so that they may repeat anything; the other two have them among their inputs.
    assert erased == cs.Redaction(thread, LAST + 1, (1, 5), (1, 2, 3, 4))
    for level in LEVELS:
        report = keeper.audit.verify(thread, level=level)
        assert (report.findings, report.redacted, report.redactions) == ((), 6, 1)
    tamperer.run("UPDATE compaction_store.messages SET redacted_pos = 17 WHERE redacted_pos = 18 AND seq = 5")
    assert [f.pos for f in findings(keeper, thread, "structure")] == [5]


@pytest.mark.parametrize("table", ["messages", "compactions"])
@pytest.mark.parametrize("change", ["redacted_pos = NULL", "salt = sha256('x')", "{body} = '{{}}'", "tenant = 'other'"])
def test_a_change_to_an_erased_row_is_found(
    keeper: cs.Store, tamperer: Tamperer, thread: str, table: str, change: str
) -> None:
    body = "payload" if table == "messages" else "body"
    ordinal = "seq" if table == "messages" else "number"
    keeper.custody.redact(thread, 3, reason="asked", override="told to")
    assert findings(keeper, thread) == ()
    tamperer.run(
        f"UPDATE compaction_store.{table} SET {change.format(body=body)}"
        f" WHERE thread_uid = '{tamperer.uid}' AND {ordinal} = 3"
    )
    assert findings(keeper, thread)


@pytest.mark.parametrize("payload", ["[1]", '"text"', "1" * 5000, "[" * 3000 + "]" * 3000])
def test_a_payload_that_is_no_message_is_a_finding_even_with_its_commitment(
    keeper: cs.Store, tamperer: Tamperer, thread: str, payload: str
) -> None:
    tamperer.run(
        "UPDATE compaction_store.messages SET payload = %s::json, commitment = compaction_store.commitment(salt, %s)"
        " WHERE thread_uid = %s AND seq = 1",
        payload, payload, tamperer.uid,
    )  # fmt: skip
    assert findings(keeper, thread)


def test_one_changed_row_is_one_finding_with_its_pos(keeper: cs.Store, tamperer: Tamperer, thread: str) -> None:
    tamperer.run('UPDATE compaction_store.messages SET payload = \'{"role":"user"}\' WHERE seq = 5')
    tamperer.run("UPDATE compaction_store.messages SET tokens = tokens + 1 WHERE seq = 7")
    assert [f.pos for f in findings(keeper, thread)] == [5, 7]
    assert [f.pos for f in findings(keeper, thread, "structure")] == [7]
    assert "forged" not in repr(findings(keeper, thread))


def test_a_long_healthy_thread_has_no_findings_at_either_level(store: Any, superuser: Any) -> None:
    for i in range(5):
        store.append("t", {"role": "user", "content": f"größe {i} \ud800 \0"}, key=f"k{i}", meta={"n": i})
    store.append("t", {"role": "assistant", "content": "…"}, view=store.view("t"))
    for i in range(0, 1800, 300):
        store.append("t", [{"n": i + n} for n in range(300)], key=f"batch {i}", meta=[{"n": i}] * 300, raw=True)
        commit(superuser, "t", full_record(i + 7, i + 20))
    store.append("t", {"type": "reasoning"}, tokens=7, raw=True)
    for level in LEVELS:
        report = store.audit.verify("t", level=level)
        assert report.findings == ()
        assert (report.thread_id, report.level, report.entries, report.redacted) == ("t", level, 1813, 0)
        assert report.head == store.thread("t").head


@pytest.mark.parametrize(
    "count",
    [
        1,
        rows.LONGEST_PAGE - 1,
        rows.LONGEST_PAGE,
        rows.LONGEST_PAGE + 1,
        2 * rows.LONGEST_PAGE,
    ],
)
def test_a_thread_that_ends_with_a_page_has_no_findings(store: Any, count: int) -> None:
    for start in range(0, count, 1000):
        store.append("t", [{"n": n} for n in range(start, min(count, start + 1000))], raw=True)
    assert store.audit.verify("t").findings == ()
    assert store.audit.verify("t", level="structure").entries == count


def test_a_report_is_neither_true_nor_false(store: Any) -> None:
    store.append("t", {}, raw=True)
    report = store.audit.verify("t")
    with pytest.raises(TypeError, match="findings"):
        bool(report)


def test_an_unknown_level_is_refused(store: Any) -> None:
    store.append("t", {}, raw=True)
    with pytest.raises(cs.InvalidInput, match="structure, content"):
        store.audit.verify("t", level="all")


def test_verifying_a_long_thread_takes_little_memory(url: str) -> None:
    with cs.Store.open(url) as store:
        for _ in range(20):
            store.append("t", [{"role": "user", "content": "x" * 100}] * 1000)
        store.audit.verify("t")
        tracemalloc.start()
        report = store.audit.verify("t")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (report.entries, report.findings) == (20_000, ())
    assert peak < 4_000_000


def test_verifying_large_messages_takes_little_memory(url: str) -> None:
    with cs.Store.open(url) as store:
        for _ in range(10):
            store.append("t", [{"content": "x" * 200_000}] * 50, raw=True)
        tracemalloc.start()
        report = store.audit.verify("t")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (report.entries, report.findings) == (500, ())
    assert peak < 32_000_000


def test_appends_and_records_during_a_verification_are_no_findings(url: str, superuser_url: str) -> None:
    with cs.Store.open(url) as store:
        store.append("t", [{"n": n} for n in range(1000)], raw=True)
        done = threading.Event()

        def write() -> None:
            with psycopg.connect(superuser_url, autocommit=True) as connection:
                for i in itertools.count(1):
                    if done.is_set():
                        return
                    store.append("t", [{"n": i}] * (i % 5 + 1), raw=True)
                    if i % 3 == 0 and i < 900:
                        commit(connection, "t", full_record(4 * i, 4 * i + 2))

        writer = threading.Thread(target=write)
        writer.start()
        reports = [store.audit.verify("t", level=level) for _ in range(8) for level in LEVELS]
        done.set()
        writer.join()
        assert [report.findings for report in reports] == [()] * len(reports)
        assert reports[0].entries < reports[-1].entries
        assert store.audit.verify("t").findings == ()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.one_server("it calls a function without a key")
def test_a_byte_cannot_move_between_salt_and_content(
    store: Any, superuser: psycopg.Connection[Any], level: Level
) -> None:
    append = "SELECT compaction_store.append(NULL, 'default', 't', %s, %s, 'user', 1, 'n', 'k', NULL, NULL, NULL)"
    with pytest.raises(psycopg.Error, match="a salt must have 16 bytes"):
        superuser.execute(append, ("{}", b"short"))
    superuser.execute(append, ('{"role":"user"}', b"fifteen bytes.. "))
    assert store.audit.verify("t", level=level).findings == ()
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL")
    superuser.execute(
        "UPDATE compaction_store.messages SET salt = substring(salt for 15), payload = (' ' || payload)::json"
    )
    assert [f.what for f in store.audit.verify("t", level=level).findings] == ["the salt is not 16 bytes"]
