"""Cancels every async call wherever it waits: at once, or after the server has done the work.

A cancelled call has done all of its work or none; its connection is closed or back in the pool; and an append that is
repeated with its key is stored once.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from sqlalchemy.util import greenlet_spawn

import compaction_store as cs
from compaction_store.errors import EmptySummary
from reliability.rigs.ground import Ground, connected, superuser

LONG = "word " * 60
BUDGET = cs.TokenBudget(1400)
_PATIENCE = 20.0


class CancelledAt:
    """Runs a coroutine and cancels its task when it waits for the n-th time, after calling `first`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, first: Callable[[], None]) -> None:
        self.coroutine = coroutine
        self.at = at
        self.first = first
        self.waits = 0

    def __await__(self) -> Generator[Any, None, Any]:
        # Emptied on use: an error that its own frame refers to would keep a dead connection open.
        thrown: list[BaseException] = []
        while True:
            try:
                waiting = self.coroutine.throw(thrown.pop()) if thrown else self.coroutine.send(None)
            except StopIteration as stop:
                return stop.value
            if self.waits == self.at:
                self.first()
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.waits += 1
            try:
                yield waiting
            except BaseException as error:  # noqa: BLE001 — handed on, as an await would
                thrown.append(error)


def quiet(superuser: psycopg.Connection[Any]) -> None:
    """Waits until the server has done all requests."""
    end = time.monotonic() + _PATIENCE
    while superuser.execute(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND state = 'active' AND backend_type = 'client backend'"
    ).fetchall():
        assert time.monotonic() < end, "a statement goes on after its caller was cancelled"


def said(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{number} {LONG}"}


def prepare(store: cs.Store, thread_id: str) -> None:
    """Appends twelve messages and folds two of them."""
    store.append(thread_id, [said(i) for i in range(12)], tokens=100)
    store.compact(thread_id, lambda ctx: ctx.compact(3, 4, "S"))


async def drained(items: Any) -> list[Any]:
    return [item async for item in items]


async def plan(ctx: cs.CompactionContext) -> None:
    async def summarize(_elements: Any) -> str:
        await asyncio.sleep(0)
        return "S"

    await ctx.compact(1, 2, summarize)
    ctx.remove(5, 6)
    try:
        await ctx.compact(7, 8, "")
    except EmptySummary:
        await asyncio.sleep(0)


class Call(NamedTuple):
    """An async call on a prepared thread. `again` may follow it, and has the same effect as the call alone."""

    name: str
    act: Callable[[cs.AsyncStore, str], Awaitable[Any]]
    again: bool = False


async def _record(store: cs.AsyncStore, thread_id: str) -> cs.Compaction:
    return await store.compaction(thread_id, 1)


async def _originals(store: cs.AsyncStore, thread_id: str) -> Any:
    return await drained(store.audit.originals(await _record(store, thread_id)))


async def _tree(store: cs.AsyncStore, thread_id: str) -> Any:
    return await store.audit.tree(await _record(store, thread_id))


async def _reply(store: cs.AsyncStore, thread_id: str) -> Any:
    return await store.append(thread_id, said(1), view=await store.view(thread_id), tokens=1, key="k")


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=60)


READS = (
    Call("replay", lambda s, t: drained(s.replay(t))),
    Call("replay the newest", lambda s, t: drained(s.replay(t, last=3))),
    Call("message", lambda s, t: s.message(t, 3)),
    Call("view", lambda s, t: s.view(t)),
    Call("view at a pos", lambda s, t: s.view(t, at=5)),
    Call("view at a moment", lambda s, t: s.view(t, at=_soon())),
    Call("thread", lambda s, t: s.thread(t)),
    Call("threads", lambda s, _: drained(s.threads())),
    Call("compactions", lambda s, t: drained(s.compactions(t))),
    Call("compactions of all", lambda s, _: drained(s.compactions())),
    Call("compaction", _record),
    Call("originals", _originals),
    Call("tree", _tree),
    Call("explain", lambda s, t: s.audit.explain(t, 3)),
    Call("events", lambda s, t: drained(s.audit.events(t))),
    Call("seen_by", lambda s, t: s.seen_by(t, 8)),
    Call("due", lambda s, _: drained(s.due(BUDGET))),
    Call("verify", lambda s, t: s.audit.verify(t)),
    Call("plan", lambda s, t: s.plan(t, plan)),
    Call("fit", lambda s, t: s.fit(t, cs.TokenBudget(100_000))),
)
WRITES = (
    Call("append", lambda s, t: s.append(t, said(1), tokens=1, key="k"), again=True),
    Call("append many", lambda s, t: s.append(t, [said(1), said(2)], tokens=1, key="k"), again=True),
    Call("append with a receipt", _reply, again=True),
    Call("append to a new thread", lambda s, t: s.append(f"{t} new", said(1), tokens=1, key="k")),
    Call("load", lambda s, t: s.load.messages(t, [said(i) for i in range(30)], tokens=1, key="k"), again=True),
    Call("set_metadata", lambda s, t: s.set_metadata(t, {"a": 1})),
    Call("compact", lambda s, t: s.compact(t, plan)),
    Call("compact on a budget", lambda s, t: s.compact(t, plan, budget=BUDGET, force=True)),
    Call("fit after a compaction", lambda s, t: s.fit(t, cs.TokenBudget(1300), plan)),
    Call("revoke", lambda s, t: s.revoke(t, 1)),
    Call("redact", lambda s, t: s.custody.redact(t, [3], reason="r")),
    Call("erase", lambda s, t: s.custody.erase(t, reason="r")),
    Call("hold", lambda s, t: s.custody.hold(t, reason="r")),
    Call("release", lambda s, t: s.custody.release(t, reason="r")),
    Call("retain", lambda s, t: s.custody.retain(t, _soon(), reason="r")),
)


def run(ground: Ground, chance: random.Random, *, share: float) -> dict[str, Any]:
    """Cancels at a share of all points, 1 being all of them; at least at one of every call."""
    url = ground.database()
    seen: Counter[str] = Counter()
    with cs.Store.open(url) as healthy, superuser(url) as behind:
        rig = _Rig(url, healthy, behind, chance, share, seen)
        # A connection that only a collection of cycles would close counts as leaked.
        gc.disable()
        try:
            asyncio.run(rig.all())
        finally:
            gc.enable()
    return {"calls": len(READS) + len(WRITES) + 1, **seen, "half done": 0, "connections leaked": 0, "keys lost": 0}


class _Rig:
    def __init__(
        self, url: str, healthy: cs.Store, behind: psycopg.Connection[Any], chance: random.Random, share: float,
        seen: Counter[str],
    ) -> None:  # fmt: skip
        self.url = url
        self.healthy = healthy
        self.behind = behind
        self.chance = chance
        self.share = share
        self.seen = seen
        self.threads = 0

    async def all(self) -> None:
        ways = [(served, warm) for served in (False, True) for warm in (False, True)]
        for call in READS + WRITES:
            for served, warm in ways if self.share == 1 else [self.chance.choice(ways)]:
                await self.everywhere(call, served=served, warm=warm)
        for served in (False, True):
            await self.opening(served=served)

    def thread(self) -> str:
        self.threads += 1
        name = f"t{self.threads}"
        prepare(self.healthy, name)
        return name

    async def everywhere(self, call: Call, *, served: bool, warm: bool) -> None:
        whole = self._change(call, await self._untouched(call))
        thread_id = self.thread()
        at, cancelled = 0, 0
        store = await cs.AsyncStore.open(self.url, pool_size=1)
        try:
            while True:
                if cancelled and self.chance.random() >= self.share:
                    at += 1
                    continue
                if not warm:
                    await greenlet_spawn(store._db.engine.dispose)
                before = self._standing(thread_id)
                if not await self._cancelled(call.act(store, thread_id), at, served=served):
                    return
                cancelled += 1
                self.seen["points"] += 1
                await self._check(call, store, thread_id, before, whole, f"{call.name}, cancelled at wait {at}")
                if call in WRITES:
                    thread_id = self.thread()
                at += 1
        finally:
            await store.close()

    async def _untouched(self, call: Call) -> tuple[Any, Any]:
        """Returns the state of a thread before and after a call that is not cancelled."""
        thread_id = self.thread()
        before = self._standing(thread_id)
        async with await cs.AsyncStore.open(self.url, pool_size=1) as store:
            await call.act(store, thread_id)
        return before, self._standing(thread_id)

    @staticmethod
    def _change(call: Call, stood: tuple[Any, Any]) -> tuple[int, ...]:
        before, after = stood
        change = tuple(b - a for a, b in zip(before, after, strict=True))
        assert call in READS or any(change) or call.name == "set_metadata", f"{call.name} does nothing"
        return change

    def _standing(self, thread_id: str) -> tuple[int, ...]:
        """Returns figures of a thread and of its sibling: messages, records, entries, threads."""
        row = self.behind.execute(
            "SELECT coalesce(sum(h.last_seq), 0)::int, coalesce(sum(h.last_number), 0)::int,"
            " coalesce(sum(h.last_pos), 0)::int, count(*)::int"
            " FROM compaction_store.heads AS h"
            " WHERE h.thread_uid = ANY (ARRAY[compaction_store.find_thread('default', %s),"
            " compaction_store.find_thread('default', %s)])",
            (thread_id, f"{thread_id} new"),
        ).fetchone()
        assert row is not None
        return tuple(row)

    async def _cancelled(self, coroutine: Any, at: int, *, served: bool) -> bool:
        """Returns False if the call ended before it waited that often."""

        def first() -> None:
            if served:
                quiet(self.behind)

        async def wait() -> Any:
            return await CancelledAt(coroutine, at, first)

        try:
            await asyncio.create_task(wait())
        except asyncio.CancelledError:
            return True
        return False

    async def _check(
        self, call: Call, store: cs.AsyncStore, thread_id: str, before: Any, whole: tuple[int, ...], where: str
    ) -> None:
        quiet(self.behind)
        pool: Any = store._db.engine.pool
        assert pool.checkedout() == 0, f"{where}: a connection is not back in the pool"
        change = tuple(b - a for a, b in zip(before, self._standing(thread_id), strict=True))
        assert change in (whole, tuple(0 for _ in whole)), f"{where}: {change} is a part of {whole}"
        self.seen["points after which it was done" if any(change) else "points after which nothing was done"] += 1
        if call.again:
            # The pool has one connection: if it had leaked, this would wait forever.
            await call.act(store, thread_id)
            again = tuple(b - a for a, b in zip(before, self._standing(thread_id), strict=True))
            assert again == whole, f"{where}: {again} after it was repeated with its key, not {whole}"
        elif change[3] >= 0:  # An erased thread has no name.
            await store.thread(thread_id)
            assert (await store.audit.verify(thread_id)).findings == (), where
        row = self.behind.execute(
            "SELECT count(*) FROM compaction_store.heads"
            " WHERE thread_uid = compaction_store.find_thread('default', %s) AND lease_run IS NOT NULL",
            (thread_id,),
        ).fetchone()
        assert row == (0,), f"{where}: the lease is still held"

    async def opening(self, *, served: bool) -> None:
        at = 0
        others = connected(self.url)
        while True:
            opened: list[cs.AsyncStore] = []

            async def open_one(opened: list[cs.AsyncStore] = opened) -> None:
                opened.append(await cs.AsyncStore.open(self.url))

            cancelled = await self._cancelled(open_one(), at, served=served)
            for store in opened:
                await store.close()
            end = time.monotonic() + _PATIENCE
            while connected(self.url) > others:
                assert time.monotonic() < end, f"open, cancelled at wait {at}: a connection is left"
                await asyncio.sleep(0.01)
            if not cancelled:
                return
            self.seen["points"] += 1
            at += 1
