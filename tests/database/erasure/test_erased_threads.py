"""Erasing a whole thread leaves a stub that still verifies, and its name is free."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.keys import key_of
from support.lock_waits import contents, until_waiting
from support.lost_replies import Proxy
from support.redactable_thread import LATER, PLAIN, SECRET, check, commit, dump, events, record, rows, span

import compaction_store as cs
from compaction_store.integrity import chain, erasure
from compaction_store.models.messages import Erased, is_erased

HI = {"role": "user", "content": "hi"}


def test_an_erased_thread_leaves_a_stub_that_verifies(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    thread.set_metadata("t", {"title": SECRET})
    thread.compact("t", span(1, 4), lambda ctx: ctx.compact(5, 5, PLAIN * 20))
    thread.custody.redact("t", 7, reason="before")
    before = thread.thread("t")
    [(salt, commitment)] = rows(superuser, "SELECT salt, commitment FROM compaction_store.threads")
    assert chain.is_name(salt, "t", commitment)
    done = thread.custody.erase("t", reason="asked for", actor="clerk")
    stub = erasure.stub_name(before.thread_uid)
    assert done == cs.Redaction(stub, 17, (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12), (1, 2))
    state = thread.thread(stub)
    assert (state.thread_id, state.thread_uid, state.created_at) == (stub, before.thread_uid, before.created_at)
    assert (state.metadata, state.erased_pos, state.last_pos) == ({}, 17, 17)
    assert [t.thread_id for t in thread.threads()] == [stub]
    assert events(thread, stub)[-1].body == {
        "seqs": [[1, 6], [8, 12]], "records": [[1, 2]], "whole": True, "reason": "asked for",
    }  # fmt: skip
    everything = dump(superuser)
    assert SECRET not in everything
    assert "nothing to see" not in everything
    # Without the salt, the commitment tells nobody whether a guessed name is right.
    assert salt.hex() not in everything
    assert rows(superuser, "SELECT salt, commitment FROM compaction_store.threads") == [(None, commitment)]
    check(thread, stub)
    assert [(m.payload, m.redacted) for m in thread.replay(stub)] == [(None, True)] * 12
    assert thread.view(stub).messages == [Erased()] * 12
    assert [c.body for c in thread.compactions(stub)] == [None, None]
    assert thread.view(stub, at=thread.compaction(stub, 1)).elements[0].messages == (Erased(),)
    assert [c.thread_id for c in thread.compactions()] == [stub, stub]
    # The genesis follows from what is left, so there is nothing that could not be checked.
    assert thread.audit.verify(stub).notes == thread.audit.verify(stub, level="structure").notes == ()


def test_nothing_is_added_to_a_stub(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    stub = thread.custody.erase("t", reason="r").thread_id
    before = thread.thread(stub)
    budget = cs.TokenBudget(context_window=100)
    calls: list[Callable[[str], Any]] = [
        lambda name: thread.append(name, HI),
        lambda name: thread.append(name, [HI, HI]),
        lambda name: thread.append(name, {"role": "user", "content": PLAIN}, key="k4"),
        lambda name: thread.append(name, {"role": "user", "content": [{"type": "compaction", "content": "c"}]}),
        lambda name: thread.load.messages(name, [HI]),
        lambda name: thread.set_metadata(name, {"a": 1}),
        lambda name: thread.compact(name, span(1, 2)),
        lambda name: thread.compact(name, span(1, 2), budget=budget),
        lambda name: thread.revoke(name, 1),
        lambda name: thread.custody.hold(name, reason="r"),
        lambda name: thread.custody.retain(name, LATER, reason="r"),
        lambda name: thread.custody.redact(name, 5, reason="r"),
    ]
    for call in calls:
        for name in (stub, f"erased:{uuid.uuid4()}"):
            with pytest.raises(cs.ThreadErased):
                call(name)
    with pytest.raises(psycopg.Error) as caught:
        commit(superuser, record(1, 2), name=stub)
    assert caught.value.sqlstate == "CS012"
    assert thread.thread(stub) == before
    assert list(thread.due(budget)) == []
    check(thread, stub)


_BY_KEY = {
    "append": "append(%(uid)s, 'default', 't', '{}', %(salt)s, NULL, 1, 'c', %(key)s, NULL, NULL, NULL)",
    "append, with a new key": (
        "append(%(uid)s, 'default', 't', '{}', %(salt)s, NULL, 1, 'c', %(key)s, NULL, NULL, NULL, true)"
    ),
    "append_many": (
        "append_many(%(uid)s, 'default', 't', '{\"{}\",\"{}\"}', %(salt)s || %(salt)s, ARRAY[NULL, NULL]::text[],"
        " '{1,1}', 'c', %(key)s, ARRAY[NULL, NULL]::text[], NULL, NULL)"
    ),
    "load": (
        "load(%(uid)s, 'default', 't', '{\"{}\"}', %(salt)s, ARRAY[NULL]::text[], '{1}', '{c}', NULL, %(key)s, NULL)"
    ),
    "set_metadata": "set_metadata(%(uid)s, 'default', 't', '{\"a\":1}')",
    "record_event": "record_event(%(uid)s, 'default', 't', 'hold', NULL, %(salt)s, '{\"reason\":\"r\"}')",
}


@pytest.mark.parametrize("what", _BY_KEY)
def test_a_caller_who_knows_the_key_from_before_the_erasure_reaches_the_stub_and_no_new_thread(
    thread: Face, superuser: psycopg.Connection[Any], what: str
) -> None:
    uid = key_of(superuser, "t")
    stub = thread.custody.erase("t", reason="r").thread_id
    thread.append("t", HI)
    before = thread.thread(stub), thread.thread("t")
    given = {"uid": uid, "salt": bytes(16), "key": "new"}
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(f"SELECT compaction_store.{_BY_KEY[what]}", given)
    assert caught.value.sqlstate == "CS012", caught.value
    assert (thread.thread(stub), thread.thread("t")) == before
    superuser.execute(f"SELECT compaction_store.{_BY_KEY[what]}", given | {"uid": before[1].thread_uid})


@pytest.mark.parametrize("messages", [0, 4, 12, 20])
def test_a_compaction_of_a_thread_that_is_erased_meanwhile_is_refused(thread: Face, url: str, messages: int) -> None:
    """Even where a new thread with as many messages has the name."""
    old = thread.thread("t")

    def compact(ctx: cs.CompactionContext) -> None:
        with cs.Store.open(url) as other:
            other.custody.erase("t", reason="r")
            for _ in range(messages):
                other.append("t", {"role": "user", "content": PLAIN})
        ctx.compact(1, 2, "short")

    with pytest.raises((cs.Conflict, cs.ThreadNotFound)):
        thread.compact("t", compact)
    for found in thread.threads():
        assert (found.last_number, found.last_seq) == (0, 12 if found.thread_uid == old.thread_uid else messages)
        check(thread, found.thread_id)


def test_a_thread_of_which_all_is_erased_already_loses_its_name(thread: Face) -> None:
    thread.custody.redact("t", range(1, 13), reason="r")
    done = thread.custody.erase("t", reason="r")
    assert done == cs.Redaction(done.thread_id, 14, (), ())
    check(thread, done.thread_id)
    with pytest.raises(cs.ThreadNotFound):
        thread.thread("t")


def test_a_stub_is_one_of_its_tenant(faces: Faces, url: str) -> None:
    one, other = faces.open(url), faces.open(url, tenant="other")
    for store in (one, other):
        store.append("t", [{"role": "user", "content": "x"}] * 3, key="k")
        store.compact("t", lambda ctx: ctx.compact(1, 1, "s", allow={"larger"}))
    one.custody.redact("t", 1, reason="r")
    stub = one.custody.erase("t", reason="r").thread_id
    assert [m.redacted for m in other.replay("t")] == [False] * 3
    assert other.thread("t").thread_id == "t"
    for call in (other.thread, other.audit.verify, other.view, lambda name: list(other.replay(name))):
        with pytest.raises(cs.ThreadNotFound):
            call(stub)
    assert [c.redacted for c in other.compactions("t")] == [False]
    check(one, stub)
    check(other)


# ---- the name is free


def _reads(store: Any) -> list[Callable[[str], Any]]:
    """Whatever finds a thread by its name."""
    return [
        store.thread, store.view, store.audit.verify, lambda name: store.view(name, at=1),
        lambda name: store.message(name, 1), lambda name: list(store.replay(name)),
        lambda name: list(store.compactions(name)), lambda name: store.compaction(name, 1),
        lambda name: list(store.audit.events(name)), lambda name: store.audit.explain(name, 1),
        lambda name: store.seen_by(name, 1),
        lambda name: list(store.audit.export(name)), lambda name: list(store.audit.search("secret", thread_id=name)),
        lambda name: store.audit.verify(name, level="structure"),
        lambda name: store.custody.redact(name, 1, reason="r"),
        lambda name: store.custody.erase(name, reason="r"), lambda name: store.custody.hold(name, reason="r"),
        lambda name: store.set_metadata(name, {}), lambda name: store.compact(name, span(1, 2)),
    ]  # fmt: skip


def test_the_name_of_an_erased_thread_leads_nowhere(thread: Face) -> None:
    thread.custody.erase("t", reason="r")
    for read in _reads(thread):
        with pytest.raises(cs.ThreadNotFound):
            read("t")
    assert [report.findings for report in thread.audit.verify()] == [()]


def test_a_new_thread_under_the_name_has_nothing_of_the_old_one(thread: Face) -> None:
    thread.compact("t", span(1, 4, f"old {SECRET}"))
    thread.custody.hold("t", reason="old")
    thread.custody.release("t", reason="old")
    thread.set_metadata("t", {"old": True})
    old = thread.thread("t")
    stub = thread.custody.erase("t", reason="old").thread_id
    # The key of an old message is as free as the name is.
    appended = thread.append("t", [{"role": "user", "content": f"new {i} {PLAIN}"} for i in range(3)], key="k1")
    assert [m.seq for m in appended] == [1, 2, 3]
    state = thread.thread("t")
    assert (state.thread_id, state.last_pos, state.last_number, state.metadata) == ("t", 3, 0, {})
    assert state.thread_uid != old.thread_uid
    assert state.created_at > old.created_at
    assert [m.payload["content"][:5] for m in thread.replay("t")] == ["new 0", "new 1", "new 2"]
    assert [(e.seq, e.number) for e in thread.view("t").elements] == [(1, None), (2, None), (3, None)]
    assert (list(thread.compactions("t")), events(thread)) == ([], [])
    with pytest.raises(cs.PositionNotFound):
        thread.view("t", at=4)
    with pytest.raises(cs.CompactionNotFound):
        thread.compaction("t", 1)
    assert list(thread.audit.search("old")) == []
    assert [found.thread_id for found in thread.audit.search("new 1")] == ["t"]
    assert b"old" not in b"".join(thread.audit.export("t"))
    assert cs.verify_bundle(list(thread.audit.export("t"))).entries == 3
    assert [m.payload for m in thread.replay(stub)] == [None] * 12
    assert {t.thread_id for t in thread.threads()} == {"t", stub}
    reports = {report.thread_id: report for report in thread.audit.verify()}
    assert [reports[name].findings for name in ("t", stub)] == [(), ()]
    assert (reports["t"].thread_uid, reports[stub].thread_uid) == (state.thread_uid, old.thread_uid)
    thread.compact("t", span(1, 2))
    assert [c.thread_uid for c in thread.compactions("t")] == [state.thread_uid]
    assert {c.thread_id for c in thread.compactions()} == {"t", stub}
    check(thread)
    check(thread, stub)


def test_a_name_can_be_erased_and_used_any_number_of_times(store: Face) -> None:
    stubs = []
    for turn in range(3):
        store.append("t", {"role": "user", "content": f"turn {turn}"}, key="k")
        stubs.append(store.custody.erase("t", reason="r").thread_id)
    store.append("t", {"role": "user", "content": "now"}, key="k")
    assert {t.thread_id for t in store.threads()} == {"t", *stubs}
    assert [m.payload["content"] for m in store.replay("t")] == ["now"]
    for name in ("t", *stubs):
        check(store, name)


def test_another_store_that_used_the_name_before_the_erasure_gets_the_new_thread(faces: Faces, url: str) -> None:
    """Nothing that a store remembers of a thread is remembered under its name alone."""
    one, other = faces.open(url), faces.open(url)
    other.append("t", [HI] * 5)
    other.compact("t", lambda ctx: ctx.compact(1, 2, "s", allow={"larger"}))
    seen = other.view("t")
    log = list(other.compactions("t"))
    stub = one.custody.erase("t", reason="r").thread_id
    # The seqs begin again, and yet no message was lost.
    assert other.append("t", HI)[0].seq == 1
    assert [m.seq for m in other.append("t", [HI, HI])] == [2, 3]
    assert other.load.messages("t", [HI]).last_seq == 4
    assert one.append("t", HI)[0].seq == 5
    for store in (one, other):
        assert store.thread("t").thread_uid != log[0].thread_uid
        assert (store.view("t").pos, store.thread("t").last_seq) == (5, 5)
        check(store)
        check(store, stub)
    # What came from the old thread still names it.
    assert [c.thread_id for c in other.compactions(after=log[0])] == []
    assert other.audit.tree(log[0]).inside == ()
    with pytest.raises(cs.Conflict):
        other.append("t", HI, view=seen)


def test_a_reader_that_began_before_the_erasure_stays_on_its_thread(thread: Face) -> None:
    """Pages are read one after the other: the name may lead to another thread in between."""
    thread.append("t", [HI] * 200)
    for _ in range(120):
        thread.custody.hold("t", reason="old")
    thread.custody.release("t", reason="old")
    old = thread.thread("t")
    messages, events_of = iter(thread.replay("t")), iter(thread.audit.events("t"))
    first = [next(messages) for _ in range(3)]
    assert next(events_of).body == {"reason": "old"}
    thread.custody.erase("t", reason="r")
    thread.append("t", [{"role": "user", "content": "new"}] * 300)
    thread.custody.hold("t", reason="new")
    rest = list(messages)
    assert [m.seq for m in (*first, *rest)] == list(range(1, old.last_seq + 1))
    assert "new" not in {m.payload["content"] for m in rest if m.payload is not None}
    assert rest[-1].redacted
    assert [e.body["reason"] for e in events_of] == ["old"] * 120 + ["r"]


def test_a_record_of_the_erased_thread_leads_to_that_thread(thread: Face) -> None:
    thread.append("t", {"role": "assistant", "content": [{"type": "compaction", "content": "a summary"}]})
    [observed] = thread.compactions("t")
    thread.compact("t", span(1, 4))
    applied = thread.compaction("t", 2)
    thread.custody.erase("t", reason="r")
    thread.append("t", [{"role": "user", "content": "new"}] * 20)
    assert [m.redacted for m in thread.audit.originals(applied)] == [True] * 4
    assert is_erased(thread.view("t", at=applied).messages[0])
    with pytest.raises(cs.ThreadErased):
        thread.adopt("t", observed)
    assert thread.thread("t").last_number == 0


def test_two_stores_that_append_under_a_freed_name_in_turn_share_one_thread(faces: Faces, url: str) -> None:
    one, other = faces.open(url), faces.open(url)
    for turn in range(5):
        one.append("t", HI)
        assert other.append("t", HI)[0].seq == 2, turn
        one.custody.erase("t", reason="r")
    assert [t.last_seq for t in one.threads()] == [2] * 5
    assert [report.findings for report in one.audit.verify()] == [()] * 5


@pytest.mark.one_server("a cluster frees the name in a statement of its own")
@pytest.mark.parametrize("what", ["one", "several", "observed"])
def test_an_append_that_waited_for_the_erasure_begins_the_new_thread(
    thread: Face, superuser: psycopg.Connection[Any], superuser_url: str, what: str
) -> None:
    blocks = [{"type": "compaction", "content": "a summary"}, {"type": "text", "text": "hi"}]
    reported: dict[str, Any] = {"role": "assistant", "content": blocks}
    messages = {"one": HI, "several": [HI, HI], "observed": reported}[what]
    old = key_of(superuser, "t")
    body = '{"reason":"asked for"}'
    with psycopg.connect(superuser_url) as eraser, ThreadPoolExecutor(1) as pool:
        eraser.execute(
            "SELECT * FROM compaction_store.erase(%s, 'default', 't', 'clerk', %s, %s, false)", (old, b"s" * 16, body)
        )
        appending = pool.submit(thread.append, "t", messages)
        until_waiting(superuser)
        eraser.commit()
        written = appending.result(30)
    assert written[0].seq == 1
    assert key_of(superuser, "t") != old
    assert [v.findings for v in thread.audit.verify() if v.findings] == []


def test_an_erasure_of_unknown_outcome_names_the_stub(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    proxy = Proxy(url, call=b"compaction_store.erase", is_last=True)
    try:
        store = faces.open(proxy.url, deadline=1.0)
        store.append("t", HI)
        stub = erasure.stub_name(key_of(superuser, "t"))
        proxy.cuts = 1
        with pytest.raises(cs.OutcomeUnknown, match=rf"erase\('{stub}'\)"):
            store.custody.erase("t", reason="asked for")
    finally:
        proxy.close()
    direct = faces.open(url)
    assert direct.thread(stub).erased_pos == 2
    direct.append("t", HI)
    assert direct.custody.erase(stub, reason="asked for") == cs.Redaction(stub, None, (), ())
    assert direct.thread(stub).last_pos == 2
    assert contents(direct) == ["hi"]


def test_a_thread_can_be_erased_by_the_name_of_its_stub(thread: Face, superuser: psycopg.Connection[Any]) -> None:
    """So an erasure of which nobody knows the outcome can be repeated, whatever it was."""
    stub = erasure.stub_name(key_of(superuser, "t"))
    with pytest.raises(cs.ThreadNotFound):
        thread.thread(stub)
    assert thread.custody.erase(stub, reason="r", dry_run=True).seqs == tuple(range(1, 13))
    done = thread.custody.erase(stub, reason="r")
    assert (done.thread_id, done.pos) == (stub, 13)
    with pytest.raises(cs.ThreadNotFound):
        thread.thread("t")
    check(thread, stub)
    assert thread.custody.erase(stub, reason="again").pos is None
    for nobody in (uuid.uuid4(), uuid.UUID(int=0)):
        with pytest.raises(cs.ThreadNotFound):
            thread.custody.erase(erasure.stub_name(nobody), reason="r")
    assert [event.kind for event in events(thread, stub)] == ["redaction"]


def test_a_repeated_erasure_reaches_forks_that_the_first_one_left_alone(thread: Face) -> None:
    thread.fork("t", "fork")
    stub = thread.custody.erase("t", reason="r", forks=False).thread_id
    assert [m.redacted for m in thread.replay("fork")] == [False] * 12
    thread.custody.hold("fork", reason="a lawsuit")
    with pytest.raises(cs.Held, match="the fork"):
        thread.custody.erase(stub, reason="all of it")
    done = thread.custody.erase(stub, reason="all of it", override="an order")
    assert (done.pos, [fork.thread_id for fork in done.forks]) == (None, ["fork"])
    assert [m.redacted for m in thread.replay("fork")] == [True] * 12
    check(thread, stub)
    check(thread, "fork")


def test_a_list_of_threads_has_each_once_while_some_are_erased(
    store: Face, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("compaction_store.store._async.pages.THREADS_PAGE", 3)
    monkeypatch.setattr("compaction_store.store._sync.pages.THREADS_PAGE", 3)
    names = [f"{first}-{n}" for first in ("a", "erase", "z") for n in range(4)]
    for name in names:
        store.append(name, HI)
    before = [thread.thread_uid for thread in store.threads()]
    store.custody.erase("a-3", reason="before")
    listed = iter(store.threads())
    found = [next(listed) for _ in range(7)]
    assert [thread.thread_id for thread in found] == [*names[:3], *names[4:8]]
    for name in ("a-0", "erase-3", "z-0", "z-3"):
        store.custody.erase(name, reason="meanwhile")
        store.append(name, HI)
    found += listed
    new = [thread.thread_uid for thread in found if thread.thread_uid not in before]
    assert sorted(thread.thread_uid for thread in found) == sorted([*before, *new])
    # The first of z was listed already, with the page before the erasures.
    assert [thread.thread_id for thread in found if thread.thread_uid in new] == ["z-3"]
    in_order = [thread.thread_id for thread in store.threads()]
    assert in_order[:12] == sorted(names)[:3] + sorted(names)[4:] + in_order[11:12]
    assert [thread.thread_id for thread in store.threads(after=in_order[12])] == in_order[13:]


def test_appends_that_race_with_erasures_lose_nothing(url: str) -> None:
    """Every append is stored in the thread that had the name, and every erasure leaves a stub that verifies."""
    with contextlib.ExitStack() as stack:
        _race([stack.enter_context(cs.Store.open(url)) for _ in range(3)])


def _race(stores: list[cs.Store]) -> None:
    stores[0].append("t", HI)

    def append(store: cs.Store) -> None:
        for n in range(40):
            store.append("t", [HI] * (n % 3 + 1))

    def erase(store: cs.Store) -> int:
        erased = 0
        for _ in range(20):
            with contextlib.suppress(cs.ThreadNotFound):
                erased += len(store.custody.erase("t", reason="r").seqs)
        return erased

    with ThreadPoolExecutor(3) as pool:
        appending = [pool.submit(append, store) for store in stores[:2]]
        erasing = pool.submit(erase, stores[2])
        for job in appending:
            job.result(120)
        erased = erasing.result(120)
    threads = list(stores[0].threads())
    sent = 1 + 2 * sum(n % 3 + 1 for n in range(40))
    assert sum(thread.last_seq for thread in threads) == sent
    assert sum(thread.last_seq for thread in threads if thread.erased_pos is not None) == erased
    assert [report.findings for report in stores[0].audit.verify()] == [()] * len(threads)
