"""Erasing: what goes, what stays, what still verifies, and what forbids it."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.bases import base as base_at
from support.faces import Face, Faces
from support.places import ROOT

import compaction_store as cs
from compaction_store.errors import PermissionDenied
from compaction_store.integrity import chain, erasure, thread_walk

SECRET = "s3cr3t-of-the-user"
PLAIN = "nothing to see here " * 8
UID = chain.thread_uid("default", "t")
LEVELS: tuple[thread_walk.Level, ...] = ("structure", "content")
STUB = f"erased:{UID}"
LATER = datetime.now(UTC) + timedelta(days=365)
BEFORE = datetime.now(UTC) - timedelta(days=1)


def rows(connection: psycopg.Connection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), parameters).fetchall()


def dump(connection: psycopg.Connection[Any]) -> str:
    """Every row of every table as text, as a dump of the database would have them."""
    tables = rows(connection, "SELECT tablename FROM pg_tables WHERE schemaname = 'compaction_store'")
    return "\n".join(
        row[0] for (table,) in tables for row in rows(connection, f"SELECT t::text FROM compaction_store.{table} AS t")
    )


def record(start: int | None = None, end: int | None = None, text: str = "short", **columns: Any) -> dict[str, Any]:
    given = {"kind": "summary", "outcome": "applied", "start_seq": start, "end_seq": end, "tokens_after": 3}
    body = {"summary_text": text, "replacement": [{"role": "user", "content": text}]}
    return {"columns": given | columns, "salt": uuid.uuid4().hex, "body": json.dumps(body)}


def commit(connection: psycopg.Connection[Any], *records: dict[str, Any], base: int | None = None) -> list[int]:
    found = rows(
        connection,
        "SELECT number FROM compaction_store.commit_compactions(%s, 'default', %s, %s, %s, %s)",
        UID, uuid.uuid4(), *base_at(connection, UID, base), json.dumps(records),
    )  # fmt: skip
    return [number for (number,) in found]


def span(start: int, end: int, text: str = "a summary") -> Callable[[cs.CompactionContext], None]:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(start, end, text)

    return compact


def shape(store: Any, at: int | None = None) -> list[tuple[int, int, int | None]]:
    return [(e.seq, e.end_seq, e.number) for e in store.view("t", at=at).elements]


def check(store: Any, name: str = "t") -> None:
    """What holds whatever was erased."""
    state, view = store.thread(name), store.view(name)
    assert (view.pos, view.tokens) == (state.last_pos, state.view_tokens)
    for level in LEVELS:
        assert store.verify(name, level=level).findings == ()


def events(store: Any, name: str = "t") -> list[cs.Event]:
    return list(store.events(name))


@pytest.fixture
def thread(store: Face) -> Face:
    """Twelve messages, the fifth with a secret in its payload and in its meta."""
    for i in range(1, 13):
        content = f"{SECRET} {PLAIN}" if i == 5 else PLAIN
        meta = {"source": SECRET} if i == 5 else {"n": i}
        store.append("t", {"role": "user", "content": content}, key=f"k{i}", meta=meta, tokens=100)
    return store


# ---- messages


def test_a_redaction_leaves_nothing_of_the_content_and_everything_else(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    before = list(thread.replay("t"))
    assert SECRET in dump(superuser)
    done = thread.redact("t", [5], reason="asked for", actor="clerk", legal_basis="Art. 17")
    assert done == cs.Redaction(13, (5,), ())
    after = list(thread.replay("t"))
    assert after[:4] + after[5:] == before[:4] + before[5:]
    assert after[4] == before[4]._replace(payload=None, meta=None, redacted=True, text=None)
    assert thread.message("t", 5) == after[4]
    assert thread.view("t").messages[4] is None
    assert thread.view("t", at=12).messages[4] is None
    assert SECRET not in dump(superuser)
    [event] = events(thread)
    assert (event.pos, event.kind, event.actor, event.reason) == (13, "redaction", "clerk", "asked for")
    assert event.body == {"seqs": [[5, 5]], "records": [], "reason": "asked for", "legal_basis": "Art. 17"}
    assert "asked for" not in repr(event)
    report = thread.verify("t")
    assert (report.entries, report.redacted, report.redactions, report.notes) == (13, 1, 1, ())
    check(thread)


def test_many_are_erased_in_one_event(thread: Face) -> None:
    assert thread.redact("t", (s for s in [9, 2, 1, 3, 2]), reason="r") == cs.Redaction(13, (1, 2, 3, 9), ())
    assert events(thread)[0].body["seqs"] == [[1, 3], [9, 9]]
    assert thread.redact("t", range(1, 13), reason="r").seqs == (4, 5, 6, 7, 8, 10, 11, 12)
    assert [m.redacted for m in thread.replay("t")] == [True] * 12
    check(thread)


def test_what_is_erased_already_is_no_event(thread: Face) -> None:
    thread.redact("t", 5, reason="r")
    before = thread.thread("t")
    assert thread.redact("t", [5], reason="again") == cs.Redaction(None, (), ())
    assert thread.thread("t") == before
    assert thread.redact("t", [5, 6], reason="again") == cs.Redaction(14, (6,), ())
    assert thread.explain("t", 6).redaction == events(thread)[1]
    check(thread)


def test_an_unknown_seq_is_refused_and_nothing_is_erased(thread: Face) -> None:
    before = thread.thread("t")
    for seqs in ([13], [5, 13], [5, 10**12], range(1, 14), 13):
        with pytest.raises(cs.MessageNotFound):
            thread.redact("t", seqs, reason="r")
    assert (thread.thread("t"), thread.message("t", 5).redacted) == (before, False)


def test_what_is_no_seq_is_refused(thread: Face) -> None:
    wrong: list[Any] = [[], [0], [-1], ["1"], "12", b"12", [True], True, None, 1.5, [1.0], [2**53], {1: 2}]
    for seqs in wrong:
        with pytest.raises(cs.InvalidInput):
            thread.redact("t", seqs, reason="r")


def test_a_reason_says_something(thread: Face) -> None:
    wrong: list[Any] = [None, "", "  ", 7, "x" * 8193, b"r"]
    for text in wrong:
        calls: list[Callable[[Any], Any]] = [
            lambda text: thread.redact("t", 1, reason=text),
            lambda text: thread.erase("t", reason=text),
            lambda text: thread.hold("t", reason=text),
            lambda text: thread.release("t", reason=text),
            lambda text: thread.retain("t", LATER, reason=text),
        ]
        if text is not None:
            calls += [
                lambda text: thread.redact("t", 1, reason="r", override=text),
                lambda text: thread.redact("t", 1, reason="r", legal_basis=text),
                lambda text: thread.erase("t", reason="r", override=text),
            ]
        for call in calls:
            with pytest.raises(cs.InvalidInput):
                call(text)
    assert thread.thread("t").last_pos == 12


@pytest.mark.parametrize("text", ["größe \U0001f512", "\ud800 \0", '"},{"seqs":[]', "'; DROP TABLE x; --", "%s {} %"])
def test_a_reason_may_be_any_text(thread: Face, text: str) -> None:
    thread.redact("t", 5, reason=text, legal_basis=text, override=text)
    thread.hold("t", reason=text)
    thread.erase("t", reason=text, override=text)
    assert [event.reason for event in events(thread)] == [text] * 3
    assert events(thread)[0].body == {
        "seqs": [[5, 5]], "records": [], "reason": text, "legal_basis": text, "override": text,
    }  # fmt: skip
    check(thread)


def test_a_thread_must_be_there(store: Face) -> None:
    for call in (
        lambda: store.redact("t", 1, reason="r"),
        lambda: store.erase("t", reason="r"),
        lambda: store.hold("t", reason="r"),
        lambda: events(store),
    ):
        with pytest.raises(cs.ThreadNotFound):
            call()


def test_a_retry_by_the_key_of_an_erased_message_is_a_conflict(thread: Face) -> None:
    batch = [{"role": "user", "content": str(i)} for i in range(3)]
    thread.append("t", batch, key="batch")
    lot = [{"role": "user", "content": f"lot {i}"} for i in range(3)]
    thread.load("t", lot, key="lot")
    thread.redact("t", [5, 14, 17], reason="r")
    secret = {"role": "user", "content": f"{SECRET} {PLAIN}"}
    with pytest.raises(cs.IdempotencyConflict) as caught:
        thread.append("t", secret, key="k5")
    assert SECRET not in str(caught.value)
    with pytest.raises(cs.IdempotencyConflict):
        thread.append("t", batch, key="batch")
    with pytest.raises(cs.IdempotencyConflict):
        thread.load("t", lot, key="lot")
    assert thread.append("t", {"role": "user", "content": PLAIN}, key="k4")[0].seq == 4


# ---- records


def test_every_record_that_reaches_a_message_is_erased_and_no_other(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    numbers = commit(
        superuser,
        record(4, 6, SECRET),  # 1: the span
        record(8, 9),  # 2: beside it
        record(2, 7, SECRET, inputs=[1]),  # 3: around the first
        record(10, 11, SECRET, inputs=[3]),  # 4: elsewhere, made from the third
        record(None, None, SECRET, outcome="failed", inputs=[4]),  # 5: nowhere, made from the fourth
        record(5, 5, SECRET, outcome="rejected"),  # 6
        record(6, 7, "of others", outcome="rejected"),  # 7: beside it
        record(12, 12, "of others", inputs=[2]),  # 8
        record(1, 12, SECRET, outcome="observed"),  # 9
    )
    assert numbers == list(range(1, 10))
    assert thread.redact("t", 5, reason="r") == cs.Redaction(22, (5,), (1, 3, 4, 5, 6, 9))
    assert SECRET not in dump(superuser)
    log = {c.number: c for c in thread.compactions("t")}
    assert [c.body is None for c in log.values()] == [n in {1, 3, 4, 5, 6, 9} for n in log]
    assert {n: c.status for n, c in log.items()} == {
        1: "redacted", 2: "active", 3: "redacted", 4: "redacted", 5: None, 6: None, 7: None, 8: "active", 9: None,
    }  # fmt: skip
    assert (log[1].start_seq, log[1].end_seq, log[1].tokens_before, log[1].redacted_pos) == (4, 6, 300, 22)
    assert (log[1].summary_text, log[1].replacement, log[1].reason) == (None, None, None)
    assert events(thread)[0].body["records"] == [[1, 1], [3, 6], [9, 9]]
    check(thread)


def test_a_long_chain_of_records_that_only_had_a_record_as_input_is_reached_to_its_end(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    chained = [record(1, 1, SECRET, outcome="rejected", inputs=[-i]) for i in range(1, 300)]
    commit(superuser, record(5, 5, SECRET), *chained)
    # A record that names itself, and one that names what does not exist, end the search too.
    commit(superuser, record(1, 1, "own", outcome="rejected", inputs=[301, 999]))
    assert thread.redact("t", 5, reason="r").records == tuple(range(1, 301))
    assert SECRET not in dump(superuser)


def test_a_message_that_tells_of_a_providers_compaction_takes_its_record_along(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    """The record quotes the message it was told by, and its span ends before it."""
    block = {"type": "compaction", "content": f"{SECRET}-told"}
    thread.append("t", {"role": "assistant", "content": [block]})
    other = {"type": "compaction", "content": "another"}
    thread.append("t", [{"role": "user", "content": "x"}, {"role": "assistant", "content": [other]}])
    first, second = thread.compactions("t")
    assert (first.outcome, first.start_seq, first.end_seq) == ("observed", 1, 12)
    assert (second.outcome, second.start_seq, second.end_seq) == ("observed", 1, 14)
    assert thread.redact("t", 15, reason="r").records == (2,)
    assert thread.redact("t", 13, reason="r").records == (1,)
    assert f"{SECRET}-told" not in dump(superuser)
    check(thread)


def test_the_view_unfolds_from_the_redaction_on_and_keeps_its_folds_before(thread: Face) -> None:
    thread.compact("t", span(1, 2, "inner, beside it"), span(4, 6), span(1, 7, "outer"), span(9, 10, "apart"))
    before = {at: thread.view("t", at=at) for at in range(12, 17)}
    assert thread.redact("t", [5], reason="r").records == (2, 3)
    inner, middle, outer, apart = thread.compactions("t")
    assert [c.status for c in (inner, middle, outer, apart)] == ["active", "redacted", "redacted", "active"]
    raw = [(seq, seq, None) for seq in range(1, 13)]
    assert shape(thread) == [(1, 2, 1), *raw[2:8], (9, 10, 4), *raw[10:]]
    view = thread.view("t")
    assert view.messages[3] is None
    assert [m is None for m in view.messages].count(True) == 1
    for at, then in before.items():
        now = thread.view("t", at=at)
        assert [(e.seq, e.end_seq, e.number, e.tokens) for e in now.elements] == [
            (e.seq, e.end_seq, e.number, e.tokens) for e in then.elements
        ]
        for a, b in zip(now.elements, then.elements, strict=True):
            erased = a.number in {2, 3} or (a.number is None and a.seq == 5)
            assert a.messages == ((None,) if erased else b.messages)
    assert thread.tree(outer).inside[0].record == inner
    check(thread)
    run = thread.compact("t", span(1, 7, "anew"))
    assert [n.record.number for n in thread.tree(run[0]).inside] == [1]
    assert thread.compaction("t", 1).status == "superseded by 5"
    check(thread)


def test_a_revocation_outlives_its_own_erasure(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.compact("t", span(4, 6))
    thread.revoke("t", 1, reason=f"it repeats {SECRET}")
    assert thread.redact("t", 5, reason="r").records == (1, 2)
    assert SECRET not in dump(superuser)
    assert len(thread.view("t").elements) == 12
    check(thread)


def test_explain_shows_the_redaction(thread: Face) -> None:
    thread.compact("t", span(4, 6))
    assert thread.explain("t", 5).redaction is None
    thread.redact("t", 9, reason="another")
    thread.redact("t", 5, reason="this one", actor="clerk")
    told = thread.explain("t", 5)
    assert told.redaction is not None
    assert (told.redaction.reason, told.redaction.actor, told.redaction.pos) == ("this one", "clerk", 15)
    assert (told.message.redacted, [c.status for c in told.records], told.element.message) == (True, ["redacted"], None)
    assert thread.explain("t", 6).redaction is None


def test_what_a_reply_was_written_from_differs_once_part_of_it_is_erased(thread: Face) -> None:
    thread.append("t", {"role": "assistant", "content": "a"}, view=thread.view("t"))
    thread.append("t", {"role": "user", "content": "b"})
    assert thread.seen_by("t", 13).evidence == "proved"
    thread.redact("t", 14, reason="r")
    assert thread.seen_by("t", 13).evidence == "proved"
    thread.redact("t", 5, reason="r")
    seen = thread.seen_by("t", 13)
    assert (seen.evidence, seen.view.pos, seen.view.messages[4]) == ("differs", 12, None)


def test_an_erased_record_cannot_be_revoked_and_another_can(thread: Face) -> None:
    thread.compact("t", span(4, 6), span(8, 9))
    thread.redact("t", 5, reason="r")
    with pytest.raises(cs.Conflict):
        thread.revoke("t", 1)
    thread.revoke("t", 2)
    assert len(thread.view("t").elements) == 12
    check(thread)


# ---- races


@pytest.mark.parametrize(
    ("planned", "erased"),
    [(span(4, 6), [5]), (span(1, 8), [8]), (span(1, 8), [5]), (span(9, 10, PLAIN * 9), [9])],
    ids=["the only one", "a raw message", "inside a record", "of a rejected attempt"],
)
def test_a_compaction_of_what_was_erased_meanwhile_is_refused(
    thread: Face, url: str, planned: Callable[[cs.CompactionContext], None], erased: list[int]
) -> None:
    thread.compact("t", span(4, 6, "earlier"))
    before = thread.thread("t")

    def compact(ctx: cs.CompactionContext) -> None:
        with cs.Store.open(url) as other:
            other.redact("t", erased, reason="r")
        planned(ctx)

    with pytest.raises(cs.SpanConflict):
        thread.compact("t", compact)
    assert thread.thread("t").last_number == before.last_number
    check(thread)


def test_a_compaction_beside_what_was_erased_meanwhile_is_written(thread: Face, url: str) -> None:
    def compact(ctx: cs.CompactionContext) -> None:
        with cs.Store.open(url) as other:
            other.redact("t", 5, reason="r")
        ctx.compact(6, 9, "beside it")

    assert thread.compact("t", compact).applied
    check(thread)


@pytest.mark.parametrize("outcome", ["applied", "rejected", "failed"])
def test_a_record_made_from_one_that_was_erased_meanwhile_is_refused(
    thread: Face, superuser: psycopg.Connection[Any], outcome: str
) -> None:
    commit(superuser, record(4, 6, SECRET))
    base = thread.thread("t").last_pos
    thread.redact("t", 5, reason="r")
    late = record(8, 9, SECRET, outcome=outcome, inputs=[1])
    with pytest.raises(psycopg.Error) as caught:
        commit(superuser, record(10, 11), late, base=base)
    assert (caught.value.sqlstate, SECRET in str(caught.value)) == ("CS004", False)
    assert SECRET not in dump(superuser)
    # Who has seen the thread since cannot know it any more.
    commit(superuser, record(8, 9, inputs=[1]), base=base + 1)
    check(thread)


def test_compactors_writers_and_a_redactor_at_once_leave_no_trace(url: str, superuser: psycopg.Connection[Any]) -> None:
    """Each summary repeats what it stands for; whatever the interleaving, what was erased is nowhere."""
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"mark-{i}- {PLAIN}"} for i in range(1, 101)])
        stop = threading.Event()
        applied, failures = [0], []

        def compactor(seed: int) -> None:
            chosen = random.Random(seed)
            while not stop.is_set():
                # From what the run itself has read: what a callback brings along from before nobody can know.
                def compact(ctx: cs.CompactionContext) -> None:
                    low = chosen.randrange(len(ctx.elements) - 6)
                    part = ctx.elements[low : low + chosen.randint(1, 5)]
                    text = " ".join(str(m["content"])[:10] for e in part for m in e.messages if m is not None)
                    ctx.compact(part[0].seq, part[-1].end_seq, text[:60] or "x", allow={"larger"})

                try:
                    applied[0] += store.compact("t", compact).applied
                except cs.SpanConflict:
                    continue
                except Exception as error:  # noqa: BLE001 — whatever it is, the test is to show it
                    failures.append(error)
                    return

        threads = [threading.Thread(target=compactor, args=(seed,)) for seed in range(4)]
        for worker in threads:
            worker.start()
        order = random.Random(7).sample(range(1, 91), 60)
        for seq in order:
            store.redact("t", seq, reason="r")
        stop.set()
        for worker in threads:
            worker.join()
        assert failures == []
        assert applied[0] > 0
        everything = dump(superuser)
        assert [seq for seq in order if f"mark-{seq}-" in everything] == []
        check(store)


def test_redactions_during_a_verification_are_no_findings(url: str) -> None:
    with cs.Store.open(url) as store:
        for name in ("t-1", "t-2", "t-3"):
            store.append(name, [{"role": "user", "content": PLAIN}] * 300)
            for start in range(1, 290, 50):
                store.compact(name, span(start, start + 9))

            def erase(name: str = name) -> None:
                chosen = random.Random(name)
                for i in range(25):
                    store.redact(name, chosen.sample(range(1, 301), 1 + i % 4), reason="r")
                store.erase(name, reason="r")

            writer = threading.Thread(target=erase)
            writer.start()
            reports = []
            while writer.is_alive():
                reports += [store.verify(name, level=level) for level in LEVELS]
            writer.join()
            assert [report.findings for report in reports] == [()] * len(reports)
            check(store, name)


# ---- holds and retentions


def test_a_hold_forbids_to_erase_until_it_is_released(thread: Face) -> None:
    held = thread.hold("t", reason="a lawsuit", actor="counsel")
    assert held == events(thread)[0]
    assert (held.pos, held.kind, held.actor, held.body) == (13, "hold", "counsel", {"reason": "a lawsuit"})
    calls: list[Callable[[], Any]] = [
        lambda: thread.redact("t", 5, reason="r"),
        lambda: thread.erase("t", reason="r"),
    ]
    for call in calls:
        with pytest.raises(cs.Held) as caught:
            call()
        assert caught.value.pos == 13
        assert "lawsuit" not in str(caught.value)
    assert (thread.thread("t").last_pos, thread.message("t", 5).redacted) == (13, False)
    assert thread.release("t", reason="settled").pos == 14
    assert thread.redact("t", 5, reason="r").pos == 15
    thread.hold("t", reason="another")
    # What is erased already needs no permission, and a seq that is not there is told first.
    assert thread.redact("t", 5, reason="r").pos is None
    with pytest.raises(cs.MessageNotFound):
        thread.redact("t", 99, reason="r")
    check(thread)


def test_a_retention_forbids_to_erase_before_its_end_and_the_newest_counts(thread: Face) -> None:
    event = thread.retain("t", LATER, reason="the law")
    assert list(event.body) == ["until", "reason"]
    assert datetime.fromisoformat(event.body["until"]) == LATER
    with pytest.raises(cs.Held) as caught:
        thread.redact("t", 5, reason="r")
    assert (caught.value.pos, event.body["until"] in str(caught.value)) == (13, True)
    thread.hold("t", reason="also")
    thread.release("t", reason="no more")
    with pytest.raises(cs.Held):
        thread.erase("t", reason="r")
    thread.retain("t", BEFORE.astimezone(None), reason="shortened")
    assert thread.redact("t", 5, reason="r").pos == 17
    thread.retain("t", datetime.max.replace(tzinfo=UTC), reason="for ever")
    with pytest.raises(cs.Held):
        thread.redact("t", 6, reason="r")
    thread.retain("t", datetime.min.replace(tzinfo=UTC), reason="not at all")
    thread.redact("t", 6, reason="r")
    check(thread)


def test_a_retention_ends_at_a_moment(thread: Face) -> None:
    wrong: list[Any] = [None, "2031-01-01", LATER.replace(tzinfo=None), LATER.date()]
    for until in wrong:
        with pytest.raises(cs.InvalidInput):
            thread.retain("t", until, reason="r")


def test_a_hold_and_a_retention_are_overridden_with_a_reason_that_is_recorded(thread: Face) -> None:
    thread.hold("t", reason="a")
    thread.retain("t", LATER, reason="b")
    assert thread.redact("t", 5, reason="r", override="the court said so").pos == 15
    assert events(thread)[-1].body["override"] == "the court said so"
    with pytest.raises(cs.Held):
        thread.redact("t", 6, reason="r")
    assert thread.erase("t", reason="r", override="and again").pos == 16
    assert events(thread)[-1].body["override"] == "and again"
    check(thread)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("redaction", '{"seqs":[],"records":[]}'),
        ("import", "{}"),
        ("checkpoint", "{}"),
        (None, "{}"),
        ("retention", '{"reason":"x"}'),
        ("retention", '{"reason":"x","until":"2031-01-01T00:00:00.000000Z"}'),
        ("retention", '{"until":"2031-01-01"}'),
        ("retention", '{"until":"2031-13-01T00:00:00.000000Z"}'),
        ("retention", ' {"until":"2031-01-01T00:00:00.000000Z"}'),
        ("hold", "no json"),
    ],
)
def test_the_function_records_no_other_events(
    thread: Face, superuser: psycopg.Connection[Any], kind: str, body: str
) -> None:
    with pytest.raises(psycopg.Error):
        rows(superuser, "SELECT compaction_store.record_event(%s, 'default', %s, NULL, '\\x00', %s)", UID, kind, body)
    assert events(thread) == []


def test_the_same_call_again_after_its_reply_was_lost_is_the_same_event(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    """The store repeats a call with the salt it had; what it did the first time is what comes back."""
    salt = os.urandom(16)
    thread.compact("t", span(4, 6))

    def redact() -> list[tuple[Any, ...]]:
        return rows(
            superuser,
            "SELECT * FROM compaction_store.redact"
            "(%s, 'default', %s::int8[], %s::int8[], NULL, %s, '{\"r\":1}', false)",
            UID, [5, 9], [5, 10], salt,
        )  # fmt: skip

    def hold() -> list[tuple[Any, ...]]:
        return rows(
            superuser, "SELECT * FROM compaction_store.record_event(%s, 'default', 'hold', NULL, %s, '{}')", UID, salt
        )  # fmt: skip

    def erase() -> list[tuple[Any, ...]]:
        return rows(
            superuser, "SELECT * FROM compaction_store.erase(%s, 'default', NULL, %s, '{\"r\":1}', true)", UID, salt
        )

    for act in (redact, hold, erase):
        salt = os.urandom(16)
        first, state = act(), thread.thread("t")
        assert act() == first
        assert thread.thread("t") == state
        assert first[0][0] == state.last_pos
    assert erasure.redaction(first[0]).seqs == (1, 2, 3, 4, 6, 7, 8, 11, 12)
    check(thread)


# ---- whole threads


def test_an_erased_thread_leaves_a_stub_that_verifies_under_either_name(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    thread.set_metadata("t", {"title": SECRET})
    thread.compact("t", span(1, 4), lambda ctx: ctx.compact(5, 5, PLAIN * 20))
    thread.redact("t", 7, reason="before")
    done = thread.erase("t", reason="asked for", actor="clerk")
    assert done == cs.Redaction(16, (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12), (1, 2))
    state = thread.thread("t")
    assert (state.thread_id, state.metadata, state.erased_pos, state.last_pos) == (STUB, {}, 16, 16)
    assert [t.thread_id for t in thread.threads()] == [STUB]
    assert events(thread)[-1].body == {
        "seqs": [[1, 6], [8, 12]], "records": [[1, 2]], "genesis": chain.genesis("default", "t").hex(),
        "reason": "asked for",
    }  # fmt: skip
    everything = dump(superuser)
    assert SECRET not in everything
    assert "nothing to see" not in everything
    for name in ("t", STUB):
        check(thread, name)
        assert [(m.payload, m.redacted) for m in thread.replay(name)] == [(None, True)] * 12
        assert thread.view(name).messages == [None] * 12
        assert [c.body for c in thread.compactions(name)] == [None, None]
        assert thread.view(name, at=thread.compaction(name, 1)).elements[0].messages == (None,)
    assert [c.thread_id for c in thread.compactions()] == [STUB, STUB]
    assert thread.verify("t").notes == ()
    assert "genesis that the erasure kept" not in str(thread.verify(STUB, level="structure").notes)
    [note] = thread.verify(STUB).notes
    assert "could not be computed" in note
    assert "genesis" in note


def test_nothing_is_added_to_an_erased_thread(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.append("t", [{"role": "user", "content": "x"}] * 2, key="two")
    thread.erase("t", reason="r")
    before = thread.thread("t")
    hi = {"role": "user", "content": "hi"}
    budget = cs.TokenBudget(context_window=100)
    calls: list[Callable[[str], Any]] = [
        lambda name: thread.append(name, hi),
        lambda name: thread.append(name, [hi, hi]),
        lambda name: thread.append(name, {"role": "user", "content": PLAIN}, key="k4"),
        lambda name: thread.append(name, {"role": "user", "content": [{"type": "compaction", "content": "c"}]}),
        lambda name: thread.load(name, [hi]),
        lambda name: thread.set_metadata(name, {"a": 1}),
        lambda name: thread.compact(name, span(1, 2)),
        lambda name: thread.compact(name, span(1, 2), budget=budget),
        lambda name: thread.revoke(name, 1),
        lambda name: thread.hold(name, reason="r"),
        lambda name: thread.retain(name, LATER, reason="r"),
    ]
    for call in calls:
        for name in ("t", STUB, f"erased:{uuid.uuid4()}"):
            with pytest.raises(cs.ThreadErased):
                call(name)
    with pytest.raises(psycopg.Error) as caught:
        commit(superuser, record(1, 2))
    assert caught.value.sqlstate == "CS012"
    assert thread.erase("t", reason="again") == cs.Redaction(None, (), ())
    assert thread.redact("t", 5, reason="again") == cs.Redaction(None, (), ())
    assert thread.thread("t") == before
    assert list(thread.due(budget)) == []
    check(thread)


def test_a_thread_of_which_all_is_erased_already_loses_its_name(thread: Face) -> None:
    thread.redact("t", range(1, 13), reason="r")
    assert thread.erase("t", reason="r") == cs.Redaction(14, (), ())
    check(thread)
    check(thread, STUB)


def test_a_stub_is_one_of_its_tenant(faces: Faces, url: str) -> None:
    one, other = faces.open(url), faces.open(url, tenant="other")
    for store in (one, other):
        store.append("t", [{"role": "user", "content": "x"}] * 3, key="k")
        store.compact("t", lambda ctx: ctx.compact(1, 1, "s", allow={"larger"}))
    one.redact("t", 1, reason="r")
    one.erase("t", reason="r")
    assert [m.redacted for m in other.replay("t")] == [False] * 3
    assert other.thread("t").thread_id == "t"
    for call in (other.thread, other.verify, other.view, lambda name: list(other.replay(name))):
        with pytest.raises(cs.ThreadNotFound):
            call(STUB)
    assert [c.redacted for c in other.compactions("t")] == [False]
    check(one)
    check(other)


# ---- what verify finds


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
                # As it was; and structure knows that a redaction stands there, while only its body says of what.
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
    """It is what was committed to, to the byte: only the redaction tells."""
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
    """By its old name; who does not know the name is told that this could not be looked at."""
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


# ---- roles, logs, errors


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
            "SELECT compaction_store.reached(gen_random_uuid(), '{}')",
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


def test_no_error_and_no_log_of_an_erasure_repeats_content(thread: Face, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    thread.hold("t", reason=SECRET)
    caught: list[BaseException] = []
    calls: list[Callable[[], Any]] = [
        lambda: thread.redact("t", 5, reason=SECRET),
        lambda: thread.redact("t", [5, 99], reason=SECRET),
        lambda: thread.redact("t", [SECRET], reason="r"),
        lambda: thread.redact("t", 5, reason=SECRET * 1000),
        lambda: thread.redact("t", 5, reason="r", actor=SECRET * 100),
        lambda: thread.erase("t", reason=SECRET),
        lambda: thread.redact("no-such-thread", 5, reason=SECRET),
        lambda: thread.retain("t", SECRET, reason=SECRET),
    ]
    for call in calls:
        with pytest.raises(cs.CompactionStoreError) as error:
            call()
        caught.append(error.value)
    done = thread.redact("t", 5, reason=SECRET, override=SECRET)
    told = (
        "".join(f"{e!r} {e} {e.args} {e.__cause__} {e.__context__}" for e in caught) + repr(done) + repr(events(thread))
    )
    assert SECRET not in told
    assert SECRET not in caplog.text


def test_events_come_in_pages(store: Face) -> None:
    store.append("t", {"role": "user", "content": "x"})
    for _ in range(102):
        store.hold("t", reason="r")
    assert [e.pos for e in events(store)] == list(range(2, 104))
    assert [e.pos for e in store.events("t", after=101)] == [102, 103]
    with pytest.raises(cs.InvalidInput):
        list(store.events("t", after=-1))


# ---- a thousand redactions


CALL = 250


class Model:
    """What every record repeats, by marks, worked out apart from the store."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.alive = set(range(1, count + 1))
        self.erased: set[int] = set()
        self.spans: dict[int, tuple[int, int] | None] = {}
        self.inputs: dict[int, list[int]] = {}
        self.marks: dict[int, set[int]] = {}

    def add(self, number: int, where: tuple[int, int] | None, inputs: list[int], marks: set[int], outcome: str) -> None:
        if outcome == "observed":
            # Any message after its start may have told of it.
            where = None if where is None else (where[0], self.count)
        # Without a span it may repeat anything.
        where = where or (1, self.count)
        self.spans[number], self.inputs[number], self.marks[number] = where, inputs, marks

    def marks_of(self, where: tuple[int, int] | None, inputs: list[int]) -> set[int]:
        found = set() if where is None else self.alive & set(range(where[0], where[1] + 1))
        return found.union(*(self.marks.get(number, set()) for number in inputs))

    def redact(self, seqs: set[int]) -> set[int]:
        """The records that are erased with the messages."""
        self.alive -= seqs
        reached: set[int] = set()
        while True:
            more = {
                number
                for number, where in self.spans.items()
                if number not in self.erased | reached
                and (
                    (where is not None and any(where[0] <= seq <= where[1] for seq in seqs))
                    or reached.intersection(self.inputs[number])
                )
            }
            if not more:
                break
            reached |= more
        self.erased |= reached
        for number in reached:
            del self.marks[number]
        return reached


def _cuts(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a span touches another without holding it whole."""
    return one[0] <= other[1] and other[0] <= one[1] and not (one[0] <= other[0] and other[1] <= one[1])


class Campaign:
    """Random records over one thread, each of which repeats all it was made from, and random redactions."""

    def __init__(self, store: Any, connection: psycopg.Connection[Any], seed: int, count: int) -> None:
        self.store, self.connection = store, connection
        self.random = random.Random(seed)
        self.count = count
        self.model = Model(count)
        self.seen: list[tuple[int, list[tuple[int, int, int | None]]]] = []

    def write(self) -> None:
        chosen, model = self.random, self.model
        start = chosen.randint(1, self.count)
        where: tuple[int, int] | None = (start, min(self.count, start + chosen.choice([0, 1, 2, 3, 5, 9, 20])))
        outcome = chosen.choice(["applied", "applied", "rejected", "failed", "observed"])
        known = sorted(model.marks)
        inputs = chosen.sample(known, min(len(known), chosen.choice([0, 0, 1, 1, 2])))
        if outcome != "applied" and inputs and chosen.random() < 0.5:
            where = None
        marks = model.marks_of(where, inputs)
        text = " ".join(f"mark-{seq}-" for seq in sorted(marks)) or "nothing"
        start_seq, end_seq = where or (None, None)
        made = record(start_seq, end_seq, text, outcome=outcome, inputs=inputs, tokens_after=len(marks))
        active = [element for element in self.store.view("t").elements if element.number is not None]
        if outcome == "applied" and where is not None and any(_cuts(where, (e.seq, e.end_seq)) for e in active):
            return
        [number] = commit(self.connection, made)
        model.add(number, where, inputs, marks, outcome)

    def redact(self) -> int:
        seqs = set(self.random.sample(sorted(self.model.alive), 1))
        expected = self.model.redact(seqs)
        done = self.store.redact("t", seqs, reason="asked for")
        assert (set(done.seqs), set(done.records)) == (seqs, expected)
        return seqs.pop()

    def check(self) -> None:
        everything = dump(self.connection)
        model = self.model
        there = {int(part.split("-", 1)[0]) for part in everything.split("mark-")[1:]}
        assert there == model.alive
        for c in self.store.compactions("t"):
            assert c.redacted == (c.number in model.erased)
        check(self.store)
        self.seen.append((self.store.thread("t").last_pos, shape(self.store)))
        for at, then in self.seen:
            assert shape(self.store, at) == then


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_thousand_redactions_leave_no_mark_and_a_thread_that_verifies(
    url: str, superuser: psycopg.Connection[Any], seed: int
) -> None:
    with cs.Store.open(url) as store:
        count = 1250
        for first in range(1, count + 1, CALL):
            payloads = [{"role": "user", "content": f"mark-{seq}- {PLAIN}"} for seq in range(first, first + CALL)]
            store.append("t", payloads, meta=[{"about": f"mark-{seq}-"} for seq in range(first, first + CALL)])
        campaign = Campaign(store, superuser, seed, count)
        for _ in range(200):
            campaign.write()
        campaign.check()
        for i in range(1000):
            seq = campaign.redact()
            assert store.message("t", seq).redacted
            if i % 10 == 0:
                assert store.view("t").tokens == store.thread("t").view_tokens
            if i % 3 == 0:
                campaign.write()
            if i % 250 == 249:
                campaign.check()
        report = store.verify("t")
        assert (report.findings, report.redactions) == ((), 1000)
        assert report.redacted == 1000 + len(campaign.model.erased)
        assert len(campaign.model.erased) > 200
        text = str([m.text for m in store.replay("t")]) + str([c.body for c in store.compactions("t")])
        text += str(store.view("t").messages) + str([store.view("t", at=at).messages for at, _ in campaign.seen])
        text += str([store.explain("t", seq) for seq in range(1, count, 100)]) + str(events(store))
        found = {int(part.split("-", 1)[0]) for part in text.split("mark-")[1:]}
        assert found == campaign.model.alive


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_long_list_is_one_call(url: str, count: int) -> None:
    with cs.Store.open(url) as store:
        store.load("t", ({"role": "user", "content": f"message {i}"} for i in range(count)))
        store.compact("t", span(1, count // 2))
        odd = store.redact("t", range(1, count + 1, 2), reason="r")
        assert (len(odd.seqs), odd.records) == (count // 2, (1,))
        assert store.verify("t").findings == ()
        assert store.redact("t", range(1, count + 1), reason="r").seqs == tuple(range(2, count + 1, 2))
        assert store.verify("t").redacted == count + 1
        assert store.erase("t", reason="r").seqs == ()
        assert store.verify("t").findings == ()


# ---- where plaintext may remain


def _statements() -> tuple[str, list[str]]:
    """The query and the commands of the page, as they stand there."""
    page = (ROOT / "docs" / "erasure.md").read_text(encoding="utf-8")
    query, commands = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return query, [command for command in commands.split(";") if command.strip()]


def test_the_query_of_the_page_says_where_to_look(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.redact("t", 5, reason="r")
    found = dict(superuser.execute(_statements()[0].encode()).fetchall())
    assert {"last redaction", "table messages", "table compactions", "write-ahead log", "archive", "log"} <= set(found)
    assert datetime.fromisoformat(found["last redaction"]) == events(thread)[0].created_at


def undisturbed(superuser: psycopg.Connection[Any]) -> None:
    """Until nothing else, such as an ANALYZE of the server's own, may still see what was there before."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_xmin IS NOT NULL"
    )
    end = time.monotonic() + 20
    while rows(superuser, query):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_after_the_commands_of_the_page_the_servers_files_hold_no_content(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    [(folder, base)] = rows(
        superuser, "SELECT current_setting('data_directory'), pg_relation_filepath('compaction_store.messages')"
    )
    if not Path(folder, base).exists():
        pytest.skip("the server's files are not on this machine")

    def held() -> int:
        superuser.execute("CHECKPOINT")
        paths = rows(
            superuser, "SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname IN ('messages', 'compactions')"
        )
        return sum(Path(folder, path).read_bytes().count(SECRET.encode()) for (path,) in paths)

    thread.compact("t", span(4, 6, SECRET))
    assert held() > 0
    thread.redact("t", 5, reason="r")
    assert held() > 0
    # What the server does by itself may begin just then, and its snapshot keeps what it could see: so again.
    for _ in range(5):
        for command in _statements()[1]:
            undisturbed(superuser)
            superuser.execute(command.encode())
        if not held():
            break
    assert held() == 0


# ---- ranges


@pytest.mark.parametrize(
    ("wanted", "there", "left"),
    [
        ([(1, 9)], [], [(1, 9)]),
        ([(1, 9)], [(1, 9)], []),
        ([(1, 9)], [(3, 3), (5, 6)], [(1, 2), (4, 4), (7, 9)]),
        ([(1, 2), (4, 5), (9, 9)], [(2, 4)], [(1, 1), (5, 5), (9, 9)]),
        ([(4, 6)], [(1, 2), (3, 4), (6, 9)], [(5, 5)]),
        ([(4, 6), (8, 9)], [(1, 20)], []),
        ([], [(1, 2)], []),
    ],
)
def test_the_ranges_that_are_missing(wanted: Any, there: Any, left: Any) -> None:
    assert erasure.missing(wanted, there) == left


def test_missing_ranges_are_those_of_sets() -> None:
    chosen = random.Random(5)
    for _ in range(2000):
        one, other = ({n for n in range(14) if chosen.random() < 0.5} for _ in range(2))
        left = erasure.missing(erasure.ranges(one), erasure.ranges(other))
        assert left == erasure.ranges(one - other)


@pytest.mark.parametrize(
    "text",
    [
        "null", "[]", "{}", '{"seqs":[]}', '{"seqs":1,"records":[]}', '{"seqs":[[1]],"records":[]}',
        '{"seqs":[[2,1]],"records":[]}', '{"seqs":[[1,2],[3,4]],"records":[]}', '{"seqs":[[5,6],[1,2]],"records":[]}',
        '{"seqs":[[1,2.0]],"records":[]}', '{"seqs":[[true,2]],"records":[]}', '{"seqs":[],"records":["12"]}',
        '{"seqs":[],"records":[],"genesis":"zz"}', '{"seqs":[],"records":[],"genesis":7}', "[" * 5000,
    ],
)  # fmt: skip
def test_a_body_that_no_redaction_writes_names_nothing(text: str) -> None:
    assert erasure.named(text) is None
