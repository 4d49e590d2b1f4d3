"""Times reading of whole threads, of the newest messages, of views of compacted threads, and an auditor's queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import ClassVar

from benchmarks.appending import fill
from benchmarks.contest import Bench, Contest, Side, reading
from benchmarks.corpus import messages
from benchmarks.floor import Floor
from benchmarks.rows import Row
from compaction_store import CompactionContext

_ALL = "SELECT payload::text FROM raw WHERE thread_id = %(thread)s ORDER BY seq"
_NEWEST = "SELECT payload::text FROM raw WHERE thread_id = %(thread)s ORDER BY seq DESC LIMIT 20"
_LIVE = (
    "SELECT payload FROM (SELECT start_seq, payload::text FROM folds WHERE thread_id = %(thread)s UNION ALL"
    " SELECT seq, payload::text FROM raw WHERE thread_id = %(thread)s AND seq > 9981) AS live ORDER BY start_seq"
)
_LENGTH = 10_000


class Reading(Contest):
    title = "Reading a thread of 10,000"
    name = "read"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "load 10,000 as dicts", "replay", "Parsing, and creating an object for each message. Pydantic's parser"
            " is faster than the standard one, which the raw SELECT uses.", over="raw", most=1.1, goal=0.9,
        ),
        Row("load 10,000 as dicts, async", "replay async", "As above.", over="raw", most=1.1),
        Row(
            "view of 10,000, nothing folded", "view", "As above; every message is an element.", over="raw",
        ),
        Row(
            "newest 20 of 10,000", "newest", "One call of a SQL function that sets the tenant. It is parsed in"
            " every call; the raw query is prepared.", over="raw newest", most=2.0,
        ),
        Row(
            "newest 20 of 10,000, async over sync", "newest async", "A greenlet for each call, and iterations"
            " of the event loop.", over="newest", most=1.3,
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        fill(bench.store, "read", _LENGTH)
        _copied(bench, "read")

    def round(self) -> Mapping[str, Sequence[float]]:
        bench, raw = self.bench, Floor(self.bench.raw, "read")

        async def replay(last: int | None) -> None:
            async for m in bench.aio.replay("read", last=last):
                _ = m.payload

        whole = {
            "raw": reading(lambda: raw.select(_ALL)),
            "replay": reading(lambda: [m.payload for m in bench.store.replay("read")]),
            "replay async": reading(lambda: replay(None)),
            "view": reading(lambda: bench.store.view("read").messages),
        }
        newest = {
            "raw newest": reading(lambda: raw.select(_NEWEST)),
            "newest": reading(lambda: [m.payload for m in bench.store.replay("read", last=20)]),
            "newest async": reading(lambda: replay(20)),
        }
        return self.interleaved(whole, bench.repeats(5)) | self.interleaved(newest, bench.repeats(150))


def _copied(bench: Bench, thread: str) -> None:
    """Copies a thread's messages from the store to the raw table."""
    bench.raw.execute(
        "INSERT INTO raw SELECT %s, seq, role, payload FROM compaction_store.messages WHERE thread_uid = %s",
        (thread, bench.store.thread(thread).thread_uid),
    )
    bench.raw.execute("ANALYZE raw")


def summaries(first: int, last: int, size: int) -> Callable[[CompactionContext], None]:
    """Compacts the seqs from first to last, in spans of that size."""

    def compact(ctx: CompactionContext) -> None:
        for start in range(first, last, size):
            ctx.compact(start, start + size - 1, f"summary of {start} and what follows. " + "It says little. " * 30)

    return compact


def compacted(bench: Bench, name: str, callback: Callable[[CompactionContext], object], records: int = 1) -> None:
    """Compacts a thread. Raises AssertionError unless so many records are applied; a rejected one costs less."""
    outcomes = [record.outcome for record in bench.store.compact(name, callback)]
    assert outcomes == ["applied"] * records, (len(outcomes), set(outcomes))


def alternate(ctx: CompactionContext) -> None:
    """Compacts every second message of two thousand, each in its own span."""
    for seq in range(2, 2_001, 2):
        ctx.compact(seq, seq, "put away")


class Views(Contest):
    title = "Views of folded threads"
    name = "views"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "live view of 20 among 10,000", "view", "One call of a SQL function, which is parsed in every"
            " call, and Python's work on twenty elements.", over="raw", most=2.0, goal=1.5,
        ),
        Row(
            "live view of 20 among 10,000, async over sync", "view async", "A greenlet for each call, and iterations"
            " of the event loop.", over="view", most=1.3,
        ),
        Row(
            "view of 100,000 messages with 1,000 records", "large", "Finding the active records among all records"
            " of the thread; messages are found by range.",
        ),
        Row(
            "view of 100,000 messages with 1,000 records, p95", "large", "As above.", most=0.05, figure="p95",
        ),
        Row(
            "view of 2,000 messages, every other one folded by itself", "alternate", "A query for each record and"
            " each gap, and an object for each element.",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        fill(bench.store, "folded", _LENGTH)
        compacted(bench, "folded", summaries(1, 9_981, 9_981))
        _copied(bench, "folded")
        [summary] = bench.store.compactions("folded")
        assert summary.replacement is not None
        bench.raw.execute("CREATE TABLE folds (thread_id text, start_seq bigint, end_seq bigint, payload json)")
        bench.raw.execute(
            "INSERT INTO folds VALUES ('folded', 1, 9981, %s)", (json.dumps(next(iter(summary.replacement))),)
        )
        bench.raw.execute("ANALYZE folds")
        assert len(bench.store.view("folded").elements) == 20
        audited(bench)
        fill(bench.store, "alternate", 2_000)
        compacted(bench, "alternate", alternate, 1_000)

    def round(self) -> Mapping[str, Sequence[float]]:
        bench, raw = self.bench, Floor(self.bench.raw, "folded")

        async def view() -> None:
            _ = (await bench.aio.view("folded")).messages

        small = {
            "raw": reading(lambda: raw.select(_LIVE)),
            "view": reading(lambda: bench.store.view("folded").messages),
            "view async": reading(view),
        }
        large = {
            "large": reading(lambda: bench.store.view("audited").messages),
            "alternate": reading(lambda: bench.store.view("alternate").messages),
        }
        return self.interleaved(small, bench.repeats(150)) | self.interleaved(large, bench.repeats(50))


def audited(bench: Bench) -> None:
    """Makes a thread with 100,000 messages and a thousand records, most of which are superseded."""
    if any(thread.thread_id == "audited" for thread in islice(bench.store.threads(after="audite"), 1)):
        return
    fill(bench.store, "audited", 100_000)
    for size in (110, 1_100, 11_000):
        compacted(bench, "audited", summaries(1, 99_000, size), 99_000 // size)
    compacted(bench, "audited", summaries(99_001, 99_901, 900))


class WideViews(Contest):
    title = "Compacting a wide view"
    name = "wide"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "a compaction in a view of 10,000 elements over one of 100", "wide", "The view is read first, because the"
            " callback may look at all of it.", over="narrow",
        ),
        Row(
            "a compaction in a view of 10,000 elements over reading the view", "wide", "As above,"
            " and the commit.", over="view",
        ),
    )  # fmt: skip
    _size = 10_000

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        fill(bench.store, "wide", self._size)
        fill(bench.store, "narrow", 100)

    def round(self) -> Mapping[str, Sequence[float]]:
        store = self.bench.store
        sides = {name: Side(self._compact, partial(self._next, name)) for name in ("wide", "narrow")}
        return self.interleaved(sides | {"view": reading(lambda: store.view("wide"))}, self.bench.repeats(15))

    def _next(self, name: str) -> tuple[str, int]:
        """Appends two messages, so that the view does not shrink, and returns the seq of the pair before them.

        The appended pair has the last message of the user, which the store refuses to compact.
        """
        return name, self.bench.store.append(name, messages(2))[0].seq - 2

    def _compact(self, given: tuple[str, int]) -> None:
        name, seq = given
        compacted(self.bench, name, lambda ctx: ctx.compact(seq, seq + 1, "It says little."))


class Audits(Contest):
    title = "Compacting and auditing"
    name = "audits"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "a compaction, its text given", "compact",
            "Three calls: the view, the lease, and the commit, which returns the records. The floor is one INSERT of a"
            " text of the same length.", over="raw",
        ),
        Row(
            "first page of 100 records, p95", "first", "Making a hundred records from rows, with their texts and"
            " hashes.", most=0.02, figure="p95",
        ),
        Row(
            "later page of 100 records, p95", "later", "As above: the next page starts from a key.", most=0.02,
            figure="p95",
        ),
        Row(
            "page of 100 of 2,500 records over all of 100", "many records", "Nothing that grows with the records: for"
            " each, one look into an index for each bit of the thread's last seq.", over="few records", most=1.5,
        ),
        Row("page of 100 records of all threads, p95", "all", "As above.", most=0.02, figure="p95"),
        Row(
            "the records over one message, p95", "covering", "An index over the spans' ends.", most=0.02,
            figure="p95",
        ),
        Row(
            "explain a message, p95", "explain", "The records over it, and one element of the view.", most=0.02,
            figure="p95",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        audited(bench)
        for name, size in (("few records", 200), ("many records", 5_000)):
            fill(bench.store, name, size + 10)
            compacted(bench, name, summaries(1, size, 2), size // 2)
        bench.store.append("compacted", messages(20))
        self._raw = Floor(bench.raw, "compacted")

    def round(self) -> Mapping[str, Sequence[float]]:
        store = self.bench.store
        record = {"role": "user", "content": "It says little. " * 30}
        middle = store.compaction("audited", store.thread("audited").last_number // 2)
        asked = {
            "raw": reading(lambda: self._raw.insert(record)),
            "compact": Side(self._compact, self._more),
            "first": reading(lambda: list(islice(store.compactions("audited"), 100))),
            "later": reading(lambda: list(islice(store.compactions("audited", after=middle), 100))),
            "few records": reading(lambda: list(islice(store.compactions("few records"), 100))),
            "many records": reading(lambda: list(islice(store.compactions("many records"), 100))),
            "all": reading(lambda: list(islice(store.compactions(), 100))),
            "covering": reading(lambda: list(store.compactions("audited", covering=50_000))),
            "explain": reading(lambda: store.audit.explain("audited", 50_000)),
        }
        return self.interleaved(asked, self.bench.repeats(50))

    def _more(self) -> None:
        self.bench.store.append("compacted", messages(10))

    def _compact(self, _more: None) -> None:
        """Compacts all messages except the newest ten."""

        def fold(ctx: CompactionContext) -> None:
            ctx.compact(ctx.elements[0].seq, ctx.elements[-11].end_seq, "It says little. " * 30)

        compacted(self.bench, "compacted", fold)
