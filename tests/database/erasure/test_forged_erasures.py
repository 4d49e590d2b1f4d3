"""Erasures faked by a superuser are found, and the triggers and roles refuse the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face, Faces
from support.keys import key_of
from support.redactable_thread import BEFORE, LEVELS, check, dump, events, span

import compaction_store as cs
from compaction_store.errors import PermissionDenied
from compaction_store.integrity import chain, erasure


@pytest.fixture
def tampered(superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for table in ("messages", "compactions", "events", "threads", "heads"):
        superuser.execute(f"ALTER TABLE compaction_store.{table} DISABLE TRIGGER ALL".encode())
    for constraint in ("threads_stub_check", "threads_thread_uid_check"):
        superuser.execute(f"ALTER TABLE compaction_store.threads DROP CONSTRAINT {constraint}".encode())
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
    thread.custody.redact("t", 5, reason="r")  # pos 15
    thread.custody.hold("t", reason="r")  # pos 16
    thread.custody.redact("t", 11, reason="r", override="yes")  # pos 17
    for claim in (1, 13, 15, 16, 17, 99, -1, 2**62):
        assert tampered.execute(f"UPDATE compaction_store.{change.format(p=claim)}".encode()).rowcount == 1
        for level in LEVELS:
            found = [finding.pos for finding in thread.audit.verify("t", level=level).findings]
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
    thread.custody.redact("t", [4, 5, 6], reason="r")
    tampered.execute(_BACK.format(table=table, ordinal=ordinal, columns=columns).encode())
    assert thread.audit.verify("t", level="structure").findings == ()
    [finding] = thread.audit.verify("t").findings
    assert (finding.pos, "the redaction at pos 18 names this row" in finding.what) == (
        5 if table == "messages" else 17,
        True,
    )


@pytest.mark.parametrize(
    "change",
    [
        "threads SET thread_id = 't'",
        "threads SET thread_id = 't', salt = '\\x00112233445566778899aabbccddeeff'",
        "threads SET salt = '\\x00112233445566778899aabbccddeeff'",
        "threads SET commitment = sha256('t')",
        "threads SET created_at = created_at - interval '1 second'",
        "threads SET thread_id = 'erased:' || gen_random_uuid()",
        "threads SET metadata = '{\"a\":1}'",
        "heads SET erased_pos = NULL",
        "heads SET erased_pos = 1",
        "heads SET erased_pos = 99",
        "messages SET payload = '{}' WHERE seq = 3",
        "messages SET redacted_pos = NULL WHERE seq = 3",
        "events SET body = NULL WHERE kind = 'redaction'",
        "events SET kind = 'hold' WHERE kind = 'redaction'",
        "events SET critical = false WHERE kind = 'redaction'",
        "events SET login = 'nobody' WHERE kind = 'redaction'",
        "events SET body = '{\"seqs\":[[1,12]],\"records\":[]}' WHERE kind = 'redaction'",
    ],
)
@pytest.mark.one_server("Citus refuses such changes, and finds a stub by its own name only")
def test_a_change_to_a_stub_is_found(thread: Face, tampered: psycopg.Connection[Any], change: str) -> None:
    thread.custody.hold("t", reason="r")
    thread.custody.erase("t", reason="r", override="o")
    [stub] = thread.threads()
    assert tampered.execute(f"UPDATE compaction_store.{change}".encode()).rowcount == 1
    is_content = "SET body" in change or "payload" in change
    [now] = thread.threads()
    assert (now.thread_uid, now.thread_id == stub.thread_id) == (stub.thread_uid, "thread_id" not in change)
    for level in LEVELS:
        assert bool(thread.audit.verify(now.thread_id, level=level).findings) == (level == "content" or not is_content)
        [report] = thread.audit.verify(level=level)
        assert bool(report.findings) == (level == "content" or not is_content)


def test_a_live_thread_that_is_called_erased_is_found(thread: Face, tampered: psycopg.Connection[Any]) -> None:
    stub = erasure.stub_name(key_of(tampered, "t"))
    for change in (f"threads SET thread_id = '{stub}', metadata = '{{}}'", "heads SET erased_pos = last_pos"):
        for more in ("", "threads SET salt = NULL"):
            for each in filter(None, (change, more)):
                tampered.execute(f"UPDATE compaction_store.{each}".encode())
            for level in LEVELS:
                assert thread.audit.verify(stub, level=level).findings != ()
                [report] = thread.audit.verify(level=level)
                assert report.findings != ()


@pytest.mark.one_server("Citus does not change the key of a row")
def test_a_chain_made_of_anothers_entries_does_not_pass_for_a_stub(
    thread: Face, tampered: psycopg.Connection[Any], url: str
) -> None:
    """Its key is in the genesis, and so is the tenant."""
    thread.append("other", [{"role": "user", "content": "x"}] * 3)
    stub = thread.custody.erase("other", reason="r").thread_id
    uid, other = key_of(tampered, "t"), key_of(tampered, stub)
    for table in ("messages", "events", "threads", "heads"):
        tampered.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = '{uid}'".encode())
    check(thread, stub)
    # Another key with the same time, another tenant, the commitment of another name.
    forged = UUID(bytes=other.bytes[:8] + bytes(8 * [0xAA]))
    for change, back in (
        (f"thread_uid = '{forged}'", f"thread_uid = '{other}'"), ("tenant = 'other'", "tenant = 'default'"),
    ):  # fmt: skip
        for way in (change, back):
            for table in ("messages", "events", "threads", "heads"):
                tampered.execute(f"UPDATE compaction_store.{table} SET {way}".encode())
            tampered.execute(b"UPDATE compaction_store.threads SET thread_id = 'erased:' || thread_uid")
            tenant = "other" if way == "tenant = 'other'" else "default"
            with cs.Store.open(url, tenant=tenant) as store:
                [report] = store.audit.verify()
                found = [(finding.pos, finding.what) for finding in report.findings]
            expected = (1, "the entry does not follow from its columns and the entry before")
            assert found == ([] if way == back else [expected])
    commitment = chain.name_commitment(bytes(16), "another").hex()
    tampered.execute(f"UPDATE compaction_store.threads SET commitment = '\\x{commitment}'".encode())
    assert thread.audit.verify(stub).findings[0].pos == 1


_REFUSED = """
threads SET thread_id = 'erased:x'
threads SET thread_id = 'erased:' || gen_random_uuid(), metadata = '{}'
threads SET thread_id = 'erased:' || thread_uid, metadata = '{"a":1}'
threads SET thread_id = 'erased:' || thread_uid, tenant = 'other', metadata = '{}'
threads SET thread_uid = gen_random_uuid()
threads SET thread_id = 'other'
threads SET salt = NULL
threads SET thread_id = 'erased:' || thread_uid, metadata = '{}'
threads SET thread_id = 'erased:' || thread_uid, salt = NULL, metadata = '{"a":1}'
threads SET thread_id = 'erased:' || thread_uid, salt = NULL, metadata = '{}', commitment = sha256('')
threads SET commitment = sha256('')
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
compactions SET login = 'x'
events SET body = NULL
events SET login = 'x'
events SET critical = false
"""


@pytest.mark.one_server("Citus refuses some changes before the triggers do")
def test_the_triggers_let_nothing_through_but_an_erasure(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.compact("t", span(1, 2))
    thread.custody.redact("t", 5, reason="r")
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
    lambda s: s.custody.hold("t", reason="r"),
    lambda s: s.custody.release("t", reason="r"),
    lambda s: s.custody.retain("t", BEFORE, reason="r"),
    lambda s: s.custody.redact("t", 5, reason="r"),
    lambda s: s.custody.erase("t", reason="r"),
]


@pytest.mark.usefixtures("thread")
@pytest.mark.parametrize(
    "login", ["compaction_store_app, compaction_store_eraser, compaction_store_custodian"], indirect=True
)
@pytest.mark.one_server("it passes a row of a table to a function")
def test_a_login_with_all_roles_erases_by_the_functions_alone(faces: Faces, login: str) -> None:
    store = faces.open(login)
    for write in _WRITES:
        write(store)
    [stub] = [t.thread_id for t in store.threads()]
    assert [e.kind for e in events(store, stub)] == ["hold", "release", "retention", "redaction", "redaction"]
    assert {e.login for e in events(store, stub)} == {f"cs_redactor_{os.getpid()}"}
    check(store, stub)
    with psycopg.connect(login, autocommit=True) as connection:
        connection.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
        for statement in (
            "UPDATE compaction_store.messages SET payload = NULL",
            "INSERT INTO compaction_store.events SELECT * FROM compaction_store.events",
            "SELECT compaction_store.write_event(h, 'hold', true, NULL, '', '{}') FROM compaction_store.heads AS h",
            "SELECT compaction_store.erase_content(h, NULL, '', '{}', '{}', '{}') FROM compaction_store.heads AS h",
            "SELECT compaction_store.derived_records(gen_random_uuid(), '{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


@pytest.mark.parametrize("login", ["compaction_store_auditor", "compaction_store_loader"], indirect=True)
def test_an_auditor_and_a_loader_read_the_events_and_erase_nothing(thread: Face, faces: Faces, login: str) -> None:
    thread.custody.hold("t", reason="r")
    thread.custody.release("t", reason="r")
    store = faces.open(login)
    assert [e.kind for e in events(store)] == ["hold", "release"]
    for write in _WRITES:
        with pytest.raises(PermissionDenied):
            write(store)


def test_a_reader_reads_events_and_has_no_method_that_erases(thread: Face, url: str) -> None:
    thread.custody.hold("t", reason="r")
    with cs.Reader.open(url) as reader:
        assert [e.kind for e in reader.audit.events("t")] == ["hold"]
        for face in (cs.Reader, cs.AsyncReader):
            assert not [n for n in ("redact", "erase", "hold", "release", "retain") if hasattr(face, n)]
