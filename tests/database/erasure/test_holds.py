"""Holds and retentions forbid erasing; an override is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.faces import Face
from support.keys import key_of
from support.redactable_thread import BEFORE, LATER, check, events, rows, span

import compaction_store as cs
from compaction_store import offline
from compaction_store.integrity import erasure
from compaction_store.postgres.queries.functions import EraseRow


def test_a_hold_forbids_to_erase_until_it_is_released(thread: Face) -> None:
    held = thread.custody.hold("t", reason="a lawsuit", actor="counsel")
    assert held == events(thread)[0]
    assert (held.pos, held.kind, held.actor, held.body) == (13, "hold", "counsel", {"reason": "a lawsuit"})
    calls: list[Callable[[], Any]] = [
        lambda: thread.custody.redact("t", 5, reason="r"),
        lambda: thread.custody.erase("t", reason="r"),
    ]
    for call in calls:
        with pytest.raises(cs.Held) as caught:
            call()
        assert caught.value.pos == 13
        assert "lawsuit" not in str(caught.value)
    assert (thread.thread("t").last_pos, thread.message("t", 5).redacted) == (15, False)
    assert thread.custody.release("t", reason="settled").pos == 16
    assert thread.custody.redact("t", 5, reason="r").pos == 17
    thread.custody.hold("t", reason="another")
    # Erasing an erased message needs no permission, and a seq that does not exist is refused first.
    assert thread.custody.redact("t", 5, reason="r").pos is None
    with pytest.raises(cs.MessageNotFound):
        thread.custody.redact("t", 99, reason="r")
    check(thread)


def test_a_retention_forbids_to_erase_before_its_end_and_the_newest_counts(thread: Face) -> None:
    event = thread.custody.retain("t", LATER, reason="the law")
    assert list(event.body) == ["until", "reason"]
    assert datetime.fromisoformat(event.body["until"]) == LATER
    with pytest.raises(cs.Held) as caught:
        thread.custody.redact("t", 5, reason="r")
    assert (caught.value.pos, event.body["until"] in str(caught.value)) == (13, True)
    thread.custody.hold("t", reason="also")
    thread.custody.release("t", reason="no more")
    with pytest.raises(cs.Held):
        thread.custody.erase("t", reason="r")
    thread.custody.retain("t", BEFORE.astimezone(None), reason="shortened")
    assert thread.custody.redact("t", 5, reason="r").pos == 19
    thread.custody.retain("t", datetime.max.replace(tzinfo=UTC), reason="no end")
    with pytest.raises(cs.Held):
        thread.custody.redact("t", 6, reason="r")
    thread.custody.retain("t", datetime.min.replace(tzinfo=UTC), reason="not at all")
    thread.custody.redact("t", 6, reason="r")
    check(thread)


def test_a_retention_ends_at_a_moment(thread: Face) -> None:
    wrong: list[Any] = [None, "2031-01-01", LATER.replace(tzinfo=None), LATER.date()]
    for until in wrong:
        with pytest.raises(cs.InvalidInput):
            thread.custody.retain("t", until, reason="r")


def test_a_hold_and_a_retention_are_overridden_with_a_reason_that_is_recorded(thread: Face) -> None:
    thread.custody.hold("t", reason="a")
    thread.custody.retain("t", LATER, reason="b")
    assert thread.custody.redact("t", 5, reason="r", override="the court said so").pos == 15
    assert events(thread)[-1].body["override"] == "the court said so"
    with pytest.raises(cs.Held):
        thread.custody.redact("t", 6, reason="r")
    done = thread.custody.erase("t", reason="r", override="and again")
    assert done.pos == 17
    assert events(thread, done.thread_id)[-1].body["override"] == "and again"
    check(thread, done.thread_id)


def test_a_refused_erasure_leaves_an_event_that_says_who_asked_for_what_and_why_not(thread: Face) -> None:
    thread.custody.retain("t", LATER, reason="the law")
    thread.custody.hold("t", reason="a lawsuit")
    state = thread.thread("t")
    asked: list[Callable[[], Any]] = [
        lambda: thread.custody.redact("t", 5, reason="r", dry_run=True),
        lambda: thread.custody.erase("t", reason="r", dry_run=True),
    ]
    for ask in asked:
        with pytest.raises(cs.Held):
            ask()
    assert thread.thread("t") == state
    with pytest.raises(cs.Held) as caught:
        thread.custody.redact(
            "t", [7, 5, 6, 9], reason="asked for", actor="ben", legal_basis="art. 17", authority={"ticket": "T"}
        )
    assert caught.value.pos == 14
    with pytest.raises(cs.Held, match="held since pos 14"):
        thread.custody.erase("t", reason="all of it", actor="eva")
    first, second = events(thread)[2:]
    assert (first.kind, first.critical, first.actor, first.authority) == ("refusal", False, "ben", {"ticket": "T"})
    assert first.login == events(thread)[0].login
    assert first.body == {
        "refused": "redact", "because": "the thread is held since pos 14", "forbidden_by": [13, 14],
        "seqs": [[5, 7], [9, 9]], "reason": "asked for",
        "legal_basis": "art. 17", "authority": {"ticket": "T"},
    }  # fmt: skip
    assert (second.actor, second.body) == (
        "eva", {"refused": "erase", "because": first.body["because"], "forbidden_by": [13, 14], "reason": "all of it"},
    )  # fmt: skip
    assert [m.redacted for m in thread.replay("t")] == [False] * 12
    thread.custody.redact("t", 5, reason="r", override="a court's order")
    report = thread.audit.verify("t")
    assert (report.findings, report.notes) == ((), ())
    check(thread)


def test_a_refusal_is_recorded_before_the_erasure_is_confirmed(thread: Face) -> None:
    would = thread.custody.redact("t", 5, reason="r", confirmed=False)
    assert (would.pos, would.seqs) == (None, (5,))
    would = thread.custody.erase("t", reason="r", confirmed=False)
    assert (would.thread_id, would.pos, would.seqs) == ("t", None, tuple(range(1, 13)))
    thread.custody.hold("t", reason="a lawsuit")
    for ask in (partial(thread.custody.redact, "t", 5), partial(thread.custody.erase, "t")):
        with pytest.raises(cs.Held):
            ask(reason="r", actor="ben", confirmed=False)
        with pytest.raises(cs.Held):
            ask(reason="r", actor="ben", confirmed=False, dry_run=True)
        with pytest.raises(cs.InvalidInput, match="confirmed must be"):
            ask(reason="r", confirmed="no")
    assert [(e.kind, e.actor) for e in events(thread)] == [("hold", None), ("refusal", "ben"), ("refusal", "ben")]
    would = thread.custody.erase("t", reason="r", override="an order", confirmed=False)
    assert (would.pos, len(would.seqs)) == (None, 12)
    assert [m.redacted for m in thread.replay("t")] == [False] * 12
    check(thread)


@pytest.mark.one_server("it calls a function without a key")
@pytest.mark.parametrize("what", ["redact", "erase"])
def test_a_refused_call_that_is_repeated_is_recorded_once(
    thread: Face, superuser: psycopg.Connection[Any], what: str
) -> None:
    thread.custody.hold("t", reason="a lawsuit")
    uid = key_of(superuser, "t")
    of = "'{5}', '{5}', " if what == "redact" else ""
    call = f"SELECT * FROM compaction_store.{what}(NULL, 'default', 't', {of}NULL, %s, '{{\"r\":1}}', false)"
    salt = os.urandom(16)
    first = rows(superuser, call, salt)
    assert first[0][0] is None
    assert first[0][-2:] == (13, "the thread is held since pos 13")
    # The answer is that of the first call, even if the hold has ended since.
    assert rows(superuser, call, salt) == first
    thread.custody.release("t", reason="settled")
    assert rows(superuser, call, salt) == first
    assert [event.kind for event in events(thread)] == ["hold", "refusal", "release"]
    assert rows(superuser, call, os.urandom(16))[0][0] == 16
    check(thread, f"erased:{uid}" if what == "erase" else "t")


def test_a_refusal_in_a_bundle_is_known_to_both_verifiers(thread: Face, tmp_path: Path) -> None:
    thread.custody.hold("t", reason="a lawsuit")
    with pytest.raises(cs.Held):
        thread.custody.redact("t", 5, reason="r")
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(thread.audit.export("t")))
    with path.open("rb") as lines:
        report = cs.verify_bundle(lines)
    assert (report.findings, report.notes) == ((), ())
    done = subprocess.run([sys.executable, offline.__file__, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "kind" not in done.stdout


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("redaction", '{"seqs":[],"records":[]}'),
        ("refusal", '{"refused":"redact"}'),
        ("import", "{}"),
        ("checkpoint", "{}"),
        ("later_kind", "{}"),
        (None, "{}"),
        ("retention", '{"reason":"x"}'),
        ("retention", '{"reason":"x","until":"2031-01-01T00:00:00.000000Z"}'),
        ("retention", '{"until":"2031-01-01"}'),
        ("retention", '{"until":"2031-13-01T00:00:00.000000Z"}'),
        ("retention", ' {"until":"2031-01-01T00:00:00.000000Z"}'),
        ("hold", "no json"),
    ],
)
@pytest.mark.one_server("it calls a function without a key")
def test_the_function_records_no_other_events(
    thread: Face, superuser: psycopg.Connection[Any], kind: str, body: str
) -> None:
    call = "SELECT compaction_store.record_event(NULL, 'default', 't', %s, NULL, %s, %s)"
    with pytest.raises(psycopg.Error) as caught:
        rows(superuser, call, kind, bytes(16), body)
    assert caught.value.sqlstate in {"CS008", "CS019", "22007", "22008", "22P02"}
    assert events(thread) == []
    rows(superuser, call, "hold", bytes(16), "{}")


def test_the_same_call_again_after_its_reply_was_lost_is_the_same_event(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    """The store retries with the same salt, so the result of the first attempt is returned."""
    salt = os.urandom(16)
    uid = key_of(superuser, "t")
    thread.compact("t", span(4, 6))

    def redact() -> list[tuple[Any, ...]]:
        return rows(
            superuser,
            "SELECT * FROM compaction_store.redact"
            "(%s, 'default', 't', %s::int8[], %s::int8[], NULL, %s, '{\"r\":1}', false)",
            uid, [5, 9], [5, 10], salt,
        )  # fmt: skip

    def hold() -> list[tuple[Any, ...]]:
        call = "SELECT * FROM compaction_store.record_event(%s, 'default', 't', 'hold', NULL, %s, '{}')"
        return rows(superuser, call, uid, salt)

    def erase() -> list[tuple[Any, ...]]:
        call = "SELECT * FROM compaction_store.erase(%s, 'default', 't', NULL, %s, '{\"r\":1}', true)"
        return rows(superuser, call, uid, salt)

    for act in (redact, hold, erase):
        salt = os.urandom(16)
        first = act()
        [state] = thread.threads()
        assert act() == first
        assert list(thread.threads()) == [state]
        assert first[0][0] == state.last_pos
    assert erasure.redaction("t", EraseRow._make(first[0])).seqs == (1, 2, 3, 4, 6, 7, 8, 11, 12)
    check(thread, f"erased:{uid}")
