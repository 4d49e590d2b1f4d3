"""The feed lists the entries of all threads in an order in which nothing can appear behind a cursor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.superuser_edits import as_role, unlock

import compaction_store as cs
from compaction_store.errors import FeedInterrupted
from compaction_store.models import FeedEntry

pytestmark = pytest.mark.one_server("the nodes of a cluster number their transactions apart")

SECRET = "pelican"
MESSAGES = [{"role": "user", "content": f"{SECRET} {i} " * 9} for i in range(8)]
_APPEND = (
    "SELECT compaction_store.append(NULL, 'default', %s, %s, decode(md5(random()::text), 'hex'), 'user', 1, 'caller',"
    " NULL, NULL, NULL, NULL)"
)


def read(store: Face, after: str | None = None, **wanted: bool) -> list[FeedEntry]:
    return list(store.audit.feed(after=after, **wanted))


def settled(superuser: psycopg.Connection[Any]) -> None:
    """Returns when no transaction of the server, such as one of autovacuum, holds back what was written until now."""
    [(number,)] = superuser.execute("SELECT pg_current_xact_id()").fetchall()
    end = time.monotonic() + 60
    while superuser.execute("SELECT pg_snapshot_xmin(pg_current_snapshot()) > %s::text::xid8", [number]).fetchall() != [
        (True,)
    ]:
        assert time.monotonic() < end
        time.sleep(0.01)


def places(entries: list[FeedEntry]) -> list[tuple[str, int]]:
    return [(entry.thread_id, entry.pos) for entry in entries]


@contextmanager
def transaction(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has its number already."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


@pytest.fixture
def busy(store: Face, superuser: psycopg.Connection[Any]) -> Face:
    """Two threads with all three kinds of entries."""
    store.append("t", MESSAGES, key="first", meta={"word": SECRET})
    store.append("u", MESSAGES[:2])
    store.compact("t", lambda ctx: ctx.compact(2, 4, f"Short {SECRET}."))
    store.custody.hold("t", reason=SECRET)
    store.append("t", MESSAGES[0])
    settled(superuser)
    return store


def test_it_has_the_records_and_events_and_if_asked_the_messages_of_all_threads(busy: Face) -> None:
    assert places(read(busy)) == [("t", 9), ("t", 10)]
    entries = read(busy, messages=True)
    assert places(entries) == [
        *(("t", pos) for pos in range(1, 9)), ("u", 1), ("u", 2), ("t", 9), ("t", 10), ("t", 11),
    ]  # fmt: skip
    [record] = busy.compactions("t")
    [event] = busy.audit.events("t")
    found = {(entry.thread_id, entry.pos): entry for entry in entries}
    folded, held = found["t", 9], found["t", 10]
    assert (folded.type, folded.created_at, folded.login) == ("compaction", record.created_at, record.login)
    for name in ("number", "kind", "outcome", "start_seq", "end_seq", "tokens_before", "tokens_after", "callback"):
        assert folded.facts[name] == getattr(record, name)
    assert (held.type, held.created_at, held.facts) == ("event", event.created_at, {"kind": "hold", "critical": False})
    for message in busy.replay("t"):
        entry = found["t", message.pos]
        assert (entry.type, entry.created_at, entry.login) == ("message", message.created_at, message.login)
        assert (entry.facts["seq"], entry.facts["role"], entry.facts["tokens"]) == (message.seq, "user", message.tokens)
    assert found["t", 11].entry == busy.thread("t").head


def test_it_has_content_only_if_asked(busy: Face) -> None:
    entries = read(busy, messages=True)
    assert SECRET not in json.dumps([entry.as_dict() for entry in entries])
    assert SECRET not in repr(read(busy, messages=True, content=True))
    with_content = {(each.thread_id, each.pos): each for each in read(busy, messages=True, content=True)}
    for message in busy.replay("t"):
        entry = with_content["t", message.pos]
        assert (entry.content, entry.meta) == (message.payload, message.meta)
    [record] = busy.compactions("t")
    assert (with_content["t", 9].content or {})["summary_text"] == record.summary_text
    assert (with_content["t", 10].content or {})["reason"] == SECRET


def test_a_reader_goes_on_from_any_cursor(busy: Face) -> None:
    entries = read(busy, messages=True)
    for i, entry in enumerate(entries):
        assert read(busy, entry.cursor, messages=True) == entries[i + 1 :]
    # The cursor of a message also serves a feed without messages.
    assert places(read(busy, entries[0].cursor)) == [("t", 9), ("t", 10)]


def test_a_long_transaction_delays_it_and_loses_nothing(busy: Face, superuser_url: str) -> None:
    last = read(busy, messages=True)[-1].cursor
    with transaction(superuser_url) as open_one:
        busy.append("t", MESSAGES[0])
        assert read(busy, last, messages=True) == []
        open_one.execute(_APPEND, ["late", json.dumps(MESSAGES[0])])
        assert read(busy, last, messages=True) == []
    assert sorted(places(read(busy, last, messages=True))) == [("late", 1), ("t", 12)]


def test_a_transaction_with_an_early_number_that_writes_late_keeps_the_order_of_the_thread(
    busy: Face, superuser: psycopg.Connection[Any], superuser_url: str
) -> None:
    last = read(busy, messages=True)[-1].cursor
    with transaction(superuser_url) as early:
        busy.append("t", MESSAGES[0])
        busy.custody.hold("t", reason="late")
        busy.compact("t", lambda ctx: ctx.compact(5, 6, "Short."))
        busy.append("t", MESSAGES[:3])
        early.execute(_APPEND, ["t", json.dumps(MESSAGES[0])])
    busy.load.messages("t", MESSAGES[:2])
    settled(superuser)
    reached, found = last, []
    for _ in range(20):
        # One entry at a time, so that every boundary between two of them is tried.
        entries = read(busy, reached, messages=True)[:1]
        found += places(entries)
        reached = entries[0].cursor if entries else reached
    assert found == [("t", pos) for pos in range(12, 21)]


WRITES: dict[str, tuple[Callable[[Face], Any], int]] = {
    "a load": (lambda store: store.load.messages("t", MESSAGES[:2]), 2),
    "an event": (lambda store: store.custody.release("t", reason="over"), 1),
    "a record": (lambda store: store.compact("t", lambda ctx: ctx.compact(5, 6, "Short.")), 1),
    "a rewind": (lambda store: store.rewind("t", 5), 1),
    "several messages": (lambda store: store.append("t", MESSAGES[:3]), 3),
    "a redaction": (lambda store: store.custody.redact("t", [8], reason="asked", override="asked"), 1),
}


@pytest.mark.parametrize("what", WRITES)
def test_whatever_follows_a_transaction_with_a_later_number_comes_after_it(
    busy: Face, superuser: psycopg.Connection[Any], what: str
) -> None:
    # The head as it would be if the writer of its last entry had a number that the next writer's is below.
    [(number,)] = superuser.execute("SELECT pg_current_xact_id()").fetchall()
    later = int(number) + 60
    unlock(superuser)
    for table in ("heads", "messages"):
        superuser.execute(
            f"UPDATE compaction_store.{table} SET feed_xid = %s WHERE feed_xid ="
            " (SELECT max(feed_xid) FROM compaction_store.messages)".encode(), [later],
        )  # fmt: skip
    write, count = WRITES[what]
    write(busy)
    for _ in range(80):
        superuser.execute("SELECT pg_current_xact_id()")
    settled(superuser)
    entries = [entry for entry in read(busy, messages=True) if entry.thread_id == "t"]
    assert [entry.pos for entry in entries] == list(range(1, 12 + count))


def test_an_erased_thread_has_its_new_name_and_no_content(busy: Face, superuser: psycopg.Connection[Any]) -> None:
    uid = busy.thread("t").thread_uid
    before = read(busy, messages=True)
    busy.custody.erase("t", reason="asked for", override="asked")
    settled(superuser)
    [erasure] = read(busy, before[-1].cursor)
    assert (erasure.type, erasure.facts, erasure.thread_id) == (
        "event", {"kind": "redaction", "critical": True}, f"erased:{uid}",
    )  # fmt: skip
    again = read(busy, messages=True, content=True)
    assert [entry.cursor for entry in again[:-1]] == [entry.cursor for entry in before]
    assert SECRET not in json.dumps(
        [e.as_dict() for e in again if e.thread_id != "u" and e.facts.get("kind") != "hold"]
    )
    assert all(e.redacted and e.content is None for e in again if e.thread_uid == uid and e.type != "event")


def test_a_row_beyond_the_head_is_left_out(busy: Face, superuser: psycopg.Connection[Any]) -> None:
    before = places(read(busy, messages=True))
    superuser.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
    names = "thread_uid, created_at, tenant, critical, kind, login, commitment, entry"
    superuser.execute(
        f"INSERT INTO compaction_store.events (pos, {names}) SELECT 99, {names} FROM compaction_store.events".encode()
    )
    settled(superuser)
    assert places(read(busy, messages=True)) == before


def test_an_auditor_reads_it_and_sees_one_tenant(busy: Face, faces: Faces, superuser_url: str) -> None:
    auditor = faces.open(as_role(superuser_url, "compaction_store_auditor"))
    assert read(auditor, messages=True, content=True) == read(busy, messages=True, content=True)
    assert read(faces.open(as_role(superuser_url, "compaction_store_auditor"), tenant="other"), messages=True) == []


def test_a_cursor_of_another_tenant_or_a_lost_entry_is_said(
    busy: Face, faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    last = read(busy, messages=True)[-1]
    with pytest.raises(FeedInterrupted, match="not in the database"):
        read(faces.open(url, tenant="other"), last.cursor)
    changed = last.cursor[:-1] + ("0" if last.cursor[-1] != "0" else "1")
    with pytest.raises(FeedInterrupted, match="lost in a failover or a restore"):
        read(busy, changed)
    unlock(superuser)
    superuser.execute("DELETE FROM compaction_store.messages WHERE pos = %s", [last.pos])
    with pytest.raises(FeedInterrupted):
        read(busy, last.cursor)


def test_entries_that_were_restored_from_a_dump_of_another_server_are_said(
    busy: Face, superuser: psycopg.Connection[Any]
) -> None:
    unlock(superuser)
    superuser.execute("UPDATE compaction_store.events SET feed_xid = 9000000000000")
    with pytest.raises(FeedInterrupted, match="restored from a dump"):
        read(busy)


@pytest.mark.parametrize(
    "cursor", ["", "1", "x-y", 5, "1" * 20 + "-00000000-0000-0000-0000-000000000000-1-" + "0" * 64]
)
def test_a_malformed_cursor_is_refused(busy: Face, cursor: Any) -> None:
    with pytest.raises(cs.InvalidInput, match="after must be the cursor of an entry of the feed"):
        read(busy, cursor)


def test_a_big_transaction_is_read_in_pages(store: Face, superuser: psycopg.Connection[Any]) -> None:
    store.load.messages("t", [{"role": "user", "content": str(i)} for i in range(2_500)], tokens=1)
    settled(superuser)
    assert [entry.pos for entry in read(store, messages=True)] == list(range(1, 2_501))
