"""A locked retention can only be made longer, by anybody; a retention that shortens another says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.keys import key_of
from support.redactable_thread import check, events, rows

import compaction_store as cs
from compaction_store.audit.words import described, kept_by

SOON, LATER, LAST = (datetime(year, 1, 1, tzinfo=UTC) for year in (2090, 2095, 2099))
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def test_a_locked_term_can_only_be_made_longer_and_stays_locked(thread: Face) -> None:
    locked = thread.custody.retain("t", LATER, reason="the law", locked=True)
    assert list(locked.body) == ["until", "locked", "reason"]
    for until in (SOON, PAST, LATER - timedelta(microseconds=1)):
        for again in (False, True):
            with pytest.raises(cs.Held, match="locked until 2095-01-01") as caught:
                thread.custody.retain("t", until, reason="cleanup", locked=again)
            assert caught.value.pos == locked.pos
    assert thread.custody.retain("t", LATER, reason="the same").body["locked"] is True
    longer = thread.custody.retain("t", LAST, reason="longer")
    assert longer == events(thread)[-1]
    assert (longer.body["locked"], "shortens" in longer.body) == (True, False)
    with pytest.raises(cs.Held) as caught:
        thread.custody.retain("t", LATER, reason="shorter", locked=True)
    assert caught.value.pos == longer.pos
    thread.custody.release("t", reason="a release ends no term")
    with pytest.raises(cs.Held):
        thread.custody.erase("t", reason="r")
    check(thread)


_ERASURES: dict[str, Callable[..., Any]] = {
    "redact": lambda store, **how: store.custody.redact("t", 5, reason="r", **how),
    "erase": lambda store, **how: store.custody.erase("t", reason="r", **how),
}


@pytest.mark.parametrize("what", _ERASURES)
def test_nobody_overrides_a_locked_term_and_each_attempt_is_recorded(thread: Face, what: str) -> None:
    term = thread.custody.retain("t", LATER, reason="the law", locked=True)
    thread.custody.hold("t", reason="a lawsuit")
    for how in ({"override": "a court"}, {"override": "a court", "confirmed": False}):
        with pytest.raises(cs.Held, match="retained and locked until") as caught:
            _ERASURES[what](thread, **how)
        assert caught.value.pos == term.pos
    with pytest.raises(cs.Held):
        _ERASURES[what](thread, override="a court", dry_run=True)
    refusals = [event for event in events(thread) if event.kind == "refusal"]
    assert [event.body["forbidden_by"] for event in refusals] == [[term.pos]] * 2
    assert not thread.message("t", 5).redacted
    check(thread)


@pytest.mark.parametrize("what", _ERASURES)
def test_a_locked_term_of_a_fork_forbids_the_erasure_of_its_copies(thread: Face, what: str) -> None:
    thread.fork("t", "copy")
    term = thread.custody.retain("copy", LATER, reason="the law", locked=True)
    with pytest.raises(cs.Held) as caught:
        _ERASURES[what](thread, override="a court")
    assert caught.value.pos == term.pos
    assert not thread.message("t", 5).redacted
    _ERASURES[what](thread, override="a court", forks=False)
    assert not thread.message("copy", 5).redacted
    check(thread, "copy")


def test_a_fork_has_the_locked_term_of_its_parent(thread: Face) -> None:
    before = thread.thread("t").last_pos
    thread.custody.retain("t", LATER, reason="the law", locked=True)
    for name, at in (("early", before), ("late", None)):
        thread.fork("t", name, at=at)
        with pytest.raises(cs.Held):
            thread.custody.retain(name, SOON, reason="r")
        with pytest.raises(cs.Held):
            thread.custody.erase(name, reason="r", override="why not")
        check(thread, name)


def test_a_locked_term_that_has_ended_binds_nobody(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.custody.retain("t", PAST, reason="over", locked=True)
    term = thread.custody.retain("t", SOON, reason="new")
    assert "locked" not in term.body
    thread.custody.erase("t", reason="r", override="may be")
    assert rows(superuser, "SELECT count(*) FROM compaction_store.messages WHERE payload IS NOT NULL") == [(0,)]


def test_a_term_that_is_shortened_says_which_one(thread: Face) -> None:
    first = thread.custody.retain("t", LATER, reason="the law")
    assert "shortens" not in thread.custody.retain("t", LAST, reason="longer").body
    last = events(thread)[-1].pos
    shorter = thread.custody.retain("t", SOON, reason="shorter", locked=True)
    assert shorter == events(thread)[-1]
    assert (shorter.body["shortens"], list(shorter.body)) == (last, ["until", "locked", "shortens", "reason"])
    assert described(shorter) == f"until 2090-01-01 00:00:00 UTC, locked, shorter than the term of pos {last}"
    assert first.pos < last
    with pytest.raises(cs.Held):
        thread.custody.retain("t", PAST, reason="it is locked now")
    check(thread)


def test_a_list_shows_that_a_term_was_ended_early(thread: Face) -> None:
    def since(pos: int) -> str:
        [event] = [each for each in events(thread) if each.pos == pos]
        return f"since {event.created_at} by {event.actor or event.login}"

    first = thread.custody.retain("t", LATER, reason="the law").pos
    assert kept_by(reversed(events(thread))).words(str) == [f"retained until {LATER}, {since(first)}"]
    second = thread.custody.retain("t", PAST, reason="cleanup").pos
    kept = kept_by(reversed(events(thread)))
    assert (kept.shortened, kept.locked) == (True, False)
    assert kept.words(str) == [f"retained until {PAST}, shortened, {since(second)}"]
    third = thread.custody.retain("t", LATER, reason="again", locked=True).pos
    assert kept_by(reversed(events(thread))).words(str) == [f"retained and locked until {LATER}, {since(third)}"]


@pytest.mark.parametrize(
    "body",
    [
        '{"until":"2095-01-01T00:00:00.000000Z","locked":false}',
        '{"until":"2095-01-01T00:00:00.000000Z","locked":1}',
        '{"until":"2095-01-01T00:00:00.000000Z","reason":"r","locked":true}',
        '{"until":"2095-01-01T00:00:00.000000Z","locked":true,"shortens":3}',
        '{"until":"2095-01-01T00:00:00.000000Z","\\u0073hortens":3}',
        '{"until":"2095-01-01T00:00:00.000000Z","l\\u006fcked":true}',
    ],
)
@pytest.mark.one_server("it calls a function without a key")
def test_no_caller_of_the_function_writes_these_fields_otherwise(
    thread: Face, superuser: psycopg.Connection[Any], body: str
) -> None:
    call = "SELECT compaction_store.record_event(NULL, 'default', 't', 'retention', NULL, %s, %s)"
    with pytest.raises(psycopg.Error) as caught:
        rows(superuser, call, os.urandom(16), body)
    assert caught.value.sqlstate == "CS019"
    rows(superuser, call, os.urandom(16), '{"until":"2095-01-01T00:00:00.000000Z","of":{"locked":1,"shortens":2}}')
    assert len(events(thread)) == 1


def test_a_lost_reply_is_asked_for_again_though_the_term_was_shortened_by_it(
    thread: Face, superuser: psycopg.Connection[Any]
) -> None:
    thread.custody.retain("t", LATER, reason="the law")
    call = "SELECT * FROM compaction_store.record_event(%s, 'default', 't', 'retention', NULL, %s, %s)"
    given = key_of(superuser, "t"), os.urandom(16), '{"until":"2090-01-01T00:00:00.000000Z","locked":true}'
    first = rows(superuser, call, *given)
    assert rows(superuser, call, *given) == first
    assert '"shortens":13' in first[0][3]
    assert len(events(thread)) == 2


def test_the_views_for_sql_show_both_marks(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    term = thread.custody.retain("t", LATER, reason="the law")
    thread.custody.redact("t", 5, reason="asked", override="a court")
    shorter = thread.custody.retain("t", SOON, reason="shorter", locked=True)
    superuser.execute("SET compaction_store.tenant = 'default'")
    found = rows(superuser, "SELECT overrides, shortens FROM compaction_store.audit_events ORDER BY pos DESC LIMIT 2")
    assert found == [(None, term.pos), ([term.pos], None)]
    assert rows(superuser, "SELECT locked FROM compaction_store.audit_threads") == [(True,)]
    assert shorter.body["shortens"] == term.pos


def test_a_bundle_keeps_the_lock_and_forges_none(thread: Face, faces: Faces, other_url: str) -> None:
    thread.custody.retain("t", LATER, reason="the law", locked=True)
    other = faces.open(other_url)
    other.load.bundle(list(thread.audit.export("t")))
    with pytest.raises(cs.Held):
        other.custody.retain("t", SOON, reason="r")
    for wrong in (1, "yes", None):
        with pytest.raises(cs.InvalidInput, match="locked must be a bool"):
            thread.custody.retain("t", LAST, reason="r", locked=wrong)
