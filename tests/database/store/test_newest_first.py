"""Events newest first, of several kinds and from one on; random samples; and explanations of so many records."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from support.faces import Face

import compaction_store as cs

_MESSAGE = {"role": "user", "content": "hello " * 20}


@pytest.fixture
def filled(store: Face) -> Face:
    """Two threads whose events are written in turns."""
    for name in ("a", "b"):
        store.append(name, [_MESSAGE] * 60)
    for number in range(60):
        store.custody.hold("a", reason=f"case {number}", actor="legal" if number % 2 else "desk")
        store.custody.release("b" if number % 3 else "a", reason="settled")
        store.custody.redact("b", [number + 1], reason="asked for")
    return store


def places(events: Any) -> list[tuple[str, int]]:
    return [(event.thread_id, event.pos) for event in events]


@pytest.mark.parametrize("thread_id", ["a", "b", None])
@pytest.mark.parametrize("kind", [None, "hold", ["hold", "release"], ("redaction", "fork"), []])
def test_newest_first_is_the_other_order(filled: Face, thread_id: str | None, kind: Any) -> None:
    kinds = {kind} if isinstance(kind, str) else None if kind is None else {*kind}
    expected = [event for event in filled.audit.events(thread_id) if kinds is None or event.kind in kinds]
    assert [*filled.audit.events(thread_id, kind=kind)] == expected
    assert [*filled.audit.events(thread_id, kind=kind, newest_first=True)] == expected[::-1]
    assert len(expected) == {None: 180, "a": 80, "b": 100}[thread_id] or kind is not None


@pytest.mark.parametrize("thread_id", ["a", None])
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_list_goes_on_after_an_event(filled: Face, thread_id: str | None, newest_first: bool) -> None:
    every = [*filled.audit.events(thread_id, newest_first=newest_first)]
    for number in (0, 1, len(every) // 2, len(every) - 2, len(every) - 1):
        after = filled.audit.events(thread_id, newest_first=newest_first, after=every[number])
        assert places(after) == places(every[number + 1 :])


def test_other_filters_hold_with_several_kinds(filled: Face) -> None:
    for thread_id in ("a", None):
        found = [*filled.audit.events(thread_id, kind=["hold", "release"], actor="desk", newest_first=True)]
        assert len(found) == 30
        assert {(event.kind, event.actor) for event in found} == {("hold", "desk")}
        middle = found[10].created_at
        since = filled.audit.events(thread_id, kind=["hold"], actor="desk", since=middle, newest_first=True)
        assert places(since) == places(found[:11])


@pytest.mark.parametrize("wrong", [
    {"kind": "nonsense"}, {"kind": ["hold", "nonsense"]}, {"kind": 7}, {"kind": [None]}, {"kind": {"hold": 1}},
    {"after": 3}, {"after": "x"}, {"after": None}, {"newest_first": "yes"}, {"thread_id": "a", "after": -1},
    {"thread_id": "a", "after": "x"},
])  # fmt: skip
def test_wrong_arguments_are_refused(filled: Face, wrong: dict[str, Any]) -> None:
    with pytest.raises(cs.InvalidInput):
        list(filled.audit.events(**wrong))


def test_after_must_be_of_the_thread(filled: Face) -> None:
    [first, *_] = filled.audit.events("a")
    with pytest.raises(cs.InvalidInput, match="after must be"):
        list(filled.audit.events("b", after=first))


def test_a_sample_has_the_lowest_hashes_of_what_matches(store: Face) -> None:
    for name in ("a", "b"):
        store.append(name, [_MESSAGE] * 40)
        for start in range(1, 40, 2):
            store.compact(name, lambda ctx, start=start: ctx.compact(start, start + 1, "x"), actor=name)
        store.compact(name, lambda _: 1 / 0, actor=name)
        store.revoke(name, 3, reason="no", actor=name)
    matching = [each for each in store.compactions() if each.start_seq is not None and each.revokes is None]
    assert len(matching) == 40
    for seed, count, actor in ((1, 5, None), (2, 100, None), (10**14, 7, "a")):
        found = store.audit.sample(seed, count, actor=actor)
        wanted = [each for each in matching if actor in (None, each.actor)]
        wanted.sort(key=lambda each: hashlib.sha256(f"{seed}/{each.thread_uid}/{each.number}".encode()).digest())
        assert found.records == tuple(wanted[:count])
        assert (found.population, found.is_whole) == (len(wanted), True)
    fewer = store.audit.sample(1, 50, among=30)
    assert (fewer.population, fewer.is_whole) == (30, False)
    assert {each.number for each in fewer.records} <= {each.number for each in matching[:30]}
    none = store.audit.sample(1, until=matching[0].created_at, actor="nobody")
    assert (none.records, none.population, none.is_whole) == ((), 0, True)
    for wrong in ({"seed": -1}, {"seed": "x"}, {"seed": 1, "count": 0}, {"seed": 1, "kind": "x"}, {"seed": 10**30},
                  {"seed": 1, "among": 0}):  # fmt: skip
        with pytest.raises(cs.InvalidInput):
            store.audit.sample(**wrong)


def test_explain_stops_at_so_many_records(store: Face) -> None:
    store.append("t", [_MESSAGE] * 30)
    for end in range(2, 30):
        store.compact("t", lambda ctx, end=end: ctx.compact(1, end, "x"))
    every = store.audit.explain("t", 1).records
    assert len(every) == 28
    for count in (1, 5, 27, 28, 100):
        assert store.audit.explain("t", 1, records=count).records == every[-count:]
    with pytest.raises(cs.InvalidInput, match="records must be"):
        store.audit.explain("t", 1, records=0)


def test_an_erased_message_names_its_event_wherever_its_row_points(filled: Face, superuser: Any) -> None:
    """No proof covers the column that says where a message was erased."""
    right = filled.audit.explain("b", 40).redaction
    assert right is not None
    superuser.execute("ALTER TABLE compaction_store.messages DISABLE TRIGGER ALL")
    for forged in (1, right.pos - 3, right.pos + 1, 10**6):
        superuser.execute(
            "UPDATE compaction_store.messages SET redacted_pos = %s WHERE seq = 40 AND redacted_pos IS NOT NULL",
            [forged],
        )
        assert filled.audit.explain("b", 40).redaction == right


def test_names_of_threads_are_read_by_their_keys(store: Face) -> None:
    store.append("a", _MESSAGE)
    store.append("b", _MESSAGE)
    uids = [store.thread(name).thread_uid for name in "ab"]
    assert store.audit.names_of([*uids, uuid4()]) == dict(zip(uids, "ab", strict=True))
    assert store.audit.names_of([]) == {}
    with pytest.raises(cs.InvalidInput, match="thread_uids"):
        store.audit.names_of(["a"])


def test_the_records_beside_a_pos_are_found(store: Face) -> None:
    store.append("t", [_MESSAGE] * 20)
    assert store.audit.neighbours("t", 20) == (None, None)
    for end in range(2, 16):
        store.compact("t", lambda ctx, end=end: ctx.compact(1, end, "x"))
        store.append("t", [_MESSAGE])
    positions = [record.pos for record in store.compactions("t")]
    for pos in range(store.thread("t").last_pos + 2):
        earlier = max((each for each in positions if each <= pos), default=None)
        later = min((each for each in positions if each > pos), default=None)
        assert store.audit.neighbours("t", pos) == (earlier, later)
    with pytest.raises(cs.ThreadNotFound):
        store.audit.neighbours("nobody", 1)


def test_entries_of_all_kinds_are_read_in_the_order_of_their_pos(store: Face) -> None:
    for end in range(2, 14):
        store.append("t", [_MESSAGE] * 2)
        store.compact("t", lambda ctx, end=end: ctx.compact(1, end, "x"))
        store.custody.hold("t", reason=f"case {end}")
    every = sorted([*store.replay("t"), *store.compactions("t"), *store.audit.events("t")], key=lambda entry: entry.pos)
    assert [entry.pos for entry in every] == list(range(1, store.thread("t").last_pos + 1))
    for after in (0, 1, 17, len(every) - 1, len(every), len(every) + 5):
        for count in (1, 7, 50):
            assert store.audit.entries("t", after=after, count=count) == every[after : after + count]
    for entry in every[::5]:
        later = [each for each in every if each.created_at > entry.created_at]
        assert store.audit.entries("t", after=entry.created_at) == later[:50]
    store.clear("t", hide=True)
    assert len(store.audit.entries("t", after=len(every))) == 1
    with pytest.raises(cs.ThreadNotFound):
        store.audit.entries("nobody")
    wrong: tuple[dict[str, Any], ...] = (
        {"after": -1},
        {"count": 0},
        {"after": "1"},
        {"after": datetime.fromisoformat("2026-01-01")},
    )
    for given in wrong:
        with pytest.raises(cs.InvalidInput):
            store.audit.entries("t", **given)
