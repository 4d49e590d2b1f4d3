"""A row that cannot be read fails no query over others: lists mark it, a view names it, `verify` finds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.handmade_bundles import Thread
from support.keys import key_of
from support.superuser_edits import make_text, unlock

import compaction_store as cs
from compaction_store.errors import Unreadable

SECRET = "whispered"
DIGITS = f'{{"{SECRET}":' + "9" * 5000 + "}"
DEEP = '{"a":' * 3000 + f'"{SECRET}"' + "}" * 3000
BAD = {"digits": DIGITS, "depth": DEEP, "no object": f'["{SECRET}"]', "null": "null", "number": "5"}


@pytest.fixture
def forger(store: Face, superuser: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for name in ("good", "bad"):
        store.append(name, [{"role": "user", "content": f"some words to be made short {n}"} for n in range(6)])
        store.append(name, {"role": "assistant", "content": "a reply"}, view=store.view(name), meta={"n": 1})
        store.compact(name, lambda ctx: ctx.compact(1, 3, "short"), force=True)
        store.custody.hold(name, reason="audit")
        store.set_metadata(name, {"title": "t"})
    unlock(superuser)
    return superuser


def put(forger: psycopg.Connection[Any], table: str, column: str, text: str | None, more: str = "") -> None:
    uid = key_of(forger, "bad")
    change = f"UPDATE compaction_store.{table} SET {column} = %s WHERE thread_uid = %s {more}"
    assert forger.execute(change.encode(), [text, uid]).rowcount


def others_are_read(store: Face) -> None:
    """Checks that queries across threads return all readable rows."""
    assert {record.thread_id for record in store.compactions()} == {"good", "bad"}
    assert {thread.thread_id for thread in store.threads()} == {"good", "bad"}
    assert len(list(store.replay("bad"))) == 7
    assert [event.kind for event in store.audit.events("bad")] == ["hold", "metadata"]
    assert list(store.due(cs.TokenBudget(context_window=40))) is not None
    assert b"".join(store.audit.export("bad")).endswith(b'"}\n')
    assert store.thread("bad").last_seq == 7
    reports = {report.thread_id: report.findings for report in store.audit.verify()}
    assert reports["good"] == ()
    assert reports["bad"]


def told(fault: str | None) -> None:
    assert fault
    assert SECRET not in fault
    assert len(fault) < 100


@pytest.mark.parametrize("bad", BAD)
def test_a_record_that_cannot_be_read_is_listed_and_the_view_names_it(
    store: Face, forger: psycopg.Connection[Any], bad: str
) -> None:
    put(forger, "compactions", "body", BAD[bad])
    others_are_read(store)
    [record] = store.compactions("bad")
    assert (record.body, record.summary_text, record.replacement, record.error, record.failed_before) == (
        None, None, None, None, [],
    )  # fmt: skip
    told(record.fault)
    assert store.compaction("bad", 1) == record
    assert store.audit.tree(record).inside == ()
    reads: tuple[Callable[[], Any], ...] = (lambda: store.view("bad"), lambda: store.audit.explain("bad", 2))
    for read in reads:
        with pytest.raises(Unreadable, match=r"compaction 1 cannot be read: .*run verify \(thread 'bad'\)") as caught:
            read()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("body", ['{"replacement":5}', '{"replacement":["x"]}', "{}", '{"summary_text":7,"error":[1]}'])
def test_a_record_without_its_stand_ins_is_named(store: Face, forger: psycopg.Connection[Any], body: str) -> None:
    put(forger, "compactions", "body", body)
    others_are_read(store)
    [record] = store.compactions("bad")
    assert record.body == json.loads(body)
    assert (record.summary_text, record.error) == (None, None)
    with pytest.raises(Unreadable, match="compaction 1"):
        store.view("bad")


@pytest.mark.parametrize("bad", BAD)
def test_a_message_that_cannot_be_read_is_replayed_without_its_payload(
    store: Face, forger: psycopg.Connection[Any], bad: str
) -> None:
    put(forger, "messages", "payload", BAD[bad], "AND seq = 5")
    others_are_read(store)
    message = store.message("bad", 5)
    assert (message.payload, message.redacted, message.text) == (None, False, BAD[bad])
    told(message.fault)
    assert [m.fault for m in store.replay("bad") if m.seq != 5] == [None] * 6
    with pytest.raises(Unreadable, match=r"seq 5 cannot be read: .*run verify \(thread 'bad'\)"):
        store.view("bad")


@pytest.mark.parametrize("bad", BAD)
def test_meta_metadata_and_events_that_cannot_be_read_are_named(
    store: Face, forger: psycopg.Connection[Any], bad: str
) -> None:
    put(forger, "messages", "meta", BAD[bad], "AND seq = 7")
    put(forger, "threads", "metadata", BAD[bad])
    put(forger, "events", "body", BAD[bad])
    others_are_read(store)
    message, thread, [event, _] = store.message("bad", 7), store.thread("bad"), store.audit.events("bad")
    assert (message.meta, thread.metadata, event.body, event.reason) == (None, {}, {}, None)
    assert message.payload == {"role": "assistant", "content": "a reply"}
    for fault in (message.fault, thread.fault, event.fault):
        told(fault)
    assert store.view("bad").messages
    found = "; ".join(finding.what for finding in store.audit.verify("bad").findings)
    assert "metadata" in found


@pytest.mark.parametrize(
    "receipt",
    ["{", "[]", '{"pos":"1"}', "{}", "9" * 5000, '{"pos":99999999999999999999}', '{"pos":-1}', '{"pos":true}'],
)
def test_a_receipt_that_cannot_be_read_is_named(store: Face, forger: psycopg.Connection[Any], receipt: str) -> None:
    put(forger, "messages", "receipt", receipt, "AND seq = 7")
    others_are_read(store)
    with pytest.raises(Unreadable, match="the receipt of seq 7"):
        store.seen_by("bad", 7)


@pytest.mark.parametrize("moment", ["10031-01-01", "294276-12-31", "infinity", "-infinity", "4713-01-01 BC"])
def test_a_time_that_python_cannot_say_ends_no_list(store: Face, forger: psycopg.Connection[Any], moment: str) -> None:
    for table in ("threads", "messages", "compactions", "events"):
        put(forger, table, "created_at", moment)
    put(forger, "heads", "last_at", moment)
    others_are_read(store)
    [record] = store.compactions("bad")
    assert record.created_at in {datetime(9999, 12, 30, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)}
    if moment in {"10031-01-01", "4713-01-01 BC"}:
        assert "the year 9999" in "; ".join(finding.what for finding in store.audit.verify("bad").findings)
    store.view("bad")


def test_many_records_at_a_time_that_python_cannot_say_are_no_endless_list(
    store: Face, forger: psycopg.Connection[Any]
) -> None:
    names = ", ".join(
        row[0]
        for row in forger.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'compactions'"
            " AND table_schema = 'compaction_store' AND column_name NOT IN ('number', 'created_at')"
            " AND is_generated = 'NEVER'"
        )
    )
    forger.execute(
        f"INSERT INTO compaction_store.compactions (number, created_at, {names})"
        f" SELECT i, 'infinity', {names} FROM compaction_store.compactions, generate_series(2, 300) AS i"
        f" WHERE thread_uid = '{key_of(forger, 'bad')}'".encode()
    )
    assert {record.thread_id for record in store.compactions()} == {"good", "bad"}
    assert {record.thread_id for record in store.compactions(newest_first=True)} == {"good", "bad"}


@pytest.mark.parametrize(
    ("table", "column", "text", "what"),
    [
        ("messages", "payload", '{"n":NaN}', "not JSON|NaN"),
        ("compactions", "body", '{"a":1,"a":1,"replacement":[]}', "a name twice"),
        ("compactions", "body", "{}", "list of JSON objects"),
        ("events", "body", '{"until":"2001","until":"2099"}', "a name twice"),
        ("messages", "meta", '{"a":{"b":1,"\\u0062":2}}', "a name twice"),
        ("messages", "payload", DEEP, "deeper than 200"),
        ("events", "body", DIGITS, "more than 4,300 digits"),
    ],
)
def test_verify_finds_a_document_that_breaks_the_rule_though_it_is_what_was_committed_to(
    store: Face, forger: psycopg.Connection[Any], table: str, column: str, text: str, what: str
) -> None:
    """As after an attack that recomputes the chain."""
    for name in ("payload", "meta"):
        make_text(forger, "messages", name)
    put(forger, table, column, text)
    change = (
        "meta_commitment = compaction_store.meta_commitment(salt, meta::text)"
        if column == "meta"
        else f"commitment = compaction_store.commitment(salt, {column}::text)"
    )
    forger.execute(f"UPDATE compaction_store.{table} SET {change}".encode())
    found = "; ".join(finding.what for finding in store.audit.verify("bad").findings)
    assert "what was committed to" not in found
    assert any(part in found for part in what.split("|")), found
    assert SECRET not in found


def test_a_thread_without_messages_is_no_view(store: Face, forger: psycopg.Connection[Any]) -> None:
    uid = key_of(forger, "bad")
    for table in ("compactions", "messages"):
        forger.execute(f"DELETE FROM compaction_store.{table} WHERE thread_uid = %s".encode(), [uid])
    with pytest.raises(Unreadable, match=r"no messages; run verify \(thread 'bad'\)"):
        store.view("bad")
    assert list(store.replay("bad", last=5000)) == list(store.replay("bad")) == []
    with pytest.raises(cs.MessageNotFound):
        store.audit.explain("bad", 2)


def test_a_bundle_without_messages_is_refused(store: Face) -> None:
    made = Thread("default", "empty")
    made.event("hold", '{"reason":"r"}')
    assert cs.verify_bundle(made.lines()).findings == ()
    with pytest.raises(cs.InvalidBundle, match="no messages"):
        store.load.bundle(made.lines())
