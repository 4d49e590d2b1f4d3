"""Eight writers and two compactors at work on a few threads, until they are stopped.

Half of the writers are threads, half are tasks. Half of each use a deadline that is longer than a restart of the
server, and half one so short that they get unknown outcomes, which they settle by key.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import compaction_store as cs
from reliability.rigs.book import Book, Compactor, Writer

THREADS = ("t1", "t2", "t3", "t4")
PATIENT = 60.0
IMPATIENT = 0.2
_DEADLINES = (PATIENT, PATIENT, IMPATIENT, IMPATIENT)


class Crew:
    """Works while the with block runs. The block raises any error of theirs."""

    def __init__(self, url: str, book: Book, chance: random.Random, threads: tuple[str, ...] = THREADS) -> None:
        self.url = url
        self.book = book
        self.threads = threads
        self._seeds = [random.Random(chance.random()) for _ in range(10)]
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(8)
        self._working: list[Future[None]] = []

    def __enter__(self) -> Self:
        writers = [Writer(f"w{i}", self.book, self._seeds[i]) for i in range(8)]
        compactors = [Compactor(f"c{i}", self.book, self._seeds[i]) for i in (8, 9)]
        for deadline, writer in zip(_DEADLINES, writers[:4], strict=True):
            self._working.append(self._pool.submit(self._write, deadline, writer))
        tasks = list(zip(_DEADLINES, writers[4:], strict=True))
        self._working.append(self._pool.submit(lambda: asyncio.run(self._write_async(tasks))))
        for deadline, compactor in zip((PATIENT, IMPATIENT), compactors, strict=True):
            self._working.append(self._pool.submit(self._compact, deadline, compactor))
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for worker in self._working:
            worker.result(PATIENT * 3)
        self._pool.shutdown()

    def wait(self, seconds: float) -> None:
        """Lets them work. Raises at once if one of them fails."""
        self._over.wait(seconds)
        for worker in self._working:
            if worker.done():
                worker.result()
                raise AssertionError("a worker left early")

    def _write(self, deadline: float, writer: Writer) -> None:
        with self._opened(lambda: cs.Store.open(self.url, deadline=deadline, pool_size=2)) as store:
            while not self._over.is_set():
                writer.append(store, writer.chance.choice(self.threads))

    async def _write_async(self, writers: list[tuple[float, Writer]]) -> None:
        async def write(deadline: float, writer: Writer) -> None:
            async with await self._opened_async(deadline) as store:
                while not self._over.is_set():
                    await writer.append_async(store, writer.chance.choice(self.threads))

        await asyncio.gather(*[write(deadline, writer) for deadline, writer in writers])

    def _compact(self, deadline: float, compactor: Compactor) -> None:
        with self._opened(lambda: cs.Store.open(self.url, deadline=deadline, pool_size=2)) as store:
            while not self._over.is_set():
                if not compactor.compact(store, compactor.chance.choice(self.threads)):
                    self._over.wait(0.02)

    def _opened(self, open_one: Callable[[], Any]) -> Any:
        """A store does not retry its first connection, because a wrong address should fail at once."""
        while True:
            try:
                return open_one()
            except cs.DatabaseUnavailable:
                self._over.wait(0.02)

    async def _opened_async(self, deadline: float) -> cs.AsyncStore:
        while True:
            try:
                return await cs.AsyncStore.open(self.url, deadline=deadline, pool_size=2)
            except cs.DatabaseUnavailable:
                await asyncio.sleep(0.02)
