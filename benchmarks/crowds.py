"""Times many writers at once, each in its own process, and many callers in one process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple

import psycopg

from benchmarks.contest import Bench, Contest, Samples, Side
from benchmarks.corpus import messages
from benchmarks.floor import AsyncFloor, Floor
from benchmarks.rows import Row
from compaction_store import Store, tokens

_MANY = 1000
_WRITERS = (1, 4, 16)
# The default pool size of a store.
_CONNECTIONS = 16


class Order(NamedTuple):
    """An order for a writer's process: how to write, to how many threads, when to start, and for how many seconds."""

    way: str
    threads: int
    start: float
    seconds: float
    # The number of messages of each append.
    size: int = 1


def _p50(writers: int, threads: str) -> Row:
    limits = {
        1: "As for one caller.",
        4: "Two cores for four clients and four servers.",
        16: "Appends to one thread run one after the other, each until its commit is on disk."
        if threads == "one thread"
        else "The processors: sixteen clients and as many servers share them.",
    }
    who = "writer" if writers == 1 else "writers"
    return Row(
        f"{writers} {who}, {threads}, append", f"store {writers} {threads}", limits[writers],
        over=f"raw {writers} {threads}",
    )  # fmt: skip


class Writers(Contest):
    title = "Many writers, each a process"
    name = "writers"
    rows: ClassVar[Sequence[Row]] = (
        *(_p50(writers, threads) for threads in ("one thread", "many threads") for writers in _WRITERS),
        Row(
            "16 writers, one thread", "store 16 one thread each", "Appends to one thread run one after the other, so"
            " that seqs have no gaps. The writers' Python also counts tokens on the same two cores.", unit="rate",
        ),
        Row(
            "16 writers, one thread, tokens by `bytes_over_four`", "bytes 16 one thread each", "The same without the"
            " tokenizer.", unit="rate", most=1 / 1500,
        ),
        Row(
            "16 writers, one thread, p99", "store 16 one thread", "The queue for the thread.", most=0.1,
            figure="p99",
        ),
        Row(
            "16 writers, 1,000 threads", "store 16 many threads each", "The processors, most of them spent in the"
            " writers' Python.", unit="rate",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        bench.raw.execute(
            "CREATE TABLE IF NOT EXISTS raw_log (thread_id text, seq bigint GENERATED ALWAYS AS IDENTITY, role text,"
            " payload json, created_at timestamptz DEFAULT now(), PRIMARY KEY (thread_id, seq))"
        )
        self._pipes = bench.stack.enter_context(_processes(bench, max(_WRITERS)))
        self._seconds = 1.0 if bench.quick else 4.0

    def round(self) -> Mapping[str, Sequence[float]]:
        runs = [
            (way, writers, threads)
            for way in ("raw", "store")
            for writers in _WRITERS
            for threads in ("one thread", "many threads")
        ]
        runs.append(("bytes", max(_WRITERS), "one thread"))
        random.shuffle(runs)
        found: dict[str, Sequence[float]] = {}
        for way, writers, threads in runs:
            waits = self._run(way, writers, 1 if threads == "one thread" else _MANY)
            found[f"{way} {writers} {threads}"] = waits
            found[f"{way} {writers} {threads} each"] = [self._seconds / len(waits)]
        return found

    def _run(self, way: str, writers: int, threads: int, size: int = 1) -> list[float]:
        order = Order(way, threads, time.time() + 0.1, self._seconds, size)
        for pipe in self._pipes[:writers]:
            pipe.send(order)
        return [wait for pipe in self._pipes[:writers] for wait in pipe.recv()]


class BatchWriters(Writers):
    title = "Batches of 10, many writers, each a process"
    name = "batch-writers"
    rows: ClassVar[Sequence[Row]] = tuple(
        Row(
            f"batches of 10, {writers} writer{'' if writers == 1 else 's'}, many threads{', ' * bool(told)}{told}",
            f"{way} {writers}", "As for single messages.", over=f"raw {writers}", most=1.8 if writers == 1 else 2.0,
            unit="rate",
        )
        for way, told in (("store", ""), ("bytes", "tokens by `bytes_over_four`"))
        for writers in _WRITERS
    )  # fmt: skip

    def round(self) -> Mapping[str, Sequence[float]]:
        runs = [(way, writers) for way in ("raw", "store", "bytes") for writers in _WRITERS]
        random.shuffle(runs)
        return {
            f"{way} {writers}": [self._seconds / len(self._run(way, writers, _MANY, 10)) / 10] for way, writers in runs
        }


@contextmanager
def _processes(bench: Bench, count: int) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(bench.url, bench.app_url, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        yield pipes
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()


def _serve(url: str, app_url: str, pipe: Connection) -> None:
    """Carries out one order after another, in a writer's process."""
    items = messages(200)
    with (
        psycopg.connect(url, autocommit=True) as raw,
        Store.open(app_url, pool_size=1) as store,
        Store.open(app_url, pool_size=1, counter=tokens.bytes_over_four()) as by_bytes,
    ):
        ways = _ways(raw, store, by_bytes)
        for way in ways.values():
            way(items[:1], "warm")
        pipe.send("ready")
        while order := pipe.recv():
            names = ["hot"] if order.threads == 1 else [f"crowd-{number}" for number in range(order.threads)]
            pipe.send(_written(order, ways[order.way], names, items))


def _written(
    order: Order, way: Callable[[list[dict[str, Any]], str], object], names: list[str], items: list[dict[str, Any]]
) -> list[float]:
    batches = cycle([items[number : number + order.size] for number in range(0, len(items), order.size)])
    end = order.start + order.seconds
    time.sleep(max(0.0, order.start - time.time()))
    waits = []
    while time.time() < end:
        name, batch = random.choice(names), next(batches)
        start = time.perf_counter()
        way(batch, name)
        waits.append(time.perf_counter() - start)
    return waits


def _ways(
    raw: psycopg.Connection, store: Store, by_bytes: Store
) -> dict[str, Callable[[list[dict[str, Any]], str], object]]:
    statement = "INSERT INTO raw_log (thread_id, role, payload) VALUES (%s, %s, %s)"

    def insert(batch: list[dict[str, Any]], name: str) -> None:
        rows = [(name, item["role"], json.dumps(item)) for item in batch]
        if len(rows) == 1:
            raw.execute(statement, rows[0])
        else:
            with raw.transaction(), raw.cursor() as cursor:
                cursor.executemany(statement, rows)

    def append(to: Store, batch: list[dict[str, Any]], name: str) -> None:
        to.append(name, batch[0] if len(batch) == 1 else batch)

    return {"raw": insert, "store": partial(append, store), "bytes": partial(append, by_bytes)}


class Callers(Contest):
    title = "Many callers in one process"
    name = "callers"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "16 callers, async over sync with a thread each", "async 16", "One interpreter thread runs the event loop"
            " and the driver's waits. Threads count tokens on all cores, the event loop on one.",
            over="sync 16", most=1.0, unit="rate",
        ),
        Row(
            "64 callers, async over sync with a thread each", "async 64", "As above; all callers share sixteen"
            " connections.", over="sync 64", most=1.0, unit="rate",
        ),
        Row(
            "64 callers, 1,000 threads, shared commits over a commit each", "shared 64", "The SQL functions: what a"
            " commit costs is shared, what a message costs is not.", over="apart 64", most=1 / 3, unit="rate",
        ),
        Row(
            "64 callers, 1,000 threads, shared commits over plain psycopg with a commit each", "shared 64", "As above.",
            over="raw 64", most=1.0, unit="rate",
        ),
        Row(
            "64 callers, one thread, shared commits over a commit each", "shared hot 64", "As above.",
            over="apart hot 64", unit="rate",
        ),
        Row(
            "16 callers, plain psycopg, async over sync with a thread each", "raw async 16", "No bound: the driver's"
            " own cost of asyncio, which waits in Python; with threads it waits in C.", over="raw sync 16", unit="rate",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._floors = [
            Floor(bench.stack.enter_context(psycopg.connect(bench.url, autocommit=True)), f"caller-raw-{number}")
            for number in range(_CONNECTIONS)
        ]
        self._aio_floors = [
            AsyncFloor(bench.runner.run(self._connected()), f"caller-raw-async-{number}")
            for number in range(_CONNECTIONS)
        ]

        counter = tokens.bytes_over_four()
        self._shared, self._apart = (
            bench.stack.enter_context(Store.open(bench.app_url, counter=counter, share_commits=share))
            for share in (True, False)
        )

    async def _connected(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(self.bench.url, autocommit=True)
        self.bench.stack.callback(lambda: self.bench.runner.run(connection.close()))
        return connection

    def round(self) -> Mapping[str, Sequence[float]]:
        count = 640 if self.bench.quick else 1920
        make = partial(messages, count)
        found: Samples = {}
        for callers in (_CONNECTIONS, 64):
            with ThreadPoolExecutor(callers) as threads:
                sides = {
                    "sync": Side(partial(self._sync, threads, callers), make),
                    "async": Side(partial(self._async, callers), make),
                }
                if callers == _CONNECTIONS:
                    sides["raw sync"] = Side(partial(self._raw_sync, threads), make)
                    sides["raw async"] = Side(self._raw_async, make)
                samples = self.interleaved(sides, 2, items=count)
            found |= {f"{name} {callers}": values for name, values in samples.items()}
        with ThreadPoolExecutor(64) as threads:
            sides = {
                "raw 64": Side(partial(self._raw_crowd, threads), make),
                "shared 64": Side(partial(self._crowd, threads, self._shared, _MANY), make),
                "apart 64": Side(partial(self._crowd, threads, self._apart, _MANY), make),
                "shared hot 64": Side(partial(self._crowd, threads, self._shared, 1), make),
                "apart hot 64": Side(partial(self._crowd, threads, self._apart, 1), make),
            }
            return found | self.interleaved(sides, 2, items=count)

    def _crowd(self, threads: ThreadPoolExecutor, store: Store, names: int, items: list[dict[str, Any]]) -> None:
        def call(caller: int) -> None:
            for item in items[caller::64]:
                store.append(f"of-{names}-{random.randrange(names)}", item)

        list(threads.map(call, range(64)))

    def _raw_crowd(self, threads: ThreadPoolExecutor, items: list[dict[str, Any]]) -> None:
        """Appends as 64 callers of plain psycopg that share sixteen connections, as the callers of a store do."""
        free: SimpleQueue[Floor] = SimpleQueue()
        for floor in self._floors:
            free.put(floor)

        def call(caller: int) -> None:
            for item in items[caller::64]:
                floor = free.get()
                floor.insert(item)
                free.put(floor)

        list(threads.map(call, range(64)))

    def _sync(self, threads: ThreadPoolExecutor, callers: int, items: list[dict[str, Any]]) -> None:
        def call(caller: int) -> None:
            for item in items[caller::callers]:
                self.bench.store.append(f"caller-{caller}", item)

        list(threads.map(call, range(callers)))

    async def _async(self, callers: int, items: list[dict[str, Any]]) -> None:
        async def call(caller: int) -> None:
            for item in items[caller::callers]:
                await self.bench.aio.append(f"caller-async-{caller}", item)

        await asyncio.gather(*map(call, range(callers)))

    def _raw_sync(self, threads: ThreadPoolExecutor, items: list[dict[str, Any]]) -> None:
        def call(caller: int) -> None:
            for item in items[caller::_CONNECTIONS]:
                self._floors[caller].insert(item)

        list(threads.map(call, range(_CONNECTIONS)))

    async def _raw_async(self, items: list[dict[str, Any]]) -> None:
        async def call(caller: int) -> None:
            for item in items[caller::_CONNECTIONS]:
                await self._aio_floors[caller].insert(item)

        await asyncio.gather(*map(call, range(_CONNECTIONS)))
