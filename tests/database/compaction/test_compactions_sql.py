"""The function commit_compactions: its records fold, nest, conflict, can be revoked, and verify."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.keys import key_of
from support.view_base import base as base_at

import compaction_store as cs

COUNT = 12


class Thread:
    """A thread, and a superuser who commits to it."""

    def __init__(self, store: Any, connection: psycopg.Connection[Any], messages: int = COUNT) -> None:
        self.store = store
        self.connection = connection
        self.thread_id = uuid.uuid4().hex
        if messages:
            self.append(messages)
            self.uid = key_of(connection, self.thread_id)

    def append(self, count: int) -> None:
        self.store.append(
            self.thread_id, [{"role": "user", "content": f"message {i}"} for i in range(count)], tokens=10
        )

    def commit(
        self,
        *records: dict[str, Any],
        base: int | None = None,
        run_id: uuid.UUID | None = None,
        tenant: str = "default",
    ) -> list[tuple[int, int]]:
        return self.connection.execute(
            "SELECT number, pos FROM compaction_store.commit_compactions(%s, %s, %s, %s, %s, %s, %s)",
            (
                self.uid,
                tenant,
                self.thread_id,
                run_id or uuid.uuid4(),
                *base_at(self.connection, self.uid, base),
                json.dumps(records),
            ),
        ).fetchall()

    def elements(self, at: int | None = None) -> list[tuple[int, int, int | None]]:
        """(seq, end_seq, number) of every element of the view."""
        return [(e.seq, e.end_seq, e.number) for e in self.store.view(self.thread_id, at=at).elements]

    def columns(self, number: int) -> dict[str, Any]:
        rows = self.connection.execute(
            "SELECT to_json(c) FROM compaction_store.compactions AS c WHERE thread_uid = %s AND number = %s",
            (self.uid, number),
        ).fetchall()
        found: dict[str, Any] = rows[0][0]
        return found

    def check(self) -> None:
        """Makes the checks that hold after every test."""
        state = self.store.thread(self.thread_id)
        view = self.store.view(self.thread_id)
        assert (view.pos, view.tokens) == (state.last_pos, state.view_tokens)
        for level in ("structure", "content"):
            assert self.store.audit.verify(self.thread_id, level=level).findings == ()


def record(replacement: Any = None, /, **columns: Any) -> dict[str, Any]:
    body = {"summary_text": "short", "replacement": [{"role": "user", "content": "short"}]}
    if replacement is not None:
        body["replacement"] = replacement
    return {"columns": columns, "salt": uuid.uuid4().hex, "body": json.dumps(body, separators=(",", ":"))}


def summary(start: int, end: int, tokens: int = 3, **columns: Any) -> dict[str, Any]:
    given = {"kind": "summary", "outcome": "applied", "start_seq": start, "end_seq": end, "tokens_after": tokens}
    return record(**given | columns)


def revocation(number: int | None) -> dict[str, Any]:
    return record(kind="revocation", outcome="applied", revokes=number) | {"body": "{}"}


def raw(*spans: tuple[int, int]) -> list[tuple[int, int, int | None]]:
    return [(seq, seq, None) for start, end in spans for seq in range(start, end + 1)]


def refusal(thread: Thread, *records: dict[str, Any], **options: Any) -> str | None:
    """Returns the SQLSTATE of a commit that must be refused and write nothing."""
    before = thread.store.thread(thread.thread_id)
    with pytest.raises(psycopg.Error) as caught:
        thread.commit(*records, **options)
    assert thread.store.thread(thread.thread_id) == before
    thread.check()
    return caught.value.sqlstate


@pytest.fixture
def thread(store: Any, superuser: psycopg.Connection[Any]) -> Thread:
    return Thread(store, superuser)


def test_a_record_replaces_its_span(thread: Thread) -> None:
    stand_ins = [{"role": "user", "content": "1 to"}, {"role": "assistant", "content": "4 größe"}]
    applied = {"kind": "summary", "outcome": "applied", "start_seq": 2, "end_seq": 5, "tokens_after": 7}
    assert thread.commit(record(stand_ins, **applied)) == [(1, COUNT + 1)]
    view = thread.store.view(thread.thread_id)
    assert thread.elements() == [*raw((1, 1)), (2, 5, 1), *raw((6, COUNT))]
    assert view.messages[1:3] == stand_ins
    assert len(view.messages) == COUNT - 4 + 2
    assert view.tokens == (COUNT - 4) * 10 + 7
    thread.check()


def test_a_removal_leaves_nothing_in_its_place(thread: Thread) -> None:
    thread.commit(record([], kind="removal", outcome="applied", start_seq=1, end_seq=COUNT, tokens_after=0))
    view = thread.store.view(thread.thread_id)
    assert (view.messages, view.tokens, len(view.elements)) == ([], 0, 1)
    assert len(list(thread.store.replay(thread.thread_id))) == COUNT
    thread.check()


def test_the_function_itself_says_what_a_record_was_made_from(thread: Thread) -> None:
    lies: dict[str, Any] = {
        "thread_uid": str(uuid.uuid4()), "number": 99, "pos": 99, "tenant": "other", "run_id": str(uuid.uuid4()),
        "created_at": "2001-01-01T00:00:00Z", "redacted_pos": 5, "tokens_before": 1, "source_count": 1,
        "source_before": "\\x00", "source_end": "\\x00", "salt": "\\x00", "commitment": "\\x00", "entry": "\\x00",
        "body": {"lie": True}, "login": "nobody",
    }  # fmt: skip
    run_id = uuid.uuid4()
    thread.commit(summary(3, 6, actor="me", callback="app.compact", inputs=[0], **lies), run_id=run_id)
    columns = thread.columns(1)
    entries = dict(
        thread.connection.execute(
            "SELECT seq, '\\x' || encode(entry, 'hex') FROM compaction_store.messages WHERE thread_uid = %s",
            (thread.uid,),
        ).fetchall()
    )
    told = ("number", "pos", "tenant", "run_id", "redacted_pos", "tokens_before", "source_count", "inputs", "actor")
    assert [columns[c] for c in told] == [1, COUNT + 1, "default", str(run_id), None, 40, 4, [0], "me"]
    assert (columns["source_before"], columns["source_end"]) == (entries[2], entries[6])
    assert columns["login"] == thread.connection.info.user
    assert "lie" not in columns["body"]
    thread.check()


def test_a_span_from_the_first_message_has_no_entry_before_it(thread: Thread) -> None:
    thread.commit(summary(1, 2))
    assert thread.columns(1)["source_before"] is None
    thread.check()


def test_an_outer_record_contains_inner_ones_of_earlier_runs_and_of_its_own(thread: Thread) -> None:
    thread.commit(summary(2, 3), summary(5, 6))
    thread.commit(summary(8, 9), summary(2, 9, 4))
    assert thread.elements() == [*raw((1, 1)), (2, 9, 4), *raw((10, COUNT))]
    assert thread.columns(4)["tokens_before"] == 3 + 10 + 3 + 10 + 3
    thread.check()
    thread.commit(summary(2, 9, 2))
    assert thread.elements() == [*raw((1, 1)), (2, 9, 5), *raw((10, COUNT))]
    thread.commit(summary(1, COUNT, 1))
    assert thread.elements() == [(1, COUNT, 6)]
    thread.check()


@pytest.mark.parametrize(("start", "end"), [(1, 4), (3, 5), (4, 5), (5, 9), (8, 9), (8, 12), (7, 8), (4, 4)])
def test_a_partial_overlap_is_a_conflict(thread: Thread, start: int, end: int) -> None:
    thread.commit(summary(4, 8))
    assert refusal(thread, summary(start, end)) == "CS004"
    assert refusal(thread, summary(10, 11), summary(start, end)) == "CS004"


def test_a_span_touched_since_the_snapshot_is_a_conflict(thread: Thread) -> None:
    base = COUNT
    thread.commit(summary(4, 6), base=base)
    assert refusal(thread, summary(4, 6), base=base) == "CS004"
    assert refusal(thread, summary(1, 9), base=base) == "CS004"
    # Spans beside it are free. For a caller that has seen the record, its own span is free too.
    thread.commit(summary(7, 8), base=base)
    thread.commit(revocation(2), base=base + 2)
    assert refusal(thread, summary(7, 7), base=base + 2) == "CS004"
    thread.commit(summary(1, 9), base=base + 3)
    thread.check()


def test_messages_appended_since_the_snapshot_are_no_conflict(thread: Thread) -> None:
    thread.append(3)
    thread.commit(summary(1, COUNT), base=COUNT)
    assert thread.elements() == [(1, COUNT, 1), *raw((COUNT + 1, COUNT + 3))]
    thread.check()


@pytest.mark.parametrize(("start", "end"), [(0, 3), (-1, 3), (5, 4), (5, COUNT + 1)])
def test_a_span_the_thread_does_not_have_is_refused(thread: Thread, start: int, end: int) -> None:
    assert refusal(thread, summary(start, end)) == "CS007"


@pytest.mark.parametrize("missing", ["start_seq", "end_seq"])
def test_an_applied_record_without_a_span_is_refused(thread: Thread, missing: str) -> None:
    columns: dict[str, Any] = {missing: None}
    assert refusal(thread, summary(2, 3, **columns)) == "CS007"


@pytest.mark.parametrize("tokens", [None, -1])
def test_an_applied_record_without_a_token_count_is_refused(thread: Thread, tokens: int | None) -> None:
    assert refusal(thread, record(kind="summary", outcome="applied", start_seq=1, end_seq=3, tokens_after=tokens))


def test_a_revocation_brings_back_exactly_what_was_there(thread: Thread) -> None:
    thread.commit(summary(2, 3), summary(5, 6))
    before = thread.store.view(thread.thread_id)
    thread.commit(summary(1, 9))
    thread.commit(revocation(3))
    after = thread.store.view(thread.thread_id)
    assert (after.elements, after.tokens) == (before.elements, before.tokens)
    assert thread.columns(4)["tokens_after"] == before.tokens - 3 * 10
    thread.check()
    thread.commit(revocation(1))
    assert thread.elements() == [*raw((1, 4)), (5, 6, 2), *raw((7, COUNT))]
    thread.commit(summary(1, 4))
    thread.check()


def test_a_revocation_and_what_comes_after_it_may_be_one_run(thread: Thread) -> None:
    thread.commit(summary(2, 3))
    thread.commit(summary(5, 6), revocation(1), summary(3, 4))
    assert thread.elements() == [*raw((1, 2)), (3, 4, 4), (5, 6, 2), *raw((7, COUNT))]
    assert thread.columns(4)["tokens_before"] == 20
    thread.check()


def test_only_an_active_record_can_be_revoked(thread: Thread) -> None:
    thread.commit(summary(2, 3), summary(1, 4), record(kind="summary", outcome="failed", start_seq=6, end_seq=7))
    for number in (1, 3):
        assert refusal(thread, revocation(number)) == "CS006"
    for number in (0, -1, 99):
        assert refusal(thread, revocation(number)) == "CS016"
    thread.commit(revocation(2))
    for number in (2, 4):
        assert refusal(thread, revocation(number)) == "CS006"


def test_a_revocation_that_names_no_record_is_refused(thread: Thread) -> None:
    assert refusal(thread, revocation(None)) == "CS016"


def test_the_same_run_again_returns_its_numbers_and_writes_nothing(thread: Thread) -> None:
    run_id = uuid.uuid4()
    first = thread.commit(summary(2, 3), summary(5, 6), run_id=run_id)
    state = thread.store.thread(thread.thread_id)
    assert thread.commit(summary(2, 3), summary(5, 6), run_id=run_id, base=1) == first == [(1, 13), (2, 14)]
    thread.commit(summary(8, 9))
    assert thread.commit(summary(1, 1), run_id=run_id) == first
    assert thread.store.thread(thread.thread_id).last_number == state.last_number + 1
    thread.check()


def test_a_run_is_written_whole_or_not_at_all(thread: Thread) -> None:
    assert refusal(thread, summary(2, 3), summary(3, 4)) == "CS004"
    assert refusal(thread, summary(2, 3), record(kind="summary", outcome="unheard of")) == "23514"
    assert refusal(thread, summary(2, 3), record(kind="Summary", outcome="failed")) == "23514"
    assert refusal(thread, summary(2, 3), {"columns": {}, "salt": "00" * 16, "body": "not json"}) == "22P02"
    assert thread.commit() == []


def test_a_kind_that_is_not_known_is_recorded_and_never_applied(thread: Thread) -> None:
    assert refusal(thread, summary(2, 3, kind="unheard_of")) == "CS021"
    thread.commit(record(kind="unheard_of", outcome="failed"), record(kind="summary", outcome="unheard_of"))
    assert thread.elements() == raw((1, COUNT))
    thread.check()


@pytest.mark.parametrize("outcome", ["failed", "rejected", "observed"])
@pytest.mark.parametrize("kind", ["summary", "truncation", "removal"])
def test_what_was_not_applied_folds_nothing(thread: Thread, kind: str, outcome: str) -> None:
    before = thread.store.view(thread.thread_id).elements
    thread.commit(record(kind=kind, outcome=outcome, start_seq=2, end_seq=5, tokens_after=1))
    thread.commit(record(kind=kind, outcome=outcome))
    assert thread.store.view(thread.thread_id).elements == before
    thread.check()
    thread.commit(summary(4, 6), base=COUNT)
    thread.commit(record(kind="revocation", outcome=outcome, revokes=3))
    assert thread.elements() == [*raw((1, 3)), (4, 6, 3), *raw((7, COUNT))]
    thread.check()


def test_the_thread_must_exist_in_the_tenant(thread: Thread) -> None:
    assert refusal(thread, summary(1, 2), tenant="other") == "CS001"
    assert refusal(thread, summary(1, 2), tenant="") == "CS009"
    thread.uid, uid = uuid.uuid4(), thread.uid
    with pytest.raises(psycopg.Error) as caught:
        thread.commit(summary(1, 2))
    assert caught.value.sqlstate == "CS001"
    thread.uid = uid


@pytest.mark.parametrize("content", ["\0", "\ud800", "\udc00\ud800", "größe \U0001f512", '"\\/\u2028'])
def test_a_replacement_may_hold_any_text(thread: Thread, content: str) -> None:
    stand_in = {"role": "user", "content": content}
    applied = {"kind": "truncation", "outcome": "applied", "start_seq": 2, "end_seq": 5, "tokens_after": 7}
    thread.commit(record([stand_in], **applied))
    assert thread.store.view(thread.thread_id).messages[1] == stand_in
    thread.check()


def test_a_body_may_hold_any_text_beside_the_replacement(thread: Thread) -> None:
    body = {"provider": "\0 \ud800", "replacement": [{"role": "user", "content": "short"}]}
    thread.commit(summary(2, 5) | {"body": json.dumps(body)})
    assert thread.store.view(thread.thread_id).messages[1] == {"role": "user", "content": "short"}
    thread.check()


@pytest.mark.one_server("Citus does not delegate a call in a transaction")
def test_two_compactors_on_one_span_get_one_record(store: Any, superuser_url: str) -> None:
    with psycopg.connect(superuser_url) as one, psycopg.connect(superuser_url) as two:
        first = Thread(store, one)
        first.commit(summary(2, 5), base=COUNT)
        second = Thread(store, two, 0)
        second.uid, second.thread_id = first.uid, first.thread_id
        two.execute("SET lock_timeout = '5s'")
        one.commit()
        with pytest.raises(psycopg.Error) as caught:
            second.commit(summary(2, 5), base=COUNT)
        assert caught.value.sqlstate == "CS004"
        two.rollback()
        first.check()
        one.commit()


class Model:
    """A model in plain Python: what happened at each pos, and the view by definition."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []

    def view(self, at: int) -> list[tuple[int, int, int | None, int]]:
        """(seq, end_seq, number, tokens): later folds include earlier ones; a revocation removes its record."""
        last_seq = number = 0
        spans: dict[int, tuple[int, int]] = {}
        for what, a, b in self.log[:at]:
            if what == "message":
                last_seq += 1
                continue
            number += 1
            if what == "summary":
                spans[number] = (a, b)
            elif what == "revocation":
                del spans[a]
        elements: list[tuple[int, int, int | None, int]] = [(s, s, None, 10) for s in range(1, last_seq + 1)]
        for n, (start, end) in spans.items():
            inside = [e for e in elements if start <= e[0] and e[1] <= end]
            first = elements.index(inside[0])
            elements[first : first + len(inside)] = [(start, end, n, n)]
        return elements

    def number(self) -> int:
        return sum(what != "message" for what, _, _ in self.log)

    def takes(self, start: int, end: int) -> bool:
        return all(
            e[2] is None or e[1] < start or e[0] > end or (start <= e[0] and e[1] <= end)
            for e in self.view(len(self.log))
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("summary"), st.integers(1, 14), st.integers(1, 6)),
        st.tuples(st.just("summary"), st.integers(1, 14), st.integers(1, 6)),
        st.tuples(st.just("failed"), st.integers(1, 4), st.just(4)),
        st.tuples(st.just("revocation"), st.integers(1, 10), st.just(0)),
        st.tuples(st.just("revocation of an active one"), st.integers(0, 9), st.just(0)),
    ),
    max_size=14,
)


@pytest.fixture
def one(url: str, superuser_url: str) -> Iterator[tuple[cs.Store, psycopg.Connection[Any]]]:
    with cs.Store.open(url) as store, psycopg.connect(superuser_url, autocommit=True) as connection:
        yield store, connection


@settings(
    max_examples=50, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(steps=STEPS)
def test_every_past_view_is_the_models(one: tuple[cs.Store, psycopg.Connection[Any]], steps: Any) -> None:
    thread, model = Thread(*one, 6), Model()
    model.log += [("message", 0, 0)] * 6
    for step, a, b in steps:
        kind = step
        now = model.view(len(model.log))
        last_seq = now[-1][1]
        if step == "append":
            thread.append(a)
            model.log += [("message", 0, 0)] * a
            continue
        if kind == "summary":
            start, end = a, min(a + b, last_seq)
            if start > last_seq:
                continue
            expected = None if model.takes(start, end) else "CS004"
            written = summary(start, end, model.number() + 1)
            entry = (kind, start, end)
        elif kind == "failed":
            expected, written, entry = (
                None,
                record(kind="summary", outcome="failed", start_seq=a, end_seq=b),
                (kind, a, b),
            )
        else:
            active = [e[2] for e in now if e[2] is not None]
            number = a if kind == "revocation" else active[a % len(active)] if active else a
            expected = None if number in active else "CS006" if 1 <= number <= model.number() else "CS016"
            written, entry = revocation(number), ("revocation", number, 0)
        if expected is None:
            thread.commit(written)
            model.log.append(entry)
        else:
            with pytest.raises(psycopg.Error) as caught:
                thread.commit(written)
            assert caught.value.sqlstate == expected
    for at in range(1, len(model.log) + 1):
        view = thread.store.view(thread.thread_id, at=at)
        assert [(e.seq, e.end_seq, e.number, e.tokens) for e in view.elements] == model.view(at)
        assert view.pos == at
    thread.check()
