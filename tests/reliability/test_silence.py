"""A server or a network that stops answering: every call ends with its deadline, and no other store notices."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from support.faces import Face, Faces
from support.interrupts import interrupted_at

import compaction_store as cs
from compaction_store.postgres.driver import timeouts
from reliability.rigs.ground import Postgres
from reliability.rigs.proxy import Proxy

HI = {"role": "assistant", "content": "hi"}
DEADLINE = 0.4
# What is promised above the deadline.
GRACE = 1.0
_SLEEP = 0.02


@contextmanager
def in_time(deadline: float = DEADLINE) -> Iterator[None]:
    """Fails where the block takes longer than is promised, plus the time by which this machine is late itself."""
    with lateness() as late:
        start = time.monotonic()
        yield
        took = time.monotonic() - start
    assert took < deadline + GRACE + sum(late), f"ended after {took:.2f} seconds, {sum(late):.2f} of them late"


@contextmanager
def lateness() -> Iterator[list[float]]:
    """How much too late a thread wakes up from short sleeps: nothing on a machine that is idle, much on a busy one."""
    late: list[float] = []
    over = threading.Event()

    def sleep() -> None:
        end = time.monotonic() + _SLEEP
        while not over.wait(_SLEEP):
            now = time.monotonic()
            late.append(max(0.0, now - end))
            end = now + _SLEEP

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    try:
        yield late
    finally:
        over.set()
        sleeper.join()


@pytest.fixture
def far(faces: Faces, way: Proxy) -> Face:
    """A store whose server can fall silent; it has one thread, with a summary."""
    store = faces.open(way.url, deadline=DEADLINE)
    store.append("t", [HI] * 5)
    store.compact("t", lambda ctx: ctx.compact(1, 3, "three"))
    return store


def drained(items: Any) -> Any:
    return list(items)


READS: dict[str, Callable[[Face], Any]] = {
    "view": lambda s: s.view("t"),
    "replay": lambda s: drained(s.replay("t")),
    "last": lambda s: drained(s.replay("t", last=2)),
    "message": lambda s: s.message("t", 1),
    "thread": lambda s: s.thread("t"),
    "threads": lambda s: drained(s.threads()),
    "compactions": lambda s: drained(s.compactions("t")),
    "everywhere": lambda s: drained(s.compactions()),
    "explain": lambda s: s.audit.explain("t", 2),
    "export": lambda s: drained(s.audit.export("t")),
    "verify": lambda s: s.audit.verify("t"),
    "verify all": lambda s: drained(s.audit.verify()),
}
WRITES: dict[str, Callable[[Face], Any]] = {
    "append": lambda s: s.append("t", HI),
    "append many": lambda s: s.append("t", [HI, HI]),
    "load": lambda s: s.load.messages("t", [HI] * 10, key="k", tokens=1),
    "revoke": lambda s: s.revoke("t", 1),
    "metadata": lambda s: s.set_metadata("t", {"a": 1}),
    "redact": lambda s: s.custody.redact("t", 1, reason="asked"),
    "hold": lambda s: s.custody.hold("t", reason="asked"),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_ends_with_its_deadline_when_nothing_comes_back(far: Face, way: Proxy, name: str) -> None:
    way.hush()
    with in_time(), pytest.raises(cs.DatabaseUnavailable):
        READS[name](far)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_write_that_nobody_answers_is_of_unknown_outcome(far: Face, way: Proxy, name: str, lost: str) -> None:
    way.hush(requests=lost == "request", replies=True)
    with in_time(DEADLINE), pytest.raises(cs.DatabaseError) as caught:
        WRITES[name](far)
    if name not in {"load", "metadata"}:
        # A load begins with a read, by which it finds what it has stored before; metadata have no key.
        assert isinstance(caught.value, cs.OutcomeUnknown)
        assert caught.value.key


def test_a_compaction_that_nobody_answers_ends_too(far: Face, way: Proxy) -> None:
    def hushed(ctx: cs.CompactionContext) -> None:
        way.hush(requests=False, replies=True)
        ctx.compact(4, 5, "two")

    for how in ({}, {"budget": cs.TokenBudget(100), "force": True}):
        with in_time(), pytest.raises(cs.OutcomeUnknown):
            far.compact("t", hushed, **how)
        way.hush(requests=False, replies=False)


def test_what_could_not_be_said_in_time_is_settled_by_its_key(far: Face, way: Proxy, faces: Faces, url: str) -> None:
    way.hush(requests=False, replies=True)
    with in_time(), pytest.raises(cs.OutcomeUnknown) as caught:
        far.append("t", HI)
    assert caught.value.key
    near = faces.open(url)
    assert [m.seq for m in near.append("t", HI, key=caught.value.key)] == [6]
    assert [m.seq for m in near.replay("t")] == [1, 2, 3, 4, 5, 6]
    way.hush(requests=False, replies=False)
    assert far.append("t", HI)[0].seq == 7


def test_a_store_opens_and_closes_in_time_where_nobody_answers(faces: Faces, way: Proxy) -> None:
    way.hush()
    with in_time(2.0), pytest.raises(cs.DatabaseUnavailable):
        faces.open(way.url, deadline=DEADLINE)
    with in_time(2.0), pytest.raises(cs.DatabaseUnavailable):
        faces.open(way.url, connect_timeout=2.0)


def test_closing_a_store_waits_for_nobody(far: Face, way: Proxy) -> None:
    way.hush()
    with in_time(0):
        far.close()


@pytest.mark.parametrize("name", ["view", "append"])
def test_a_server_that_is_frozen_is_not_waited_for(own: Postgres, faces: Faces, name: str) -> None:
    store = faces.open(own.database(), deadline=DEADLINE)
    store.append("t", HI)
    own.signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            with in_time(), pytest.raises(cs.DatabaseError):
                {**READS, **WRITES}[name](store)
    finally:
        own.signal(signal.SIGCONT)
    assert store.append("t", HI)[0].seq >= 2


def test_no_call_waits_for_a_pool_longer_than_it_has(way: Proxy) -> None:
    with cs.Store.open(way.url, deadline=DEADLINE, pool_size=2) as store, ThreadPoolExecutor(8) as callers:
        store.append("t", HI)
        way.hush()

        def call(_: int) -> float:
            start = time.monotonic()
            with pytest.raises(cs.DatabaseError):
                store.append("t", HI)
            return time.monotonic() - start

        assert max(callers.map(call, range(8))) < DEADLINE + GRACE


def test_a_pool_that_is_used_up_is_waited_for_until_the_deadline(url: str) -> None:
    with cs.Store.open(url, deadline=DEADLINE, pool_size=1) as store:
        held = store._db.engine.raw_connection()
        with in_time(), pytest.raises(cs.DatabaseUnavailable, match="pool"):
            store.append("t", HI)
        held.close()
        assert store.append("t", HI)[0].seq == 1


def test_no_task_waits_for_a_pool_longer_than_it_has(way: Proxy) -> None:
    async def main() -> None:
        async with cs.AsyncStore.open(way.url, deadline=DEADLINE, pool_size=2) as store:
            await store.append("t", HI)
            way.hush()
            with in_time():
                told = await asyncio.gather(*[store.append("t", HI) for _ in range(8)], return_exceptions=True)
            assert all(isinstance(each, cs.DatabaseError) for each in told)

    asyncio.run(main())


def test_another_store_of_the_process_does_not_notice(url: str, way: Proxy) -> None:
    """Ten calls are stuck beyond their deadline, and a healthy store goes on from call to call."""
    with (
        cs.Store.open(way.url, deadline=DEADLINE) as far,
        cs.Store.open(url, deadline=DEADLINE) as near,
        ThreadPoolExecutor(10) as callers,
    ):
        far.append("far", HI)
        near.append("near", HI)
        way.hush()
        stuck = [callers.submit(far.append, "far", HI) for _ in range(10)]
        done = 0
        while not all(call.done() for call in stuck):
            with in_time(0):
                near.append("near", HI)
            done += 1
        assert all(isinstance(call.exception(), cs.DatabaseError) for call in stuck)
        assert done > 10
        assert near.thread("near").last_seq == done + 1


@pytest.mark.parametrize("name", ["view", "append"])
def test_a_task_that_is_cancelled_comes_back_at_once(way: Proxy, name: str) -> None:
    async def main() -> None:
        async with cs.AsyncStore.open(way.url, deadline=30) as store:
            await store.append("t", HI)
            way.hush()
            with in_time(0.2), pytest.raises(TimeoutError):
                await asyncio.wait_for(store.view("t") if name == "view" else store.append("t", HI), 0.2)
            way.hush(requests=False, replies=False)
            assert (await store.append("t", HI))[0].seq >= 2

    asyncio.run(main())


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_call_comes_back_at_once(way: Proxy) -> None:
    with cs.Store.open(way.url, deadline=30) as store:
        store.append("t", HI)
        way.hush()
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        with in_time(0.2), pytest.raises(KeyboardInterrupt):
            store.view("t")
        way.hush(requests=False, replies=False)
        assert store.append("t", HI)[0].seq == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, although a shell's background job, as a run of tests may be, ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_call_that_is_interrupted_at_any_line_comes_back_at_once(way: Proxy) -> None:
    """Up to the wait for the server, and there."""
    with cs.Store.open(way.url, deadline=30) as store:
        store.append("t", HI)
        waits = line = 0
        while waits < 7:
            line += 1
            way.hush()
            with in_time(2), pytest.raises(KeyboardInterrupt), interrupted_at(line) as where:
                store.view("t")
            way.hush(requests=False, replies=False)
            waits += where == [timeouts.Waiter.timed.__name__]
            assert store.append("t", HI)[0].seq == line + 1
        assert line > 50


# A connection that is interrupted on its way is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore:.* was deleted while still open:ResourceWarning")
def test_an_interrupt_at_any_line_of_the_pool_loses_no_place_in_it(url: str) -> None:
    """Where a connection is taken out and where it is given back."""
    with cs.Store.open(url, pool_size=1) as store, ThreadPoolExecutor(1) as another:
        store.append("t", HI)
        line, where = 0, [""]
        while where:
            line += 1
            with suppress(KeyboardInterrupt), interrupted_at(line, (sa.pool, sa.util.queue, threading)) as where:
                store.thread("t")
            assert another.submit(store.thread, "t").result(60).last_seq == 1
        assert line > 100
    gc.collect()


def test_an_interrupt_at_any_line_of_a_semaphore_does_not_lock_it() -> None:
    permits = timeouts.Permits(100)
    line, where = 0, [""]
    while where:
        line += 1
        with suppress(KeyboardInterrupt), interrupted_at(line, (timeouts, threading)) as where:
            permits.acquire(1)
            permits.release()
        another = threading.Thread(target=permits.acquire, args=(60,), daemon=True)
        another.start()
        another.join(60)
        assert not another.is_alive()
    assert line > 3


# ---- An engine of the caller's


def test_a_callers_own_engine_keeps_the_deadline(way: Proxy) -> None:
    engine = sa.create_engine(sa.make_url(way.url).set(drivername="postgresql+psycopg"), pool_pre_ping=True)
    with cs.Store.open(engine=engine, deadline=DEADLINE) as store:
        store.append("t", HI)
        way.hush()
        for _ in range(2):
            with in_time(), pytest.raises(cs.DatabaseError):
                store.append("t", HI)


def test_a_callers_own_async_engine_keeps_the_deadline(way: Proxy) -> None:
    async def main() -> None:
        address = sa.make_url(way.url).set(drivername="postgresql+psycopg")
        engine = create_async_engine(address, pool_pre_ping=True)
        async with cs.AsyncStore.open(engine=engine, deadline=DEADLINE) as store:
            await store.append("t", HI)
            way.hush()
            for _ in range(2):
                with in_time(), pytest.raises(cs.DatabaseError):
                    await store.append("t", HI)

    asyncio.run(main())


def test_other_users_of_a_callers_own_engine_are_left_alone(url: str) -> None:
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    with cs.Store.open(engine=engine, deadline=0.5) as store:
        store.append("t", HI)
        with engine.connect() as connection:
            assert connection.execute(sa.text("SELECT pg_sleep(1.5), 7")).one()[1] == 7
    engine.dispose()


# ---- Connecting


@contextmanager
def mute() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/nowhere"


def test_several_hosts_that_say_nothing_share_one_deadline(faces: Faces) -> None:
    with mute() as one, mute() as other:
        ports = [str(sa.make_url(each).port) for each in (one, other)]
        address = f"postgresql://postgres@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/nowhere"
        with in_time(2.0), pytest.raises(cs.DatabaseUnavailable):
            faces.open(address, deadline=DEADLINE)


def test_a_name_server_that_does_not_answer_is_not_waited_for(faces: Faces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libpq asks by itself in the synchronous face: nothing ends that, so that it is asked elsewhere."""
    over = threading.Event()
    connect = psycopg.Connection.connect

    def slow(*given: Any, **how: Any) -> Any:
        over.wait(30)
        return connect(*given, **how)

    async def slow_aio(*_given: Any, **_how: Any) -> Any:
        await asyncio.sleep(30)

    monkeypatch.setattr(psycopg.Connection, "connect", slow)
    monkeypatch.setattr(psycopg, "connect", slow)
    monkeypatch.setattr(psycopg.AsyncConnection, "connect", slow_aio)
    try:
        with in_time(2.0), pytest.raises(cs.DatabaseUnavailable, match="timeout"):
            faces.open("postgresql://postgres@127.0.0.1:1/nowhere", deadline=DEADLINE)
    finally:
        over.set()


def test_the_threads_that_cancel_are_gone_afterwards(far: Face, way: Proxy) -> None:
    way.hush()
    with suppress(cs.DatabaseError):
        far.append("t", HI)
    for _ in range(500):
        if not [t for t in threading.enumerate() if t.name.startswith("compaction-store c")]:
            break
        time.sleep(0.01)
    assert not [t for t in threading.enumerate() if t.name.startswith("compaction-store c")]
