"""Lost connections: a write that is done is never reported as one that did not happen, and none is left open."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.embedded_servers import wait_until
from support.lock_waits import hold, until_waiting

import compaction_store as cs
from compaction_store.models import Loaded
from reliability.rigs.ground import connected
from reliability.rigs.proxy import Plan, Proxy

HI = {"role": "assistant", "content": "hi"}


def cut_after(way: Proxy, written: bytes) -> None:
    """Cuts off the server from the request after the one that writes."""
    seen: list[bool] = []

    def cut(request: bytes) -> bool:
        if written in request:
            seen.append(True)
            return False
        return bool(seen)

    way.on_request = cut


def late(healthy: Any) -> Callable[[cs.CompactionContext], None]:
    """Returns a callback during which somebody appends, so that the view must be read again after the commit."""

    def remove(ctx: cs.CompactionContext) -> None:
        ctx.remove(2, 3)
        healthy.append("t", HI)

    return remove


@pytest.mark.parametrize(
    ("written", "act"),
    [
        (b"commit_compactions", lambda store, healthy: store.compact("t", late(healthy))),
        (b"compaction_store.append", lambda store, _: store.append("t", HI, key="mine")),
    ],
    ids=["compact", "an append once more"],
)
def test_what_was_written_and_cannot_be_read_back_is_unknown(
    url: str, faces: Any, way: Proxy, written: bytes, act: Callable[[Any, Any], Any]
) -> None:
    store = faces.open(way.url, deadline=0.5, connect_timeout=1)
    with cs.Store.open(url) as healthy:
        healthy.append("t", [HI] * 10)
        healthy.append("t", HI, key="mine")
        healthy.compact("t", lambda ctx: ctx.remove(5, 6))
        cut_after(way, written)
        with pytest.raises(cs.OutcomeUnknown) as caught:
            act(store, healthy)
        assert caught.value.key is not None
        if caught.value.key == "mine":
            assert healthy.append("t", HI, key="mine")[0].seq == 11
        else:
            assert [r.number for r in healthy.compactions("t", run_id=UUID(caught.value.key))] == [2]
        assert healthy.audit.verify("t").findings == ()


def test_a_commit_is_not_read_back_where_nothing_else_was_written(faces: Any, url: str, way: Proxy) -> None:
    store = faces.open(way.url, deadline=0.5, connect_timeout=1)
    with cs.Store.open(url) as healthy:
        healthy.append("t", [HI] * 10)
        cut_after(way, b"commit_compactions")
        assert store.compact("t", lambda ctx: ctx.remove(5, 6)).view == healthy.view("t")
        way.on_request = lambda _: False
        cut_after(way, b"commit_compactions")
        assert store.revoke("t", 1) == healthy.compaction("t", 2)
        assert healthy.audit.verify("t").findings == ()


def test_a_load_whose_reply_was_lost_says_what_it_added(faces: Any, url: str, way: Proxy) -> None:
    store = faces.open(way.url)
    faces.open(url).load.messages("t", [HI] * 3, key="there")
    lost: list[bool] = []

    def heard(request: bytes) -> bool:
        if b"compaction_store.load(" in request:
            lost.append(True)
        return False

    way.on_request = heard
    # Lose only the reply to the first chunk.
    way.on_reply = lambda: lost == [True] and not lost.append(False)  # type: ignore[func-returns-value]
    assert store.load.messages("t", [HI] * 5, key="k") == Loaded(4, 8, 5, 5)
    assert way.seen["cut after"] == 1
    assert store.load.messages("t", [HI] * 5, key="k") == Loaded(4, 8, 5, 0)
    assert store.load.messages("t", [HI] * 3, key="there").added == 0
    assert store.audit.verify("t").findings == ()


def test_connections_lost_under_many_callers_are_closed(url: str, way: Proxy) -> None:
    """Connections that others held when one was lost go back to the pool, and are not left open."""
    with (
        cs.Store.open(url) as healthy,
        cs.Store.open(way.url, pool_size=4) as store,
        ThreadPoolExecutor(8) as callers,
    ):
        healthy.append("t", HI)
        others = connected(url) - 1
        way.plan = Plan(before=0.2, after=0.2)
        gc.disable()
        try:
            list(callers.map(lambda _: store.append("t", HI), range(80)))
            # The server needs a moment to notice that a connection was closed.
            until = time.monotonic() + 10
            while connected(url) - others > 4 and time.monotonic() < until:
                time.sleep(0.05)
            assert connected(url) - others <= 4
        finally:
            gc.enable()
        assert healthy.thread("t").last_seq == 81


def test_a_connection_in_use_while_its_store_closes_is_closed_afterwards(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    with cs.Store.open(url) as store:
        store.append("t", HI)
        hold(holder)
        append: Future[list[cs.Message]] = pool.submit(store.append, "t", HI)
        until_waiting(superuser)
    holder.rollback()
    assert append.result(60)[0].seq == 2
    wait_until(lambda: connected(url) == 0)


def test_a_connection_in_use_while_its_async_store_closes_is_closed_afterwards(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any]
) -> None:
    async def main() -> None:
        async with cs.AsyncStore.open(url) as store:
            await store.append("t", HI)
            hold(holder)
            append = asyncio.create_task(store.append("t", HI))
            await asyncio.to_thread(until_waiting, superuser)
        holder.rollback()
        assert (await append)[0].seq == 2
        await asyncio.to_thread(wait_until, lambda: connected(url) == 0)

    asyncio.run(main())
