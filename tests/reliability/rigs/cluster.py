"""A Citus cluster whose nodes are killed, whose shards are moved, and which grows by a node, under crew and forkers.

It works on a cluster that is running, such as that of `scripts/citus-cluster`, in a database of its own. It kills the
servers of the given data folders and starts them again.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import compaction_store as cs
from compaction_store.distribution import rebalance
from reliability.rigs.book import Book, prove
from reliability.rigs.crew import Crew
from reliability.rigs.forking import Forkers
from reliability.rigs.nodes import Cluster, Node

# Half of the appends go to a few threads. The others go to many, so that threads are born during the whole run, which
# takes a transaction over two nodes.
_HOT = tuple(f"t{i}" for i in range(1, 13))
_PATIENCE = 180.0


def run(chance: random.Random, url: str, folders: list[Path], *, rounds: int, shards: int) -> dict[str, Any]:
    """Makes every fault `rounds` times, in a random order, and adds a node in the middle."""
    cluster = Cluster(url, folders, f"rig_{os.getpid()}", shards=shards)
    try:
        return _run(cluster, chance, rounds)
    finally:
        cluster.remove()


def _run(cluster: Cluster, chance: random.Random, rounds: int) -> dict[str, Any]:
    book, seen = Book(), Counter[str]()
    cold = tuple(f"cold-{i}" for i in range(60 * rounds))
    started = time.monotonic()
    forkers = Forkers(cluster.url, chance, cold)
    with ThreadPoolExecutor(1) as aside, Crew(cluster.url, book, chance, _threads(cold)) as crew, forkers:
        faults = _Faults(cluster, crew, chance, aside, seen)
        crew.wait(2)
        for number in range(rounds):
            if number == rounds // 2:
                faults.add_node()
            for name, fault in chance.sample(faults.all(), len(faults.all())):
                crew.wait(chance.uniform(0.5, 3))
                fault()
                seen[name] += 1
        crew.wait(3)
    seconds = time.monotonic() - started
    rebalance(cluster.url)
    left = cluster.settle()
    with cs.Store.open(cluster.url) as store:
        figures = {**prove(store, book), **forkers.prove(store)}
        findings = [finding for report in store.audit.verify() for finding in report.findings]
        findings += store.audit.verify(_HOT[0], level="schema").findings
    assert findings == [], findings[:5]
    assert book.seen["appends of unknown outcome"], "no kill left an outcome unknown: the rig misses its mark"
    return {
        **seen, "shards by port at the end": str(cluster.shards()), "transactions that Citus had to end": left,
        "seconds": round(seconds, 1), **figures, "told wrongly": 0,
    }  # fmt: skip


def _threads(cold: tuple[str, ...]) -> tuple[str, ...]:
    return _HOT * (len(cold) // len(_HOT)) + cold


class _Faults:
    def __init__(
        self, cluster: Cluster, crew: Crew, chance: random.Random, aside: ThreadPoolExecutor, seen: Counter[str]
    ) -> None:
        self.cluster = cluster
        self.crew = crew
        self.chance = chance
        self.aside = aside
        self.seen = seen

    def all(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("kill -9 of a worker, every process", lambda: self._killed(self._worker(), Node.kill)),
            ("kill -9 of a worker's postmaster", lambda: self._killed(self._worker(), Node.kill_postmaster)),
            ("kill -9 of the coordinator, every process", lambda: self._killed(self.cluster.coordinator, Node.kill)),
            (
                "kill -9 of the coordinator's postmaster",
                lambda: self._killed(self.cluster.coordinator, Node.kill_postmaster),
            ),
            ("all shards of a worker moved away and back", self._moved),
            ("a node killed while shards were moved", self._killed_while_moving),
        ]

    def add_node(self) -> None:
        """Adds the last worker and moves shards to it."""
        self.cluster.add_last_worker()
        self._wait_for(self.aside.submit(rebalance, self.cluster.url))
        assert self.cluster.shards().get(self.cluster.workers[-1].port), "the new node has no shards"
        self.seen["nodes added"] += 1

    def _worker(self) -> Node:
        return self.chance.choice(self.cluster.workers)

    def _killed(self, node: Node, kill: Callable[[Node], None]) -> None:
        kill(node)
        try:
            self.crew.wait(self.chance.uniform(0, 2))
        finally:
            # The others of the crew end only when they can settle their last outcomes.
            node.start()

    def _wait_for(self, moving: Future[int]) -> int:
        end = time.monotonic() + _PATIENCE
        while not moving.done():
            assert time.monotonic() < end, "moving shards does not end"
            self.crew.wait(0.1)
        return moving.result()

    def _moves(self, worker: Node) -> int:
        self.cluster.take_shards(worker, False)
        away = rebalance(self.cluster.url)
        self.cluster.take_shards(worker, True)
        return away + rebalance(self.cluster.url)

    def _mover(self) -> Node:
        """Returns a worker whose shards have another place."""
        known = self.cluster.shards()
        return self.chance.choice([w for w in self.cluster.workers if w.port in known])

    def _moved(self) -> None:
        if len(self.cluster.shards()) > 1:
            self.seen["moves of shards"] += self._wait_for(self.aside.submit(self._moves, self._mover()))

    def _killed_while_moving(self) -> None:
        if len(self.cluster.shards()) == 1:
            return
        worker = self._mover()
        moving = self.aside.submit(self._moves, worker)
        self.crew.wait(self.chance.uniform(0.2, 5))
        node = self.chance.choice(self.cluster.nodes)
        self._killed(node, self.chance.choice((Node.kill, Node.kill_postmaster)))
        try:
            self._wait_for(moving)
        except (cs.DatabaseError, OSError) as error:
            self.seen[f"moves that failed with {type(error).__name__}"] += 1
        # Another call mends what a move that failed has left.
        self.cluster.take_shards(worker, True)
        self._wait_for(self.aside.submit(rebalance, self.cluster.url))
