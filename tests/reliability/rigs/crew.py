"""Sixteen writers and two compactors at work on a few threads, until they are stopped.

Half of the writers are threads, half are tasks. Half of each use a deadline that is longer than a restart of the
server, and half one so short that they get unknown outcomes, which they settle by key. Four writers share a store, and
so their appends share commits.
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
_DEADLINES = (PATIENT, IMPATIENT)
_SHARING = 4


class Crew:
    """Works while the with block runs. The block raises any error of theirs."""

    def __init__(self, url: str, book: Book, chance: random.Random, threads: tuple[str, ...] = THREADS) -> None:
        self.url = url
        self.book = book
        self.threads = threads
        self._writers = [Writer(f"w{i}", book, random.Random(chance.random())) for i in range(4 * _SHARING)]
        self._compactors = [Compactor(f"c{i}", book, random.Random(chance.random())) for i in range(2)]
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(2 + 2 * _SHARING + 3)
        self._working: list[Future[None]] = []

    def __enter__(self) -> Self:
        groups = [self._writers[i : i + _SHARING] for i in range(0, len(self._writers), _SHARING)]
        for deadline, writers in zip(_DEADLINES, groups[:2], strict=True):
            self._working.append(self._pool.submit(self._write, deadline, writers))
        tasks = list(zip(_DEADLINES, groups[2:], strict=True))
        self._working.append(self._pool.submit(lambda: asyncio.run(self._write_async(tasks))))
        for deadline, compactor in zip(_DEADLINES, self._compactors, strict=True):
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

    def _write(self, deadline: float, writers: list[Writer]) -> None:
        def write(store: cs.Store, writer: Writer) -> None:
            while not self._over.is_set():
                writer.append(store, writer.chance.choice(self.threads))

        with self._opened(lambda: cs.Store.open(self.url, deadline=deadline, pool_size=4)) as store:
            done = [self._pool.submit(write, store, writer) for writer in writers]
            for one in done:
                one.result()

    async def _write_async(self, groups: list[tuple[float, list[Writer]]]) -> None:
        async def write(store: cs.AsyncStore, writer: Writer) -> None:
            while not self._over.is_set():
                await writer.append_async(store, writer.chance.choice(self.threads))

        async def write_together(deadline: float, writers: list[Writer]) -> None:
            async with await self._opened_async(deadline) as store:
                await asyncio.gather(*[write(store, writer) for writer in writers])

        await asyncio.gather(*[write_together(deadline, writers) for deadline, writers in groups])

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
                return await cs.AsyncStore.open(self.url, deadline=deadline, pool_size=4)
            except cs.DatabaseUnavailable:
                await asyncio.sleep(0.02)
