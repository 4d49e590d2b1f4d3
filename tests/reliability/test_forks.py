"""A process that forks while stores are open: the child uses them with its own connections, and disturbs no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

_PATIENCE = 120
_COMMON = """
import asyncio, os, sys, threading, multiprocessing, time
import compaction_store as cs
from compaction_store.errors import StoreClosed


def message(mark):
    return {"role": "user", "content": mark}

def check(store, acknowledged):
    found = {m.seq: m.payload["content"] for m in store.replay("t")}
    assert len(acknowledged) == len(dict(acknowledged)), "one seq was given twice"
    assert found == dict(acknowledged), (sorted(found.items()), sorted(acknowledged))
    assert store.audit.verify("t").findings == ()

def fork(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

def join(*pids):
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a child failed"
"""
# Like a web server that loads the application and then forks its workers.
_WORKERS = """
store = cs.Store.open(sys.argv[1])
store.append("t", message("0"))

def work(name):
    acknowledged = []
    for i in range(15):
        [written] = store.append("t", message(f"{name}-{i}"))
        assert store.message("t", written.seq).payload == message(f"{name}-{i}")
        acknowledged.append((written.seq, f"{name}-{i}"))
    return acknowledged

acknowledged = [(1, "0")]
here = threading.Thread(target=lambda: acknowledged.extend(work("parent")))
with multiprocessing.get_context("fork").Pool(4) as pool:
    children = pool.map_async(work, ["a", "b", "c", "d"], chunksize=1)
    here.start()
    for each in children.get(100):
        acknowledged += each
    here.join()
check(store, acknowledged)
"""
# Threads are inside calls whenever a child is made, with whatever locks they hold.
_BUSY = """
store = cs.Store.open(sys.argv[1], pool_size=3)
store.append("t", message("0"))
acknowledged, over = [(1, "0")], threading.Event()

def busy(name):
    i = 0
    while not over.is_set():
        i += 1
        [written] = store.append("t", message(f"{name}-{i}"))
        acknowledged.append((written.seq, f"{name}-{i}"))

def child():
    store.append("child", message("hi"))
    with cs.Store.open(sys.argv[1]) as own:
        own.append("child", message("hi"))

threads = [threading.Thread(target=busy, args=(name,)) for name in "abcd"]
for thread in threads:
    thread.start()
for _ in range(10):
    join(fork(child), fork(child))
over.set()
for thread in threads:
    thread.join()
check(store, acknowledged)
assert store.thread("child").last_seq == 40
"""
_TASKS = """
async def append(store, name):
    return [((await store.append("t", message(f"{name}-{i}")))[0].seq, f"{name}-{i}") for i in range(10)]

async def main():
    async with cs.AsyncStore.open(sys.argv[1]) as store:
        await store.append("t", message("0"))
        reading, writing = os.pipe()
        mine = asyncio.create_task(append(store, "parent"))
        await asyncio.sleep(0.005)

        def child(name):
            os.write(writing, repr(asyncio.run(append(store, name))).encode() + b"\\n")

        pids = [fork(lambda: child("a")), fork(lambda: child("b"))]
        acknowledged = [(1, "0"), *await mine]
        await asyncio.to_thread(join, *pids)
        os.close(writing)
        with open(reading) as lines:
            for line in lines:
                acknowledged += eval(line)
    with cs.Store.open(sys.argv[1]) as store:
        check(store, acknowledged)

asyncio.run(main())
"""
# When the child ends, a call of the parent is far past its deadline, and nothing has cancelled it.
_WAITING = """
import psycopg
store = cs.Store.open(sys.argv[1], deadline=60)
store.append("t", message("0"))
acknowledged = []
with psycopg.connect(sys.argv[1]) as holder:
    holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
    waiting = threading.Thread(target=lambda: acknowledged.extend(store.append("t", message("1"))))
    waiting.start()
    time.sleep(0.5)

    def child():
        with cs.Store.open(sys.argv[1], deadline=1) as own:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                own.append("child", message("hi"))

    join(fork(child))
    assert waiting.is_alive()
    holder.rollback()
waiting.join()
assert [m.seq for m in acknowledged] == [2]
"""
_EMBEDDED = """
from pathlib import Path
store = cs.Store.open()
store.append("t", message("0"))

def child():
    with store:
        store.append("t", message("1"))
    with cs.Store.open() as own:
        own.append("t", message("2"))

pid = os.fork()
if not pid:
    child()
    sys.exit(0)
join(pid)
store.append("t", message("3"))
assert [m.payload["content"] for m in store.replay("t")] == ["0", "1", "2", "3"]
store.close()
"""


def run(code: str, *arguments: str, **environment: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", _COMMON + code, *arguments), capture_output=True, text=True, timeout=_PATIENCE,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_that_were_forked_use_the_store_that_was_open(url: str) -> None:
    run(_WORKERS, url)


def test_a_fork_during_other_threads_calls_stops_nobody(url: str) -> None:
    run(_BUSY, url)


def test_children_use_an_async_store_that_was_open(url: str) -> None:
    run(_TASKS, url)


def test_a_child_cancels_nothing_of_its_parents(url: str) -> None:
    run(_WAITING, url)


def test_a_child_does_not_stop_its_parents_embedded_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.delenv("COMPACTION_STORE_URL", raising=False)
    run(_EMBEDDED, HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path))


def test_a_store_that_was_closed_stays_closed_in_a_child(url: str) -> None:
    run(
        """
store = cs.Store.open(sys.argv[1])
store.close()

def child():
    try:
        store.view("t")
    except StoreClosed:
        return
    raise AssertionError("it was open")

join(fork(child))
""",
        url,
    )


def test_a_child_leaves_its_parents_connections_open(url: str) -> None:
    """The very connection that was there before is used after a child has ended."""
    run(
        """
store = cs.Store.open(sys.argv[1], pool_size=1)
store.append("t", message("0"))
before = store._db.engine.raw_connection()
pid = before.driver_connection.info.backend_pid
before.close()
join(fork(lambda: store.append("t", message("1"))))
after = store._db.engine.raw_connection()
assert after.driver_connection.info.backend_pid == pid
after.close()
""",
        url,
    )
