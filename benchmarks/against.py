"""Compares the store with its peers. All do the same jobs and take turns."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar

from benchmarks.contest import Bench, Contest, Samples, Side, reading
from benchmarks.corpus import text
from benchmarks.peers import ENTRIES, OURS, RAW, Entry, Item, version
from benchmarks.rows import Row

_LENGTH = 10_000
_SHORT = 20
_IMPORTED = 2_000


class Job:
    APPEND = "append to a short thread"
    APPEND_LONG = "append to one of 10,000"
    TEN = "a batch of 10, each"
    HUNDRED = "a batch of 100, each"
    LOAD = "load 10,000"
    NEWEST = "newest 20"
    IMPORT = "import 2,000, each"


JOBS = (Job.APPEND, Job.APPEND_LONG, Job.TEN, Job.HUNDRED, Job.LOAD, Job.NEWEST, Job.IMPORT)


def side(store: str, job: str) -> str:
    return f"{store}: {job}"


def row(store: str, job: str) -> Row:
    return Row(job, side(store, job), "", over=side(RAW, job))


class Peers(Contest):
    title = "Against the peers"
    name = "peers"
    rows: ClassVar[Sequence[Row]] = tuple(row(OURS, job) for job in JOBS)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._items: list[Item] = [
            {"role": "assistant" if i % 2 else "user", "content": text(450, 850)} for i in range(_LENGTH)
        ]
        self._stores = [_Store(bench, entry, self._items) for entry in ENTRIES if version(entry.package)]

    def round(self) -> Mapping[str, Sequence[float]]:
        found: Samples = {}
        for job in random.sample(JOBS, len(JOBS)):
            slow = [store for store in self._stores if store.entry.slow]
            usual = [store for store in self._stores if not store.entry.slow]
            found |= self._played(usual, job, self.bench.repeats(_REPEATS[job]))
            found |= self._played(slow, job, min(4, self.bench.repeats(_REPEATS[job])))
        return found

    def _played(self, stores: list[_Store], job: str, repeats: int) -> Samples:
        sides = {side(store.entry.name, job): made for store in stores if (made := store.side(job)) is not None}
        return self.interleaved(sides, repeats, items=_EACH.get(job, 1))


_REPEATS = {
    Job.APPEND: 100,
    Job.APPEND_LONG: 100,
    Job.TEN: 40,
    Job.HUNDRED: 10,
    Job.LOAD: 4,
    Job.NEWEST: 60,
    Job.IMPORT: 2,
}
_EACH = {Job.TEN: 10, Job.HUNDRED: 100, Job.IMPORT: _IMPORTED}


class _Store:
    """A peer with three threads: a short one, a long one that grows, and a long one that is only read."""

    def __init__(self, bench: Bench, entry: Entry, items: list[Item]) -> None:
        self.entry = entry
        self._bench = bench
        self._items = items
        self._peer = entry.make(bench)
        self._imports = count(1)
        self._short = self._seeded("short", items[:_SHORT])
        self._long = self._seeded("long", items)
        self._read = self._seeded("read", items)
        found = self._done(self._peer.load(self._read))
        assert len(found) == len(items), entry.name

    def _seeded(self, name: str, items: list[Item]) -> Any:
        if hasattr(self._peer, "seed"):
            return self._peer.seed(name, items)
        thread = self._peer.open(name)
        self._done(self._peer.append(thread, [self._peer.message(item) for item in items]))
        return thread

    def _done(self, given: Any) -> Any:
        """Returns a result, after awaiting it if necessary."""
        return self._bench.runner.run(given) if inspect.iscoroutine(given) else given

    def side(self, job: str) -> Side | None:
        """Returns the side for a job, or None if the peer cannot do it."""
        peer = self._peer
        if job == Job.LOAD:
            return reading(lambda: peer.load(self._read))
        if job == Job.NEWEST:
            return reading(lambda: peer.newest(self._read, 20)) if peer.newest else None
        if job == Job.IMPORT:
            return Side(
                lambda given: peer.append(*given),
                lambda: (peer.open(f"import-{next(self._imports)}"), self._made(_IMPORTED)),
            )
        thread = self._long if job == Job.APPEND_LONG else self._short
        return Side(partial(peer.append, thread), partial(self._made, _EACH.get(job, 1)))

    def _made(self, size: int) -> list[Any]:
        return [self._peer.message(item) for item in random.sample(self._items, size)]
