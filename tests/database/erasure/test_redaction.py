"""Redacting messages: what goes, what stays, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.redactable_thread import LATER, PLAIN, SECRET, check, dump, events

import compaction_store as cs
from compaction_store.models.messages import is_erased


def test_a_redaction_leaves_nothing_of_the_content_and_everything_else(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    before = list(thread.replay("t"))
    assert SECRET in dump(superuser)
    done = thread.custody.redact("t", [5], reason="asked for", actor="clerk", legal_basis="Art. 17")
    assert done == cs.Redaction("t", 13, (5,), ())
    after = list(thread.replay("t"))
    assert after[:4] + after[5:] == before[:4] + before[5:]
    assert after[4] == before[4]._replace(payload=None, meta=None, redacted=True, text=None)
    assert thread.message("t", 5) == after[4]
    assert is_erased(thread.view("t").messages[4])
    assert is_erased(thread.view("t", at=12).messages[4])
    assert SECRET not in dump(superuser)
    [event] = events(thread)
    assert (event.pos, event.kind, event.actor, event.reason) == (13, "redaction", "clerk", "asked for")
    assert event.body == {"seqs": [[5, 5]], "records": [], "reason": "asked for", "legal_basis": "Art. 17"}
    assert "asked for" not in repr(event)
    report = thread.audit.verify("t")
    assert (report.entries, report.redacted, report.redactions, report.notes) == (13, 1, 1, ())
    check(thread)


def test_many_are_erased_in_one_event(thread: Face) -> None:
    assert thread.custody.redact("t", (s for s in [9, 2, 1, 3, 2]), reason="r") == cs.Redaction(
        "t", 13, (1, 2, 3, 9), ()
    )
    assert events(thread)[0].body["seqs"] == [[1, 3], [9, 9]]
    assert thread.custody.redact("t", range(1, 13), reason="r").seqs == (4, 5, 6, 7, 8, 10, 11, 12)
    assert [m.redacted for m in thread.replay("t")] == [True] * 12
    check(thread)


def test_what_is_erased_already_is_no_event(thread: Face) -> None:
    thread.custody.redact("t", 5, reason="r")
    before = thread.thread("t")
    assert thread.custody.redact("t", [5], reason="again") == cs.Redaction("t", None, (), ())
    assert thread.thread("t") == before
    assert thread.custody.redact("t", [5, 6], reason="again") == cs.Redaction("t", 14, (6,), ())
    assert thread.audit.explain("t", 6).redaction == events(thread)[1]
    check(thread)


def test_an_unknown_seq_is_refused_and_nothing_is_erased(thread: Face) -> None:
    before = thread.thread("t")
    for seqs in ([13], [5, 13], [5, 10**12], range(1, 14), 13):
        with pytest.raises(cs.MessageNotFound):
            thread.custody.redact("t", seqs, reason="r")
    assert (thread.thread("t"), thread.message("t", 5).redacted) == (before, False)


def test_what_is_no_seq_is_refused(thread: Face) -> None:
    wrong: list[Any] = [[], [0], [-1], ["1"], "12", b"12", [True], True, None, 1.5, [1.0], [2**53], {1: 2}]
    for seqs in wrong:
        with pytest.raises(cs.InvalidInput):
            thread.custody.redact("t", seqs, reason="r")


def test_a_reason_says_something(thread: Face) -> None:
    wrong: list[Any] = [None, "", "  ", 7, "x" * 8193, b"r"]
    for text in wrong:
        calls: list[Callable[[Any], Any]] = [
            lambda text: thread.custody.redact("t", 1, reason=text),
            lambda text: thread.custody.erase("t", reason=text),
            lambda text: thread.custody.hold("t", reason=text),
            lambda text: thread.custody.release("t", reason=text),
            lambda text: thread.custody.retain("t", LATER, reason=text),
        ]
        if text is not None:
            calls += [
                lambda text: thread.custody.redact("t", 1, reason="r", override=text),
                lambda text: thread.custody.redact("t", 1, reason="r", legal_basis=text),
                lambda text: thread.custody.erase("t", reason="r", override=text),
            ]
        for call in calls:
            with pytest.raises(cs.InvalidInput):
                call(text)
    assert thread.thread("t").last_pos == 12


@pytest.mark.parametrize("text", ["größe \U0001f512", "\ud800 \0", '"},{"seqs":[]', "'; DROP TABLE x; --", "%s {} %"])
def test_a_reason_may_be_any_text(thread: Face, text: str) -> None:
    thread.custody.redact("t", 5, reason=text, legal_basis=text, override=text)
    thread.custody.hold("t", reason=text)
    stub = thread.custody.erase("t", reason=text, override=text).thread_id
    assert [event.reason for event in events(thread, stub)] == [text] * 3
    assert events(thread, stub)[0].body == {
        "seqs": [[5, 5]], "records": [], "reason": text, "legal_basis": text, "override": text,
    }  # fmt: skip
    check(thread, stub)


def test_a_thread_must_be_there(store: Face) -> None:
    for call in (
        lambda: store.custody.redact("t", 1, reason="r"),
        lambda: store.custody.erase("t", reason="r"),
        lambda: store.custody.hold("t", reason="r"),
        lambda: events(store),
    ):
        with pytest.raises(cs.ThreadNotFound):
            call()


def test_a_retry_by_the_key_of_an_erased_message_is_a_conflict(thread: Face) -> None:
    batch = [{"role": "user", "content": str(i)} for i in range(3)]
    thread.append("t", batch, key="batch")
    lot = [{"role": "user", "content": f"lot {i}"} for i in range(3)]
    thread.load.messages("t", lot, key="lot")
    thread.custody.redact("t", [5, 14, 17], reason="r")
    secret = {"role": "user", "content": f"{SECRET} {PLAIN}"}
    with pytest.raises(cs.IdempotencyConflict) as caught:
        thread.append("t", secret, key="k5")
    assert SECRET not in str(caught.value)
    with pytest.raises(cs.IdempotencyConflict):
        thread.append("t", batch, key="batch")
    with pytest.raises(cs.IdempotencyConflict):
        thread.load.messages("t", lot, key="lot")
    assert thread.append("t", {"role": "user", "content": PLAIN}, key="k4")[0].seq == 4


def test_no_error_and_no_log_of_an_erasure_repeats_content(thread: Face, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    thread.custody.hold("t", reason=SECRET)
    caught: list[BaseException] = []
    calls: list[Callable[[], Any]] = [
        lambda: thread.custody.redact("t", 5, reason=SECRET),
        lambda: thread.custody.redact("t", [5, 99], reason=SECRET),
        lambda: thread.custody.redact("t", [SECRET], reason="r"),
        lambda: thread.custody.redact("t", 5, reason=SECRET * 1000),
        lambda: thread.custody.redact("t", 5, reason="r", actor=SECRET * 100),
        lambda: thread.custody.erase("t", reason=SECRET),
        lambda: thread.custody.redact("no-such-thread", 5, reason=SECRET),
        lambda: thread.custody.retain("t", SECRET, reason=SECRET),
    ]
    for call in calls:
        with pytest.raises(cs.CompactionStoreError) as error:
            call()
        caught.append(error.value)
    done = thread.custody.redact("t", 5, reason=SECRET, override=SECRET)
    told = (
        "".join(f"{e!r} {e} {e.args} {e.__cause__} {e.__context__}" for e in caught) + repr(done) + repr(events(thread))
    )
    assert SECRET not in told
    assert SECRET not in caplog.text


def test_events_come_in_pages(store: Face) -> None:
    store.append("t", {"role": "user", "content": "x"})
    for _ in range(102):
        store.custody.hold("t", reason="r")
    assert [e.pos for e in events(store)] == list(range(2, 104))
    assert [e.pos for e in store.audit.events("t", after=101)] == [102, 103]
    with pytest.raises(cs.InvalidInput):
        list(store.audit.events("t", after=-1))
