"""Compactions of other programs are recorded by a load at their place, once, and fold nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from support.faces import Face

import compaction_store as cs
from compaction_store.errors import InvalidMessage
from compaction_store.models import Loaded, Observed
from compaction_store.postgres import queries
from compaction_store.store import loads

BLOCK = {"type": "compaction", "content": "They agreed on Tuesday."}
EDIT = {"type": "clear_tool_uses_20250919", "cleared_input_tokens": 5000, "cleared_tool_uses": 4}


def message(i: int) -> dict[str, Any]:
    return {"role": "assistant" if i % 2 else "user", "content": f"message {i}"}


def source() -> Iterator[Any]:
    """Twelve messages; compactions after the fourth (two at once), in the ninth, and after the last."""
    for i in range(1, 13):
        yield {"role": "assistant", "content": [BLOCK], "model": "m"} if i == 9 else message(i)
        if i == 4:
            yield Observed("boundary", summary_text="All four.", provider={"id": "a"}, tokens_before=900)
            yield Observed("trim", kind="removal", first=2, last=3, occurred_at="2026-01-02T03:04:05Z")
        if i == 12:
            yield Observed("boundary", summary_text="Everything.")


def records(store: Any, thread_id: str = "t") -> list[tuple[Any, ...]]:
    return [(r.pos, r.kind, r.callback, r.start_seq, r.end_seq) for r in store.compactions(thread_id)]


EXPECTED = [
    (5, "summary", "provider:boundary", 1, 4),
    (6, "removal", "provider:trim", 2, 3),
    (12, "summary", "provider:compaction", 1, 8),
    (16, "summary", "provider:boundary", 1, 12),
]


def sound(store: Any, entries: int, thread_id: str = "t") -> None:
    report = store.audit.verify(thread_id)
    assert (report.level, report.entries, report.findings) == ("content", entries, ())


def test_each_stands_in_the_log_where_it_happened(store: Face) -> None:
    assert store.load.messages("t", source(), key="k") == Loaded(1, 12, 12, 12, 4)
    assert records(store) == EXPECTED
    first, second, third, _ = store.compactions("t")
    assert (first.outcome, first.status, first.trigger, first.actor) == ("observed", "observed", "provider", None)
    assert (first.summary_text, first.tokens_before, first.counter) == ("All four.", 900, "provider")
    assert first.body == {"summary_text": "All four.", "provider": {"id": "a"}}
    assert second.body == {"occurred_at": "2026-01-02T03:04:05Z"}
    assert (third.model, third.summary_text) == ("m", BLOCK["content"])
    assert [e.seq for e in store.view("t").elements] == list(range(1, 13))
    sound(store, 16)


def test_the_same_load_again_records_nothing(store: Face) -> None:
    store.load.messages("t", source(), key="k")
    assert store.load.messages("t", source(), key="k") == Loaded(1, 12, 12, 0, 0)
    assert records(store) == EXPECTED
    sound(store, 16)


def test_a_load_that_was_cut_anywhere_ends_as_if_it_had_not_been(store: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "CHUNK_MESSAGES", 3)

    def cut(stop: int) -> Iterator[Any]:
        for i, item in enumerate(source()):
            if i == stop:
                raise KeyError
            yield item

    for stop in range(15):
        thread_id = f"cut after {stop}"
        with pytest.raises(KeyError):
            store.load.messages(thread_id, cut(stop), key="k")
        loaded = store.load.messages(thread_id, source(), key="k")
        assert (loaded.first_seq, loaded.last_seq, loaded.count) == (1, 12, 12)
        assert records(store, thread_id) == EXPECTED
        sound(store, 16, thread_id)


@pytest.mark.one_server("it replaces the query of one server")
def test_a_load_whose_connection_breaks_anywhere_ends_as_if_it_had_not(
    store: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's answer to the n-th write is lost: the write happened, and the load does not know."""
    calls = stop = 0

    def lost(real: Any) -> Any:
        def write(*arguments: Any) -> Any:
            nonlocal calls
            result = real(*arguments)
            calls += 1
            if calls == stop:
                raise psycopg.OperationalError("lost")
            return result

        return write

    monkeypatch.setattr(loads, "CHUNK_MESSAGES", 3)
    monkeypatch.setattr(queries, "observe", lost(queries.observe))
    monkeypatch.setattr(queries, "load", lost(queries.load))
    for number in range(1, 9):
        calls, stop = 0, number
        loaded = store.load.messages(f"lost {stop}", source(), key="k")
        assert calls > stop
        assert (loaded.added, loaded.observed) == (12, len(EXPECTED))
        assert records(store, f"lost {stop}") == EXPECTED
        sound(store, 16, f"lost {stop}")


def test_chunks_of_any_size_record_the_same(store: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = (item for item in source() if not isinstance(item, Observed))
    store.load.messages("t", plain, key="k")
    assert [r[2:] for r in records(store)] == [("provider:compaction", 1, 8)]
    monkeypatch.setattr(loads, "CHUNK_MESSAGES", 5)
    # Messages that were loaded without their compactions get the records in a later load.
    assert store.load.messages("t", source(), key="k") == Loaded(1, 12, 12, 0, 3)
    assert sorted(r[2:] for r in records(store)) == sorted(r[2:] for r in EXPECTED)
    assert store.load.messages("t", source(), key="k").observed == 0
    sound(store, 16)


def test_spans_are_seqs_of_the_thread_whatever_stands_between(store: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "CHUNK_MESSAGES", 2)
    writer = store
    store.append("t", [message(1), message(2), message(3)])

    def interrupted() -> Iterator[Any]:
        yield from (message(1), message(2), message(3), message(4), message(5))
        yield Observed("one", first=1, last=2)
        yield Observed("two", first=2, last=5)

    def load(items: Iterator[Any]) -> Loaded:
        loaded: Loaded = writer.load.messages("t", items, key="k")
        return loaded

    def half() -> Iterator[Any]:
        for i, item in enumerate(interrupted()):
            if i == 4:
                raise KeyError
            yield item

    with pytest.raises(KeyError):
        load(half())
    store.append("t", [message(7), message(8)])
    assert load(interrupted()) == Loaded(4, 10, 5, 1, 2)
    # Messages 1 to 4 of the load are seqs 4 to 7, its fifth is seq 10.
    assert [(r.start_seq, r.end_seq) for r in store.compactions("t")] == [(4, 5), (5, 10)]
    sound(store, 12)


def test_one_before_the_first_message_is_recorded_after_it_and_has_no_span(store: Face) -> None:
    items = [Observed("boundary", summary_text="Of another file."), message(1), message(2), message(3)]
    assert store.load.messages("t", items, key="k") == Loaded(1, 3, 3, 3, 1)
    assert records(store) == [(2, "summary", "provider:boundary", None, None)]
    assert store.load.messages("t", items, key="k").observed == 0
    sound(store, 4)


def test_only_observed_is_no_load(store: Face) -> None:
    with pytest.raises(InvalidMessage, match="at least one message"):
        store.load.messages("t", [Observed("boundary")])


def test_one_that_knows_no_span_has_none(store: Face) -> None:
    store.load.messages("t", [message(1), Observed("micro", kind="truncation", spans=False)])
    assert records(store) == [(2, "truncation", "provider:micro", None, None)]


def test_edits_in_a_message_are_recorded(store: Face) -> None:
    reply = {"role": "assistant", "content": "So.", "context_management": {"applied_edits": [EDIT]}}
    store.load.messages("t", [message(1), reply, message(3)], key="k")
    [record] = store.compactions("t")
    assert (record.pos, record.callback, record.body) == (3, f"provider:{EDIT['type']}", {"provider": EDIT})
    sound(store, 4)


ODD = [
    Observed("SECRET", first=0),
    Observed("SECRET", last=2),
    Observed("SECRET", first=1.5),  # type: ignore[arg-type]
    Observed("SECRET", kind="revocation"),  # type: ignore[arg-type]
    Observed("SE\0CRET"),
    Observed("x", summary_text=5),  # type: ignore[arg-type]
    Observed("x", provider={"SECRET": float("nan")}),
    Observed("x", tokens_before=-1),
    Observed("x", tokens_after=True),
    Observed("x", provider={"SECRET": "x" * 17_000_000}),
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_ones_are_refused_before_they_are_sent(store: Face, odd: Observed) -> None:
    with pytest.raises(cs.InvalidInput, match=r"after message 1 of the load: .*'t'") as caught:
        store.load.messages("t", [message(1), odd])
    assert "SECRET" not in str(caught.value)
    assert not list(store.threads())


def test_a_repr_shows_no_content() -> None:
    assert "SECRET" not in repr(Observed("x", summary_text="SECRET", provider={"SECRET": 1}))


def test_texts_survive(store: Face) -> None:
    store.load.messages("t", [message(1), Observed("x", summary_text="a\0\ud800", provider={"ü": "\0"}, model="\0")])
    [record] = store.compactions("t")
    assert (record.summary_text, record.model) == ("a\0\ud800", None)
    assert record.body is not None
    assert record.body["provider"] == {"ü": "\0"}
    sound(store, 2)


def test_what_was_made_from_erased_messages_is_not_recorded(url: str) -> None:
    with cs.Store.open(url) as store:
        store.load.messages("t", [message(i) for i in range(1, 5)], key="k")
        store.custody.redact("t", 2, reason="asked to")
        with pytest.raises(cs.IdempotencyConflict):
            store.load.messages("t", [message(1), message(2), Observed("x", summary_text="SECRET")], key="k")
        with pytest.raises(cs.SpanConflict, match="erased"):
            store._db.call(queries.observe, store._scope.key("t"), UUID(int=1), _records((1, 3)))
        assert not list(store.compactions("t"))


def _records(span: tuple[int, int], outcome: str = "observed") -> str:
    columns = {"kind": "summary", "outcome": outcome, "start_seq": span[0], "end_seq": span[1], "callback": "x"}
    return json.dumps([{"columns": columns, "salt": "00" * 16, "body": "{}"}])


def test_the_loaders_role_is_enough_and_may_record_only_what_was_observed(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    name = f"cs_loads_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x' IN ROLE compaction_store_loader")
    try:
        login = sa.make_url(url).set(username=name, password="x").render_as_string(hide_password=False)
        with cs.Store.open(login) as loader:
            assert loader.load.messages("t", source()).observed == 4
            with pytest.raises(cs.DatabaseError, match="the outcome of each record must be observed"):
                loader._db.call(queries.observe, loader._scope.key("t"), UUID(int=1), _records((1, 3), "applied"))
    finally:
        superuser.execute(f"DROP ROLE {name}")
