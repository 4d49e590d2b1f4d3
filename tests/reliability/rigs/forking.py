"""Forks and erases threads under faults, and keeps the replies for a comparison with the store."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import compaction_store as cs
from compaction_store.integrity import erasure
from compaction_store.models import Forked
from reliability.rigs.crew import IMPATIENT, PATIENT

_DEADLINES = (PATIENT, IMPATIENT)
# A fork copies as much as it is given, and the threads grow.
_MOST_POS = 40
_GONE = (cs.DatabaseUnavailable, cs.OutcomeUnknown)


class Forkers:
    """One client with a long deadline and one with a short one, each forking threads and erasing some of the forks."""

    def __init__(self, url: str, chance: random.Random, threads: tuple[str, ...]) -> None:
        self.seen: Counter[str] = Counter()
        self._url = url
        self._threads = threads
        self._chances = [random.Random(chance.random()) for _ in _DEADLINES]
        self._made: dict[str, Forked] = {}
        self._denied: set[str] = set()
        self._erased: dict[str, str] = {}
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(len(_DEADLINES))
        self._working: list[Future[None]] = []

    def __enter__(self) -> Self:
        for i, (deadline, chance) in enumerate(zip(_DEADLINES, self._chances, strict=True)):
            self._working.append(self._pool.submit(self._work, f"fork-{i}", deadline, chance))
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for worker in self._working:
            worker.result(PATIENT * 3)
        self._pool.shutdown()

    def _work(self, name: str, deadline: float, chance: random.Random) -> None:
        number = 0
        with self._opened(deadline) as store:
            while not self._over.wait(0.05):
                number += 1
                new = f"{name}-{number}"
                self._fork(store, chance.choice([*self._threads, *list(self._made)[-5:]]), new)
                if new in self._made and chance.random() < 0.3:
                    self._erase(store, new)

    def _opened(self, deadline: float) -> cs.Store:
        while True:
            try:
                return cs.Store.open(self._url, deadline=deadline, pool_size=1)
            except cs.DatabaseUnavailable:
                self._over.wait(0.02)

    def _fork(self, store: cs.Store, parent: str, new: str) -> None:
        try:
            pos = min(store.thread(parent).last_pos, _MOST_POS)
            made = store.fork(parent, new, at=pos, key=new)
        except cs.OutcomeUnknown:
            self.seen["forks of unknown outcome"] += 1
            made = self._settled(store, parent, new, pos)
        except cs.DatabaseUnavailable:
            self.seen["forks denied"] += 1
            self._denied.add(new)
            return
        except (cs.ThreadNotFound, cs.ThreadErased):
            return
        self.seen["forks acknowledged"] += 1
        self._made[new] = made

    def _settled(self, store: cs.Store, parent: str, new: str, pos: int) -> Forked:
        while True:
            try:
                return store.fork(parent, new, at=pos, key=new)
            except _GONE:
                continue

    def _erase(self, store: cs.Store, name: str) -> None:
        stub = erasure.stub_name(self._made[name].thread_uid)
        while True:
            try:
                done = store.custody.erase(name, reason="no longer wanted")
            except cs.OutcomeUnknown:
                self.seen["erasures of unknown outcome"] += 1
                if self._is_there(store, stub):
                    break
            except cs.ThreadNotFound:
                # A call of unknown outcome was committed since.
                assert self._is_there(store, stub), f"{name} is gone, and nobody erased it"
                break
            except cs.DatabaseUnavailable:
                self.seen["erasures denied"] += 1
                assert self._is_there(store, name), f"{name} was erased, and reported as not"
            else:
                assert done.thread_id == stub
                break
        self.seen["erasures acknowledged"] += 1
        self._erased[name] = stub

    def _is_there(self, store: cs.Store, name: str) -> bool:
        while True:
            try:
                store.thread(name)
            except cs.ThreadNotFound:
                return False
            except _GONE:
                continue
            return True

    def prove(self, store: cs.Store) -> dict[str, int]:
        """Compares the store with the replies. Returns figures."""
        for name in self._denied:
            assert not self._is_there(store, name), f"{name} was made, and reported as not"
        for name, made in self._made.items():
            if name in self._erased:
                assert not self._is_there(store, name), f"{name} was reported as erased, and is there"
            thread = store.thread(self._erased.get(name, name))
            assert thread.thread_uid == made.thread_uid, f"another fork has the name {name}"
            assert thread.last_seq == made.last_seq, f"{name} has other messages than reported"
        return dict(self.seen)
