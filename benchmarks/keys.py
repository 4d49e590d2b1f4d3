"""Compares thread_uids in the order of creation with random ones: how much an append writes and costs in a large store.

Two databases get the same threads. In one of them, the function that makes a thread_uid returns a random one. After a
checkpoint, the first change of each block writes the whole block to the WAL, so the WAL shows over how many blocks the
appends are spread. The server must be on this machine, because the processor time of its process is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import psycopg

from benchmarks import databases
from benchmarks.contest import Bench, Contest
from benchmarks.corpus import messages
from benchmarks.rows import Row
from compaction_store import Store, migrate

_YOUNG = 1_000
_HOT = 2_000
_RANDOM = """
    ALTER TABLE compaction_store.threads DROP CONSTRAINT threads_thread_uid_check;
    CREATE OR REPLACE FUNCTION compaction_store.new_thread_uid(p_born_at timestamptz) RETURNS uuid
    LANGUAGE sql AS 'SELECT gen_random_uuid()';
"""


class Keys(Contest):
    title = "Keys in the order of birth, over random keys"
    name = "keys"
    rows: ClassVar[Sequence[Row]] = (
        Row(
            "WAL of an append to one of the newest 1,000 of 500,000 threads, after a checkpoint", "wal born",
            "Each of these threads has its own rows; with keys in order, their index entries share blocks.",
            over="wal random", unit="bytes",
        ),
        Row("whole blocks in that WAL", "blocks born", "As above.", over="blocks random", unit="blocks"),
        Row(
            "the server's processor, append to one thread of 500,000", "hot born", "No bound: one thread's blocks stay"
            " in memory with either key.", over="hot random",
        ),
    )  # fmt: skip

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._threads = 20_000 if bench.quick else 500_000
        self._urls = {}
        for kind in ("born", "random"):
            url = bench.stack.enter_context(databases.beside(bench.url, f"keys_{kind}"))
            migrate.upgrade(url)
            if kind == "random":
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(_RANDOM)
            self._urls[kind] = url
            items = messages(2)
            with Store.open(databases.application(url)) as store:
                made = ((_name(number), items) for number in range(self._threads))
                for _loaded in store.load_threads(made, tokens=150):
                    pass
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def round(self) -> Mapping[str, Sequence[float]]:
        found: dict[str, Sequence[float]] = {}
        for kind, url in self._urls.items():
            written, blocks = self._young(url)
            found |= {f"wal {kind}": [written], f"blocks {kind}": [blocks], f"hot {kind}": [self._hot(url)]}
        return found

    def _young(self, url: str) -> tuple[float, float]:
        """Returns the bytes of WAL for each append to a young thread, and the number of whole blocks in them."""
        [item] = messages(1)
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("CHECKPOINT")
            before = _wal(raw)
            with Store.open(databases.application(url), pool_size=1) as store:
                for number in range(self._threads - _YOUNG, self._threads):
                    store.append(_name(number), item, tokens=150)
            after = _wal(raw)
        return (after[0] - before[0]) / _YOUNG, (after[1] - before[1]) / _YOUNG

    def _hot(self, url: str) -> float:
        """Returns the server's processor time for each append to one thread, in seconds."""
        [item] = messages(1)
        name = _name(self._threads // 2)
        with (
            psycopg.connect(url, autocommit=True) as raw,
            Store.open(databases.application(url), pool_size=1) as store,
        ):
            store.append(name, item, tokens=150)
            pids = raw.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            ).fetchall()
            before = sum(_processor(pid) for [pid] in pids)
            for _ in range(_HOT):
                store.append(name, item, tokens=150)
            return (sum(_processor(pid) for [pid] in pids) - before) / _HOT


def _name(number: int) -> str:
    return f"thread-{number}"


def _wal(raw: psycopg.Connection) -> tuple[int, int]:
    """Returns the end of the WAL, and how many whole blocks the server has written to it.

    A server process may report its counts only when its connection ends.
    """
    raw.execute("SELECT pg_stat_clear_snapshot()")
    found = raw.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, wal_fpi FROM pg_stat_wal").fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def _processor(pid: int) -> float:
    """Returns the processor time that a process has used, in seconds."""
    # Split after the name, which is in parentheses and may have spaces. Fields 14 and 15 are user and system time.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
