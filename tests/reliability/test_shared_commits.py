"""Appends of concurrent callers in one commit: each gets its own result or its own error."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from support.keys import key_of
from support.lock_waits import waiting
from support.lost_replies import Proxy
from support.recorded_telemetry import RecordedTelemetry

import compaction_store as cs
from compaction_store.errors import IdempotencyConflict, OutcomeUnknown, SequenceConflict

pytestmark = pytest.mark.one_server("on a cluster every caller commits alone")
BOTH = pytest.mark.parametrize("run", ["threads", "tasks"])
_PLACES = ("busy-1", "busy-2", "busy-3", "busy-4")


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Callers:
    """A store whose four places are taken by appends to locked threads, so that all other callers come together."""

    def __init__(
        self, url: str, superuser: psycopg.Connection[Any], how: str, *, through: str | None = None, **options: Any
    ) -> None:
        self._direct_url = url
        self._url = through or url
        self._superuser = superuser
        self._how = how
        self._options = options
        self.recorded = RecordedTelemetry()

    @property
    def batches(self) -> int:
        return len(self.recorded.named("SELECT compaction_store.append_together"))

    def run(self, calls: Sequence[dict[str, Any]], *, locked: Sequence[str] = ()) -> list[Any]:
        """Returns the result or the error of each append, all made at once while the places are taken."""
        with cs.Store.open(self._url) as store:
            for name in (*_PLACES, *locked):
                store.append(name, said("first"))
        with psycopg.connect(self._direct_url) as holder:
            keys = [key_of(self._superuser, name) for name in (*_PLACES, *locked)]
            holder.execute("SELECT FROM compaction_store.heads WHERE thread_uid = ANY (%s) FOR UPDATE", [keys])
            free = holder.rollback
            if self._how == "threads":
                return self._in_threads(calls, free)
            return asyncio.run(self._in_tasks(calls, free))

    def _until_busy(self) -> None:
        while len(waiting(self._superuser)) < len(_PLACES):
            time.sleep(0.01)

    def _open(self, kind: Any) -> Any:
        return kind.open(self._url, telemetry=self.recorded.telemetry, **self._options)

    def _in_threads(self, calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
        with self._open(cs.Store) as store, ThreadPoolExecutor(len(calls) + 4) as pool:
            busy = [pool.submit(store.append, name, said("held up")) for name in _PLACES]
            self._until_busy()
            made = [pool.submit(partial(store.append, **call)) for call in calls]
            time.sleep(0.6)
            free()
            for one in busy:
                one.result()
            return [one.exception() or one.result() for one in made]

    async def _in_tasks(self, calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
        async with self._open(cs.AsyncStore) as store:
            busy = [asyncio.ensure_future(store.append(name, said("held up"))) for name in _PLACES]
            await asyncio.to_thread(self._until_busy)
            made = [asyncio.ensure_future(store.append(**call)) for call in calls]
            await asyncio.sleep(0.6)
            free()
            await asyncio.gather(*busy)
            return await asyncio.gather(*made, return_exceptions=True)


@pytest.fixture
def callers(url: str, superuser: psycopg.Connection[Any]) -> Callable[..., Callers]:
    return partial(Callers, url, superuser)


@BOTH
def test_each_caller_gets_its_own_result_or_error(callers: Callable[..., Callers], url: str, run: str) -> None:
    with cs.Store.open(url) as store:
        first = store.append("used", said("before"), key="used-key")
        store.append("at-1", said("before"))
        store.append("erased", said("gone"))
        store.custody.erase("erased", reason="asked", actor="me")
    shared = callers(run)
    fine, several, conflict, replayed, reused, born, again, locked = shared.run(
        [
            {"thread_id": "fine", "messages": said("hello"), "meta": {"a": 1}},
            {"thread_id": "several", "messages": [said("one"), said("two"), said("three")]},
            {"thread_id": "at-1", "messages": said("late"), "expected_seq": 0},
            {"thread_id": "used", "messages": said("before"), "key": "used-key"},
            {"thread_id": "used", "messages": said("other"), "key": "used-key"},
            {"thread_id": "erased", "messages": said("new life")},
            {"thread_id": "at-1", "messages": said("in time"), "expected_seq": 1},
            {"thread_id": "locked", "messages": said("waits")},
        ],
        locked=["locked"],
    )
    assert shared.batches == 1
    assert [(m.seq, m.payload["content"], m.meta) for m in fine] == [(1, "hello", {"a": 1})]
    assert [(m.seq, m.payload["content"]) for m in several] == [(1, "one"), (2, "two"), (3, "three")]
    assert isinstance(conflict, SequenceConflict)
    assert [m.seq for m in replayed] == [first[0].seq]
    assert isinstance(reused, IdempotencyConflict)
    assert [(m.seq, m.payload["content"]) for m in born] == [(1, "new life")]
    assert [m.seq for m in again] == [2]
    assert [m.seq for m in locked] == [2]
    with cs.Store.open(url) as store:
        for result, name in ((fine, "fine"), (several, "several"), (again, "at-1"), (born, "erased")):
            stored = list(store.replay(name))
            assert [m.payload for m in stored][-len(result) :] == [m.payload for m in result]
            assert store.thread(name).head == result.head
        assert [v.findings for v in store.audit.verify() if v.findings] == []


@BOTH
def test_callers_on_one_thread_are_stored_in_their_order(callers: Callable[..., Callers], url: str, run: str) -> None:
    shared = callers(run)
    results = shared.run([{"thread_id": "hot", "messages": said(str(number))} for number in range(20)])
    assert shared.batches == 1
    assert sorted(result[0].seq for result in results) == list(range(1, 21))
    with cs.Store.open(url) as store:
        stored = {m.seq: m.payload for m in store.replay("hot")}
        assert stored == {result[0].seq: result[0].payload for result in results}
        assert store.audit.verify("hot").findings == ()
    if run == "tasks":
        assert [result[0].seq for result in results] == list(range(1, 21))


def test_callers_whose_threads_were_erased_meanwhile_write_to_new_ones(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    shared = Callers(url, superuser, "threads")

    def erased_meanwhile(calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
        with shared._open(cs.Store) as store, cs.Store.open(url) as other, ThreadPoolExecutor(12) as pool:
            for call in calls:
                store.append(**call)
            for number in range(3):
                other.custody.erase(f"t{number}", reason="asked", actor="me")
            busy = [pool.submit(store.append, name, said("held up")) for name in _PLACES]
            shared._until_busy()
            made = [pool.submit(partial(store.append, **call)) for call in calls]
            time.sleep(0.6)
            free()
            for one in busy:
                one.result()
            return [one.result() for one in made]

    shared._in_threads = erased_meanwhile  # type: ignore[method-assign]
    results = shared.run([{"thread_id": f"t{number}", "messages": said("hello")} for number in range(6)])
    assert shared.batches == 1
    assert [result[0].seq for result in results] == [1, 1, 1, 2, 2, 2]
    with cs.Store.open(url) as store:
        assert [v.findings for v in store.audit.verify() if v.findings] == []


@BOTH
def test_an_unknown_outcome_is_settled_for_each_caller(url: str, superuser: psycopg.Connection[Any], run: str) -> None:
    proxy = Proxy(url)
    try:
        shared = Callers(url, superuser, run, through=proxy.url)
        calls = [{"thread_id": f"t{number}", "messages": said("once")} for number in range(6)]
        with _cutting(proxy, superuser):
            results = shared.run(calls)
    finally:
        proxy.close()
    assert (proxy.lost_replies, shared.batches) == (1, 1)
    assert [[m.seq for m in result] for result in results] == [[1]] * 6
    with cs.Store.open(url) as store:
        assert [[m.seq for m in store.replay(f"t{number}")] for number in range(6)] == [[1]] * 6
        assert [v.findings for v in store.audit.verify() if v.findings] == []


@BOTH
def test_an_outcome_that_stays_unknown_is_told_with_the_callers_own_key(
    url: str, superuser: psycopg.Connection[Any], run: str
) -> None:
    proxy = Proxy(url, is_last=True)
    try:
        shared = Callers(url, superuser, run, through=proxy.url, deadline=2.0)
        calls = [{"thread_id": f"t{number}", "messages": said("once")} for number in range(6)]
        with _cutting(proxy, superuser):
            errors = shared.run(calls)
    finally:
        proxy.close()
    assert [type(error) for error in errors] == [OutcomeUnknown] * 6
    assert len({error.key for error in errors}) == 6
    with cs.Store.open(url) as store:
        for number, error in enumerate(errors):
            [settled] = store.append(f"t{number}", said("once"), key=error.key)
            assert settled.seq == 1
            assert [m.seq for m in store.replay(f"t{number}")] == [1]


@contextmanager
def _cutting(proxy: Proxy, superuser: psycopg.Connection[Any]) -> Iterator[None]:
    """Loses the next reply once all places are taken by appends that get no reply."""

    def cut() -> None:
        while len(waiting(superuser)) < len(_PLACES):
            time.sleep(0.005)
        proxy.cuts = 1

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cut)
        yield
        done.result()


@BOTH
def test_it_can_be_switched_off(superuser: psycopg.Connection[Any], url: str, run: str) -> None:
    shared = Callers(url, superuser, run, share_commits=False)
    results = shared.run([{"thread_id": f"t{number}", "messages": said("alone")} for number in range(6)])
    assert shared.batches == 0
    assert [[m.seq for m in result] for result in results] == [[1]] * 6


def test_cancelled_callers_take_nothing_from_the_others(url: str, superuser: psycopg.Connection[Any]) -> None:
    shared = Callers(url, superuser, "tasks")

    async def some_are_cancelled(self: Callers, calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
        async with self._open(cs.AsyncStore) as store:
            busy = [asyncio.ensure_future(store.append(name, said("held up"))) for name in _PLACES]
            await asyncio.to_thread(self._until_busy)
            made = [asyncio.ensure_future(store.append(**call)) for call in calls]
            # The first is the one that will append for all.
            for pause, number in ((0.02, 3), (0.075, 0), (0.005, 7)):
                await asyncio.sleep(pause)
                made[number].cancel()
            await asyncio.sleep(0.5)
            free()
            await asyncio.gather(*busy)
            return await asyncio.gather(*made, return_exceptions=True)

    shared._in_tasks = partial(some_are_cancelled, shared)  # type: ignore[method-assign]
    results = shared.run([{"thread_id": f"t{number}", "messages": said("hello")} for number in range(10)])
    for number, result in enumerate(results):
        if number in (0, 3, 7):
            assert isinstance(result, asyncio.CancelledError) or [m.seq for m in result] == [1]
        else:
            assert [m.seq for m in result] == [1]
    assert isinstance(results[3], asyncio.CancelledError)
    with cs.Store.open(url) as store:
        # The one that was cancelled while it waited was never sent.
        assert {t.thread_id for t in store.threads()} >= {f"t{number}" for number in (1, 2, 4, 5, 6, 8, 9)}
        assert "t3" not in {t.thread_id for t in store.threads()}
        assert [v.findings for v in store.audit.verify() if v.findings] == []


@BOTH
def test_a_thread_that_another_transaction_makes_holds_up_no_stranger(
    url: str, superuser: psycopg.Connection[Any], run: str
) -> None:
    shared = Callers(url, superuser, run, deadline=4.0)
    names = ("a stranger", "new", "other new", "z stranger")
    with cs.Store.open(url) as store:
        for name in ("a stranger", "z stranger"):
            store.append(name, said("first"))
    with psycopg.connect(url) as maker:
        maker.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        maker.execute("SELECT compaction_store.open_thread('default', 'new')")

        def made_meanwhile(calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
            with shared._open(cs.Store) as store, ThreadPoolExecutor(12) as pool:
                busy = [pool.submit(store.append, name, said("held up")) for name in _PLACES]
                shared._until_busy()
                made = {call["thread_id"]: pool.submit(partial(store.append, **call)) for call in calls}
                strangers = [made[name].result() for name in names if name != "new"]
                assert not made["new"].done()
                maker.commit()
                free()
                for one in busy:
                    one.result()
                return [*strangers, made["new"].result()]

        async def made_meanwhile_async(calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
            async with shared._open(cs.AsyncStore) as store:
                busy = [asyncio.ensure_future(store.append(name, said("held up"))) for name in _PLACES]
                await asyncio.to_thread(shared._until_busy)
                made = {call["thread_id"]: asyncio.ensure_future(store.append(**call)) for call in calls}
                strangers = [await made[name] for name in names if name != "new"]
                assert not made["new"].done()
                maker.commit()
                free()
                await asyncio.gather(*busy)
                return [*strangers, await made["new"]]

        shared._in_threads = made_meanwhile  # type: ignore[method-assign]
        shared._in_tasks = made_meanwhile_async  # type: ignore[method-assign]
        results = shared.run([{"thread_id": name, "messages": said("hello")} for name in names])
    assert shared.batches >= 1
    assert [[m.seq for m in result] for result in results] == [[2], [1], [2], [1]]
    with cs.Store.open(url) as store:
        assert [v.findings for v in store.audit.verify() if v.findings] == []


def test_stores_of_other_tenants_share_commits(url: str, superuser: psycopg.Connection[Any]) -> None:
    shared = Callers(url, superuser, "threads")

    def two_tenants(calls: Sequence[dict[str, Any]], free: Callable[[], None]) -> list[Any]:
        with shared._open(cs.Store) as store, ThreadPoolExecutor(12) as pool:
            stores = [store, store.of_tenant("other")]
            busy = [pool.submit(store.append, name, said("held up")) for name in _PLACES]
            shared._until_busy()
            made = [pool.submit(partial(stores[i % 2].append, **call)) for i, call in enumerate(calls)]
            results = [one.result(30) for one in made]
            free()
            for one in busy:
                one.result()
            return results

    shared._in_threads = two_tenants  # type: ignore[method-assign]
    shared.run([{"thread_id": "same name", "messages": said(str(number))} for number in range(6)])
    assert shared.batches >= 1
    for tenant, expected in (("default", "024"), ("other", "135")):
        with cs.Store.open(url, tenant=tenant) as store:
            stored = sorted((m.payload or {})["content"] for m in store.replay("same name"))
            assert stored == list(expected)
            assert [v.findings for v in store.audit.verify() if v.findings] == []


_FORKED = """
import os, sys, threading, time
import compaction_store as cs
import psycopg

said = {"role": "user", "content": "hi"}
with cs.Store.open(sys.argv[1]) as store, psycopg.connect(sys.argv[1]) as holder:
    for number in range(4):
        store.append(f"busy-{number}", said)
    holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
    threads = [threading.Thread(target=store.append, args=(f"busy-{n % 4}", said)) for n in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    pid = os.fork()
    if pid == 0:
        start = time.monotonic()
        ours = [threading.Thread(target=store.append, args=(f"child-{n}", said)) for n in range(8)]
        for thread in ours:
            thread.start()
        for thread in ours:
            thread.join()
        os._exit(0 if time.monotonic() - start < 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child waited for the parent's callers"
    holder.rollback()
    for thread in threads:
        thread.join()
    assert sorted(t.thread_id for t in store.threads()) == sorted(
        [f"busy-{n}" for n in range(4)] + [f"child-{n}" for n in range(8)]
    )
    assert all(not v.findings for v in store.audit.verify())
"""


def test_a_forked_child_does_not_wait_for_the_parents_callers(url: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", _FORKED, url), capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_lists_that_differ_in_length_are_refused(superuser: psycopg.Connection[Any]) -> None:
    call = (
        "SELECT * FROM compaction_store.append_together(%s, %s, '{t}', %s, '{c}', '{k}', '{NULL}', '{NULL}', '{t}',"
        " '{NULL}', '{NULL}', %s, %s, '{user}', '{1}', '{NULL}', '{NULL}', '{NULL}')"
    )
    good: list[Any] = [[None], ["default"], [1], ['{"role": "user", "content": "x"}'], b"0" * 16]
    for place, wrong in (
        (0, []), (1, ["default", "default"]), (1, []), (2, [2]), (2, [0]), (3, []), (4, b"0" * 15)
    ):  # fmt: skip
        with pytest.raises(psycopg.Error) as error:
            superuser.execute(call, [*good[:place], wrong, *good[place + 1 :]])
        assert error.value.sqlstate == "CS008", (place, wrong)
    row = superuser.execute(call, good).fetchone()
    assert row is not None
    assert row[:3] == (1, 1, 1)


def test_lists_of_one_append_that_differ_in_length_are_refused(superuser: psycopg.Connection[Any]) -> None:
    call = "SELECT * FROM compaction_store.append_many(NULL, 'default', 't', %s, %s, %s, %s, 'c', 'k', %s, NULL, NULL)"
    good: list[Any] = [['{"a": 1}', "{}"], b"0" * 32, [None, None], [1, 1], ["{}", "{}"]]
    for place, wrong in enumerate((["{}"], b"0" * 16, [None], [1], ["{}"])):
        with pytest.raises(psycopg.Error) as error:
            superuser.execute(call, [*good[:place], wrong, *good[place + 1 :]])
        assert error.value.sqlstate == "CS008", (place, wrong)
    row = superuser.execute(call, good).fetchone()
    assert row is not None
    assert row[0] == 1
