"""Stalls threads with many writers, and measures how fast the writers are afterwards.

The writers are several processes, each with many callers that share commits. A stall is a transaction that holds the
rows of the threads' heads, or a server whose processes are all stopped. Calls that waited through a stall must not hold
up the calls after them: in the second second after a stall, the writers must be about as fast as before it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from support.paths import ROOT, TESTS

import compaction_store as cs
from reliability.rigs.ground import Postgres

# How fast the writers must be after a stall, as a part of what they were before it. Without a defect this is about 1,
# but other programs use the same cores. With calls that hold each other up it is about 0.
LEAST = 0.25
_WARM_UP = 1.0
_OTHER_VERSION = Path("/usr/lib/postgresql/15/bin")

_WRITER = """
import asyncio, json, sys, threading, time
import compaction_store as cs
url, kind, callers, names, prefix = sys.argv[1:]
names, over = names.split(","), threading.Event()
done, failed = [], []

def calls(number):
    for n in range(1_000_000):
        if over.is_set():
            return
        text = f"{prefix}-{number}-{n}"
        yield names[(number + n) % len(names)], {"role": "user", "content": text}, text

def note(start, thread_id, text, error=None):
    if error is None:
        done.append((start, time.monotonic(), thread_id, text))
    else:
        failed.append(type(error).__name__)

def write(store, number):
    for thread_id, message, text in calls(number):
        start = time.monotonic()
        try:
            store.append(thread_id, message, tokens=1)
        except cs.CompactionStoreError as error:
            note(start, thread_id, text, error)
        else:
            note(start, thread_id, text)

async def write_async(store, number):
    for thread_id, message, text in calls(number):
        start = time.monotonic()
        try:
            await store.append(thread_id, message, tokens=1)
        except cs.CompactionStoreError as error:
            note(start, thread_id, text, error)
        else:
            note(start, thread_id, text)

async def main():
    async with cs.AsyncStore.open(url) as store:
        await asyncio.gather(*[write_async(store, n) for n in range(int(callers))])

def stop():
    sys.stdin.read()
    over.set()

threading.Thread(target=stop, daemon=True).start()
if kind == "tasks":
    asyncio.run(main())
else:
    with cs.Store.open(url) as store:
        threads = [threading.Thread(target=write, args=(store, n)) for n in range(int(callers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
print(json.dumps([done, failed]))
"""


class Case(NamedTuple):
    """A stall: the callers of each process, and how many threads they write to."""

    how: str
    seconds: float
    callers: tuple[int, ...]
    kind: str = "threads"
    hot: int = 1

    def __str__(self) -> str:
        callers = " + ".join(map(str, self.callers))
        where = "one thread" if self.hot == 1 else f"{self.hot} threads"
        return f"{self.how} for {self.seconds} s, {callers} {self.kind} on {where}"


CASES = (
    Case("held", 2.5, (32, 32)),
    Case("frozen", 2.0, (32, 32)),
    Case("held", 1.5, (16,)),
    Case("held", 2.0, (64,)),
    Case("frozen", 2.5, (16,), "tasks"),
    Case("held", 2.5, (32, 32), "tasks"),
    Case("frozen", 2.5, (64,), "tasks"),
    Case("held", 2.5, (32, 32), "threads", 4),
    Case("frozen", 2.5, (32, 32), "tasks", 4),
    Case("held", 1.5, (8, 8)),
)


def run(server: Postgres, chance: random.Random, *, rounds: int) -> dict[str, Any]:
    """Makes every stall `rounds` times, on a second version of Postgres too if the machine has it."""
    found = _run(server, chance, [case for _ in range(rounds) for case in CASES])
    if (_OTHER_VERSION / "postgres").is_file():
        with Postgres(binaries=_OTHER_VERSION) as other:
            found += _run(other, chance, [case for _ in range(rounds) for case in CASES])
    return _figures(found)


def run_some(server: Postgres, chance: random.Random, *, count: int) -> dict[str, Any]:
    """Makes some of the stalls, the first of them always."""
    return _figures(_run(server, chance, [CASES[0], *chance.sample(CASES[1:], count - 1)]))


class Stalled(NamedTuple):
    """What the writers did: appends in a second before and after, the longest call, and the failures by type."""

    name: str
    appends: int
    before: float
    after: float
    longest: float
    failed: Counter[str]
    deadlocks: int


def _figures(found: Sequence[Stalled]) -> dict[str, Any]:
    for one in found:
        assert not one.failed, f"{one.name}: callers got {dict(one.failed)}"
        assert not one.deadlocks, f"{one.name}: {one.deadlocks} deadlocks in the server's log"
        assert one.after >= LEAST * one.before, f"{one.name}: {one.before:.0f} appends/s before, {one.after:.0f} after"
    speeds = {
        one.name: f"{one.before:,.0f} before, {one.after:,.0f} after, longest {one.longest:.1f} s" for one in found
    }
    return {
        "stalls": len(found), "appends": sum(one.appends for one in found), **speeds, "failed": 0, "deadlocks": 0,
        "lost": 0, "duplicated": 0,
    }  # fmt: skip


def _run(server: Postgres, chance: random.Random, cases: Sequence[Case]) -> list[Stalled]:
    return [_stall(server, chance, case) for case in cases]


def _stall(server: Postgres, chance: random.Random, case: Case) -> Stalled:
    url, names = server.database(), [f"hot{i}" for i in range(case.hot)]
    with cs.Store.open(url) as store:
        for name in names:
            store.append(name, {"role": "user", "content": "first"}, tokens=1)
    deadlocks = _deadlocks(server)
    with ExitStack() as writers:
        working = [writers.enter_context(_writing(url, case, names, i)) for i in range(len(case.callers))]
        while any(_last_seq(url, name) < 20 for name in names):
            assert all(one.poll() is None for one in working), "a writer ended early"
            time.sleep(0.05)
        time.sleep(_WARM_UP + chance.random())
        began = time.monotonic()
        with _held(url) if case.how == "held" else _frozen(server):
            time.sleep(case.seconds)
        ended = time.monotonic()
        time.sleep(2.0)
        told = [_stopped(one) for one in working]
    done = [call for calls, _ in told for call in calls]
    _check(url, done)
    return Stalled(
        f"Postgres {server.version()}: {case}",
        len(done),
        sum(began - _WARM_UP <= end < began for _, end, _, _ in done) / _WARM_UP,
        sum(ended + 1.0 <= end < ended + 2.0 for _, end, _, _ in done),
        max(end - start for start, end, _, _ in done),
        Counter(name for _, failed in told for name in failed),
        _deadlocks(server) - deadlocks,
    )


@contextmanager
def _writing(url: str, case: Case, names: Sequence[str], number: int) -> Iterator[subprocess.Popen[str]]:
    command = (
        sys.executable, "-c", _WRITER, url, case.kind, str(case.callers[number]), ",".join(names), f"p{number}",
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(TESTS)))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def _stopped(process: subprocess.Popen[str]) -> tuple[list[tuple[float, float, str, str]], list[str]]:
    said, _ = process.communicate("", timeout=90)
    done, failed = json.loads(said)
    return done, failed


@contextmanager
def _held(url: str) -> Iterator[None]:
    with psycopg.connect(url) as holder:
        holder.execute("SELECT FROM compaction_store.heads FOR UPDATE")
        yield
        holder.rollback()


@contextmanager
def _frozen(server: Postgres) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def _last_seq(url: str, name: str) -> int:
    with cs.Store.open(url) as store:
        return store.thread(name).last_seq


def _deadlocks(server: Postgres) -> int:
    return (server.folder / "log").read_text(errors="replace").count("deadlock detected")


def _check(url: str, done: Sequence[tuple[float, float, str, str]]) -> None:
    """Every acknowledged message is there once, and there is no other."""
    acknowledged = Counter((thread_id, text) for _, _, thread_id, text in done)
    with cs.Store.open(url) as store:
        stored: Counter[tuple[str, str]] = Counter()
        for thread in store.threads():
            messages = [m.payload["content"] for m in store.replay(thread.thread_id) if m.payload is not None]
            assert len(messages) == thread.last_seq
            stored.update((thread.thread_id, text) for text in messages[1:])
            assert store.audit.verify(thread.thread_id).findings == ()
    assert stored == acknowledged, f"{len(stored - acknowledged)} too many, {len(acknowledged - stored)} lost"
