"""kill -9 of every process of Postgres, under eight writers and two compactors.

Half of the writers are threads, half are tasks; half of each give a call thirty seconds, which outlives a restart, and
half a fraction of one, so that they are left with outcomes nobody knows, and settle them by key.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import compaction_store as cs
from rigs.book import Book, Compactor, Writer, prove
from rigs.ground import Postgres

_THREADS = ("t1", "t2", "t3", "t4")
_IMPATIENT = 0.2
_PATIENT = 60.0


def run(server: Postgres, chance: random.Random, *, kills: int, appends: int) -> dict[str, Any]:
    """At least so many kills, going on until so many appends are acknowledged."""
    url = server.database()
    book = Book()
    over = threading.Event()
    started = time.monotonic()
    killed = downtime = 0.0
    with ThreadPoolExecutor(8) as workers:
        seeds = [random.Random(chance.random()) for _ in range(10)]
        working = [
            workers.submit(_write, url, deadline, Writer(f"w{i}", book, seeds[i]), over)
            for i, deadline in enumerate((_PATIENT, _PATIENT, _IMPATIENT, _IMPATIENT))
        ]
        tasks = [(_PATIENT if i < 6 else _IMPATIENT, Writer(f"w{i}", book, seeds[i])) for i in range(4, 8)]
        working.append(workers.submit(lambda: asyncio.run(_write_async(url, tasks, over))))
        working += [
            workers.submit(_compact, url, _PATIENT if i == 8 else _IMPATIENT, Compactor(f"c{i}", book, seeds[i]), over)
            for i in (8, 9)
        ]
        try:
            cycles = 0
            while cycles < kills or book.seen["appends acknowledged"] < appends:
                pause = max(
                    0.3, (appends - book.seen["appends acknowledged"]) / _pace(book, started) / max(1, kills - cycles)
                )
                over.wait(chance.uniform(0.5, 1.5) * min(pause, 20.0))
                assert not [w for w in working if w.done()], [w.result() for w in working if w.done()]
                down = time.monotonic()
                killed += server.kill()
                over.wait(chance.uniform(0, 0.3))
                server.start()
                downtime += time.monotonic() - down
                cycles += 1
        finally:
            over.set()
            for worker in working:
                worker.result(120)
    seconds = time.monotonic() - started
    with cs.Store.open(url) as store:
        figures = prove(store, book)
    assert book.seen["appends of unknown outcome"], (
        "no kill left an outcome unknown: the rig does not reach where it should"
    )
    return {
        "kills": cycles, "processes killed": int(killed), "seconds": round(seconds, 1),
        "seconds without a server": round(downtime, 1), **figures,
    }  # fmt: skip


def _pace(book: Book, started: float) -> float:
    return max(100.0, book.seen["appends acknowledged"] / (time.monotonic() - started))


def _opened(open_one: Callable[[], Any]) -> Any:
    """Opening is tried once by itself: a wrong address should show at once."""
    while True:
        try:
            return open_one()
        except cs.DatabaseUnavailable:
            time.sleep(0.05)


def _write(url: str, deadline: float, writer: Writer, over: threading.Event) -> None:
    with _opened(lambda: cs.Store.open(url, deadline=deadline, pool_size=2)) as store:
        while not over.is_set():
            writer.append(store, writer.chance.choice(_THREADS))


async def _write_async(url: str, writers: list[tuple[float, Writer]], over: threading.Event) -> None:
    async def write(deadline: float, writer: Writer) -> None:
        async with await cs.AsyncStore.open(url, deadline=deadline, pool_size=2) as store:
            while not over.is_set():
                await writer.append_async(store, writer.chance.choice(_THREADS))

    await asyncio.gather(*[write(deadline, writer) for deadline, writer in writers])


def _compact(url: str, deadline: float, compactor: Compactor, over: threading.Event) -> None:
    with _opened(lambda: cs.Store.open(url, deadline=deadline, pool_size=2)) as store:
        while not over.is_set():
            if not compactor.compact(store, compactor.chance.choice(_THREADS)):
                over.wait(0.05)
