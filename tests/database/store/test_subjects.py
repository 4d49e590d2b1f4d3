"""A thread belongs to a subject: set with its first append or later, inherited by forks, and gone when it is erased."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.handmade_bundles import rich

import compaction_store as cs
from compaction_store.errors import SubjectConflict

MESSAGE = {"role": "user", "content": "hello"}
_COMPACTED = {"role": "assistant", "content": [{"type": "compaction", "content": "Folded."}]}


def _in_turn(store: Face, **given: Any) -> Any:
    if store.runner is None:
        with store.store.turn("t") as turn:
            return turn.append(MESSAGE, **given)

    async def write() -> Any:
        async with store.store.turn("t") as turn:
            return await turn.append(MESSAGE, **given)

    return store.runner.run(write())


WRITES: dict[str, Callable[..., Any]] = {
    "an append": lambda store, **given: store.append("t", MESSAGE, **given),
    "an append of several": lambda store, **given: store.append("t", [MESSAGE] * 3, **given),
    "a load": lambda store, **given: store.load.messages("t", [MESSAGE] * 3, **given),
    "a load of threads": lambda store, **given: list(store.load.threads([("t", [MESSAGE] * 3)], **given)),
    "an append in a turn": _in_turn,
    "an append with a provider's compaction": lambda store, **given: store.append("t", _COMPACTED, **given),
}


@pytest.mark.parametrize("write", WRITES)
def test_the_first_write_sets_it(store: Face, superuser: psycopg.Connection[Any], write: str) -> None:
    WRITES[write](store, subject="alice")
    assert store.thread("t").subject == "alice"
    assert [thread.subject for thread in store.threads()] == ["alice"]
    superuser.execute("SET compaction_store.tenant = 'default'")
    assert superuser.execute("SELECT subject FROM compaction_store.audit_threads").fetchall() == [("alice",)]
    assert not store.audit.verify("t").findings


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("before", ["bob", None])
def test_a_write_with_another_subject_is_refused_and_stores_nothing(
    store: Face, write: str, before: str | None
) -> None:
    store.append("t", MESSAGE, subject=before)
    with pytest.raises(SubjectConflict) as caught:
        WRITES[write](store, subject="alice")
    assert "bob" not in str(caught.value)
    assert "alice" not in str(caught.value)
    found = store.thread("t")
    assert (found.last_pos, found.subject) == (1, before)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_with_the_same_subject_or_none_is_stored(store: Face, write: str) -> None:
    store.append("t", MESSAGE, subject="alice")
    WRITES[write](store, subject="alice", **({"key": "k"} if "load" in write else {}))
    WRITES[write](store)
    assert store.thread("t").subject == "alice"


def test_a_repeated_append_returns_its_messages_whosever_the_thread_is_now(store: Face) -> None:
    store.append("t", MESSAGE, key="k", subject="alice")
    store.custody.set_subject("t", "bob")
    again = store.append("t", MESSAGE, key="k", subject="alice")
    assert ([m.seq for m in again], store.thread("t").last_seq) == ([1], 1)


@pytest.mark.parametrize("subject", ["", "x" * 256, 5, b"alice", "a\0b", "\ud800"])
def test_a_bad_subject_is_refused_before_anything_is_sent(store: Face, subject: Any) -> None:
    for write in WRITES.values():
        with pytest.raises(cs.InvalidInput, match="subject must be text"):
            write(store, subject=subject)
    store.append("t", MESSAGE)
    with pytest.raises(cs.InvalidInput, match="subject must be text"):
        store.custody.set_subject("t", subject)
    assert store.thread("t").last_pos == 1


def test_setting_it_later_is_an_event_that_has_only_hashes(store: Face, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", MESSAGE)
    first = store.custody.set_subject("t", "alice", reason="signed in", actor="app")
    second = store.custody.set_subject("t", "bob")
    third = store.custody.set_subject("t", None)
    assert (first.kind, first.reason, first.actor, first.pos) == ("subject", "signed in", "app", 2)
    assert [*store.audit.events("t")] == [first, second, third]
    assert store.thread("t").subject is None
    [(salt,)] = superuser.execute("SELECT salt FROM compaction_store.threads").fetchall()

    def hashed(subject: str) -> str:
        return sha256(b"\0" + salt + subject.encode()).hexdigest()

    changes = [(event.body["old"], event.body["new"]) for event in (first, second, third)]
    assert changes == [(None, hashed("alice")), (hashed("alice"), hashed("bob")), (hashed("bob"), None)]
    assert not store.audit.verify("t").findings


@pytest.mark.one_server("SQL functions are called without keys")
@pytest.mark.superuser_store("it takes a role")
def test_a_lost_reply_is_asked_for_again_whoever_changed_it_since(
    store: Face, superuser: psycopg.Connection[Any]
) -> None:
    """The role may set a subject but not change one. The retry must find its event before this is decided."""
    store.append("t", {"role": "user", "content": "hi"})
    call = "SELECT * FROM compaction_store.set_subject(NULL, 'default', 't', %s, NULL, %s, '{}')"
    salt = b"0" * 16
    superuser.execute("SET ROLE compaction_store_app")
    first = superuser.execute(call, ["ann", salt]).fetchone()
    superuser.execute("RESET ROLE")
    store.custody.set_subject("t", "ben")
    superuser.execute("SET ROLE compaction_store_app")
    assert superuser.execute(call, ["ann", salt]).fetchone() == first
    with pytest.raises(psycopg.Error, match="only a custodian"):
        superuser.execute(call, ["ann", b"1" * 16])
    superuser.execute("RESET ROLE")
    assert store.thread("t").subject == "ben"
    assert [event.kind for event in store.audit.events("t")] == ["subject"] * 2


def test_a_thread_that_is_missing_or_erased_gets_none(store: Face) -> None:
    with pytest.raises(cs.ThreadNotFound):
        store.custody.set_subject("t", "alice")
    store.append("t", MESSAGE, subject="alice")
    stub = store.custody.erase("t", reason="asked for").thread_id
    assert store.thread(stub).subject is None
    with pytest.raises(cs.ThreadErased):
        store.custody.set_subject(stub, "alice")


def test_a_fork_and_a_bundle_keep_it(store: Face, faces: Faces, other_url: str) -> None:
    store.append("t", [MESSAGE] * 3, subject="alice")
    store.custody.set_subject("t", "bob")
    store.fork("t", "u", at=2)
    assert store.thread("u").subject == "bob"
    elsewhere = faces.open(other_url)
    for name in ("t", "u"):
        lines = list(store.audit.export(name))
        elsewhere.load.bundle(lines)
        assert elsewhere.thread(name) == store.thread(name)
        assert list(elsewhere.audit.export(name))[1:-1] == lines[1:-1]


@pytest.mark.parametrize("bad", ["", "x" * 256, 5])
def test_an_import_refuses_one_that_no_thread_can_have(store: Face, bad: Any) -> None:
    thread = rich()
    thread.subject = bad
    with pytest.raises(cs.InvalidBundle):
        store.load.bundle(thread.lines())


def test_an_import_refuses_the_subject_of_an_erased_thread(store: Face) -> None:
    thread = rich()
    thread.erase()
    thread.subject = "alice"
    with pytest.raises(cs.InvalidBundle):
        store.load.bundle(thread.lines())


def test_records_and_events_are_listed_by_subject(store: Face) -> None:
    for name, subject in (("a", "ann"), ("b", "ben"), ("c", None), ("d", "ann")):
        store.append(name, [{"role": "user", "content": "long " * 99}] * 3, subject=subject)
        store.compact(name, lambda ctx: ctx.compact(1, 2, "short"))
        store.custody.hold(name, reason="claim")
    store.custody.set_subject("c", "ann")
    store.fork("b", "e")
    store.custody.release("d", reason="over")
    store.custody.erase("d", reason="asked")
    assert [record.thread_id for record in store.compactions(subject="ann")] == ["a", "c"]
    assert [record.thread_id for record in store.compactions(subject="ben", kind="summary")] == ["b", "e"]
    assert [record.thread_id for record in store.compactions("a", subject="ben")] == []
    kinds = [(event.thread_id, event.kind) for event in store.audit.events(subject="ann")]
    assert kinds == [("a", "hold"), ("c", "hold"), ("c", "subject")]
    assert next(store.audit.events(subject="ben", newest_first=True, kind="fork")).thread_id == "b"
    assert list(store.audit.events(subject="nobody")) == list(store.compactions(subject="nobody")) == []
    calls: tuple[Callable[[], Any], ...] = (
        lambda: store.audit.events(subject=""), lambda: store.compactions(subject=7),
        lambda: store.audit.events("a", subject="ann"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(cs.InvalidInput, match="subject must be"):
            next(call())
