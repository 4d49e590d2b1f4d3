"""load() stores what append() would have stored, in chunks, and continues after an interruption."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest
from support.load_sources import CHUNK, message, messages, sound, stored

import compaction_store as cs
from compaction_store.errors import (
    InvalidKey,
    InvalidMessage,
    InvalidMeta,
    InvalidThreadId,
    MessageTooDeep,
    MessageTooLarge,
)
from compaction_store.models import Loaded, ToLoad
from compaction_store.store import loads


class Cut(Exception):
    """The error that sources raise in these tests."""


def cut_after(count: int, items: Iterable[Any]) -> Iterator[Any]:
    for i, item in enumerate(items):
        if i == count:
            raise Cut
        yield item


def test_what_is_loaded_is_what_would_have_been_appended(store: Any) -> None:
    odd = [
        {"role": "user", "content": "a \x00 b \ud800 c"},
        {"role": "größe", "content": "größe 会話 🔒"},
        {"b": 1, "a": [1.0, 2**70, None, True]},
        {"type": "function_call", "call_id": "c", "arguments": "{}"},
    ]
    store.append("appended", odd, raw=True)
    loaded = store.load.messages("loaded", odd, raw=True)
    assert loaded == Loaded(first_seq=1, last_seq=4, count=4, added=4)
    one, other = list(store.replay("appended")), list(store.replay("loaded"))
    assert [(m.seq, m.pos, m.role, m.text, m.tokens) for m in one] == [
        (m.seq, m.pos, m.role, m.text, m.tokens) for m in other
    ]
    assert store.thread("appended").view_tokens == store.thread("loaded").view_tokens
    sound(store, 4, "loaded")


@pytest.mark.usefixtures("small")
def test_a_load_continues_the_thread_and_the_next_append_continues_the_load(store: Any) -> None:
    store.append("t", {"role": "user", "content": "before"}, tokens=1)
    assert store.load.messages("t", messages(730), tokens=3) == Loaded(2, 731, 730, 730)
    assert store.append("t", {"role": "user", "content": "after"}, tokens=1)[0].seq == 732
    thread = store.thread("t")
    assert (thread.last_seq, thread.last_pos, thread.view_tokens) == (732, 732, 1 + 730 * 3 + 1)
    assert stored(store)[1:-1] == messages(730)
    assert [m.seq for m in store.replay("t")] == list(range(1, 733))
    sound(store, 732)


def test_chunks_of_the_full_size(store: Any) -> None:
    assert store.load.messages("t", (message(i) for i in range(25_000)), key="k").added == 25_000
    assert store.load.messages("t", (message(i) for i in range(25_000)), key="k") == Loaded(1, 25_000, 25_000, 0)
    assert stored(store) == messages(25_000)
    sound(store, 25_000)


def test_a_chunk_ends_where_it_has_enough_bytes(store: Any, superuser: psycopg.Connection[Any]) -> None:
    large = [{"content": "x" * 6_000_000, "i": i} for i in range(7)]
    assert store.load.messages("t", iter(large), key="k", raw=True).added == 7
    sizes = superuser.execute(
        "SELECT key, call_size FROM compaction_store.messages WHERE key IS NOT NULL ORDER BY seq"
    ).fetchall()
    assert sizes == [("k", 3), ("k#3", 3), ("k#6", None)]
    assert store.load.messages("t", iter(large), key="k", raw=True).added == 0
    sound(store, 7)


def test_meta_and_tokens_for_all_and_for_each(store: Any) -> None:
    given = [
        message(0),
        ToLoad(message(1), meta={"occurred_at": "2024-01-02T03:04:05Z", "id": "größe"}),
        ToLoad(message(2), tokens=7),
        ToLoad(message(3), meta={}, tokens=0),
    ]
    store.load.messages("t", given, meta={"source": "old"}, tokens=2)
    assert [(m.meta, m.tokens) for m in store.replay("t")] == [
        ({"source": "old"}, 2), ({"occurred_at": "2024-01-02T03:04:05Z", "id": "größe"}, 2), ({"source": "old"}, 7),
        ({}, 0),
    ]  # fmt: skip
    store.load.messages("u", given)
    counted = store.append("v", [message(i) for i in range(4)])
    found = list(store.replay("u"))
    assert [m.tokens for m in found] == [counted[0].tokens, counted[1].tokens, 7, 0]
    assert [m.meta for m in found] == [None, {"occurred_at": "2024-01-02T03:04:05Z", "id": "größe"}, None, {}]
    assert "message" not in repr(given[1])
    sound(store, 4)
    sound(store, 4, "u")


def test_the_counter_and_the_source_of_a_count_are_stored(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.load.messages("t", [message(0), ToLoad(message(1), tokens=3)])
    names = superuser.execute("SELECT counter FROM compaction_store.messages ORDER BY seq").fetchall()
    assert names[0][0] not in ("", "caller")
    assert names[1][0] == "caller"


@pytest.mark.usefixtures("small")
def test_a_load_that_was_cut_goes_on_where_it_stood(store: Any) -> None:
    for stop in (0, 1, 99, 100, 101, 199, 200, 250, 300, 399):
        thread_id = f"cut after {stop}"
        with pytest.raises(Cut) as caught:
            store.load.messages(thread_id, cut_after(stop, messages(400)), key="k")
        there = stop // CHUNK * CHUNK
        assert f"{there:,} messages of the load are stored" in "".join(caught.value.__notes__)
        assert store.load.messages(thread_id, iter(messages(400)), key="k") == Loaded(1, 400, 400, 400 - there)
        assert store.load.messages(thread_id, iter(messages(400)), key="k") == Loaded(1, 400, 400, 0)
        assert stored(store, thread_id) == messages(400)
        sound(store, 400, thread_id)


def test_a_load_goes_on_whatever_the_sizes_of_the_chunks(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, stop in ((70, 100), (10, 155), (1000, None)):
        monkeypatch.setattr(loads, "CHUNK_MESSAGES", size)
        if stop is None:
            assert store.load.messages("t", messages(300), key="k").added == 150
        else:
            with pytest.raises(Cut):
                store.load.messages("t", cut_after(stop, messages(300)), key="k")
    assert stored(store) == messages(300)
    sound(store, 300)


@pytest.mark.usefixtures("small")
def test_a_longer_source_under_the_same_key_adds_its_end(store: Any) -> None:
    store.load.messages("t", messages(250), key="k")
    store.append("t", {"content": "between"}, raw=True)
    assert store.load.messages("t", messages(420), key="k") == Loaded(1, 421, 420, 170)
    assert stored(store) == [*messages(250), {"content": "between"}, *messages(420)[250:]]
    sound(store, 421)


def test_without_a_key_the_same_load_is_another_one(store: Any) -> None:
    store.load.messages("t", messages(3))
    assert store.load.messages("t", messages(3)) == Loaded(4, 6, 3, 3)


@pytest.mark.usefixtures("small")
def test_fewer_messages_under_the_same_key_are_a_conflict(store: Any) -> None:
    store.load.messages("t", messages(250), key="k")
    for count in (1, 99, 100, 200, 249):
        with pytest.raises(cs.IdempotencyConflict, match=r"more messages.*'t'"):
            store.load.messages("t", messages(count), key="k")
    assert store.thread("t").last_seq == 250


@pytest.mark.usefixtures("small")
def test_other_content_under_the_same_key_is_a_conflict_named_by_seq(store: Any) -> None:
    store.load.messages("t", messages(250), key="k")
    for at in (0, 50, 99, 100, 249):
        other = messages(260)
        other[at] = {"role": "user", "content": "SECRET"}
        with pytest.raises(cs.IdempotencyConflict, match=f"seq {at + 1} .*'t'") as caught:
            store.load.messages("t", other, key="k")
        assert "SECRET" not in str(caught.value)
    assert stored(store) == messages(250)


def test_append_and_load_know_each_others_keys(store: Any) -> None:
    first = store.append("t", message(0), key="one")
    pair = store.append("t", messages(2), key="two")
    assert store.load.messages("t", [message(0)], key="one") == Loaded(1, 1, 1, 0)
    assert store.load.messages("t", messages(2), key="two") == Loaded(2, 3, 2, 0)
    for key in ("one", "two"):
        with pytest.raises(cs.IdempotencyConflict):
            store.load.messages("t", [message(9)], key=key)
    store.load.messages("t", messages(3), key="three")
    store.load.messages("t", [message(5)], key="four")
    assert [m.seq for m in store.append("t", messages(3), key="three")] == [4, 5, 6]
    assert store.append("t", message(5), key="four")[0].seq == 7
    with pytest.raises(cs.IdempotencyConflict):
        store.append("t", messages(2), key="three")
    assert store.append("t", message(0), key="one") == first
    assert store.append("t", messages(2), key="two") == pair
    sound(store, 7)


def test_a_load_over_an_erased_message_is_a_conflict(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.load.messages("t", messages(5), key="k")
    superuser.execute(
        "UPDATE compaction_store.messages SET redacted_pos = 9, salt = NULL, payload = NULL, meta = NULL WHERE seq = 3"
    )
    with pytest.raises(cs.IdempotencyConflict, match="seq 3"):
        store.load.messages("t", messages(5), key="k")


@pytest.mark.usefixtures("small")
def test_appends_between_the_chunks_leave_the_load_in_order(store: Any, url: str) -> None:
    with cs.Store.open(url) as other:

        def source(between: str | None) -> Iterator[dict[str, Any]]:
            for i in range(350):
                if between and i % 60 == 59:
                    other.append("t", {"role": "user", "content": between})
                yield message(i)

        loaded = store.load.messages("t", source("between"), key="k")
        assert (loaded.first_seq, loaded.count, loaded.added) == (2, 350, 350)
        assert store.load.messages("t", source(None), key="k") == Loaded(2, loaded.last_seq, 350, 0)
    everything = stored(store)
    assert len(everything) == 355
    assert [m for m in everything if m["content"] != "between"] == messages(350)
    sound(store, 355)


@pytest.mark.usefixtures("small")
def test_a_chunk_that_another_run_of_the_load_stored_first_is_compared(
    store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cs.Store.open(url) as other:

        def source() -> Iterator[dict[str, Any]]:
            for i in range(350):
                if i == 120:
                    with monkeypatch.context() as patch:
                        patch.setattr(loads, "CHUNK_MESSAGES", 30)
                        assert other.load.messages("t", messages(310), key="k").added == 210
                yield message(i)

        assert store.load.messages("t", source(), key="k") == Loaded(1, 350, 350, 140)
    assert stored(store) == messages(350)
    sound(store, 350)


@pytest.mark.usefixtures("small")
def test_many_runs_of_one_load_at_once_store_it_once(url: str) -> None:
    added: list[int] = []

    def run() -> None:
        with cs.Store.open(url) as mine:
            added.append(mine.load.messages("t", iter(messages(1500)), key="k").added)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(added), sum(added)) == (4, 1500)
    with cs.Store.open(url) as store:
        assert stored(store) == messages(1500)
        sound(store, 1500)


@pytest.mark.usefixtures("small")
def test_expected_seq_is_judged_before_the_first_chunk_and_after_the_key(store: Any) -> None:
    store.append("t", message(0))
    with pytest.raises(cs.SequenceConflict) as caught:
        store.load.messages("t", messages(250), key="k", expected_seq=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert store.load.messages("t", messages(250), key="k", expected_seq=1).added == 250
    assert store.load.messages("t", messages(250), key="k", expected_seq=1).added == 0
    assert store.load.messages("new", messages(1), expected_seq=0).added == 1
    with pytest.raises(cs.SequenceConflict):
        store.load.messages("none", messages(1), expected_seq=4)
    assert [t.thread_id for t in store.threads()] == ["new", "t"]


DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"SECRET": DEEP}
REFUSED: list[tuple[Any, type[cs.InvalidInput]]] = [
    ({"content": float("nan"), "SECRET": 1}, InvalidMessage),
    ({1: "SECRET"}, InvalidMessage),
    ("SECRET", InvalidMessage),
    (["SECRET"], InvalidMessage),
    (None, InvalidMessage),
    (DEEP, MessageTooDeep),
    ({"content": "SECRET" * 3_000_000}, MessageTooLarge),
    (ToLoad({"SECRET": 1}, meta={"m": "x" * 9000}), InvalidMeta),
    (ToLoad({"SECRET": 1}, tokens=-1), cs.InvalidInput),
    (ToLoad({"SECRET": 1}, tokens=True), cs.InvalidInput),
    (ToLoad(ToLoad({"SECRET": 1})), InvalidMessage),
]


@pytest.mark.usefixtures("small")
def test_a_message_that_is_refused_stops_the_load_before_its_chunk(store: Any) -> None:
    for i, (bad, kind) in enumerate(REFUSED):
        thread_id = f"t-{i}"
        given: list[Any] = messages(250)
        given[230] = bad
        with pytest.raises(kind, match="message 231 of the load, of which 200 are stored") as caught:
            store.load.messages(thread_id, iter(given), key="k")
        assert type(caught.value) is kind
        assert caught.value.__context__ is None
        assert "SECRET" not in str(caught.value)
        assert store.thread(thread_id).last_seq == 200
        assert store.load.messages(thread_id, messages(250), key="k").added == 50
        sound(store, 250, thread_id)


@pytest.mark.usefixtures("small")
def test_a_counter_that_fails_stops_the_load_and_another_goes_on(faces: Any, url: str) -> None:
    def fails(payload: dict[str, Any]) -> int:
        if payload["content"] == "message 130":
            raise ValueError(payload["content"])
        return 1

    with pytest.raises(cs.InvalidInput, match="message 131 of the load, of which 100 are stored") as caught:
        faces.open(url, counter=fails).load.messages("t", messages(250), key="k")
    assert "message 130" not in str(caught.value)
    assert faces.open(url).load.messages("t", messages(250), key="k").added == 150


def test_what_is_not_several_messages_is_refused(store: Any) -> None:
    for given in ({"role": "user"}, "text", b"bytes", None, 7, dict):
        with pytest.raises(InvalidMessage):
            store.load.messages("t", given)


def test_nothing_to_load_is_refused_so_that_a_used_up_iterator_shows(store: Any) -> None:
    source = iter(messages(3))
    store.load.messages("t", source)
    nothing: list[Any] = []
    for empty in (source, nothing):
        with pytest.raises(InvalidMessage, match="at least one"):
            store.load.messages("t", empty)
    assert store.thread("t").last_seq == 3


def test_options_are_judged_before_a_message_is_read(store: Any) -> None:
    wrong: list[tuple[dict[str, Any], type[cs.CompactionStoreError]]] = [
        ({"key": ""}, InvalidKey),
        ({"key": "x" * 256}, InvalidKey),
        ({"expected_seq": -1}, cs.InvalidInput),
        ({"meta": ["no"]}, InvalidMeta),
        ({"tokens": -1}, cs.InvalidInput),
        ({"tokens": [1, 2]}, cs.InvalidInput),
    ]
    for options, kind in wrong:
        with pytest.raises(kind):
            store.load.messages("t", cut_after(0, messages(1)), **options)
    with pytest.raises(InvalidThreadId):
        store.load.messages("", messages(1))


@pytest.mark.usefixtures("small")
def test_the_longest_key_names_its_chunks_too(store: Any) -> None:
    key = "k" * 255
    assert store.load.messages("t", messages(250), key=key).added == 250
    assert store.load.messages("t", messages(250), key=key).added == 0
