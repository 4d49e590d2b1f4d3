"""Compares what writers, readers and compactors saw, and when, with one order of events.

The check is for lists that only grow at their end. Every read is a prefix of the final list. It has everything that was
acknowledged before it began, and nothing whose append began after it ended. It is no older than a read that ended
before it began. A batch is whole or absent. If one append ended before another began, it comes first.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import accumulate
from threading import Event
from typing import Any, NamedTuple

import compaction_store as cs
from reliability.rigs.book import TOKENS, Book, Compactor, Writer, mark_of, whole_view
from reliability.rigs.ground import Ground

_THREADS = ("h1", "h2", "h3")
_NEWEST = 50


class Append(NamedTuple):
    thread_id: str
    began: float
    ended: float
    first: int
    last: int
    marks: tuple[str, ...]


class Read(NamedTuple):
    """A read: the last seq it reached and a hash of its content. Whole lists would fill the memory."""

    thread_id: str
    how: str
    began: float
    ended: float
    seqs: tuple[int, ...]
    last: int
    digest: bytes


class History(NamedTuple):
    appends: list[Append]
    reads: list[Read]
    final: dict[str, list[str]]


def run(ground: Ground, chance: random.Random, *, messages: int) -> dict[str, Any]:
    started = time.monotonic()
    history, counted = record(ground, chance, messages)
    seconds = time.monotonic() - started
    found = violations(history)
    assert not found, f"{len(found)} violations: {found[:5]}"
    return {
        "seconds": round(seconds, 1), "messages": sum(map(len, history.final.values())),
        "appends": len(history.appends), "reads": len(history.reads),
        **Counter(f"reads by {read.how}" for read in history.reads), **counted, "violations": 0,
    }  # fmt: skip


def record(ground: Ground, chance: random.Random, messages: int) -> tuple[History, dict[str, int]]:
    """Runs eight writers, four readers and two compactors until `messages` messages are written."""
    over, book = Event(), Book()
    seeds = [random.Random(chance.random()) for _ in range(14)]
    with cs.Store.open(ground.database(), pool_size=16) as store, ThreadPoolExecutor(14) as workers:
        for thread_id in _THREADS:
            store.append(thread_id, {"role": "user", "content": f"begin-{thread_id} "}, tokens=TOKENS)
        writing = [workers.submit(_write, store, book, i, seeds[i], messages // 8) for i in range(8)]
        reading = [workers.submit(_read, store, over, seeds[i], _HOW[i - 8]) for i in range(8, 12)]
        folding = [workers.submit(_compact, store, Compactor(f"c{i}", book, seeds[i]), over) for i in (12, 13)]
        try:
            appends = [one for writer in writing for one in writer.result()]
        finally:
            over.set()
        for folder in folding:
            folder.result()
        reads = [one for reader in reading for one in reader.result()]
        final = {t: [mark_of(m.payload) for m in store.replay(t)] for t in _THREADS}
        for thread_id in _THREADS:
            whole_view(store, thread_id, len(final[thread_id]))
            assert store.audit.verify(thread_id).findings == ()
    return History(appends, reads, final), {"compactions": book.seen["compactions"]}


def _write(store: cs.Store, book: Book, number: int, chance: random.Random, count: int) -> list[Append]:
    writer = Writer(f"w{number}", book, chance)
    done = []
    while writer.next < count:
        thread_id = chance.choice(_THREADS)
        marks, messages = writer.make()
        began = time.monotonic()
        written = store.append(thread_id, messages, tokens=TOKENS)
        done.append(Append(thread_id, began, time.monotonic(), written[0].seq, written[-1].seq, tuple(marks)))
    return done


def _replay(store: cs.Store, thread_id: str) -> list[tuple[int, str]]:
    return [(m.seq, mark_of(m.payload)) for m in store.replay(thread_id)]


def _newest(store: cs.Store, thread_id: str) -> list[tuple[int, str]]:
    return [(m.seq, mark_of(m.payload)) for m in store.replay(thread_id, last=_NEWEST)]


def _view(store: cs.Store, thread_id: str) -> list[tuple[int, str]]:
    """Returns the marks of a view's messages. Its last message is never folded here."""
    elements = store.view(thread_id).elements
    shown = [seq for e in elements for seq in range(e.seq, e.end_seq + 1)]
    assert shown == list(range(1, len(shown) + 1)), "a view leaves a seq out or shows it twice"
    return [(e.seq, mark_of(e.message)) if e.number is None else (e.end_seq, "") for e in elements]


_HOW: Sequence[Callable[[cs.Store, str], list[tuple[int, str]]]] = (_replay, _newest, _view, _newest)


def _read(
    store: cs.Store, over: Event, chance: random.Random, how: Callable[[cs.Store, str], list[tuple[int, str]]]
) -> list[Read]:
    done = []
    while not over.is_set():
        thread_id = chance.choice(_THREADS)
        began = time.monotonic()
        found = how(store, thread_id)
        ended = time.monotonic()
        raw = [(seq, mark) for seq, mark in found if mark]
        seqs = tuple(seq for seq, _ in raw)
        if how is not _view:
            assert seqs == tuple(range(seqs[0], seqs[-1] + 1)), "a read leaves a seq out"
            seqs = (seqs[0],)
        digest = _digest(mark for _, mark in raw)
        done.append(Read(thread_id, how.__name__.strip("_"), began, ended, seqs, found[-1][0], digest))
    return done


def _compact(store: cs.Store, compactor: Compactor, over: Event) -> None:
    while not over.is_set():
        if not compactor.compact(store, compactor.chance.choice(_THREADS)):
            over.wait(0.02)


def _digest(marks: Any) -> bytes:
    return sha256("\n".join(marks).encode()).digest()


# ---- The check


def violations(history: History) -> list[str]:
    """Returns everything that contradicts one order of events, in words."""
    found = []
    by_thread: dict[str, list[Append]] = defaultdict(list)
    for one in sorted(history.appends, key=lambda a: a.first):
        by_thread[one.thread_id].append(one)
    for thread_id, final in history.final.items():
        appends = by_thread[thread_id]
        reads = sorted((r for r in history.reads if r.thread_id == thread_id), key=lambda r: r.began)
        found += _misplaced(appends, final)
        found += _not_prefixes(reads, final)
        found += _out_of_time(appends, reads)
        found += _out_of_order(appends)
    return found


def _misplaced(appends: list[Append], final: list[str]) -> list[str]:
    """Checks that the final list has all appends, each whole and once, and nothing else."""
    made = final[:1] + [mark for one in appends for mark in one.marks]
    if made == final and all(one.last - one.first + 1 == len(one.marks) for one in appends):
        return []
    return ["the final list is not the appends in the order of their seqs"]


def _not_prefixes(reads: list[Read], final: list[str]) -> list[str]:
    found = []
    for read in reads:
        seqs = read.seqs if read.how == "view" else range(read.seqs[0], read.last + 1)
        if read.last > len(final) or _digest(final[seq - 1] for seq in seqs) != read.digest:
            found.append(f"a {read.how} to seq {read.last} is no part of the final list")
    return found


def _out_of_time(appends: list[Append], reads: list[Read]) -> list[str]:
    found = []
    ended = sorted((a.ended, a.last) for a in appends)
    least = list(accumulate((last for _, last in ended), max))
    began = list(accumulate((a.began for a in appends), max))
    lasts = [a.last for a in appends]
    over = sorted((r.ended, r.last) for r in reads)
    seen = list(accumulate((last for _, last in over), max))
    for read in reads:
        n = bisect_left(ended, (read.began, 0))
        if n and least[n - 1] > read.last:
            found.append(f"stale: a {read.how} to seq {read.last} began after seq {least[n - 1]} was acknowledged")
        n = bisect_left(over, (read.began, 0))
        if n and seen[n - 1] > read.last:
            found.append(f"backwards: a {read.how} to seq {read.last} began after one to {seen[n - 1]} had ended")
        n = bisect_left(lasts, read.last)
        if read.last > 1 and (n == len(lasts) or lasts[n] != read.last):
            found.append(f"split: a {read.how} ends at seq {read.last}, inside a batch")
        elif read.last > 1 and began[n] > read.ended:
            found.append(f"from the future: a {read.how} shows what was begun after it ended")
    return found


def _out_of_order(appends: list[Append]) -> list[str]:
    earliest = list(accumulate((a.ended for a in reversed(appends)), min))[::-1]
    return [
        f"reordered: seq {a.first} was begun after a later seq was acknowledged"
        for a, after in zip(appends, earliest[1:], strict=False)
        if after < a.began
    ]
