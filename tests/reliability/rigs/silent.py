"""Silences the proxy or freezes the server under many callers, beside a healthy store in the same process.

Every call is timed: it must end within its deadline plus one second. The healthy store uses another server. The figures
say how many calls it made while the others were stuck, and how long the longest took.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import compaction_store as cs
from reliability.rigs.book import Book, Writer, prove
from reliability.rigs.ground import Postgres
from reliability.rigs.proxy import Proxy

DEADLINE = 1.0
#: How long a call may take beyond its deadline.
GRACE = 1.0
_THREADS = ("t1", "t2", "t3")
_CALLERS = 6
_BEAT = 0.05


class _Times:
    """The durations of calls."""

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self._lock = threading.Lock()

    def took(self, start: float) -> None:
        with self._lock:
            self.count += 1
            self.longest = max(self.longest, time.monotonic() - start)


class _Pulse:
    """Measures how long the machine itself delays this process, with a thread and a task that only sleep."""

    def __init__(self, over: threading.Event) -> None:
        self.longest = 0.0
        self._over = over

    def beat(self) -> None:
        while not self._over.is_set():
            start = time.monotonic()
            time.sleep(_BEAT)
            self._took(start)

    async def beat_async(self) -> None:
        while not self._over.is_set():
            start = time.monotonic()
            await asyncio.sleep(_BEAT)
            self._took(start)

    def _took(self, start: float) -> None:
        self.longest = max(self.longest, time.monotonic() - start - _BEAT)


class _Timed:
    """A store that times every append, including those that fail."""

    def __init__(self, store: Any, times: _Times) -> None:
        self._store = store
        self._times = times

    def append(self, *given: Any, **how: Any) -> Any:
        start = time.monotonic()
        try:
            return self._store.append(*given, **how)
        finally:
            self._times.took(start)


class _TimedAsync(_Timed):
    async def append(self, *given: Any, **how: Any) -> Any:
        start = time.monotonic()
        try:
            return await self._store.append(*given, **how)
        finally:
            self._times.took(start)


def run(server: Postgres, chance: random.Random, *, silences: int) -> dict[str, Any]:
    """Makes `silences` silences, of each kind in turn, each longer than a call's deadline."""
    book, stuck, healthy = Book(), _Times(), _Times()
    over, opened = threading.Event(), threading.Semaphore(0)
    pulse = _Pulse(over)
    during = 0
    with Postgres() as frozen:
        url = frozen.database()
        with Proxy(url, chance) as way, ThreadPoolExecutor(_CALLERS + 3) as pool:
            writers = [Writer(f"a{i}", book, _other(chance)) for i in range(_CALLERS)]
            works = [
                *[
                    _writing(way.url, Writer(f"w{i}", book, _other(chance)), stuck, over, opened)
                    for i in range(_CALLERS)
                ],
                _tasks(way.url, writers, stuck, over, opened, pulse),
                _beside(server.database(), healthy, over, opened),
            ]
            working = [pool.submit(work) for work in (*works, pulse.beat)]
            try:
                # Opening a store has the same deadline, but raises what no writer would retry.
                for _ in works:
                    while not opened.acquire(timeout=_BEAT):
                        _go_on(working, over, 0.0)
                for i in range(silences):
                    _go_on(working, over, chance.uniform(0.2, 1.0))
                    before = healthy.count
                    _silence(frozen, way, i, lambda: _go_on(working, over, chance.uniform(2.0, 3.0) * DEADLINE))
                    during += healthy.count - before
                    assert healthy.count > before, "the healthy store stood still"
                _go_on(working, over, 2.0)
            finally:
                over.set()
                way.hush(requests=False, replies=False)
            for each in working:
                each.result(60)
        with cs.Store.open(url) as store:
            figures = prove(store, book)
    late = f"a call ended after {stuck.longest:.2f} seconds; the machine kept this process waiting {pulse.longest:.2f}"
    assert stuck.longest < DEADLINE + GRACE + pulse.longest, late
    return {
        "silences": silences, "calls": stuck.count, "deadline": DEADLINE, "longest": round(stuck.longest, 2),
        "longest that the machine kept the process waiting": round(pulse.longest, 2),
        "calls of the healthy store meanwhile": during, "longest of these": round(healthy.longest, 2), **figures,
    }  # fmt: skip


def _other(chance: random.Random) -> random.Random:
    return random.Random(chance.random())


def _silence(frozen: Postgres, way: Proxy, kind: int, wait: Callable[[], None]) -> None:
    if kind % 3 == 0:
        frozen.signal(signal.SIGSTOP)
        try:
            wait()
        finally:
            frozen.signal(signal.SIGCONT)
        return
    way.hush(requests=kind % 3 == 1, replies=True)
    wait()
    way.hush(requests=False, replies=False)


def _go_on(working: list[Future[None]], over: threading.Event, seconds: float) -> None:
    over.wait(seconds)
    for each in working:
        if each.done():
            each.result()
            raise AssertionError("a caller left early")


def _writing(
    url: str, writer: Writer, times: _Times, over: threading.Event, opened: threading.Semaphore
) -> Callable[[], None]:
    def work() -> None:
        with cs.Store.open(url, deadline=DEADLINE, pool_size=2) as store:
            opened.release()
            timed: Any = _Timed(store, times)
            while not over.is_set():
                writer.append(timed, writer.chance.choice(_THREADS))

    return work


def _tasks(
    url: str, writers: list[Writer], times: _Times, over: threading.Event, opened: threading.Semaphore, pulse: _Pulse
) -> Callable[[], None]:
    async def write(store: Any, writer: Writer) -> None:
        while not over.is_set():
            await writer.append_async(store, writer.chance.choice(_THREADS))

    async def main() -> None:
        async with cs.AsyncStore.open(url, deadline=DEADLINE, pool_size=_CALLERS) as store:
            opened.release()
            timed = _TimedAsync(store, times)
            await asyncio.gather(pulse.beat_async(), *[write(timed, writer) for writer in writers])

    return lambda: asyncio.run(main())


def _beside(url: str, times: _Times, over: threading.Event, opened: threading.Semaphore) -> Callable[[], None]:
    def work() -> None:
        with cs.Store.open(url) as store:
            opened.release()
            while not over.is_set():
                start = time.monotonic()
                store.append("healthy", {"role": "user", "content": "hi"}, tokens=1)
                times.took(start)

    return work
