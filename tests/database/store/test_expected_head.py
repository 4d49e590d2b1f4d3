"""`append(expected_head=…)`: the thread must have the head that the caller saw, and callers can get it everywhere."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces

import compaction_store as cs
from compaction_store.integrity import chain

HI = {"role": "user", "content": "hi"}
TOLD = {"role": "assistant", "content": [{"type": "compaction", "content": "all of it"}]}
ONE_MANY_OBSERVED = pytest.mark.parametrize(
    "messages", [[HI], [HI, HI, HI], [HI, TOLD]], ids=["one", "many", "observed"]
)


def genesis_of(superuser: psycopg.Connection[Any], thread_id: str) -> bytes:
    """Returns the hash before the first entry of a thread."""
    [(uid, tenant, commitment)] = superuser.execute(
        "SELECT thread_uid, tenant, commitment FROM compaction_store.threads WHERE thread_id = %s", (thread_id,)
    ).fetchall()
    return chain.genesis(uid, tenant, commitment)


@ONE_MANY_OBSERVED
def test_an_append_goes_where_the_caller_stood(store: Face, messages: list[Any]) -> None:
    head = store.append("t", HI).head
    for _ in range(3):
        written = store.append("t", messages, expected_head=head)
        head = written.head
        assert head == store.thread("t").head == store.view("t").head
    assert store.audit.verify("t").findings == ()


@ONE_MANY_OBSERVED
def test_where_another_has_written_it_is_a_conflict(
    store: Face, messages: list[Any], superuser: psycopg.Connection[Any]
) -> None:
    first = store.append("t", messages)
    second = store.append("t", HI)
    for stale in (first.head, bytes(32), genesis_of(superuser, "t")):
        with pytest.raises(cs.HeadConflict) as caught:
            store.append("t", messages, expected_head=stale)
        assert (caught.value.expected, caught.value.actual) == (stale, second.head)
        assert isinstance(caught.value, cs.Conflict)
    assert store.thread("t").head == second.head


@ONE_MANY_OBSERVED
def test_a_thread_that_is_not_there_has_no_head(
    store: Face, messages: list[Any], superuser: psycopg.Connection[Any]
) -> None:
    store.append("u", HI)
    for other in (bytes(32), genesis_of(superuser, "u"), store.thread("u").head):
        with pytest.raises(cs.HeadConflict) as caught:
            store.append("t", messages, expected_head=other)
        assert (caught.value.expected, caught.value.actual) == (other, None)
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


@ONE_MANY_OBSERVED
def test_a_thread_of_the_same_name_has_another_head_after_an_erasure(store: Face, messages: list[Any]) -> None:
    head = store.append("t", HI).head
    store.custody.erase("t", reason="r")
    with pytest.raises(cs.HeadConflict) as caught:
        store.append("t", messages, expected_head=head)
    assert caught.value.actual is None
    again = store.append("t", HI).head
    with pytest.raises(cs.HeadConflict) as caught:
        store.append("t", messages, expected_head=head)
    assert caught.value.actual == again != head


@ONE_MANY_OBSERVED
def test_the_key_is_judged_before_expected_head(store: Face, messages: list[Any]) -> None:
    head = store.append("t", HI).head
    first = store.append("t", messages, key="k", expected_head=head)
    assert store.append("t", messages, key="k", expected_head=head) == first
    assert store.append("t", messages, key="k", expected_head=bytes(32)) == first
    with pytest.raises(cs.IdempotencyConflict):
        store.append("t", [{"role": "user", "content": "other"}] * len(messages), key="k", expected_head=bytes(32))


@ONE_MANY_OBSERVED
def test_a_replay_has_the_head_of_the_first_call(store: Face, messages: list[Any]) -> None:
    first = store.append("t", messages, key="k")
    assert store.append("t", messages, key="k").head == first.head
    store.append("t", HI)
    assert store.append("t", messages, key="k").head == first.head


def test_a_compaction_and_an_event_move_the_head(store: Face) -> None:
    head = store.append("t", [HI] * 9).head
    run = store.compact("t", lambda ctx: ctx.remove(1, 2))
    assert run.view.head == store.thread("t").head != head
    store.append("t", HI, expected_head=run.view.head)
    store.custody.hold("t", reason="r")
    with pytest.raises(cs.HeadConflict):
        store.append("t", HI, expected_head=run.view.head)
    store.append("t", HI, expected_head=store.thread("t").head)


def test_every_past_view_has_the_head_of_its_time(store: Face) -> None:
    heads = [store.append("t", HI).head for _ in range(4)]
    heads.append(store.compact("t", lambda ctx: ctx.remove(1, 2)).view.head)
    store.custody.hold("t", reason="r")
    heads.append(store.thread("t").head)
    heads.append(store.append("t", HI).head)
    store.custody.release("t", reason="r")
    heads.append(store.thread("t").head)
    store.custody.redact("t", [3], reason="r")
    heads.append(store.thread("t").head)
    store.revoke("t", 1)
    heads.append(store.thread("t").head)
    assert [store.view("t", at=pos).head for pos in range(1, len(heads) + 1)] == heads


def test_expected_seq_and_expected_head_both_hold(store: Face) -> None:
    head = store.append("t", [HI, HI]).head
    with pytest.raises(cs.SequenceConflict):
        store.append("t", HI, expected_seq=1, expected_head=head)
    with pytest.raises(cs.HeadConflict):
        store.append("t", HI, expected_seq=2, expected_head=bytes(32))
    assert store.append("t", HI, expected_seq=2, expected_head=head)[0].seq == 3


@pytest.mark.parametrize("given", ["00" * 32, 3, bytes(31), bytes(33), b"", bytearray(32), memoryview(bytes(32)), True])
def test_what_is_no_head_is_refused_before_anything_is_sent(store: Face, given: Any) -> None:
    with pytest.raises(cs.InvalidInput, match="expected_head must be 32 bytes, not "):
        store.append("t", HI, expected_head=given)
    with pytest.raises(cs.ThreadNotFound):
        store.thread("t")


def test_of_many_that_expect_one_head_one_is_stored(faces: Faces, url: str) -> None:
    store = faces.open(url)
    head = store.append("t", HI).head

    def count(results: list[Any]) -> tuple[int, int]:
        return sum(isinstance(r, cs.Appended) for r in results), sum(isinstance(r, cs.HeadConflict) for r in results)

    if faces.runner is None:

        def write(_: int) -> Any:
            try:
                return store.append("t", HI, expected_head=head)
            except cs.HeadConflict as error:
                return error

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(write, range(8)))
    else:

        async def write_all() -> list[Any]:
            calls = [store.store.append("t", HI, expected_head=head) for _ in range(8)]
            return list(await asyncio.gather(*calls, return_exceptions=True))

        results = faces.runner.run(write_all())
    assert count(results) == (1, 7)
    assert store.thread("t").last_seq == 2


def test_what_was_appended_is_still_a_list(store: Face) -> None:
    written = store.append("t", [HI, HI])
    assert isinstance(written, list)
    assert written == list(store.replay("t"))
