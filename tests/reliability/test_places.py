"""Faults around the store: frozen clients, pools, full disks, failovers, timeouts, clocks that step."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.faces import Face, Faces
from support.stepped_clock import stepped

import compaction_store as cs
from reliability.rigs.ground import Postgres, superuser
from reliability.rigs.proxy import Proxy

HI = {"role": "assistant", "content": "hi"}
CALLERS = 64


def waiting(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND backend_type = 'client backend'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# ---- A client that is frozen


_FROZEN = """
import psycopg, sys
connection = psycopg.connect(sys.argv[1])
connection.execute(
    "SELECT FROM compaction_store.heads WHERE thread_uid = compaction_store.find_thread('default', 'taken') FOR UPDATE")
print("locked", flush=True)
sys.stdin.read()
"""
_LOADING = """
import sys, time
import compaction_store as cs
def messages():
    for i in range(25_000):
        if i == 15_000:
            print("loading", flush=True)
            # In the middle of the second chunk, whose transaction has not begun: the first is stored.
            time.sleep(600)
        yield {"role": "assistant", "content": f"{i} " + "x" * 100}
cs.Store.open(sys.argv[1]).load.messages("taken", messages(), key="k", tokens=1)
"""


@contextmanager
def frozen(code: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Stops a client in the middle of its work, like a laptop that is closed."""
    process = subprocess.Popen(
        (sys.executable, "-c", code, url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def test_sixty_four_callers_share_two_connections_of_which_one_is_stuck(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    with cs.Store.open(url, pool_size=2, connect_timeout=60) as store, ThreadPoolExecutor(CALLERS) as callers:
        store.append("taken", HI)
        with frozen(_FROZEN, url):
            stuck: Future[list[cs.Message]] = callers.submit(store.append, "taken", HI)
            until(lambda: waiting(superuser))
            written = list(callers.map(lambda i: store.append(f"free {i % 5}", HI)[0].seq, range(CALLERS - 1)))
            assert len(written) == CALLERS - 1
            assert not stuck.done()
        assert stuck.result(30)[0].seq == 2
        assert sum(t.last_seq for t in store.threads()) == CALLERS + 1
        pool: Any = store._db.engine.pool
        assert pool.checkedout() == 0


def test_sixty_four_tasks_share_two_connections_of_which_one_is_stuck(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    async def main() -> None:
        async with await cs.AsyncStore.open(url, pool_size=2, connect_timeout=60) as store:
            await store.append("taken", HI)
            with frozen(_FROZEN, url):
                stuck = asyncio.create_task(store.append("taken", HI))
                await asyncio.to_thread(until, lambda: waiting(superuser))
                await asyncio.gather(*[store.append(f"free {i % 5}", HI) for i in range(CALLERS - 1)])
                assert not stuck.done()
            assert (await stuck)[0].seq == 2
            pool: Any = store._db.engine.pool
            assert pool.checkedout() == 0

    asyncio.run(main())


def test_a_client_frozen_in_a_transaction_holds_up_its_thread_alone(faces: Faces, url: str) -> None:
    store = faces.open(url, deadline=1)
    store.append("taken", HI)
    with frozen(_FROZEN, url):
        with pytest.raises(cs.DatabaseUnavailable):
            store.append("taken", HI)
        with pytest.raises(cs.DatabaseUnavailable):
            store.compact("taken", lambda ctx: ctx.remove(1, 1))
        assert [m.seq for m in store.replay("taken")] == [1]
        assert store.append("free", HI)[0].seq == 1
    assert faces.open(url).append("taken", HI)[0].seq == 2


def test_a_loader_that_is_frozen_between_chunks_holds_up_nobody(store: Face, url: str) -> None:
    with frozen(_LOADING, url):
        assert store.thread("taken").last_seq == 10_000
        assert store.append("taken", HI)[0].seq == 10_001
    assert store.audit.verify("taken").findings == ()


# ---- The pool


def test_a_thousand_cancelled_calls_leave_no_connection(url: str) -> None:
    async def main() -> None:
        chance = random.Random(1)
        async with await cs.AsyncStore.open(url, pool_size=2) as store:
            await store.append("t", HI)
            for _ in range(50):
                calls = [asyncio.create_task(store.append("t", HI)) for _ in range(20)]
                await asyncio.sleep(chance.uniform(0, 0.02))
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            pool: Any = store._db.engine.pool
            # An append for several callers goes on when one of them is cancelled.
            async with asyncio.timeout(30):
                while pool.checkedout():  # noqa: ASYNC110 — the pool has no event
                    await asyncio.sleep(0.01)
            assert (await store.append("t", HI))[0].seq == (await store.thread("t")).last_seq
            assert (await store.audit.verify("t")).findings == ()

    asyncio.run(main())


# ---- The disk


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A small separate file system."""
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    if os.geteuid() != 0 or subprocess.run(("mount", "-t", "tmpfs", "-o", "size=40m", "none", folder), check=False,
                                           capture_output=True).returncode:  # fmt: skip
        folder.rmdir()
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(("umount", "--lazy", folder), check=True)
    folder.rmdir()


def test_a_full_disk_is_a_typed_error_and_half_a_batch_is_never_stored(
    faces: Faces, own: Postgres, small_disk: Path
) -> None:
    (small_disk / "space").mkdir()
    owner = own.data.stat()
    os.chown(small_disk / "space", owner.st_uid, owner.st_gid)
    url = own.database()
    name, space = url.split("/")[3].split("?")[0], f"small_{faces.kind}"
    with superuser(own.url) as connection:
        connection.execute(f"CREATE TABLESPACE {space} LOCATION '{small_disk / 'space'}'")
        connection.execute(f"ALTER DATABASE {name} SET TABLESPACE {space}")
    store = faces.open(url)
    batch = [{"role": "assistant", "content": random.Random(i).randbytes(5_000).hex()} for i in range(100)]
    stored = 0

    def fill() -> None:
        nonlocal stored
        while stored < 100_000:
            store.append("t", batch, tokens=1)
            stored += len(batch)

    with pytest.raises(cs.DatabaseError) as caught:
        fill()
    assert caught.value.sqlstate == "53100"
    assert not isinstance(caught.value, cs.OutcomeUnknown)
    assert store.thread("t").last_seq == stored > 0
    subprocess.run(("mount", "-o", "remount,size=200m", small_disk), check=True)
    assert store.append("t", batch, tokens=1)[0].seq == stored + 1
    assert store.audit.verify("t").findings == ()
    store.close()
    with superuser(own.url) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP TABLESPACE {space}")


# ---- A failover


def test_a_failover_to_a_standby_loses_nothing_and_is_waited_for(own: Postgres, faces: Faces) -> None:
    url = own.database()
    name = url.split("/")[3].split("?")[0]
    chance = random.Random(1)
    standby = own.standby()
    try:
        standby.start()
        with Proxy(url, chance) as way, ThreadPoolExecutor(1) as pool:
            store = faces.open(way.url)
            store.append("t", [HI] * 5)
            standby.catch_up(own)
            way.retarget(standby.at(name))
            # Reads continue on the standby; writes wait until they are allowed.
            assert [m.seq for m in store.replay("t")] == [1, 2, 3, 4, 5]
            append = pool.submit(store.append, "t", HI)
            time.sleep(0.5)
            assert not append.done()
            standby.promote()
            assert append.result(30)[0].seq == 6
            assert store.audit.verify("t").findings == ()
            store.close()
    finally:
        standby.remove()


def test_a_standby_that_stays_one_is_an_error_by_the_deadline(own: Postgres, faces: Faces) -> None:
    url = own.database()
    store = faces.open(url, deadline=1)
    store.append("t", HI)
    name = url.split("/")[3].split("?")[0]
    with superuser(own.url) as connection:
        # Errors on a standby, and on a primary that is set to be one.
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store.close()
    store = faces.open(url, deadline=1)
    with pytest.raises(cs.DatabaseUnavailable):
        store.append("t", HI)
    assert [m.seq for m in store.replay("t")] == [1]


# ---- Timeouts that an administrator set


def test_a_statement_timeout_of_the_servers_is_a_typed_error_and_nothing_is_stored(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    faces.open(url).append("t", HI)
    superuser.execute(f"ALTER DATABASE {superuser.info.dbname} SET statement_timeout = '100ms'")
    store = faces.open(url)
    with psycopg.connect(url, options="-c statement_timeout=0") as holder:
        holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
        with pytest.raises(cs.DatabaseUnavailable) as caught:
            store.append("t", HI)
        holder.rollback()
    assert caught.value.sqlstate == "57014"
    assert store.append("t", HI)[0].seq == 2


def test_an_idle_timeout_of_the_servers_is_not_noticed(
    faces: Faces, url: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute(f"ALTER DATABASE {superuser.info.dbname} SET idle_session_timeout = '100ms'")
    store = faces.open(url)
    for seq in (1, 2, 3):
        assert store.append("t", HI)[0].seq == seq
        time.sleep(0.3)


# ---- The clock


@pytest.fixture
def clock(superuser: psycopg.Connection[Any]) -> Callable[[str], None]:
    return stepped(superuser)


def test_a_clock_that_steps_changes_no_order(store: Face, clock: Any) -> None:
    written = []
    for by in ("0", "1 hour", "-1 hour", "0", "-10 years", "1 hour"):
        clock(by)
        written += store.append("t", [HI, HI])
        written += store.append("t", HI)
        run = store.compact("t", lambda ctx: ctx.remove(ctx.elements[-2].seq, ctx.elements[-2].end_seq))
        assert run[0].created_at >= written[-1].created_at
    assert [m.seq for m in written] == list(range(1, 19))
    times = [m.created_at for m in store.replay("t")]
    assert times == sorted(times)
    assert (times[-1] - times[0]).total_seconds() > 3500
    for message in written:
        assert store.view("t", at=message.created_at).pos >= message.pos
    assert store.audit.verify("t").findings == ()


def test_a_lease_ends_with_its_holder_whatever_the_clock_did(store: Face, clock: Any) -> None:
    budget = cs.TokenBudget(1000)
    store.append("t", [HI] * 12, tokens=100)

    def fold(ctx: cs.CompactionContext) -> None:
        clock("-1 hour")
        ctx.compact(1, 8, "S")

    assert store.compact("t", fold, budget=budget).applied
    store.append("t", [HI] * 12, tokens=100)
    assert store.compact("t", lambda ctx: ctx.compact(9, 20, "S"), budget=budget).applied


def test_many_threads_may_ask_at_once_while_the_server_is_frozen(own: Postgres) -> None:
    """It is stopped for a moment, like a machine that is moved to another host."""
    with cs.Store.open(own.database(), pool_size=4) as store, ThreadPoolExecutor(8) as callers:
        store.append("t", HI)
        own.signal(signal.SIGSTOP)
        try:
            threading.Timer(1.0, own.signal, (signal.SIGCONT,)).start()
            written = list(callers.map(lambda _: store.append("t", HI)[0].seq, range(40)))
        finally:
            own.signal(signal.SIGCONT)
        assert sorted(written) == list(range(2, 42))
