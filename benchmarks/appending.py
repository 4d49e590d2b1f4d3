"""Times appends by one caller: single messages, batches, and appends to threads of different lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import ClassVar

import psycopg

from benchmarks.contest import Bench, Contest, Samples, Side, reading
from benchmarks.corpus import message, messages
from benchmarks.floor import Floor
from benchmarks.rows import Row
from benchmarks.wire import INSERT, Named, Wire
from compaction_store import Store


class Appending(Contest):
    title = "Appending, one caller, one message per commit"
    name = "append"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "append", "sync", "The hashing and the head's row in the SQL function, counting the tokens, parsing"
            " the statement in every call, and SQLAlchemy's pool.", over="raw",
        ),
        Row(
            "append, tokens by `bytes_over_four`", "sync, bytes", "The same without the tokenizer: the floor counts no"
            " tokens either.", over="raw", most=1.8, goal=1.5,
        ),
        Row(
            "append, `durable=False`, tokens by `bytes_over_four`", "not durable", "As above, without the wait for the"
            " disk. The floor waits for it.", over="raw",
        ),
        Row(
            "append, async", "async", "As above, over plain psycopg without asyncio.", over="raw",
        ),
        Row(
            "append, async over sync", "async", "A greenlet for each call, and one or two iterations of the"
            " event loop.", over="sync", most=1.3,
        ),
        Row(
            "append, async over sync, tokens by `bytes_over_four`", "async, bytes", "The same; the tokenizer, which is"
            " equal on both sides, does not hide it.", over="sync, bytes", most=1.3,
        ),
        Row(
            "the SQL function alone over a bare INSERT", "function", "Postgres's work for chain, key and head: three"
            " hashes, one more row to update, one more index entry. Both sides call libpq, so Python takes no time.",
            over="wire", most=1.8,
        ),
        Row(
            "raw INSERT never prepared over raw INSERT", "unprepared", "No bound: the floor's own extra time"
            " behind a pooler, where statements must not be prepared. The store always takes it.", over="raw",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._wire = Wire(bench.bare)
        app = Wire(bench.stack.enter_context(psycopg.connect(bench.app_url, autocommit=True)))
        self._seqs = count(1)
        raw, bare, named = Floor(bench.raw, "append"), Floor(bench.bare, "append unprepared"), Named("append-function")

        def insert_by_wire(payload: bytes) -> None:
            self._wire.run(INSERT, (b"append wire", str(next(self._seqs)).encode(), b"user", payload))

        self._sides = {
            "raw": Side(raw.insert, message),
            "unprepared": Side(bare.insert, message),
            "sync": Side(partial(bench.store.append, "append-sync"), message),
            "async": Side(partial(bench.aio.append, "append-async"), message),
            "sync, bytes": Side(partial(bench.by_bytes.append, "append-bytes"), message),
            "not durable": Side(partial(bench.by_bytes.append, "append-soon", durable=False), message),
            "async, bytes": Side(partial(bench.aio_by_bytes.append, "append-aio-bytes"), message),
            "function": Side(partial(app.append, named), _payload),
            "wire": Side(insert_by_wire, _payload),
        }
        for side in self._sides.values():
            for _ in range(10):
                bench.timed(side)

    def round(self) -> Mapping[str, Sequence[float]]:
        return self.interleaved(self._sides, self.bench.repeats(300))


def _payload() -> bytes:
    return json.dumps(message()).encode()


class Lengths(Contest):
    title = "Appending as threads grow"
    name = "lengths"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "append to 100,000 messages over append to 100", "long", "Nothing that grows with the thread: the head is"
            " one row, and an index gets one more level in a hundred thousand rows.", over="short", most=1.1,
        ),
    )  # fmt: skip
    _length = 100_000

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        fill(bench.store, f"long-{self._length}", self._length)
        fill(bench.store, f"short-{self._length}", 100)

    def round(self) -> Mapping[str, Sequence[float]]:
        sides = {
            length: Side(partial(self.bench.store.append, f"{length}-{self._length}"), message)
            for length in ("short", "long")
        }
        return self.interleaved(sides, self.bench.repeats(300))


class ManyThreads(Contest):
    """Appends to a store that is several times as large as the server's shared_buffers, by default 128 MB."""

    title = "Threads of a store larger than shared_buffers"
    name = "threads"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "append to any of 50,000 threads of 10 over append to one", "any", "Rows and index pages that are not in"
            " memory, and were not changed for long: the first change after a checkpoint writes the whole page to the"
            " WAL.", over="one",
        ),
        Row(
            "append to the newest 100 of them over append to one", "young", "The keys of threads begin with the time"
            " of their birth, so young threads are next to each other in the indexes.", over="one",
        ),
        Row(
            "view of any of them over the view of one", "view any", "Pages that are not in memory.", over="view one",
        ),
    )  # fmt: skip
    _threads = 50_000
    _young = 100

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        each = messages(10)
        threads = ((f"many-{number}", each) for number in range(self._threads))
        for _loaded in bench.store.load.threads(threads, tokens=150):
            pass
        bench.store.append("one-of-many", each)

    def round(self) -> Mapping[str, Sequence[float]]:
        store = self.bench.store
        # The step is a prime, so that every thread is used once before any thread is used again.
        names = (f"many-{number * 7_919 % self._threads}" for number in count())
        young = (f"many-{self._threads - 1 - number % self._young}" for number in count())
        sides = {
            "one": Side(partial(store.append, "one-of-many"), message),
            "any": Side(lambda given: store.append(*given), lambda: (next(names), message())),
            "young": Side(lambda given: store.append(*given), lambda: (next(young), message())),
            "view one": reading(lambda: store.view("many-0")),
            "view any": Side(store.view, lambda: next(names)),
        }
        return self.interleaved(sides, self.bench.repeats(300))


class Batches(Contest):
    title = "Batches, one caller"
    name = "batches"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "batches of 10 over executemany", "store 10", "The tokenizer, and as for one message; executemany sends"
            " one statement for each message, in a pipeline.", over="raw 10", unit="rate",
        ),
        Row(
            "batches of 10 over executemany, tokens by `bytes_over_four`", "bytes 10", "As for one message.",
            over="raw 10", most=2.0, unit="rate",
        ),
        Row(
            "batches of 100 over executemany", "store 100", "The tokenizer, which takes longer than all of"
            " executemany; then the chain.", over="raw 100", unit="rate",
        ),
        Row(
            "batches of 100 over executemany, tokens by `bytes_over_four`", "bytes 100", "The chain, which"
            " plpgsql computes one message at a time.", over="raw 100", most=2.0, unit="rate",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._raw = Floor(bench.raw, "batches")

    def round(self) -> Mapping[str, Sequence[float]]:
        found: Samples = {}
        for size in (10, 100):
            sides = self._sides(size)
            samples = self.interleaved(sides, self.bench.repeats(600 // size), items=size)
            found |= {f"{name} {size}": values for name, values in samples.items()}
        return found

    def _sides(self, size: int) -> dict[str, Side]:
        make = partial(messages, size)
        return {
            "raw": Side(self._raw.insert_many, make),
            "store": Side(partial(self.bench.store.append, "batches"), make),
            "bytes": Side(partial(self.bench.by_bytes.append, "batches"), make),
        }


def fill(store: Store, thread: str, length: int) -> None:
    """Loads messages into a thread. Gives their token counts, so that nothing is counted."""
    store.load.messages(thread, (message(number) for number in range(length)), tokens=150)
