"""Erasures faked by a superuser are found, and the triggers and roles refuse the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces
from support.redactable_thread import BEFORE, LEVELS, STUB, UID, check, dump, events, span

import compaction_store as cs
from compaction_store.errors import PermissionDenied
from compaction_store.integrity import chain


@pytest.fixture
def tampered(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for table in ("messages", "compactions", "events", "threads", "heads"):
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL".encode())
    return superuser


_KEEP = "CREATE TEMP TABLE kept AS SELECT * FROM compaction_store.{table} WHERE {ordinal} = {n}"
_BACK = "UPDATE compaction_store.{table} AS t SET {columns} FROM kept AS k WHERE t.{ordinal} = k.{ordinal}"


@pytest.mark.parametrize(
    ("change", "pos"),
    [
        ("messages SET payload = NULL, meta = NULL, salt = NULL, redacted_pos = {p} WHERE seq = 3", 3),
        ("compactions SET body = NULL, salt = NULL, redacted_pos = {p} WHERE number = 1", 13),
        ("messages SET redacted_pos = {p} WHERE seq = 5", 5),
    ],
)
def test_a_silent_erasure_is_found(thread: Face, tampered: psycopg.Connection[Any], change: str, pos: int) -> None:
    thread.compact("t", span(1, 2), span(4, 6))
    thread.redact("t", 5, reason="r")  # pos 15
    thread.hold("t", reason="r")  # pos 16
    thread.redact("t", 11, reason="r", override="yes")  # pos 17
    for claim in (1, 13, 15, 16, 17, 99, -1, 2**62):
        assert tampered.execute(f"UPDATE compaction_store.{change.format(p=claim)}".encode()).rowcount == 1
        for level in LEVELS:
            found = [finding.pos for finding in thread.verify("t", level=level).findings]
            if (claim, pos) == (15, 5) or (claim in {15, 17} and level == "structure"):
                # Restored. Level structure sees that there is a redaction, but only its body says what was erased.
                assert found == []
            else:
                assert pos in found


@pytest.mark.parametrize(
    ("table", "ordinal", "columns"),
    [
        ("messages", "seq", "payload = k.payload, meta = k.meta, salt = k.salt, redacted_pos = NULL"),
        ("compactions", "number", "body = k.body, salt = k.salt, redacted_pos = NULL"),
    ],
)
def test_content_that_was_put_back_is_found(
    thread: Face, tampered: psycopg.Connection[Any], table: str, ordinal: str, columns: str
) -> None:
    """The content matches its commitment, so only the redaction shows that it must not be there."""
    thread.compact("t", *[span(seq, seq) for seq in range(1, 6)])
    tampered.execute(_KEEP.format(table=table, ordinal=ordinal, n=5).encode())
    thread.redact("t", [4, 5, 6], reason="r")
    tampered.execute(_BACK.format(table=table, ordinal=ordinal, columns=columns).encode())
    assert thread.verify("t", level="structure").findings == ()
    [finding] = thread.verify("t").findings
    assert (finding.pos, "the redaction at pos 18 names the row" in finding.what) == (
        5 if table == "messages" else 17,
        True,
    )


@pytest.mark.parametrize(
    "change",
    [
        "threads SET thread_id = 't'",
        "threads SET thread_id = 'erased:' || gen_random_uuid()",
        "threads SET metadata = '{\"a\":1}'",
        "heads SET erased_pos = NULL",
        "heads SET erased_pos = 1",
        "heads SET erased_pos = 99",
        "messages SET payload = '{}' WHERE seq = 3",
        "messages SET redacted_pos = NULL WHERE seq = 3",
        "events SET body = NULL WHERE kind = 'redaction'",
        "events SET kind = 'hold' WHERE kind = 'redaction'",
        "events SET body = '{\"seqs\":[[1,12]],\"records\":[]}' WHERE kind = 'redaction'",
    ],
)
def test_a_change_to_a_stub_is_found(thread: Face, tampered: psycopg.Connection[Any], change: str) -> None:
    thread.hold("t", reason="r")
    thread.erase("t", reason="r", override="o")
    assert tampered.execute(f"UPDATE compaction_store.{change}".encode()).rowcount == 1
    is_content = "SET body" in change or "payload" in change
    for name in ("t", STUB):
        for level in LEVELS:
            assert bool(thread.verify(name, level=level).findings) == (level == "content" or not is_content)


def test_a_live_thread_that_is_called_erased_is_found(thread: Face, tampered: psycopg.Connection[Any]) -> None:
    for change in (f"threads SET thread_id = '{STUB}', metadata = '{{}}'", "heads SET erased_pos = last_pos"):
        tampered.execute(f"UPDATE compaction_store.{change}".encode())
        for level in LEVELS:
            assert thread.verify("t", level=level).findings != ()
            assert thread.verify(STUB, level=level).findings != ()


def test_a_chain_made_of_anothers_entries_does_not_pass_for_a_stub(
    thread: Face, tampered: psycopg.Connection[Any]
) -> None:
    """It is found by its old name. Without the name, a note says that this could not be checked."""
    other = chain.thread_uid("default", "other")
    thread.append("other", [{"role": "user", "content": "x"}] * 3)
    thread.erase("other", reason="r")
    for table in ("messages", "events", "threads", "heads"):
        tampered.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = '{UID}'".encode())
        tampered.execute(f"UPDATE compaction_store.{table} SET thread_uid = '{UID}'".encode())
    tampered.execute(b"UPDATE compaction_store.threads SET thread_id = 'erased:' || thread_uid")
    assert other != UID
    assert thread.verify("t").findings != ()
    assert thread.verify(STUB).notes != ()


_REFUSED = """
threads SET thread_id = 'erased:x'
threads SET thread_id = 'erased:' || gen_random_uuid(), metadata = '{}'
threads SET thread_id = 'erased:' || thread_uid, metadata = '{"a":1}'
threads SET thread_id = 'erased:' || thread_uid, tenant = 'other', metadata = '{}'
threads SET thread_uid = gen_random_uuid()
messages SET payload = NULL, meta = NULL, salt = NULL WHERE seq = 1
messages SET payload = NULL, meta = NULL, redacted_pos = 13 WHERE seq = 1
messages SET payload = NULL, salt = NULL, redacted_pos = 13 WHERE seq = 1
messages SET meta = NULL, salt = NULL, redacted_pos = 13 WHERE seq = 1
messages SET payload = NULL, meta = NULL, salt = NULL, redacted_pos = 13, role = 'x' WHERE seq = 1
messages SET redacted_pos = 14 WHERE seq = 5
messages SET redacted_pos = NULL WHERE seq = 5
messages SET payload = '{}' WHERE seq = 5
compactions SET body = NULL, redacted_pos = 13
compactions SET body = NULL, salt = NULL
compactions SET body = NULL, salt = NULL, redacted_pos = 13, actor = 'x'
events SET body = NULL
"""


def test_the_triggers_let_nothing_through_but_an_erasure(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.compact("t", span(1, 2))
    thread.redact("t", 5, reason="r")
    before = dump(superuser)
    for change in _REFUSED.strip().splitlines():
        with pytest.raises(psycopg.Error) as caught:
            superuser.execute(f"UPDATE compaction_store.{change}".encode())
        assert caught.value.sqlstate == "CS011", change
    assert dump(superuser) == before


@pytest.fixture
def login(url: str, superuser: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"cs_redactor_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE {request.param}".encode())
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        [name],
    )
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


_WRITES: list[Callable[[Any], Any]] = [
    lambda s: s.hold("t", reason="r"),
    lambda s: s.release("t", reason="r"),
    lambda s: s.retain("t", BEFORE, reason="r"),
    lambda s: s.redact("t", 5, reason="r"),
    lambda s: s.erase("t", reason="r"),
]


@pytest.mark.usefixtures("thread")
@pytest.mark.parametrize("login", ["compaction_store_app"], indirect=True)
def test_the_application_erases_by_the_functions_alone(faces: Faces, login: str) -> None:
    store = faces.open(login)
    for write in _WRITES:
        write(store)
    assert [e.kind for e in events(store)] == ["hold", "release", "retention", "redaction", "redaction"]
    check(store)
    with psycopg.connect(login, autocommit=True) as connection:
        connection.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
        for statement in (
            "UPDATE compaction_store.messages SET payload = NULL",
            "INSERT INTO compaction_store.events SELECT * FROM compaction_store.events",
            "SELECT compaction_store.write_event(h, 'redaction', NULL, '', '{}') FROM compaction_store.heads AS h",
            "SELECT compaction_store.erase_content(h, NULL, '', '{}', '{}', '{}') FROM compaction_store.heads AS h",
            "SELECT compaction_store.derived_records(gen_random_uuid(), '{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


@pytest.mark.parametrize("login", ["compaction_store_auditor", "compaction_store_loader"], indirect=True)
def test_an_auditor_and_a_loader_read_the_events_and_erase_nothing(thread: Face, faces: Faces, login: str) -> None:
    thread.hold("t", reason="r")
    thread.release("t", reason="r")
    store = faces.open(login)
    assert [e.kind for e in events(store)] == ["hold", "release"]
    for write in _WRITES:
        with pytest.raises(PermissionDenied):
            write(store)


def test_a_reader_reads_events_and_has_no_method_that_erases(thread: Face, url: str) -> None:
    thread.hold("t", reason="r")
    with cs.Reader.open(url) as reader:
        assert [e.kind for e in reader.events("t")] == ["hold"]
        for face in (cs.Reader, cs.AsyncReader):
            assert not [n for n in ("redact", "erase", "hold", "release", "retain") if hasattr(face, n)]
