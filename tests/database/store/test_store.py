"""Threads in both kinds of store, from the first append on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

import compaction_store as cs
from compaction_store.errors import InvalidMessage


def test_what_is_appended_is_what_replay_returns(store: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"type": "function_call_output", "call_id": "c", "output": "{}"}]
    written = [store.append("t", messages[0])[0], store.append("t", messages[1])[0]]
    assert [m.payload for m in store.replay("t")] == messages
    assert list(store.replay("t")) == written
    assert [(m.seq, m.pos, m.role) for m in written] == [(1, 1, "user"), (2, 2, None)]


def test_reading_an_unknown_thread_says_so(store: Any) -> None:
    for read in (
        lambda: list(store.replay("nobody")),
        lambda: store.view("nobody"),
        lambda: store.thread("nobody"),
        lambda: store.message("nobody", 1),
        lambda: store.audit.verify("nobody"),
    ):
        with pytest.raises(cs.ThreadNotFound, match="nobody"):
            read()


def say(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number}"}


def payloads(messages: Iterable[cs.Message]) -> list[Any]:
    return [message.payload for message in messages]


def fill(store: Any, thread_id: str, count: int) -> None:
    for start in range(0, count, 1000):
        store.append(thread_id, [say(i) for i in range(start + 1, min(start + 1000, count) + 1)])


def test_a_batch_may_be_a_list_a_tuple_or_a_generator(store: Any) -> None:
    store.append("t", [say(1), say(2)])
    store.append("t", (say(3),))
    written = store.append("t", (say(i) for i in (4, 5)))
    assert [(m.seq, m.pos) for m in written] == [(4, 4), (5, 5)]
    assert payloads(store.replay("t")) == [say(i) for i in range(1, 6)]


def test_a_batch_with_one_bad_message_stores_none(store: Any) -> None:
    with pytest.raises(InvalidMessage):
        store.append("t", [say(1), "not an object"])
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_what_append_returns_is_what_readers_get(store: Any) -> None:
    odd = [{"b": 1, "a": [2.0]}, {"role": "tool", "x": "é\0"}]
    written = store.append("t", odd, meta={"id": "e1"}, tokens=[3, 4], raw=True)
    assert written == list(store.replay("t")) == [store.message("t", 1), store.message("t", 2)]
    assert written[0].text == '{"b":1,"a":[2.0]}'
    assert [m.redacted for m in written] == [False, False]


def test_a_retry_by_key_returns_the_first_result(store: Any) -> None:
    first = store.append("t", say(1), key="k")
    store.append("t", say(2))
    assert store.append("t", say(1), key="k") == first
    assert store.thread("t").last_seq == 2


def test_a_retry_of_a_batch_by_key_returns_the_first_result(store: Any) -> None:
    store.append("t", say(0))
    first = store.append("t", [say(1), say(2), say(3)], key="k")
    store.append("t", say(4))
    assert store.append("t", [say(1), say(2), say(3)], key="k") == first
    assert store.thread("t").last_seq == 5


def test_a_retry_returns_what_was_stored_whatever_the_retry_says_besides(store: Any) -> None:
    one = store.append("t", say(1), key="k", meta={"n": 1}, tokens=1)
    many = store.append("t", [say(2), say(3)], key="b", meta={"n": 2}, tokens=2)
    assert store.append("t", say(1), key="k") == one == list(store.replay("t", until=1))
    assert store.append("t", [say(2), say(3)], key="b", meta={"n": 9}, tokens=9) == many


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (say(1), say(2)),
        ([say(1), say(2)], [say(1), say(3)]),
        ([say(1), say(2)], [say(1), say(2), say(3)]),
        ([say(1), say(2), say(3)], [say(1), say(2)]),
        (say(1), [say(1), say(2)]),
        ([say(1), say(2)], say(1)),
    ],
)
def test_a_key_used_for_other_content_is_a_conflict(store: Any, first: Any, second: Any) -> None:
    store.append("t", first, key="k")
    before = store.thread("t")
    with pytest.raises(cs.IdempotencyConflict, match="seq 1"):
        store.append("t", second, key="k")
    assert store.thread("t") == before


def test_a_longer_retry_conflicts_even_where_the_thread_goes_on_as_it_says(store: Any) -> None:
    store.append("t", [say(1), say(2)], key="k")
    store.append("t", say(3))
    with pytest.raises(cs.IdempotencyConflict):
        store.append("t", [say(1), say(2), say(3)], key="k")


def test_a_key_belongs_to_its_thread(store: Any) -> None:
    store.append("t", say(1), key="k")
    assert store.append("u", say(2), key="k")[0].seq == 1


def test_the_key_is_judged_before_expected_seq(store: Any) -> None:
    first = store.append("t", say(1), key="k", expected_seq=0)
    batch = store.append("t", [say(2), say(3)], key="b", expected_seq=1)
    assert store.append("t", say(1), key="k", expected_seq=0) == first
    assert store.append("t", [say(2), say(3)], key="b", expected_seq=1) == batch
    with pytest.raises(cs.IdempotencyConflict):
        store.append("t", say(9), key="k", expected_seq=0)


def test_a_retry_is_recognised_thousands_of_messages_later(store: Any) -> None:
    first = store.append("t", say(0), key="k")
    fill(store, "t", 3000)
    assert store.append("t", say(0), key="k") == first
    assert store.thread("t").last_seq == 3001


def test_expected_seq_is_where_the_thread_must_end(store: Any) -> None:
    assert store.append("t", say(1), expected_seq=0)[0].seq == 1
    assert store.append("t", [say(2), say(3)], expected_seq=1)[0].seq == 2
    for wrong in (0, 2, 4):
        for messages in (say(4), [say(4), say(5)]):
            with pytest.raises(cs.SequenceConflict) as caught:
                store.append("t", messages, expected_seq=wrong)
            assert (caught.value.expected, caught.value.actual) == (wrong, 3)
    assert store.thread("t").last_seq == 3


def test_expecting_messages_of_a_new_thread_writes_nothing(store: Any) -> None:
    for messages in (say(1), [say(1), say(2)]):
        with pytest.raises(cs.SequenceConflict) as caught:
            store.append("t", messages, expected_seq=7)
        assert (caught.value.expected, caught.value.actual) == (7, 0)
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_meta_is_one_for_all_or_one_each(store: Any) -> None:
    store.append("t", say(1), meta={"external_id": "a\0\ud800"})
    store.append("t", [say(2), say(3)], meta={"run": 1.0})
    store.append("t", [say(4), say(5), say(6)], meta=[{"n": 4}, None, {}])
    store.append("t", say(7))
    metas = [{"external_id": "a\0\ud800"}, {"run": 1.0}, {"run": 1.0}, {"n": 4}, None, {}, None]
    assert [m.meta for m in store.replay("t")] == metas
    assert not store.audit.verify("t").findings
    with pytest.raises(cs.InvalidInput):
        store.append("t", [say(8), say(9)], meta=[{}])


def test_tokens_are_counted_unless_given(store: Any, superuser: psycopg.Connection[Any]) -> None:
    written = store.append("t", [{"content": "é" * 10}, {}], raw=True)
    assert [m.tokens for m in written] == [13, 3]
    assert store.append("t", say(1), tokens=0)[0].tokens == 0
    assert [m.tokens for m in store.append("t", [say(2), say(3)], tokens=5)] == [5, 5]
    assert [m.tokens for m in store.append("t", [say(2), say(3)], tokens=[6, 7])] == [6, 7]
    assert store.thread("t").view_tokens == store.view("t").tokens == 39
    counters = superuser.execute("SELECT DISTINCT counter FROM compaction_store.messages ORDER BY 1").fetchall()
    assert counters == [("caller",), ("tiktoken/o200k_base/pieces-4000/1",)]


@pytest.mark.parametrize("tokens", [-1, 2**31, 1.0, True, [1], [1, -1], [1, "2"], [1, 2, 3]])
def test_token_counts_that_are_none_are_refused(store: Any, tokens: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        store.append("t", [say(1), say(2)], tokens=tokens)
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_tokens_may_be_counted_by_any_callable(faces: Any, url: str, superuser: psycopg.Connection[Any]) -> None:
    def letters(message: dict[str, Any]) -> int:
        return len(message["content"])

    store = faces.open(url, counter=letters)
    assert [m.tokens for m in store.append("t", [{"content": "four"}, {"content": ""}], raw=True)] == [4, 0]
    row = superuser.execute("SELECT DISTINCT counter FROM compaction_store.messages").fetchone()
    assert row is not None
    assert row[0].endswith("letters")


def test_a_counter_that_does_not_count_stores_nothing(faces: Any, url: str) -> None:
    store = faces.open(url, counter=lambda _message: 1.5)
    with pytest.raises(cs.InvalidInput):
        store.append("t", say(1))
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_a_reply_keeps_the_receipt_of_its_view(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", [say(1), {"content": "é\0"}], raw=True)
    view = store.view("t")
    store.append("t", {"role": "assistant", "content": "so"}, view=view)
    store.append("t", [say(4), say(5)], view=view)
    receipts = [
        row[0] for row in superuser.execute("SELECT receipt FROM compaction_store.messages ORDER BY seq").fetchall()
    ]
    rendered = json.dumps(view.messages, separators=(",", ":"), sort_keys=True).encode()
    assert receipts[:2] == [None, None]
    for receipt in receipts[2:]:
        kept = json.loads(receipt)
        assert kept["pos"] == 2
        assert kept["sha256"] == hashlib.sha256(rendered).hexdigest()
        assert "message 1" not in receipt
    assert not store.audit.verify("t").findings


def test_the_receipt_of_another_thread_is_refused(store: Any) -> None:
    store.append("t", say(1))
    with pytest.raises(cs.InvalidInput):
        store.append("u", say(1), view=store.view("t"))
    with pytest.raises(cs.ThreadNotFound):
        store.thread("u")


def test_replay_takes_a_range_or_the_newest(store: Any) -> None:
    fill(store, "t", 40)

    def seqs(**part: Any) -> list[int]:
        return [m.seq for m in store.replay("t", **part)]

    assert seqs() == list(range(1, 41))
    assert seqs(after=38) == [39, 40]
    assert seqs(until=2) == [1, 2]
    assert seqs(after=10, until=30) == list(range(11, 31))
    assert seqs(after=40) == seqs(until=0) == seqs(after=9, until=3) == []
    assert seqs(after=1000) == []
    assert seqs(last=3) == [38, 39, 40]
    assert seqs(last=1000) == list(range(1, 41))


@pytest.mark.parametrize(
    "part",
    [
        {"last": 1, "after": 1}, {"last": 1, "until": 1}, {"last": 0}, {"last": -1}, {"after": -1}, {"until": -1},
        {"after": 1.0}, {"last": True}, {"after": "1"}, {"until": 2**63},
    ],
)  # fmt: skip
def test_ranges_that_are_none_are_refused_at_the_call(store: Any, part: dict[str, Any]) -> None:
    store.append("t", say(1))
    with pytest.raises(cs.InvalidInput):
        store.replay("t", **part)


def test_long_threads_are_read_in_pages_without_gaps(store: Any) -> None:
    fill(store, "t", 4500)
    everything = list(store.replay("t"))
    assert [m.seq for m in everything] == list(range(1, 4501))
    assert payloads(everything) == [say(i) for i in range(1, 4501)]
    assert list(store.replay("t", last=2000)) == everything[-2000:]
    assert list(store.replay("t", last=2001)) == everything[-2001:]
    assert list(store.replay("t", last=9999)) == everything
    assert list(store.replay("t", after=16, until=4400)) == everything[16:4400]
    assert store.view("t").messages == payloads(everything)
    assert not store.audit.verify("t").findings


def test_replay_may_be_left_in_the_middle(store: Any) -> None:
    fill(store, "t", 100)
    pages = store.replay("t")
    assert next(pages).seq == 1
    pages.close()
    assert store.append("t", say(101))[0].seq == 101


def test_the_view_of_an_uncompacted_thread_is_its_replay(store: Any) -> None:
    store.append("t", [say(1), {"type": "x", "content": None}], raw=True)
    view = store.view("t")
    assert view.messages == payloads(store.replay("t"))
    assert (view.thread_id, view.pos) == ("t", 2)
    assert [(e.seq, e.end_seq, e.pos, e.number, e.is_summary) for e in view.elements] == [
        (1, 1, 1, None, False),
        (2, 2, 2, None, False),
    ]


def test_a_view_at_a_pos_is_the_thread_as_it_was(store: Any) -> None:
    views = []
    for i in range(1, 6):
        store.append("t", say(i))
        views.append(store.view("t"))
    assert [store.view("t", at=pos) for pos in range(1, 6)] == views
    for beyond in (6, 10**9):
        with pytest.raises(cs.PositionNotFound, match=str(beyond)):
            store.view("t", at=beyond)
    for none in (0, -1, True, 1.0, "1", 2**63):
        with pytest.raises(cs.InvalidInput):
            store.view("t", at=none)


def test_a_view_at_a_moment_is_the_last_pos_not_later(store: Any) -> None:
    times = [store.append("t", say(i))[0].created_at for i in range(1, 5)]
    assert len(set(times)) == 4
    tick = timedelta(microseconds=1)
    for pos, time in enumerate(times, 1):
        assert store.view("t", at=time).pos == pos
        assert store.view("t", at=time.astimezone(timezone(timedelta(hours=-7)))).pos == pos
        if pos > 1:
            assert store.view("t", at=time - tick).pos == pos - 1
    assert store.view("t", at=times[-1] + timedelta(days=1)).pos == 4
    for early in (times[0] - tick, datetime.min.replace(tzinfo=UTC)):
        with pytest.raises(cs.PositionNotFound, match="no entry up to that time"):
            store.view("t", at=early)


def test_a_moment_without_a_time_zone_is_refused(store: Any) -> None:
    store.append("t", say(1))
    with pytest.raises(cs.InvalidInput, match="time zone"):
        store.view("t", at=datetime(2030, 1, 1))  # noqa: DTZ001 — that is the point


def test_a_batch_is_one_moment(store: Any) -> None:
    written = store.append("t", [say(1), say(2), say(3)])
    assert len({m.created_at for m in written}) == 1
    assert store.view("t", at=written[0].created_at).pos == 3


def test_a_message_is_found_by_its_seq(store: Any) -> None:
    written = store.append("t", [say(1), say(2)])
    assert store.message("t", 2) == written[1]
    with pytest.raises(cs.MessageNotFound, match=r"3.*'t'"):
        store.message("t", 3)
    for none in (0, -1, True, 1.0, None, 2**63):
        with pytest.raises(cs.InvalidInput):
            store.message("t", none)


def test_a_thread_says_where_it_stands(store: Any) -> None:
    written = store.append("t", [say(1), say(2)])
    thread = store.thread("t")
    assert (thread.thread_id, thread.metadata) == ("t", {})
    assert (thread.last_seq, thread.last_number, thread.last_pos) == (2, 0, 2)
    assert thread.last_at == written[-1].created_at
    assert thread.view_tokens == sum(m.tokens for m in written)
    assert len(thread.head) == 32
    store.append("t", say(3))
    assert store.thread("t").head != thread.head


def test_threads_come_in_the_order_of_their_bytes(store: Any) -> None:
    names = ["b", "a", "ä", "B", "a b", "\U0001f600", "aa", "\uffff"]
    for name in names:
        store.append(name, say(1))
    ordered = sorted(names, key=str.encode)
    assert [t.thread_id for t in store.threads()] == ordered
    assert [t.thread_id for t in store.threads(after="a b")] == ordered[ordered.index("a b") + 1 :]
    assert list(store.threads(after="\U0001f600")) == []
    assert list(store.threads()) == [store.thread(name) for name in ordered]


@pytest.mark.one_server("it calls a function without a key")
def test_threads_come_in_pages_without_gaps(store: Any, superuser: psycopg.Connection[Any]) -> None:
    superuser.execute(
        "SELECT a.* FROM generate_series(1, 1100) AS i, lateral (SELECT to_char(i, 'FM0000') AS name) AS n,"
        " lateral compaction_store.append(NULL, 'default', name, '{}',"
        " decode(repeat('00', 16), 'hex'), NULL, 1, 'c', 'k', NULL, NULL, NULL) AS a"
    )
    assert [t.thread_id for t in store.threads()] == [f"{i:04}" for i in range(1, 1101)]


def test_a_store_without_threads_lists_none(store: Any) -> None:
    assert list(store.threads()) == []


def test_metadata_is_replaced_whole(store: Any) -> None:
    store.append("t", say(1))
    store.set_metadata("t", {"title": "é\0\ud800", "n": 1.0})
    assert store.thread("t").metadata == {"title": "é\0\ud800", "n": 1.0}
    store.set_metadata("t", {"b": 1})
    assert store.thread("t").metadata == next(store.threads()).metadata == {"b": 1}
    with pytest.raises(cs.ThreadNotFound, match="nobody"):
        store.set_metadata("nobody", {})


def test_tenants_see_nothing_of_each_other(faces: Any, url: str) -> None:
    ours, theirs, default = faces.open(url, tenant="ours"), faces.open(url, tenant="théirs"), faces.open(url)
    ours.append("t", say(1), key="k")
    theirs.append("t", [say(2), say(3)], key="k")
    theirs.append("u", say(4))
    theirs.set_metadata("t", {"a": 1})
    assert payloads(ours.replay("t")) == ours.view("t").messages == [say(1)]
    assert payloads(theirs.replay("t")) == [say(2), say(3)]
    assert ours.thread("t").metadata == {}
    assert [t.thread_id for t in ours.threads()] == ["t"]
    assert [t.thread_id for t in theirs.threads()] == ["t", "u"]
    assert list(default.threads()) == []
    for read in (
        lambda: list(ours.replay("u")),
        lambda: ours.view("u"),
        lambda: ours.message("u", 1),
        lambda: ours.thread("u"),
        lambda: ours.audit.verify("u"),
        lambda: ours.set_metadata("u", {}),
        lambda: default.thread("t"),
    ):
        with pytest.raises(cs.ThreadNotFound):
            read()
    with pytest.raises(cs.MessageNotFound):
        ours.message("t", 2)
    assert ours.thread("t").head != theirs.thread("t").head
    assert not [*ours.audit.verify("t").findings, *theirs.audit.verify("t").findings]


@pytest.mark.parametrize("tenant", ["", "t\0", "x" * 256, "\ud800", None, 1])
def test_a_tenant_has_a_name(faces: Any, url: str, tenant: Any) -> None:
    with pytest.raises(cs.InvalidInput, match="tenant"):
        faces.open(url, tenant=tenant)


@pytest.mark.parametrize("reader", [cs.Reader, cs.AsyncReader])
def test_a_reader_has_no_method_that_writes(reader: type) -> None:
    writing = {"append", "set_metadata", "compact", "fit", "on_compact", "revoke", "redact", "erase", "load"}
    assert not writing & set(dir(reader))


def test_a_reader_reads_what_a_store_wrote(store: Any, url: str) -> None:
    written = store.append("t", [say(1), say(2)])
    with cs.Reader.open(url) as reader:
        assert list(reader.replay("t")) == written

    async def read() -> list[cs.Message]:
        async with await cs.AsyncReader.open(url) as other:
            return [m async for m in other.replay("t")]

    assert asyncio.run(read()) == written


def test_stores_are_context_managers(url: str) -> None:
    with cs.Store.open(url) as store:
        assert isinstance(store, cs.Store)
        store.append("t", say(1))

    async def append() -> cs.AsyncStore:
        async with cs.AsyncStore.open(url) as other:
            [message] = await other.append("t", say(2))
            assert message.seq == 2
        opened = await cs.AsyncStore.open(url)
        async with opened as again:
            assert again is opened
            [message] = await again.append("t", say(3))
            assert message.seq == 3
        return await asyncio.create_task(cs.AsyncStore.open(url))

    asyncio.run(asyncio.run(append()).close())


def test_a_closed_store_says_so(store: Any) -> None:
    store.append("t", say(1))
    store.close()
    for call in (lambda: store.append("t", say(2)), lambda: store.view("t"), lambda: list(store.replay("t"))):
        # Code that retries while the database is away does not catch this error.
        with pytest.raises(cs.errors.StoreClosed, match="the store is closed"):
            call()


def test_an_async_store_that_is_never_awaited_warns_as_any_coroutine(url: str) -> None:
    with pytest.warns(RuntimeWarning, match="open' was never awaited"):
        cs.AsyncStore.open(url)
    cs.AsyncStore.open(url).close()


def test_a_store_takes_a_callers_own_engine(faces: Any, url: str) -> None:
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    if faces.runner is None:
        engine: Any = sa.create_engine(address)
    else:
        engine = create_async_engine(address)
    store = faces.open(None, engine=engine)
    store.append("t", [say(1), say(2)])
    assert payloads(store.replay("t")) == [say(1), say(2)]


def check_dense(url: str, count: int, written: list[cs.Message]) -> None:
    with cs.Store.open(url) as store:
        stored = list(store.replay("t"))
        assert [m.seq for m in stored] == list(range(1, count + 1))
        assert stored == sorted(written, key=lambda m: m.seq)
        assert all(a.created_at <= b.created_at for a, b in pairwise(stored))
        report = store.audit.verify("t")
        assert (report.findings, report.entries, report.level) == ((), count, "content")


def test_threads_of_a_process_append_to_one_new_thread_at_once(url: str) -> None:
    with cs.Store.open(url) as store, ThreadPoolExecutor(16) as pool:
        start = threading.Barrier(16)

        def work(worker: int) -> list[cs.Message]:
            start.wait()
            ones = [store.append("t", say(100 * worker + i))[0] for i in range(10)]
            return ones + store.append("t", [say(100 * worker + i) for i in range(10, 15)])

        written = [message for part in pool.map(work, range(16)) for message in part]
    check_dense(url, 16 * 15, written)


def test_tasks_append_to_one_new_thread_at_once(url: str) -> None:
    async def run() -> list[cs.Message]:
        async with await cs.AsyncStore.open(url) as store:

            async def work(worker: int) -> list[cs.Message]:
                ones = [(await store.append("t", say(100 * worker + i)))[0] for i in range(10)]
                return ones + await store.append("t", [say(100 * worker + i) for i in range(10, 15)])

            return [message for part in await asyncio.gather(*map(work, range(16))) for message in part]

    check_dense(url, 16 * 15, asyncio.run(run()))


def test_one_key_used_by_many_at_once_stores_once(url: str) -> None:
    with cs.Store.open(url) as store, ThreadPoolExecutor(16) as pool:
        written = list(pool.map(lambda _: store.append("t", say(1), key="k"), range(16)))
        assert all(result == written[0] for result in written)
        assert store.thread("t").last_seq == 1


def test_only_one_of_many_gets_the_expected_seq(url: str) -> None:
    def attempt(number: int) -> bool:
        try:
            store.append("t", say(number), expected_seq=0)
        except cs.SequenceConflict:
            return False
        return True

    with cs.Store.open(url) as store, ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(16))) == 1
        assert store.thread("t").last_seq == 1


def test_time_never_goes_back_within_a_thread(store: Any, superuser: psycopg.Connection[Any]) -> None:
    first = store.append("t", say(1))[0]
    ahead = first.created_at + timedelta(hours=1)
    superuser.execute("UPDATE compaction_store.heads SET last_at = %s", [ahead])
    later = [*store.append("t", say(2)), *store.append("t", [say(3), say(4)])]
    assert {m.created_at for m in later} == {ahead}


def test_changing_an_object_afterwards_changes_nothing_stored(store: Any) -> None:
    message: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "as it was"}]}
    meta = {"list": [1]}
    written = store.append("t", message, meta=meta)[0]
    message["content"][0]["text"] = "changed"
    meta["list"].append(2)
    assert written.payload == {"role": "user", "content": [{"type": "text", "text": "as it was"}]}
    assert written.meta == {"list": [1]}
    written.payload["content"].clear()
    store.view("t").messages[0]["content"].clear()
    stored = store.message("t", 1)
    assert stored.payload == {"role": "user", "content": [{"type": "text", "text": "as it was"}]}
    assert stored.meta == {"list": [1]}
    assert (
        store.append("t", {"role": "user", "content": [{"type": "text", "text": "as it was"}]})[0].text == written.text
    )


def test_what_is_printed_shows_no_content(store: Any) -> None:
    written = store.append("t", {"role": "user", "content": "marker-4711"}, meta={"m": "marker-4711"})
    store.set_metadata("t", {"m": "marker-4711"})
    view = store.view("t")
    assert "marker-4711" not in repr([written, view, view.elements, store.thread("t"), store.audit.verify("t")])


def test_a_verified_thread_reports_its_level_and_is_no_bool(store: Any) -> None:
    store.append("t", [say(1), say(2)])
    report = store.audit.verify("t")
    assert (report.thread_id, report.entries, report.redacted, report.findings) == ("t", 2, 0, ())
    assert report.head == store.thread("t").head
    with pytest.raises(TypeError):
        bool(report)
    with pytest.raises(cs.InvalidInput):
        store.audit.verify("t", level="deep")
