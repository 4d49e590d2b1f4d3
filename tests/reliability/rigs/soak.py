"""Mixed load under random faults, for any time. Memory and connections must not grow.

Sixteen writers, two compactors, a reader that verifies as it goes, and one that redacts. Faults: kill -9 of the whole
server or of a single backend, connections cut, slow and stalled ones, a server frozen for a moment, calls cancelled.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import compaction_store as cs
from reliability.rigs.book import Book, marked, prove
from reliability.rigs.crew import THREADS, Crew
from reliability.rigs.ground import Postgres, superuser
from reliability.rigs.proxy import Plan, Proxy

_ASIDE = "aside"
_PAGE = os.sysconf("SC_PAGE_SIZE")
# The first fifth of the samples is not compared: caches fill in the first minutes, which is not a leak.
_WARM = 5
_GROWTH = 0.10


def run(server: Postgres, chance: random.Random, *, seconds: float, pause: float) -> dict[str, Any]:
    """Runs for `seconds`, with a fault after each pause."""
    with tempfile.TemporaryFile("w+") as file:
        return _run(server, chance, seconds, pause, Book(file))


def _run(server: Postgres, chance: random.Random, seconds: float, pause: float, book: Book) -> dict[str, Any]:
    url = server.database()
    seen, over = Counter[str](), Event()
    memory: list[int] = []
    connections: list[int] = []
    end = time.monotonic() + seconds
    with Proxy(url, random.Random(chance.random()), _CALM) as proxy:
        aside = [
            Thread(target=lambda: asyncio.run(_cancelling(proxy.url, random.Random(chance.random()), over, seen))),
            Thread(target=_looking, args=(proxy.url, over, seen)),
        ]
        with Crew(proxy.url, book, chance) as crew:
            for worker in aside:
                worker.start()
            faults = _faults(server, proxy, url, crew, chance)
            turn = 0
            while time.monotonic() < end:
                crew.wait(pause * chance.uniform(0.5, 1.5))
                # Take each fault in turn, so that even the shortest run has all of them.
                name, fault = faults[turn % len(faults)]
                turn += 1
                fault()
                seen[f"fault: {name}"] += 1
                memory.append(_resident())
                with suppress(Exception):
                    connections.append(_server_connections(url))
            over.set()
            for worker in aside:
                worker.join(60)
                assert not worker.is_alive()
        seen.update({what: n for what, n in proxy.seen.items() if what != "requests"})
    assert not seen["broken"], "a worker broke down"
    with cs.Store.open(url) as store:
        figures = prove(store, book)
        assert store.audit.verify(_ASIDE).findings == ()
    return {**_flat(memory, connections, seconds), **seen, **figures, "invariants broken": 0}


_CALM = Plan(before=0.002, after=0.002, slow=0.02, slowest=0.05, stall=0.0005, stalled=2.0)
_STORM = Plan(before=0.1, after=0.1, slow=0.2, slowest=0.1, stall=0.005, stalled=1.0)


def _faults(
    server: Postgres, proxy: Proxy, url: str, crew: Crew, chance: random.Random
) -> list[tuple[str, Callable[[], None]]]:
    def kill_server() -> None:
        server.kill()
        crew.wait(chance.uniform(0, 0.5))
        server.start()

    def kill_backends() -> None:
        with superuser(url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'compaction-store' AND random() < 0.5"
            )

    def kill_backend_hard() -> None:
        with superuser(url) as connection:
            row = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'compaction-store' LIMIT 1"
            ).fetchone()
        if row is not None:
            with suppress(ProcessLookupError):
                os.kill(row[0], signal.SIGKILL)

    def freeze() -> None:
        server.signal(signal.SIGSTOP)
        crew.wait(chance.uniform(0.1, 1.0))
        server.signal(signal.SIGCONT)

    def storm() -> None:
        proxy.plan = _STORM
        crew.wait(chance.uniform(0.2, 1.0))
        proxy.plan = _CALM

    return [
        ("kill -9 of the server", kill_server), ("backends terminated", kill_backends), ("a storm of cuts", storm),
        ("the server frozen", freeze), ("kill -9 of a backend", kill_backend_hard),
    ]  # fmt: skip


async def _cancelling(url: str, chance: random.Random, over: Event, seen: Counter[str]) -> None:
    """Cancels calls, and settles them by key."""
    try:
        store = await _opened(url)
        number = 0
        async with store:
            # On a busy machine, a short run may be over before the store is open.
            while number == 0 or not over.is_set():
                number += 1
                key = f"k{number}"
                call = asyncio.create_task(store.append(_ASIDE, marked(key), key=key, tokens=1))
                await asyncio.sleep(chance.uniform(0, 0.01))
                call.cancel()
                with suppress(asyncio.CancelledError, cs.DatabaseError):
                    await call
                while True:
                    with suppress(cs.DatabaseError):
                        [written] = await store.append(_ASIDE, marked(key), key=key, tokens=1)
                        break
                assert written.seq == number, f"{key} is seq {written.seq}"
                seen["calls cancelled"] += 1
                if number % 50 == 0:
                    with suppress(cs.DatabaseError):
                        await store.custody.redact(_ASIDE, [number - 10], reason="a rig")
                        seen["redactions"] += 1
    except Exception:
        seen["broken"] += 1
        raise


async def _opened(url: str) -> cs.AsyncStore:
    while True:
        with suppress(cs.DatabaseUnavailable):
            return await cs.AsyncStore.open(url, pool_size=4)
        await asyncio.sleep(0.05)


def _looking(url: str, over: Event, seen: Counter[str]) -> None:
    """Reads, audits and verifies the end of the threads while everybody else works on them."""
    standing: dict[str, cs.Report] = {}
    try:
        while not over.is_set():
            for thread_id in (*THREADS, _ASIDE):
                with suppress(cs.DatabaseError, cs.ThreadNotFound), cs.Store.open(url, pool_size=1) as store:
                    report = store.audit.verify(thread_id, since=standing.get(thread_id))
                    assert report.findings == (), report.findings[:3]
                    standing[thread_id] = report
                    list(store.replay(thread_id, last=50))
                    seen["verifications under load"] += 1
                over.wait(0.1)
    except Exception:
        seen["broken"] += 1
        raise


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _server_connections(url: str) -> int:
    with superuser(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'compaction-store'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _flat(memory: list[int], connections: list[int], seconds: float) -> dict[str, Any]:
    """Checks the growth from the second fifth of the run to the last, by the medians."""
    part = max(1, len(memory) // _WARM)
    begun, ended = median(memory[part : 2 * part] or memory), median(memory[-part:])
    growth = ended / begun - 1
    # The writers have four pools of four, the compactors two of two; the others have four and one.
    most = 2 * 10 + 4 + 1
    assert max(connections) <= most, f"{max(connections)} connections of at most {most}"
    if len(memory) > 10 * _WARM:
        assert growth < _GROWTH, f"memory grew by {growth:.0%}"
    return {
        "seconds": round(seconds), "memory, MiB": f"{begun / 2**20:.0f} to {ended / 2**20:.0f}",
        "growth, %": round(100 * growth, 1), "most connections": max(connections), "connections allowed": most,
    }  # fmt: skip
