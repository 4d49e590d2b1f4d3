"""The log of a tenant: events that concern no single thread, in a thread with a reserved name that only the store
writes.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.faces import Face, Faces
from support.handmade_bundles import Thread
from support.keys import key_of

import compaction_store as cs
from compaction_store import offline
from compaction_store.arguments import DATABASE, LOG
from compaction_store.bundles import import_rows
from compaction_store.errors import InvalidBundle, InvalidThreadId
from compaction_store.models.vocabulary import LOG_EVENTS

HI = {"role": "user", "content": "hi"}
_OF_DATABASE = ("removal", "grant", "ungrant", "migration")
_RESERVED = (LOG, "compaction-store:", "compaction-store:log2")
_LATER = datetime(2099, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.one_server("SQL functions are called without keys")


def record(
    connection: psycopg.Connection[Any], kind: str, tenant: str = "default", *, salt: bytes | None = None,
    name: str = LOG, uid: object = None,
) -> tuple[Any, ...]:  # fmt: skip
    row: tuple[Any, ...] | None = connection.execute(
        "SELECT * FROM compaction_store.record_in_log(%s, %s, %s, %s, 'ops', %s, %s)",
        (uid, tenant, name, kind, salt or os.urandom(16), json.dumps({"findings": 0})),
    ).fetchone()
    assert row is not None
    return row


def refused(superuser: psycopg.Connection[Any], call: str, **given: object) -> str | None:
    try:
        superuser.execute(f"SELECT compaction_store.{call}".encode(), given)
    except psycopg.Error as error:
        return error.sqlstate
    return None


@pytest.fixture
def log(store: Face, superuser: psycopg.Connection[Any]) -> Face:
    """A store with one thread and the log of its tenant, with two events."""
    store.append("t", HI)
    record(superuser, "verification")
    record(superuser, "policy")
    return store


def test_the_first_event_makes_the_log_and_every_reader_of_events_shows_it(log: Face) -> None:
    listed = list(log.audit.events())
    assert [(e.thread_id, e.pos, e.kind, e.actor) for e in listed] == [
        (LOG, 1, "verification", "ops"), (LOG, 2, "policy", "ops"),
    ]  # fmt: skip
    assert list(log.audit.events(LOG)) == listed
    assert list(log.audit.events(kind=list(LOG_EVENTS))) == listed
    assert not log.audit.verify(LOG).findings
    reports = list(log.audit.verify())
    assert {report.thread_id for report in reports} == {"t", LOG}
    assert not [report for report in reports if report.findings]


def test_no_list_of_threads_has_the_log(log: Face, superuser: psycopg.Connection[Any]) -> None:
    assert [thread.thread_id for thread in log.threads(hidden=True)] == ["t"]
    superuser.execute("SET compaction_store.tenant = 'default'")
    assert superuser.execute("SELECT thread_id FROM compaction_store.audit_threads").fetchall() == [("t",)]
    listed = superuser.execute("SELECT thread_id, kind FROM compaction_store.audit_events ORDER BY pos").fetchall()
    assert listed == [(LOG, "verification"), (LOG, "policy")]
    found = log.thread(LOG)
    assert (found.last_seq, found.last_number, found.last_pos, found.view_tokens) == (0, 0, 2, 0)


_WRITES: dict[str, Callable[[Face, str], Any]] = {
    "append": lambda store, name: store.append(name, HI),
    "append several": lambda store, name: store.append(name, [HI, HI]),
    "load": lambda store, name: store.load.messages(name, [HI]),
    "compact": lambda store, name: store.compact(name, lambda ctx: ctx.compact(1, 1, "short")),
    "rewind": lambda store, name: store.rewind(name, 0),
    "clear": lambda store, name: store.clear(name),
    "set_metadata": lambda store, name: store.set_metadata(name, {"a": 1}),
    "fork from": lambda store, name: store.fork(name, "new"),
    "fork to": lambda store, name: store.fork("t", name),
    "hold": lambda store, name: store.custody.hold(name, reason="r"),
    "release": lambda store, name: store.custody.release(name, reason="r"),
    "retain": lambda store, name: store.custody.retain(name, _LATER, reason="r"),
    "redact": lambda store, name: store.custody.redact(name, 1, reason="r"),
    "erase": lambda store, name: store.custody.erase(name, reason="r"),
    "look before an erasure": lambda store, name: store.custody.erase(name, reason="r", dry_run=True),
    "record_verdict": lambda store, name: store.audit.review(name, 1, "good"),
}


@pytest.mark.parametrize("what", _WRITES)
def test_no_call_writes_to_a_reserved_name(log: Face, what: str) -> None:
    before = list(log.audit.events()), log.thread(LOG).head
    for name in _RESERVED:
        with pytest.raises(InvalidThreadId, match='must not begin with "compaction-store:"'):
            _WRITES[what](log, name)
    assert (list(log.audit.events()), log.thread(LOG).head) == before
    assert [thread.thread_id for thread in log.threads()] == ["t"]


def test_no_turn_is_given_on_a_reserved_name(log: Face, superuser: psycopg.Connection[Any]) -> None:
    call = "take_turn('default', %(name)s, %(turn)s, NULL, 60, true)"
    for name in _RESERVED:
        with pytest.raises(InvalidThreadId):
            log.store.turn(name)
        assert refused(superuser, call, name=name, turn=uuid4()) == "CS018"


_SQL = {
    "append": "append(%(uid)s, 'default', %(name)s, '{}', %(salt)s, NULL, 1, 'c', NULL, NULL, NULL, NULL, true)",
    "append, with a key": "append(%(uid)s, 'default', %(name)s, '{}', %(salt)s, NULL, 1, 'c', 'k', NULL, NULL, NULL)",
    "append_many": (
        "append_many(%(uid)s, 'default', %(name)s, '{\"{}\",\"{}\"}', %(salt)s || %(salt)s,"
        " ARRAY[NULL, NULL]::text[], '{1,1}', 'c', NULL, ARRAY[NULL, NULL]::text[], NULL, NULL)"
    ),
    "load": (
        "load(%(uid)s, 'default', %(name)s, '{\"{}\"}', %(salt)s, ARRAY[NULL]::text[], '{1}', '{c}', NULL, 'k', NULL)"
    ),
    "record_event": "record_event(%(uid)s, 'default', %(name)s, 'hold', NULL, %(salt)s, '{\"reason\":\"r\"}')",
    "record_evaluation": "record_evaluation(%(uid)s, 'default', %(name)s, NULL, %(salt)s, '{}')",
    "erase": "erase(%(uid)s, 'default', %(name)s, NULL, %(salt)s, '{\"reason\":\"r\"}', false)",
    "fork": "fork(%(uid)s, 'default', %(name)s, 'new', NULL, NULL, %(salt)s, NULL, '{}')",
}


@pytest.mark.parametrize("what", _SQL)
def test_the_functions_refuse_the_log_by_its_name_and_by_its_key(
    log: Face, superuser: psycopg.Connection[Any], what: str
) -> None:
    before = log.thread(LOG)
    for uid in (None, key_of(superuser, LOG)):
        assert refused(superuser, _SQL[what], uid=uid, name=LOG, salt=os.urandom(16)) == "CS018", uid
    if what.startswith(("append", "load")):
        assert refused(superuser, _SQL[what], uid=None, name="compaction-store:x", salt=os.urandom(16)) == "CS018"
    assert log.thread(LOG) == before
    assert not log.audit.verify(LOG).findings


@pytest.mark.usefixtures("log")
def test_several_threads_of_one_load_have_no_reserved_name(superuser: psycopg.Connection[Any]) -> None:
    call = "load_threads('default', ARRAY['a', %(name)s], '{k,l}', '{1,1}', '{\"{}\",\"{}\"}', %(salts)s,"
    call += " ARRAY[NULL, NULL]::text[], '{1,1}', '{c,c}', ARRAY[NULL, NULL]::text[])"
    for name in _RESERVED:
        assert refused(superuser, call, name=name, salts=bytes(32)) == "CS018"


def test_the_tenant_of_the_database_has_a_log_and_nothing_else(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    store = faces.open(url, tenant=DATABASE)
    with pytest.raises(InvalidThreadId, match="tenant must not be"):
        store.append("t", HI)
    append = "append(NULL, 'compaction-store', 't', '{}', %(salt)s, NULL, 1, 'c', NULL, NULL, NULL, NULL)"
    assert refused(superuser, append, salt=bytes(16)) == "CS018"
    before = len(list(store.audit.events()))
    for kind in LOG_EVENTS:
        record(superuser, kind, DATABASE)
    assert [event.kind for event in store.audit.events()][before:] == list(LOG_EVENTS)
    assert list(store.threads()) == []
    assert not store.audit.verify(LOG).findings


def test_a_log_has_only_the_kinds_of_events_that_belong_there(
    log: Face, superuser: psycopg.Connection[Any]
) -> None:  # fmt: skip
    for kind in ("hold", "redaction", "fork", "metadata", "unheard_of", None, *_OF_DATABASE):
        with pytest.raises(psycopg.Error) as caught:
            record(superuser, kind or "verification", name=LOG if kind else "t")
        assert caught.value.sqlstate == "CS008", kind
    with pytest.raises(psycopg.Error) as caught:
        record(superuser, "verification", uid=key_of(superuser, "t"))
    assert caught.value.sqlstate == "CS018"
    assert [event.kind for event in log.audit.events()] == ["verification", "policy"]


def test_a_lost_reply_is_asked_for_again_with_the_same_salt(log: Face, superuser: psycopg.Connection[Any]) -> None:
    salt = os.urandom(16)
    assert record(superuser, "verification", salt=salt) == record(superuser, "verification", salt=salt)
    assert log.thread(LOG).last_pos == 3


@pytest.mark.superuser_store("it makes logins")
@pytest.mark.parametrize(
    ("role", "kinds"),
    [
        ("app", {"verification"}), ("reviewer", {"verification"}),
        ("eraser", {"verification", "policy", "removal", "shred"}),
        ("owner", set(LOG_EVENTS)), ("auditor", set()), ("custodian", {"rule", "verification"}), ("loader", set()),
    ],
)  # fmt: skip
def test_each_role_records_its_kinds_of_events(superuser: psycopg.Connection[Any], role: str, kinds: set[str]) -> None:
    superuser.execute(f"SET ROLE compaction_store_{role}".encode())
    done = set()
    for kind in LOG_EVENTS:
        call = "record_in_log(NULL, 'compaction-store', %(log)s, %(kind)s, NULL, %(salt)s, '{}')"
        state = refused(superuser, call, log=LOG, kind=kind, salt=os.urandom(16))
        assert state in {None, "42501", "CS024"}
        done |= set() if state else {kind}
    superuser.execute("RESET ROLE")
    assert done == kinds


def test_a_bundle_of_the_log_goes_to_another_database(log: Face, faces: Faces, other_url: str) -> None:
    lines = list(log.audit.export(LOG))
    report = cs.verify_bundle(lines)
    assert (report.findings, report.pos) == ((), 2)
    assert offline.check(io.BytesIO(b"".join(lines))).findings == []
    other = faces.open(other_url)
    other.load.bundle(lines)
    assert [(e.kind, e.thread_id) for e in other.audit.events()] == [("verification", LOG), ("policy", LOG)]
    assert list(other.threads()) == []
    with pytest.raises(InvalidThreadId):
        other.append(LOG, HI)


def test_messages_in_a_log_are_found_though_their_chain_is_sound(log: Face, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("ALTER TABLE compaction_store.heads DROP CONSTRAINT heads_log_check")
    assert refused(superuser, _SQL["append"], uid=None, name=LOG, salt=os.urandom(16)) is None
    what = "the message is in the log of a tenant"
    assert [(finding.pos, finding.what) for finding in log.audit.verify(LOG).findings] == [(3, what)]
    lines = list(log.audit.export(LOG))
    assert [finding.what for finding in cs.verify_bundle(lines).findings] == [what]
    assert [pos for _, pos, _ in offline.check(io.BytesIO(b"".join(lines))).findings] == [3]


_WRONG = {
    "log with a message": ("verification", '{"findings":0}'),
    "log with an event of a thread": ("hold", '{"reason":"r"}'),
    "thread with an event of a log": ("policy", '{"state":"ended"}'),
    "thread with a grant": ("grant", '{"role":"owner"}'),
}


@pytest.mark.parametrize("what", _WRONG)
def test_a_bundle_whose_entries_must_not_be_in_their_thread_is_refused(
    store: Face, superuser: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    thread = Thread("default", LOG if what.startswith("log") else "t")
    if what != "log with an event of a thread":
        thread.message('{"role":"user","content":"hi"}')
    thread.event(*_WRONG[what])
    lines = thread.lines()
    assert len(cs.verify_bundle(lines).findings) == 1
    assert len(offline.check(io.BytesIO(b"".join(lines))).findings) == 1
    with pytest.raises(InvalidBundle):
        store.load.bundle(lines)
    assert list(store.audit.verify()) == []
    # The database refuses it too if the client does not look at it, and `verify` finds it where it is stored.
    monkeypatch.setattr(import_rows.Staged, "_raise_finding", lambda _staged: None)
    with pytest.raises(InvalidBundle, match="the log of a tenant has only events"):
        store.load.bundle(lines)
    superuser.execute("CREATE OR REPLACE FUNCTION compaction_store.refuse_in_log() RETURNS boolean RETURN true")
    store.load.bundle(lines)
    [report] = store.audit.verify()
    assert len(report.findings) == 1


@pytest.mark.parametrize("name", ["t", LOG])
def test_an_event_of_a_later_release_may_be_in_any_thread(store: Face, name: str) -> None:
    thread = Thread("default", name)
    if name == "t":
        thread.message('{"role":"user","content":"hi"}')
    thread.event("later_kind", "{}")
    assert cs.verify_bundle(thread.lines()).findings == ()
    assert offline.check(io.BytesIO(b"".join(thread.lines()))).findings == []
    assert store.load.bundle(thread.lines()).added
    assert store.audit.verify(name).findings == ()


def test_a_head_that_no_longer_says_log_is_found(log: Face, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute("ALTER TABLE compaction_store.heads DROP CONSTRAINT heads_log_check")
    superuser.execute("UPDATE compaction_store.heads SET is_log = NOT is_log")
    assert all(len(log.audit.verify(name).findings) == 1 for name in ("t", LOG))
