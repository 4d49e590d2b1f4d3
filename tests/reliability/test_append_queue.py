"""The queue of appends that share commits: interrupts at any line, event loops that stop, a database that is away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from support.interrupts import interrupted_at
from support.lock_waits import hold, waiting

import compaction_store as cs
from compaction_store.messages.keys import Key
from compaction_store.postgres.calling import append_queue
from compaction_store.postgres.calling._async import shared_commits as async_shared_commits
from compaction_store.postgres.calling._sync import shared_commits as sync_shared_commits
from compaction_store.postgres.calling.append_queue import AppendQueue, AsyncSignal, Caller, Signal
from compaction_store.postgres.queries import Append, Expected, ThreadKey
from reliability.rigs.ground import Postgres

pytestmark = pytest.mark.one_server("on a cluster every caller commits alone")
HI = {"role": "user", "content": "hi"}
PARTS = pytest.mark.parametrize("part", ["leads", "leads and is refused", "follows", "alone", "gives up"])
_PATIENCE = 20.0


class Busy:
    """Callers that occupy all places of a queue, as appends to locked threads would."""

    def __init__(self, queue: AppendQueue, signal: Any, number: int = 4) -> None:
        self._queue = queue
        self._callers = []
        for i in range(number):
            append = Append(ThreadKey(None, "default", f"busy-{i}"), (), "c", Key(None), None, None, Expected())
            self._callers.append(Caller(append))
            queue.enter(self._callers[-1], signal)
            queue.push_in(self._callers[-1])

    def leave(self) -> None:
        while self._callers:
            caller = self._callers.pop()
            try:
                self._queue.leave(caller)
            except KeyboardInterrupt as error:
                self._queue.forget(caller, error)
                raise


def _append_of(part: str) -> dict[str, Any]:
    return {"thread_id": "t", "messages": HI, "expected_seq": 99 if part == "leads and is refused" else None}


def _is_free(queue: AppendQueue) -> bool:
    """Returns whether the queue is as it was at the beginning, for another OS thread too."""

    def locked() -> bool:
        if not queue._lock.acquire(timeout=_PATIENCE):
            return True
        queue._lock.release()
        return False

    with ThreadPoolExecutor(1) as other:
        return not other.submit(locked).result() and not queue._appending and not queue._queue


@PARTS
def test_an_interrupt_at_any_line_of_the_queue_holds_up_nobody(url: str, part: str) -> None:
    modules = (append_queue, sync_shared_commits)
    line, where = 0, [""]
    deadline = 0.02 if part == "gives up" else 60.0
    # With four connections, all of them busy, nobody can push in.
    with cs.Store.open(url, deadline=60, pool_size=4 if part == "gives up" else 8) as store:
        ours = store.of_tenant("default")
        ours._db = store._db.with_at_most(deadline)
        queue = store._shared_commits._queues.of(Signal)
        with ThreadPoolExecutor(8) as pool:
            while where:
                line += 1
                busy = Busy(queue, Signal, 0 if part == "alone" else 4)
                is_over = threading.Event()

                def queued(number: int, is_over: threading.Event = is_over) -> None:
                    while len(queue._queue) < number and not is_over.is_set():
                        time.sleep(0.0005)

                def other(number: int, is_over: threading.Event = is_over) -> Any:
                    queued(number, is_over)
                    return store.append(f"other {number}", HI)

                def free(busy: Busy = busy, is_over: threading.Event = is_over) -> None:
                    queued(4, is_over)
                    if part == "gives up":
                        is_over.wait(_PATIENCE)
                    busy.leave()

                first = 0 if part == "follows" else 1
                others = [pool.submit(other, first + i) for i in range(3)]
                if part == "follows":
                    queued(1)
                freeing = pool.submit(free)
                with suppress(KeyboardInterrupt, cs.CompactionStoreError), interrupted_at(line, modules) as where:
                    ours.append(**_append_of(part))
                is_over.set()
                freeing.result(_PATIENCE)
                assert [one.result(_PATIENCE)[0].role for one in others] == ["user"] * 3, line
                assert _is_free(queue), (line, where)
        assert line > 25
        assert [v.findings for v in store.audit.verify() if v.findings] == []


@PARTS
def test_an_interrupt_at_any_line_of_the_queue_holds_up_no_task(url: str, part: str) -> None:
    """The interrupt ends the event loop's run. The loop is then run again, as in a notebook."""
    modules = (append_queue, async_shared_commits)
    line, where = 0, [""]

    busy: list[Busy] = []

    async def all_of(store: cs.AsyncStore, ours: cs.AsyncStore, tasks: list[asyncio.Task[Any]]) -> None:
        busy[:] = [Busy(store._shared_commits._queues.of(AsyncSignal), AsyncSignal, 0 if part == "alone" else 4)]
        calls: list[tuple[cs.AsyncStore, dict[str, Any]]] = [
            (store, {"thread_id": f"other {number}", "messages": HI}) for number in range(3)
        ]
        calls.insert(3 if part == "follows" else 0, (ours, _append_of(part)))
        tasks.extend(asyncio.ensure_future(one.append(**call)) for one, call in calls)
        asyncio.get_running_loop().call_later(0.05 if part == "gives up" else 0.01, busy[0].leave)
        await _ended(tasks)

    async def opened() -> cs.AsyncStore:
        return await cs.AsyncStore.open(url, deadline=60, pool_size=4 if part == "gives up" else 8)

    with asyncio.Runner() as runner:
        store = runner.run(opened())
        ours = store.of_tenant("default")
        ours._db = store._db.with_at_most(0.02 if part == "gives up" else 60.0)
        while where:
            line += 1
            tasks: list[asyncio.Task[Any]] = []
            with suppress(KeyboardInterrupt), interrupted_at(line, modules) as where:
                runner.run(all_of(store, ours, tasks))
            if not tasks:
                # It was interrupted before there was a caller.
                store._shared_commits._queues._begin()
                continue
            busy[0].leave()
            runner.run(_ended(tasks))
            own = tasks.pop(3 if part == "follows" else 0).exception()
            assert own is None or part in {"leads and is refused", "gives up"} or isinstance(own, KeyboardInterrupt)
            told = [error for task in tasks if (error := task.exception()) is not None]
            assert len(told) <= len(where), (line, told)
            assert all(isinstance(error, KeyboardInterrupt) for error in told), (line, told)
            assert runner.run(_is_free_async(store)), (line, where)
        assert line > 25
        runner.run(store.close())


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    _, left = await asyncio.wait(tasks, timeout=_PATIENCE)
    assert not left


async def _is_free_async(store: cs.AsyncStore) -> bool:
    return _is_free(store._shared_commits._queues.of(AsyncSignal))


def test_an_event_loop_that_stops_holds_up_no_caller_of_another(url: str, superuser: psycopg.Connection[Any]) -> None:
    """The caller that would append for all others stops in the middle of its append."""
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    goes_on = threading.Event()

    def run(loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        goes_on.wait()
        loop.run_forever()
        loop.close()

    running = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in (one, other)]
    for thread in running:
        thread.start()
    with cs.Store.open(url) as first, psycopg.connect(url) as holder:
        names = [*(f"busy-{number}" for number in range(4)), "hot"]
        for name in names:
            first.append(name, HI)
        store = asyncio.run_coroutine_threadsafe(_open(url), one).result(_PATIENCE)
        hold(holder)
        stopped = [asyncio.run_coroutine_threadsafe(store.append(name, HI), one) for name in names[:4]]
        _until(lambda: len(waiting(superuser)) == 4)
        stopped += [asyncio.run_coroutine_threadsafe(store.append("hot", HI), one) for _ in range(3)]
        others = [asyncio.run_coroutine_threadsafe(store.append("hot", HI), other) for _ in range(3)]
        _until(lambda: len(waiting(superuser)) >= 5)
        one.call_soon_threadsafe(one.stop)
        _until(lambda: not one.is_running())
        holder.rollback()
        assert len({each.result(_PATIENCE)[0].seq for each in others}) == 3
        goes_on.set()
        assert all(each.result(_PATIENCE)[0].seq > 1 for each in stopped)
        asyncio.run_coroutine_threadsafe(store.close(), one).result(_PATIENCE)
        assert [v.findings for v in first.audit.verify() if v.findings] == []
    for loop in (one, other, other):
        loop.call_soon_threadsafe(loop.stop)
    for thread in running:
        thread.join(_PATIENCE)


async def _open(url: str) -> cs.AsyncStore:
    return await cs.AsyncStore.open(url, deadline=120)


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


_CALLERS = 100


class Calls:
    """Counts the calls that try to reach the database at the same time."""

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, _name: str) -> Iterator[Any]:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            yield self
        finally:
            with self._lock:
                self.under_way -= 1

    def retried(self, _sqlstate: str | None) -> None:
        """A retry is a part of its call."""


def test_while_the_database_is_away_few_callers_try_to_reach_it(own: Postgres) -> None:
    calls = Calls()
    with cs.Store.open(own.database(), deadline=60, connect_timeout=1, pool_size=8) as store:
        store.append("t", HI)
        store._db._observer = calls
        own.kill()
        with ThreadPoolExecutor(_CALLERS) as pool:
            appends = [pool.submit(store.append, f"t{number}", HI) for number in range(_CALLERS)]
            time.sleep(2.5)
            own.start()
            assert [append.result()[0].seq for append in appends] == [1] * _CALLERS
    assert 1 < calls.most <= 8


def test_while_the_database_is_away_few_tasks_try_to_reach_it(own: Postgres) -> None:
    calls = Calls()

    async def main() -> None:
        async with cs.AsyncStore.open(own.database(), deadline=60, connect_timeout=1, pool_size=8) as store:
            await store.append("t", HI)
            store._db._observer = calls
            own.kill()
            appends = [asyncio.ensure_future(store.append(f"t{number}", HI)) for number in range(_CALLERS)]
            await asyncio.sleep(2.5)
            await asyncio.to_thread(own.start)
            assert [(await append)[0].seq for append in appends] == [1] * _CALLERS

    asyncio.run(main())
    assert 1 < calls.most <= 8
