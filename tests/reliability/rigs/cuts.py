"""A proxy that cuts one request in twenty before it arrives and one in twenty after it was served, and slows others."""

from __future__ import annotations

import random
import time
from typing import Any

import compaction_store as cs
from reliability.rigs.book import Book, prove
from reliability.rigs.crew import Crew
from reliability.rigs.ground import Ground
from reliability.rigs.proxy import Plan, Proxy

PLAN = Plan(before=0.05, after=0.05, slow=0.05, slowest=0.02, stall=0.002, stalled=1.0)


def run(ground: Ground, chance: random.Random, *, appends: int, compactions: int) -> dict[str, Any]:
    url = ground.database()
    book = Book()
    started = time.monotonic()
    with Proxy(url, random.Random(chance.random()), PLAN) as proxy:
        with Crew(proxy.url, book, chance) as crew:
            while book.seen["appends acknowledged"] < appends or book.seen["compactions"] < compactions:
                crew.wait(0.1)
        seen = proxy.seen
    seconds = time.monotonic() - started
    assert seen["cut before"], "nothing was cut before the server heard of it"
    assert seen["cut after"], "nothing was cut after it was served"
    with cs.Store.open(url) as store:
        figures = prove(store, book)
    return {"seconds": round(seconds, 1), **seen, **figures}
