"""A primary and its synchronous standby: the standby goes away, the primary is killed, the standby takes over.

While the standby is away, Postgres keeps a commit that was cancelled, warns of it, and reports success. A caller that
trusts this loses a message when the standby takes over.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import compaction_store as cs
from reliability.rigs.book import Book, prove
from reliability.rigs.crew import Crew
from reliability.rigs.ground import Postgres, superuser
from reliability.rigs.proxy import Proxy

_PATIENCE = 60.0


@contextlib.contextmanager
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary with its synchronous standby."""
    with Postgres() as primary:
        standby = primary.standby()
        try:
            standby.start()
            _wait_for(primary, standby)
            yield primary, standby
        finally:
            standby.signal(signal.SIGCONT)
            standby.remove()


def _wait_for(primary: Postgres, standby: Postgres) -> None:
    """Makes every commit of the primary wait for the standby from now on."""
    with superuser(primary.url) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    caught_up(primary, standby)


def caught_up(primary: Postgres, standby: Postgres) -> None:
    """Returns when the primary waits for its standby, and the standby has caught up."""
    end = time.monotonic() + _PATIENCE
    query = "SELECT sync_state, replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
    while time.monotonic() < end:
        with superuser(primary.url) as connection:
            if connection.execute(query).fetchall() == [("sync", True)]:
                return
        time.sleep(0.02)
    raise AssertionError((standby.folder / "log").read_text(errors="replace")[-2000:])


def database(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


def waiting(server: Postgres) -> list[int]:
    """Returns the processes whose commit waits for the standby."""
    with superuser(server.url) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return [pid for (pid,) in connection.execute(query).fetchall()]


def run(chance: random.Random, *, failovers: int, seconds: float) -> dict[str, Any]:
    """Makes `failovers` failovers, each with a new pair. The crew works before, during and after its absence."""
    figures: dict[str, Any] = {"failovers": failovers}
    for _ in range(failovers):
        for what, figure in _fail_over(chance, seconds).items():
            figures[what] = figures.get(what, 0) + figure
    assert figures["appends of unknown outcome"], "no outcome was unknown: the rig misses its mark"
    return figures


def _fail_over(chance: random.Random, seconds: float) -> dict[str, Any]:
    book = Book()
    with pair() as (primary, standby):
        name = database(primary.database())
        caught_up(primary, standby)
        with Proxy(primary.at(name), chance) as way, Crew(way.url, book, chance) as crew:
            crew.wait(seconds)
            killed = chance.random() < 0.5
            standby.kill() if killed else standby.signal(signal.SIGSTOP)
            crew.wait(seconds)
            book.count("commits that waited when the primary was killed", len(waiting(primary)))
            primary.kill()
            standby.start() if killed else standby.signal(signal.SIGCONT)
            standby.promote()
            way.retarget(standby.at(name))
            crew.wait(seconds)
        with cs.Store.open(standby.at(name)) as store:
            return prove(store, book)
