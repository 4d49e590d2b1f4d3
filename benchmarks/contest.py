"""Times several programs ("sides") that do the same work on one server and take turns in random order."""

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

from benchmarks import databases
from benchmarks.rows import Row
from compaction_store import AsyncStore, Store, tokens

Samples = dict[str, list[float]]


class Side(NamedTuple):
    """The work of one side, which may be async, and a function that makes its input. Making the input is not timed."""

    work: Callable[[Any], object]
    make: Callable[[], Any] = lambda: None


def reading(work: Callable[[], object]) -> Side:
    return Side(lambda _nothing: work())


class Bench:
    """A database, with a connection of the plain driver and with stores."""

    def __init__(self, url: str, *, quick: bool, stack: ExitStack) -> None:
        #: For the floor, whose tables the superuser has, and for the stores.
        self.url = url
        self.app_url = databases.application(url)
        self.quick = quick
        self.stack = stack
        # By default, the driver prepares a statement after five uses. `bare` never prepares, like the store.
        self.raw = stack.enter_context(psycopg.connect(url, autocommit=True))
        self.bare = stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=None))
        self.store = stack.enter_context(Store.open(self.app_url))
        self.by_bytes = stack.enter_context(Store.open(self.app_url, counter=tokens.bytes_over_four()))
        self.runner = stack.enter_context(asyncio.Runner())
        self.aio = self._opened(None)
        self.aio_by_bytes = self._opened(tokens.bytes_over_four())

    def _opened(self, counter: tokens.Counter | None) -> AsyncStore:
        store = self.runner.run(AsyncStore.open(self.app_url, counter=counter))
        self.stack.callback(lambda: self.runner.run(store.close()))
        return store

    def timed(self, side: Side) -> float:
        """Returns the seconds of one call. An async call is timed inside the event loop, where its callers are."""
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
    """A part of the run. It prepares its data when it is made, and then runs one round at a time."""

    # The heading on the page. It is also the name of the part for `--only`.
    title: ClassVar[str]
    name: ClassVar[str]
    rows: ClassVar[Sequence[Row]]

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def round(self) -> Mapping[str, Sequence[float]]:
        raise NotImplementedError

    def interleaved(self, sides: Mapping[str, Side], repeats: int, *, items: int = 1) -> Samples:
        """Returns the seconds per item. The sides take turns, so that other load on the machine affects all of them."""
        samples: Samples = defaultdict(list)
        names = list(sides)
        for _ in range(repeats):
            random.shuffle(names)
            for name in names:
                samples[name].append(self.bench.timed(sides[name]) / items)
        return samples
