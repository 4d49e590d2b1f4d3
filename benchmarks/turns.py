"""Times an append through a turn, a turn without an append, and a waiting turn's request, compared with an append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar
from uuid import uuid4

from benchmarks.contest import Bench, Contest, Side, reading
from benchmarks.corpus import message
from benchmarks.rows import Row
from compaction_store.postgres import queries
from compaction_store.postgres.queries import ThreadKey


class Turns(Contest):
    title = "Turns, one caller"
    name = "turns"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "an append through a turn over an append", "in turn", "One row lock more in the same call: the turn stays"
            " until the append is committed.", over="append",
        ),
        Row(
            "a turn without an append over an append", "turn", "Two calls that insert, change and delete one row, and"
            " a thread that renews the lease. None waits for the disk.", over="append",
        ),
        Row(
            "asking again while another turn has the thread, over an append", "asking", "One call that reads a row and"
            " writes nothing.", over="append",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        store = bench.store
        held = bench.stack.enter_context(store.turn("turn-held", lease=3600))

        def take() -> None:
            with store.turn("turn-taken"):
                pass

        waiting = (ThreadKey(None, "default", "turn-held"), uuid4(), None, 30.0, False)
        self._sides = {
            "append": Side(partial(store.append, "turn-append"), message),
            "in turn": Side(held.append, message),
            "turn": reading(take),
            "asking": reading(lambda: store._db.call(queries.take_turn, *waiting)),  # noqa: SLF001
        }
        for side in self._sides.values():
            for _ in range(10):
                bench.timed(side)

    def round(self) -> Mapping[str, Sequence[float]]:
        return self.interleaved(self._sides, self.bench.repeats(300))
