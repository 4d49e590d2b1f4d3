"""Times `load` with a hundred thousand messages in one thread or in many, always into a new database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import psycopg

from benchmarks import databases, floor
from benchmarks.contest import Bench, Contest, reading
from benchmarks.corpus import messages
from benchmarks.rows import Row
from compaction_store import Store, migrate, tokens
from compaction_store.messages.encoding import encode

_COUNT = 100_000
_SHORT = 50


class Loading(Contest):
    title = "Bulk loads"
    name = "load"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "load of 100,000 over COPY", "load", "Python on one core, and the server's hashing of the chain; if it"
            " is given a list, the loader prepares the next chunk in the meantime.", over="copy", most=2.5, unit="rate",
        ),
        Row(
            "load of 100,000, counted, over the tokenizer alone", "counted", "The tokenizer.", over="tokenizer",
            most=1 / 0.7, unit="rate",
        ),
        Row(
            "load of 2,000 threads of 50", "threads", "As for one thread, and making each thread: two rows and three"
            " index entries. Two hundred threads share a transaction.", most=1 / 20_000, unit="rate",
        ),
        Row(
            "load of 2,000 threads of 50, one by one, over the same together", "one by one", "Three calls and a commit"
            " for each thread.", over="threads", unit="rate",
        ),
        Row(
            "load of 2,000 threads of 50, counted, over the tokenizer alone", "threads counted", "The tokenizer.",
            over="tokenizer", unit="rate",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._messages = messages(_COUNT)
        self._counter = tokens.o200k_base()
        self._counter.prepare()

    def round(self) -> Mapping[str, Sequence[float]]:
        with databases.beside(self.bench.url, "load") as url:
            migrate.upgrade(url)
            with psycopg.connect(url, autocommit=True) as raw, Store.open(databases.application(url)) as store:
                floor.create(raw)
                side = floor.Floor(raw, "copied")
                sides = {
                    "copy": reading(lambda: side.copy(self._messages)),
                    "load": reading(lambda: store.load.messages("given", self._messages, tokens=150)),
                    "tokenizer": reading(self._count),
                    "counted": reading(lambda: store.load.messages("counted", self._messages)),
                    "threads": reading(lambda: _drain(store.load.threads(self._threads("given"), tokens=150))),
                    "one by one": reading(lambda: self._one_by_one(store)),
                    "threads counted": reading(lambda: _drain(store.load.threads(self._threads("counted")))),
                }
                return self.interleaved(sides, 1, items=_COUNT)

    def _threads(self, prefix: str) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
        for start in range(0, _COUNT, _SHORT):
            yield f"{prefix}-{start}", self._messages[start : start + _SHORT]

    def _one_by_one(self, store: Store) -> None:
        for thread_id, given in self._threads("alone"):
            store.load.messages(thread_id, given, tokens=150)

    def _count(self) -> None:
        for message in self._messages:
            self._counter.tokens(message, encode(message).size)


def _drain(results: Iterable[object]) -> None:
    for _ in results:
        pass
