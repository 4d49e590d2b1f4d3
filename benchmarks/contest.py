"""What is timed, and by whom: sides that do the same work in turn, on one server, in an order that chance decides."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

import psycopg

from benchmarks.rows import Row
from compaction_store import AsyncStore, Store, tokens

Samples = dict[str, list[float]]


class Side(NamedTuple):
    """The work of one side, which may have to be awaited, and what it is given: made anew each time, outside of the
    timing.
    """

    work: Callable[[Any], object]
    make: Callable[[], Any] = lambda: None


def reading(work: Callable[[], object]) -> Side:
    return Side(lambda _nothing: work())


class Bench:
    """One database, the plain driver, and the stores over it."""

    def __init__(self, url: str, *, quick: bool, stack: ExitStack) -> None:
        self.url = url
        self.quick = quick
        self.stack = stack
        # As people have it: prepared after five uses. `bare` never prepares, as the store must not behind a pooler.
        self.raw = stack.enter_context(psycopg.connect(url, autocommit=True))
        self.bare = stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=None))
        self.store = stack.enter_context(Store.open(url))
        self.by_bytes = stack.enter_context(Store.open(url, counter=tokens.bytes_over_four()))
        self.runner = stack.enter_context(asyncio.Runner())
        self.aio = self._opened(None)
        self.aio_by_bytes = self._opened(tokens.bytes_over_four())

    def _opened(self, counter: tokens.Counter | None) -> AsyncStore:
        store = self.runner.run(AsyncStore.open(self.url, counter=counter))
        self.stack.callback(lambda: self.runner.run(store.close()))
        return store

    def timed(self, side: Side) -> float:
        """Seconds. What is awaited is timed inside the event loop, as its callers are there."""
        given = side.make()
        start = time.perf_counter()
        done = side.work(given)
        if inspect.iscoroutine(done):
            return self.runner.run(_clocked(done))
        return time.perf_counter() - start

    def repeats(self, usual: int) -> int:
        return max(2, usual // 5) if self.quick else usual


async def _clocked(work: Coroutine[Any, Any, object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


class Contest:
    """Makes what it needs when it is made, and then runs a round whenever it is its turn."""

    # Where the page tells of it, and under which name it can be run alone.
    title: ClassVar[str]
    name: ClassVar[str]
    rows: ClassVar[Sequence[Row]]

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def round(self) -> Mapping[str, Sequence[float]]:
        raise NotImplementedError

    def interleaved(self, sides: Mapping[str, Side], repeats: int, *, items: int = 1) -> Samples:
        """Each side in turn, so that whatever else the machine does falls on all alike. Seconds an item."""
        samples: Samples = defaultdict(list)
        names = list(sides)
        for _ in range(repeats):
            random.shuffle(names)
            for name in names:
                samples[name].append(self.bench.timed(sides[name]) / items)
        return samples
