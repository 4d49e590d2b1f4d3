"""load_threads() stores what load() would have stored, short threads in common transactions, and each all or none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from support.load_sources import CHUNK, message, messages, sound, stored
from support.lost_replies import Proxy

import compaction_store as cs
from compaction_store import tokens
from compaction_store.errors import CounterFailed, IdempotencyConflict, InvalidMessage, PermissionDenied, ThreadErased
from compaction_store.models import Loaded, Observed, ThreadLoaded, ToLoad


class Cut(Exception):
    """The error that sources raise in these tests."""


def transactions(superuser: psycopg.Connection[Any]) -> int:
    """Returns how many transactions stored the messages."""
    [row] = superuser.execute("SELECT count(DISTINCT xmin::text) FROM compaction_store.messages").fetchall()
    return int(row[0])


@pytest.mark.one_server("a cluster loads each thread by itself")
def test_short_threads_share_a_transaction_and_are_what_load_would_store(
    store: Any, superuser: psycopg.Connection[Any]
) -> None:
    given = [(f"t{i}", messages(1 + i % 7)) for i in range(50)]
    results = list(store.load.threads(given, key="k", meta={"source": "old"}))
    assert results == [ThreadLoaded(name, Loaded(1, len(m), len(m), len(m))) for name, m in given]
    assert transactions(superuser) == 1
    store.load.messages("alone", messages(7), key="k", meta={"source": "old"})
    one, other = list(store.replay("alone")), list(store.replay("t6"))
    assert [(m.seq, m.pos, m.role, m.text, m.tokens, m.meta) for m in one] == [
        (m.seq, m.pos, m.role, m.text, m.tokens, m.meta) for m in other
    ]
    assert store.thread("alone").view_tokens == store.thread("t6").view_tokens
    rows = superuser.execute(
        "SELECT key, call_size, counter, count(*) FROM compaction_store.messages GROUP BY 1, 2, 3 ORDER BY 1, 2"
    ).fetchall()
    assert {row[2] for row in rows} == {tokens.o200k_base().name}
    for name, given_messages in given:
        assert stored(store, name) == given_messages
        sound(store, len(given_messages), name)
    assert store.append("t6", message(7))[0].seq == 8
    sound(store, 8, "t6")


def test_the_same_call_again_adds_only_what_is_new(store: Any) -> None:
    list(store.load.threads([("a", messages(3)), ("b", messages(2))], key="k"))
    again = [("a", messages(5)), ("new", messages(1)), ("b", messages(2))]
    assert [r.loaded for r in store.load.threads(again, key="k")] == [
        Loaded(1, 5, 5, 2), Loaded(1, 1, 1, 1), Loaded(1, 2, 2, 0),
    ]  # fmt: skip
    assert stored(store, "a") == messages(5)
    for name, count in (("a", 5), ("b", 2), ("new", 1)):
        sound(store, count, name)


def test_a_thread_that_exists_is_continued(store: Any) -> None:
    store.append("a", message(0))
    results = list(store.load.threads([("new", messages(2)), ("a", messages(3))]))
    assert [r.loaded for r in results] == [Loaded(1, 2, 2, 2), Loaded(2, 4, 3, 3)]
    sound(store, 4, "a")


def test_a_name_may_come_twice(store: Any) -> None:
    results = list(store.load.threads([("a", messages(2)), ("a", messages(3), "other"), ("b", messages(1))], key="k"))
    assert [r.loaded for r in results] == [Loaded(1, 2, 2, 2), Loaded(3, 5, 3, 3), Loaded(1, 1, 1, 1)]
    sound(store, 5, "a")


def test_each_thread_may_have_a_key_of_its_own(store: Any) -> None:
    given = [(name, messages(2), f"key of {name}") for name in "ab"]
    list(store.load.threads(given))
    assert [r.loaded.added for r in store.load.threads(given)] == [0, 0]
    assert store.load.messages("b", messages(2), key="key of b").added == 0


@pytest.mark.one_server("a cluster loads each thread by itself")
@pytest.mark.usefixtures("small")
def test_groups_are_as_large_as_chunks_and_longer_threads_are_loaded_by_themselves(
    store: Any, superuser: psycopg.Connection[Any]
) -> None:
    sizes = [40, 60, 1, 99, 100, 30, 250, 20, 20]
    given = [(f"t{i}", (message(j) for j in range(size))) for i, size in enumerate(sizes)]
    assert [r.loaded.added for r in store.load.threads(given)] == sizes
    # 40 and 60; 1 and 99; 100 alone; 30; 250 in three chunks; 20 and 20.
    assert transactions(superuser) == 8
    for i, size in enumerate(sizes):
        assert stored(store, f"t{i}") == messages(size)
        sound(store, size, f"t{i}")


@pytest.mark.one_server("a cluster loads each thread by itself")
@pytest.mark.usefixtures("small")
def test_nothing_is_read_far_ahead_of_what_is_stored(store: Any) -> None:
    read = []

    def threads() -> Iterator[tuple[str, list[Any]]]:
        for i in range(100):
            read.append(i)
            yield f"t{i}", messages(10)

    results = store.load.threads(threads())
    assert read == []
    next(iter(results))
    assert len(read) == CHUNK // 10 + 1


def test_providers_compactions_are_recorded_in_their_place(store: Any) -> None:
    compacted = {"role": "assistant", "content": [{"type": "compaction", "content": "what was said"}]}
    given = [
        ("plain", messages(2)),
        ("reported", [*messages(2), compacted, *messages(2)]),
        ("given", [*messages(3), Observed("codex", summary_text="all of it"), *messages(2)]),
        ("last", messages(1)),
    ]
    results = list(store.load.threads(given, key="k"))
    assert [(r.thread_id, r.loaded.added, r.loaded.observed) for r in results] == [
        ("plain", 2, 0), ("reported", 5, 1), ("given", 5, 1), ("last", 1, 0),
    ]  # fmt: skip
    [record] = store.compactions(thread_id="given")
    assert (record.start_seq, record.end_seq, record.pos, record.summary_text) == (1, 3, 4, "all of it")
    assert [r.loaded.added for r in store.load.threads(given, key="k")] == [0, 0, 0, 0]
    sound(store, 6, "given")


def test_tokens_are_counted_given_or_of_the_message(store: Any) -> None:
    list(store.load.threads([("a", [ToLoad(message(0), tokens=7), message(1)])]))
    assert [m.tokens for m in store.replay("a")] == [7, tokens.o200k_base().messages([message(1)])]
    list(store.load.threads([("b", [ToLoad(message(0), tokens=7), message(1)])], tokens=3))
    assert [m.tokens for m in store.replay("b")] == [7, 3]


def test_an_error_comes_after_the_threads_before_it_are_stored(store: Any) -> None:
    def cut() -> Iterator[Any]:
        yield message(0)
        raise Cut

    results = iter(store.load.threads([("a", messages(2)), ("b", cut()), ("c", messages(2))]))
    assert next(results).thread_id == "a"
    with pytest.raises(Cut):
        next(results)
    assert [t.thread_id for t in store.threads()] == ["a"]

    def broken() -> Iterator[Any]:
        yield "d", messages(1)
        raise Cut

    results = iter(store.load.threads(broken()))
    assert next(results).thread_id == "d"
    with pytest.raises(Cut):
        next(results)


def test_a_refused_thread_ends_the_load_or_is_reported(store: Any) -> None:
    store.load.messages("used", messages(3), key="k")
    store.append("gone", message(0))
    uid = store.thread("gone").thread_uid
    store.custody.erase("gone", reason="r")
    stub = f"erased:{uid}"
    given = [
        ("a", messages(2)), ("bad", [message(0), "no message"]), ("used", messages(2)), ("none", []),
        (stub, messages(1)), ("z", messages(1)),
    ]  # fmt: skip
    results = list(store.load.threads(given, key="k", skip_refused=True))
    assert [(r.thread_id, type(r.refused), r.loaded is None) for r in results] == [
        ("a", type(None), False), ("bad", InvalidMessage, True), ("used", IdempotencyConflict, True),
        ("none", InvalidMessage, True), (stub, ThreadErased, True), ("z", type(None), False),
    ]  # fmt: skip
    assert "message 2 of the load" in str(results[1].refused)
    assert "'bad'" in str(results[1].refused)
    assert sorted(t.thread_id for t in store.threads()) == ["a", stub, "used", "z"]
    refused = store.load.threads([("b", messages(1)), ("bad", ["no message"]), ("y", messages(1))])
    with pytest.raises(InvalidMessage, match="message 1 of the load"):
        list(refused)
    assert sorted(t.thread_id for t in store.threads()) == ["a", "b", stub, "used", "z"]


@pytest.mark.parametrize("length", [1, 20_000])
@pytest.mark.parametrize(
    "counter", [tokens.o200k_base(), tokens.from_callable(lambda payload: len(payload["content"]))]
)
def test_a_source_may_use_one_object_again_for_each_message(
    faces: Any, url: str, counter: tokens.Counter, length: int
) -> None:
    store = faces.open(url, counter=counter)

    def said(thread: int) -> Iterator[dict[str, Any]]:
        one = {"role": "user", "content": ""}
        for number in range(1, 4):
            one["content"] = "some words " * number * (thread + 1) * length
            yield one

    list(store.load.threads((f"t{thread}", said(thread)) for thread in range(3)))
    store.load.messages("alone", said(3))
    for name in ("t0", "t1", "t2", "alone"):
        found = list(store.replay(name))
        assert [each.tokens for each in found] == [counter.messages([each.payload]) for each in found]
        assert len({each.tokens for each in found}) == 3


def test_a_counter_that_fails_refuses_its_thread_alone(faces: Any, url: str) -> None:
    def count(payload: Any) -> int:
        if payload["content"] == "message 2":
            raise ValueError("quotes a message")
        return 5

    store = faces.open(url, counter=tokens.Counter("mine", lambda payload, _size: count(payload)))
    given = [("a", messages(2)), ("b", messages(4)), ("c", messages(1))]
    results = list(store.load.threads(given, skip_refused=True))
    assert [type(r.refused) for r in results] == [type(None), CounterFailed, type(None)]
    assert "message 3 of the load" in str(results[1].refused)
    assert [t.thread_id for t in store.threads()] == ["a", "c"]
    with pytest.raises(CounterFailed):
        list(store.load.threads([("d", messages(1)), *given[1:]]))
    assert [t.thread_id for t in store.threads()] == ["a", "c", "d"]


@pytest.mark.parametrize(
    ("threads", "why"),
    [
        ({"a": []}, "not dict"), ("a", "not str"), (7, "not int"), (["a"], "not str"), ([("a",)], "not tuple of 1"),
        ([(1, [])], "thread_id"), ([("a", [], "k", "more")], "not tuple of 4"), ([("a", [], "")], "key"),
    ],
)  # fmt: skip
def test_what_is_not_a_list_of_threads_is_refused(store: Any, threads: Any, why: str) -> None:
    with pytest.raises(cs.InvalidInput, match=why):
        list(store.load.threads(threads, skip_refused=True))
    assert list(store.threads()) == []


def test_messages_may_come_from_an_async_source(url: str) -> None:
    async def source(count: int) -> AsyncIterator[Any]:
        for i in range(count):
            await asyncio.sleep(0)
            yield message(i)

    async def threads() -> AsyncIterator[Any]:
        for i in range(3):
            yield f"t{i}", source(i + 1)

    async def run() -> None:
        async with await cs.AsyncStore.open(url) as store:
            assert [r.loaded async for r in store.load.threads(threads())] == [Loaded(1, n, n, n) for n in (1, 2, 3)]

    asyncio.run(run())


@pytest.mark.one_server("a cluster loads each thread by itself")
def test_a_lost_reply_is_settled_by_the_salts(url: str) -> None:
    proxy = Proxy(url, call=b"compaction_store.load_threads")
    try:
        with cs.Store.open(proxy.url, deadline=10) as store:
            list(store.load.threads([("before", messages(1))]))
            proxy.cuts = 1
            results = list(store.load.threads([("a", messages(2)), ("b", messages(3))], key="k"))
            assert [r.loaded for r in results] == [Loaded(1, 2, 2, 2), Loaded(1, 3, 3, 3)]
            assert proxy.lost_replies == 1
            sound(store, 3, "b")
    finally:
        proxy.close()


def test_two_loads_of_the_same_threads_store_each_once(url: str) -> None:
    def threads() -> Iterator[Any]:
        yield from ((f"t{i}", messages(5)) for i in range(300))

    added = [0, 0]

    def run(number: int) -> None:
        with cs.Store.open(url) as store:
            order = threads() if number else reversed(list(threads()))
            added[number] = sum(r.loaded.added for r in store.load.threads(order, key="k") if r.loaded)

    runs = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert sum(added) == 1500
    with cs.Store.open(url) as store:
        reports = list(store.audit.verify())
        assert [r.entries for r in reports if r.thread_id] == [5] * 300
        assert not any(r.findings for r in reports)


_LISTS: dict[str, Any] = {
    "thread_ids": ["a", "b"], "keys": ["k", "k"], "sizes": [1, 2], "payloads": ['{"role":"user"}', "{}", "{}"],
    "salts": bytes(48), "roles": ["user", None, None], "tokens": [1, 2, 3], "counters": ["c", "c", "c"], "metas": None,
}  # fmt: skip


@pytest.mark.one_server("a cluster loads each thread by itself")
@pytest.mark.parametrize(
    ("wrong", "state"),
    [
        ({"thread_ids": ["a"]}, "CS008"), ({"keys": None}, "CS008"), ({"sizes": [0, 3]}, "CS008"),
        ({"sizes": [1, 1]}, "CS008"), ({"sizes": [1, None]}, "CS008"), ({"payloads": []}, "CS008"),
        ({"salts": bytes(47)}, "CS008"), ({"roles": ["user"]}, "CS008"), ({"metas": ["{}"]}, "CS008"),
        ({"keys": ["k", None]}, "CS019"), ({"keys": ["k", ""]}, "CS019"), ({"keys": ["k", "k" * 273]}, "CS019"),
        ({"thread_ids": ["a", "erased:b"]}, "CS018"), ({"thread_ids": ["a", None]}, "CS018"),
        ({"thread_ids": ["a", "n" * 256]}, "CS018"), ({"thread_ids": ["a", "a"]}, "23505"),
        ({"payloads": ['{"role":"user"}', "{}", "[]"]}, "CS019"), ({"roles": ["user", "user", None]}, "CS019"),
        ({"tokens": [1, 2, -1]}, "23514"),
    ],
    ids=str,
)  # fmt: skip
def test_the_function_refuses_what_the_library_would(
    store: Any, superuser: psycopg.Connection[Any], wrong: dict[str, Any], state: str
) -> None:
    call = (
        "SELECT thread FROM compaction_store.load_threads('default', %s::text[], %s::text[], %s::int[], %s::text[], %s,"
        " %s::text[], %s::int[], %s::text[], %s::text[])"
    )
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(call, tuple((_LISTS | wrong).values()))
    assert caught.value.sqlstate == state
    assert list(store.threads()) == []
    assert superuser.execute(call, tuple(_LISTS.values())).fetchall() == [(1,), (2,)]
    sound(store, 2, "b")


@pytest.mark.parametrize("login", ["compaction_store_loader"], indirect=True)
def test_the_loaders_role_is_enough(faces: Any, login: str) -> None:
    store = faces.open(login, tenant="mine")
    assert [r.loaded.added for r in store.load.threads([("a", messages(2)), ("b", messages(3))])] == [2, 3]
    sound(store, 3, "b")


@pytest.mark.parametrize("login", ["compaction_store_app"], indirect=True)
def test_the_applications_role_is_not(faces: Any, login: str) -> None:
    with pytest.raises(PermissionDenied, match="compaction_store_loader"):
        list(faces.open(login).load.threads([("a", messages(2))], skip_refused=True))
