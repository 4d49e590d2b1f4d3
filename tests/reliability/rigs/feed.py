"""Sixteen writers, and a reader of the feed that is killed again and again: no gap, no double, threads in order.

The writers append, load, compact and record events. Some write to several threads in one transaction that has its
number long before it writes, so numbers of transactions and positions in threads cross. The reader is a process that
writes down each entry, is killed by SIGKILL, and goes on from the last entry that it wrote down.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
from support.paths import ROOT, TESTS

import compaction_store as cs
from reliability.rigs.ground import Ground, superuser

_WRITERS = 16
_THREADS = [f"t{i}" for i in range(40)]
_PATIENCE = 120.0
_CHILD = """
import sys, time
import compaction_store as cs
url, path, after = sys.argv[1:]
after = after or None
with cs.Store.open(url) as store, open(path, "ab", buffering=0) as notes:
    while True:
        for entry in store.audit.feed(after=after, messages=True):
            after = entry.cursor
            notes.write(f"{after} {entry.thread_id} {entry.pos}\\n".encode())
        time.sleep(0.01)
"""
_APPEND = (
    'SELECT compaction_store.append(NULL, \'default\', %s, \'{"role":"user","content":"hi"}\','
    " decode(md5(random()::text), 'hex'), 'user', 1, 'caller', NULL, NULL, NULL, NULL)"
)


class _Writers:
    def __init__(self, url: str, chance: random.Random, entries: int) -> None:
        self._url = url
        self._left = entries
        self._lock = threading.Lock()
        self._seeds = [chance.random() for _ in range(_WRITERS)]
        self.figures: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(_WRITERS)
        self._working = [self._pool.submit(self._write, seed) for seed in self._seeds]

    def is_done(self) -> bool:
        return all(worker.done() for worker in self._working)

    def finish(self) -> None:
        for worker in self._working:
            worker.result(_PATIENCE)
        self._pool.shutdown()

    def _count(self, what: str, entries: int) -> bool:
        with self._lock:
            self.figures[what] += 1
            self._left -= entries
            return self._left > 0

    def _write(self, seed: float) -> None:
        chance = random.Random(seed)
        with cs.Store.open(self._url, pool_size=1) as store, psycopg.connect(self._url) as raw:
            more = True
            while more:
                what = chance.choices(("append", "batch", "load", "event", "fold", "late"), (30, 20, 5, 5, 5, 15))[0]
                more = self._count(*self._one(what, store, raw, chance))

    def _one(self, what: str, store: cs.Store, raw: psycopg.Connection[Any], chance: random.Random) -> tuple[str, int]:
        thread = chance.choice(_THREADS)
        messages = [{"role": "user", "content": "hi"}] * chance.randrange(2, 30)
        if what == "late":
            # In the order of names, so that two of them do not deadlock.
            threads = sorted(chance.sample(_THREADS, 3))
            raw.execute("SELECT pg_current_xact_id()")
            time.sleep(chance.random() * 0.02)
            for name in threads:
                raw.execute(_APPEND, [name])
            raw.commit() if chance.random() < 0.8 else raw.rollback()
            return "transactions with an early number", 3
        if what == "load":
            store.load.messages(thread, messages, tokens=1)
            return "loads", len(messages)
        store.append(thread, messages if what == "batch" else messages[0], tokens=1)
        if what == "event":
            store.custody.hold(thread, reason="claim")
        elif what == "fold":
            # Another writer may fold the same messages.
            with contextlib.suppress(cs.SpanConflict):
                store.compact(thread, lambda ctx: ctx.remove(ctx.elements[-3].seq, ctx.elements[-2].end_seq))
        return f"writes of {what}", len(messages) if what == "batch" else 1


def run(ground: Ground, chance: random.Random, *, entries: int, kills: int) -> dict[str, Any]:
    url = ground.database()
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.touch()
        with cs.Store.open(url) as store:
            for name in _THREADS:
                store.append(name, {"role": "user", "content": "hi"}, tokens=1)
        writers = _Writers(url, chance, entries)
        killed = 0
        while killed < kills or not writers.is_done():
            child = _reader(url, notes)
            time.sleep(chance.uniform(0.4, 1.5))
            child.send_signal(signal.SIGKILL)
            child.wait()
            killed += 1
        writers.finish()
        with superuser(url) as connection:
            heads = dict(
                connection.execute(
                    "SELECT t.thread_id, h.last_pos FROM compaction_store.threads AS t"
                    " JOIN compaction_store.heads AS h USING (thread_uid)"
                ).fetchall()
            )
        child = _reader(url, notes)
        end = time.monotonic() + _PATIENCE
        while len(_noted(notes)) < sum(heads.values()):
            assert time.monotonic() < end, "the feed lacks entries"
            time.sleep(0.1)
        # Whatever comes now is too much.
        time.sleep(0.3)
        child.send_signal(signal.SIGKILL)
        child.wait()
        found = _noted(notes)
    positions: dict[str, list[int]] = {name: [] for name in heads}
    for _, name, pos in found:
        positions[name].append(int(pos))
    for name, last in heads.items():
        assert positions[name] == list(range(1, last + 1)), f"the feed of {name} has a gap, a double or another order"
    crossed = _crossed(url)
    assert crossed, "no transaction crossed another: the rig misses its mark"
    return {
        **writers.figures, "entries": len(found), "readers killed": killed,
        "entries written by a transaction with a lower number than the entry before": crossed,
        "gaps": 0, "doubles": 0, "entries in another order": 0,
    }  # fmt: skip


def _crossed(url: str) -> int:
    """Returns how many messages were written by a transaction with a lower number than that of an earlier message."""
    with superuser(url) as connection:
        [(count,)] = connection.execute(
            "SELECT count(*) FROM (SELECT m.xmin::text::bigint AS own, m.feed_xid FROM compaction_store.messages AS m)"
            " AS w WHERE w.own < w.feed_xid"
        ).fetchall()
    return int(count)


def _noted(notes: Path) -> list[list[str]]:
    return [line.split(" ") for line in notes.read_text().splitlines()]


def _reader(url: str, notes: Path) -> subprocess.Popen[bytes]:
    """Starts a reader that goes on after the last entry that was written down whole."""
    text = notes.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        notes.write_bytes(whole)
    last = whole.splitlines()[-1].split(b" ")[0].decode() if whole else ""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(f) for f in (ROOT, TESTS, TESTS / "reliability"))}
    return subprocess.Popen((sys.executable, "-c", _CHILD, url, str(notes), last), env=environment)
