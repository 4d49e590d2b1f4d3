"""kill -9 of every process of Postgres, under sixteen writers and two compactors."""

from __future__ import annotations

import random
import time
from typing import Any

import compaction_store as cs
from reliability.rigs.book import Book, prove
from reliability.rigs.crew import Crew
from reliability.rigs.ground import Postgres

_LONGEST_PAUSE = 20.0


def run(server: Postgres, chance: random.Random, *, kills: int, appends: int) -> dict[str, Any]:
    """Makes at least `kills` kills, and continues until `appends` appends are acknowledged."""
    url = server.database()
    book = Book()
    started = time.monotonic()
    cycles = processes = 0
    downtime = 0.0
    with Crew(url, book, chance) as crew:
        while cycles < kills or book.seen["appends acknowledged"] < appends:
            crew.wait(chance.uniform(0.5, 1.5) * _pause(book, started, appends, kills - cycles))
            down = time.monotonic()
            processes += server.kill()
            crew.wait(chance.uniform(0, 0.3))
            server.start()
            downtime += time.monotonic() - down
            cycles += 1
    seconds = time.monotonic() - started
    with cs.Store.open(url) as store:
        figures = prove(store, book)
    assert book.seen["appends of unknown outcome"], "no kill left an outcome unknown: the rig misses its mark"
    return {
        "kills": cycles, "processes killed": processes, "seconds": round(seconds, 1),
        "seconds without a server": round(downtime, 1), **figures,
    }  # fmt: skip


def _pause(book: Book, started: float, appends: int, kills: int) -> float:
    """Returns a pause that spreads the kills over the remaining appends."""
    done = book.seen["appends acknowledged"]
    pace = max(100.0, done / (time.monotonic() - started))
    return min(_LONGEST_PAUSE, max(0.3, (appends - done) / pace / max(1, kills)))
