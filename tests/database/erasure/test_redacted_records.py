"""Redacting a message erases the records that repeat it, also in a race with the compaction that writes them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.redactable_thread import LEVELS, PLAIN, SECRET, check, commit, dump, events, record, shape, span

import compaction_store as cs
from compaction_store.models.messages import Erased, is_erased


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
    assert thread.custody.redact("t", 5, reason="r") == cs.Redaction("t", 22, (5,), (1, 3, 4, 5, 6, 9))
    assert SECRET not in dump(superuser)
    log = {c.number: c for c in thread.compactions("t")}
    assert [c.body is None for c in log.values()] == [n in {1, 3, 4, 5, 6, 9} for n in log]
    assert {n: c.status for n, c in log.items()} == {
        1: "redacted", 2: "active", 3: "redacted", 4: "redacted", 5: "failed", 6: "rejected", 7: "rejected",
        8: "active", 9: "observed",
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
    for wrong in (301, 999):
        with pytest.raises(psycopg.DatabaseError, match="inputs must be numbers of earlier records"):
            commit(superuser, record(1, 1, "own", outcome="rejected", inputs=[wrong]))
    assert thread.custody.redact("t", 5, reason="r").records == tuple(range(1, 301))
    assert SECRET not in dump(superuser)


def test_a_message_that_reports_a_providers_compaction_takes_its_record_along(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    """The record quotes the message that reports it, and its span ends before that message."""
    block = {"type": "compaction", "content": f"{SECRET}-told"}
    thread.append("t", {"role": "assistant", "content": [block]})
    other = {"type": "compaction", "content": "another"}
    thread.append("t", [{"role": "user", "content": "x"}, {"role": "assistant", "content": [other]}])
    first, second = thread.compactions("t")
    assert (first.outcome, first.start_seq, first.end_seq) == ("observed", 1, 12)
    assert (second.outcome, second.start_seq, second.end_seq) == ("observed", 1, 14)
    assert thread.custody.redact("t", 15, reason="r").records == (2,)
    assert thread.custody.redact("t", 13, reason="r").records == (1,)
    assert f"{SECRET}-told" not in dump(superuser)
    check(thread)


def test_the_view_unfolds_from_the_redaction_on_and_keeps_its_folds_before(thread: Face) -> None:
    thread.compact("t", span(1, 2, "inner, beside it"), span(4, 6), span(1, 7, "outer"), span(9, 10, "apart"))
    before = {at: thread.view("t", at=at) for at in range(12, 17)}
    assert thread.custody.redact("t", [5], reason="r").records == (2, 3)
    inner, middle, outer, apart = thread.compactions("t")
    assert [c.status for c in (inner, middle, outer, apart)] == ["active", "redacted", "redacted", "active"]
    raw = [(seq, seq, None) for seq in range(1, 13)]
    assert shape(thread) == [(1, 2, 1), *raw[2:8], (9, 10, 4), *raw[10:]]
    view = thread.view("t")
    assert is_erased(view.messages[3])
    assert [is_erased(m) for m in view.messages].count(True) == 1
    for at, then in before.items():
        now = thread.view("t", at=at)
        assert [(e.seq, e.end_seq, e.number, e.tokens) for e in now.elements] == [
            (e.seq, e.end_seq, e.number, e.tokens) for e in then.elements
        ]
        for a, b in zip(now.elements, then.elements, strict=True):
            erased = a.number in {2, 3} or (a.number is None and a.seq == 5)
            assert a.messages == ((Erased(),) if erased else b.messages)
    assert thread.audit.tree(outer).inside[0].record == inner
    check(thread)
    run = thread.compact("t", span(1, 7, "anew"))
    assert [n.record.number for n in thread.audit.tree(run[0]).inside] == [1]
    record = thread.compaction("t", 1)
    assert (record.status, record.superseded_by) == ("superseded", 5)
    check(thread)


def test_a_revocation_outlives_its_own_erasure(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.compact("t", span(4, 6))
    thread.revoke("t", 1, reason=f"it repeats {SECRET}")
    assert thread.custody.redact("t", 5, reason="r").records == (1, 2)
    assert SECRET not in dump(superuser)
    assert len(thread.view("t").elements) == 12
    check(thread)


def test_explain_shows_the_redaction(thread: Face) -> None:
    thread.compact("t", span(4, 6))
    assert thread.audit.explain("t", 5).redaction is None
    thread.custody.redact("t", 9, reason="another")
    thread.custody.redact("t", 5, reason="this one", actor="clerk")
    told = thread.audit.explain("t", 5)
    assert told.redaction is not None
    assert (told.redaction.reason, told.redaction.actor, told.redaction.pos) == ("this one", "clerk", 15)
    assert (told.message.redacted, [c.status for c in told.records], told.element.is_erased) == (
        True,
        ["redacted"],
        True,
    )
    assert thread.audit.explain("t", 6).redaction is None


def test_what_a_reply_was_written_from_differs_once_part_of_it_is_erased(thread: Face) -> None:
    thread.append("t", {"role": "assistant", "content": "a"}, view=thread.view("t"))
    thread.append("t", {"role": "user", "content": "b"})
    assert thread.seen_by("t", 13).evidence == "proved"
    thread.custody.redact("t", 14, reason="r")
    assert thread.seen_by("t", 13).evidence == "proved"
    thread.custody.redact("t", 5, reason="r")
    seen = thread.seen_by("t", 13)
    assert (seen.evidence, seen.view.pos, seen.view.messages[4]) == ("differs", 12, Erased())


def test_an_erased_record_cannot_be_revoked_and_another_can(thread: Face) -> None:
    thread.compact("t", span(4, 6), span(8, 9))
    thread.custody.redact("t", 5, reason="r")
    with pytest.raises(cs.Conflict):
        thread.revoke("t", 1)
    thread.revoke("t", 2)
    assert len(thread.view("t").elements) == 12
    check(thread)


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
            other.custody.redact("t", erased, reason="r")
        planned(ctx)

    with pytest.raises(cs.SpanConflict):
        thread.compact("t", compact)
    assert thread.thread("t").last_number == before.last_number
    check(thread)


def test_a_compaction_beside_what_was_erased_meanwhile_is_written(thread: Face, url: str) -> None:
    def compact(ctx: cs.CompactionContext) -> None:
        with cs.Store.open(url) as other:
            other.custody.redact("t", 5, reason="r")
        ctx.compact(6, 9, "beside it")

    assert thread.compact("t", compact).applied
    check(thread)


@pytest.mark.parametrize("outcome", ["applied", "rejected", "failed"])
def test_a_record_made_from_one_that_was_erased_meanwhile_is_refused(
    thread: Face, superuser: psycopg.Connection[Any], outcome: str
) -> None:
    commit(superuser, record(4, 6, SECRET))
    base = thread.thread("t").last_pos
    thread.custody.redact("t", 5, reason="r")
    late = record(8, 9, SECRET, outcome=outcome, inputs=[1])
    with pytest.raises(psycopg.Error) as caught:
        commit(superuser, record(10, 11), late, base=base)
    assert (caught.value.sqlstate, SECRET in str(caught.value)) == ("CS004", False)
    assert SECRET not in dump(superuser)
    # A caller that has read the thread since then cannot have the erased text.
    commit(superuser, record(8, 9, inputs=[1]), base=base + 1)
    check(thread)


def test_compactors_writers_and_a_redactor_at_once_leave_no_trace(url: str, superuser: psycopg.Connection[Any]) -> None:
    """Each summary repeats its span; whatever the interleaving, the erased text is nowhere."""
    with cs.Store.open(url) as store:
        store.append("t", [{"role": "user", "content": f"mark-{i}- {PLAIN}"} for i in range(1, 101)])
        stop = threading.Event()
        applied, failures = [0], []

        def compactor(seed: int) -> None:
            chosen = random.Random(seed)
            while not stop.is_set():
                # Use only what the run itself has read: the store cannot know what a callback remembers from before.
                def compact(ctx: cs.CompactionContext) -> None:
                    low = chosen.randrange(len(ctx.elements) - 6)
                    part = ctx.elements[low : low + chosen.randint(1, 5)]
                    text = " ".join(str(m["content"])[:10] for e in part for m in e.messages if not is_erased(m))
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
            store.custody.redact("t", seq, reason="r")
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
                    store.custody.redact(name, chosen.sample(range(1, 301), 1 + i % 4), reason="r")
                store.custody.erase(name, reason="r")

            writer = threading.Thread(target=erase)
            writer.start()
            stub = f"erased:{store.thread(name).thread_uid}"
            reports = []
            while writer.is_alive():
                for level in LEVELS:
                    # The name is gone at some point, and never is anything wrong.
                    with suppress(cs.ThreadNotFound):
                        reports.append(store.audit.verify(name, level=level))
            writer.join()
            assert [report.findings for report in reports] == [()] * len(reports)
            assert reports
            check(store, stub)


@pytest.mark.parametrize("what", ["rewind", "clear", "removal"])
def test_a_view_has_the_tokens_of_what_shows_again_where_a_record_inside_was_erased(
    thread: Face, superuser: psycopg.Connection[Any], what: str
) -> None:
    """A rewind, a clear and a removal stay, because they repeat no message: the record inside does not."""
    if what == "removal":
        # Its summarizer looked at messages before its span.
        commit(superuser, record(6, 7, inputs=[0]))
        thread.compact("t", lambda ctx: ctx.remove(5, 8))
    else:
        thread.compact("t", span(5, 8))
        thread.rewind("t", 4) if what == "rewind" else thread.clear("t")
    thread.custody.redact("t", 2 if what == "removal" else 6, reason="r")
    records = list(thread.compactions("t"))
    assert [c.status for c in records] == ["redacted", "active"]
    # A removal leaves a line, and the others leave nothing.
    left = records[1].tokens_after
    assert bool(left) is (what == "removal")
    revocation = thread.revoke("t", 2)
    view = thread.view("t")
    assert [element.number for element in view.elements] == [None] * 12
    assert thread.thread("t").view_tokens == view.tokens
    first = {"rewind": 5, "clear": 1, "removal": 5}[what]
    last = 8 if what == "removal" else 12
    shown = sum(m.tokens for m in thread.replay("t") if first <= m.seq <= last)
    assert (revocation.tokens_before, revocation.tokens_after) == (left, shown)
    assert thread.audit.verify("t").findings == ()
