"""Times the same calls in a small store and in a large one: messages of a thread, threads, and records of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar

import psycopg

from benchmarks import databases
from benchmarks.appending import fill
from benchmarks.contest import Bench, Contest, Side, reading
from benchmarks.corpus import message
from benchmarks.reading import compacted, summaries
from benchmarks.rows import Row
from benchmarks.subjects import FILL
from compaction_store import Store, TokenBudget, migrate

_MOST = 1.2
_LIVE = 20


def _all(read: Callable[..., Iterable[object]], *given: object, most: int | None = None) -> Side:
    return reading(lambda: list(islice(read(*given), most)))


class Million(Contest):
    title = "A thread of a million messages, beside one of a hundred"
    name = "million"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "append to 1,000,000 messages over append to 100", "append long", "The head is one row; the indexes are"
            " larger and still in memory.", over="append short", most=_MOST,
        ),
        Row(
            "live view of 20 among 1,000,000 over 20 among 100", "view long", "The records in force are found by"
            " index.", over="view short", most=_MOST,
        ),
        Row("newest 20 of 1,000,000 over 20 of 100", "newest long", "As above.", over="newest short", most=_MOST),
        Row(
            "20 from the middle of 1,000,000 over 20 of 100", "page long", "As above.", over="page short", most=_MOST,
        ),
    )  # fmt: skip
    _sizes: ClassVar[Mapping[str, int]] = {"long": 1_000_000, "short": 100}

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        for name, size in self._sizes.items():
            # Each block is folded before the next, so that no callback gets a view of a million messages.
            for start in range(0, size, 100_000):
                fill(bench.store, f"grown {name}", min(size - start, 100_000))
                self._fold(f"grown {name}")

    def _fold(self, name: str) -> None:
        """Removes all from the view but the newest messages. A summary would be compared with what it replaces."""
        compacted(self.bench, name, lambda ctx: ctx.remove(ctx.elements[0].seq, ctx.elements[-_LIVE - 1].end_seq))

    def round(self) -> Mapping[str, Sequence[float]]:
        store = self.bench.store
        sides: dict[str, Side] = {}
        appends: dict[str, Side] = {}
        for name, size in self._sizes.items():
            thread = f"grown {name}"
            middle = partial(store.replay, after=size // 2, until=size // 2 + _LIVE)
            sides |= {
                f"view {name}": _all(lambda of: store.view(of).messages, thread),
                f"newest {name}": _all(partial(store.replay, last=_LIVE), thread),
                f"page {name}": _all(middle, thread),
            }
            appends[f"append {name}"] = Side(partial(store.append, thread), message)
        found = self.interleaved(sides, self.bench.repeats(150)) | self.interleaved(appends, self.bench.repeats(300))
        for name in self._sizes:
            self._fold(f"grown {name}")
        return found


class MillionThreads(Contest):
    title = "A store of a million threads, beside one of a thousand"
    name = "million-threads"
    rows: ClassVar[Sequence[Row]] = tuple(
        Row(
            f"{what}, of 1,000,000 threads over 1,000", f"{what} many", "The index is two levels deeper, and pages that"
            " are not in shared_buffers are read from the system's cache.", over=f"{what} few", most=_MOST,
        )
        for what in (
            "append to any thread", "first 50 by name", "first 50 of the newest",
            "10 of a subject", "first 50 that are due",
        )
    )  # fmt: skip
    _sizes: ClassVar[Mapping[str, int]] = {"many": 1_000_000, "few": 1_000}

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._stores: dict[str, Store] = {}
        for name, size in self._sizes.items():
            url = bench.stack.enter_context(databases.beside(bench.url, f"threads_{name}"))
            migrate.upgrade(url)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(FILL, {"n": size})
                connection.execute("VACUUM (ANALYZE) compaction_store.threads, compaction_store.heads")
            self._stores[name] = bench.stack.enter_context(Store.open(databases.application(url)))

    def round(self) -> Mapping[str, Sequence[float]]:
        budget = TokenBudget(32_000)
        sides: dict[str, Side] = {}
        for name, store in self._stores.items():
            size = self._sizes[name]
            # The step is a prime, so that every thread is used once before any thread is used again.
            names = (f"chat/{1 + number * 7_919 % size}" for number in count())
            calls = {
                "append to any thread": Side(partial(_append, store), partial(_given, names)),
                "first 50 by name": _all(partial(store.threads, limit=50)),
                "first 50 of the newest": _all(partial(store.threads, order="recent", limit=50)),
                "10 of a subject": _all(partial(store.threads, subject="customer-17")),
                "first 50 that are due": _all(partial(store.due, budget), most=50),
            }
            sides |= {f"{what} {name}": side for what, side in calls.items()}
        return self.interleaved(sides, self.bench.repeats(150))


def _given(names: Iterator[str]) -> tuple[str, dict[str, Any]]:
    return next(names), message()


def _append(store: Store, given: tuple[str, dict[str, Any]]) -> None:
    store.append(*given)


class ManyRecords(Contest):
    title = "A thread with ten thousand records, beside one with a hundred"
    name = "records"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "page of 100 of 10,000 records over all of 100", "page many", "For each record, one look into an index"
            " for each bit of the thread's last seq.", over="page few", most=_MOST,
        ),
        Row("append to 10,000 records over append to 100", "append many", "None.", over="append few", most=_MOST),
        Row(
            "the records over one message, of 10,000 over 100", "covering many", "An index over the spans' ends.",
            over="covering few", most=_MOST,
        ),
    )  # fmt: skip
    _sizes: ClassVar[Mapping[str, int]] = {"many": 10_000, "few": 100}

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        for name, size in self._sizes.items():
            thread, step = f"recorded {name}", min(size, 1_000)
            fill(bench.store, thread, 2 * size + 10)
            for first in range(1, 2 * size, 2 * step):
                compacted(bench, thread, summaries(first, first + 2 * step - 1, 2), step)

    def round(self) -> Mapping[str, Sequence[float]]:
        store = self.bench.store
        sides: dict[str, Side] = {}
        for name, size in self._sizes.items():
            thread = f"recorded {name}"
            sides |= {
                f"page {name}": _all(store.compactions, thread, most=100),
                f"append {name}": Side(partial(store.append, thread), message),
                f"covering {name}": _all(partial(store.compactions, covering=size), thread),
            }
        return self.interleaved(sides, self.bench.repeats(100))
