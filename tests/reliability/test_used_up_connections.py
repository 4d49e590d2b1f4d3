"""No connection is left, in the server or in the pool."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.lock_waits import HI, LATER, Clock, contents, hold, until_waiting, until_waiting_async

import compaction_store as cs


def test_running_out_of_the_servers_connections_is_unavailable_and_passes(faces: Any, narrow: str) -> None:
    with psycopg.connect(narrow):
        with Clock() as clock, pytest.raises(cs.DatabaseUnavailable, match="too many connections") as caught:
            faces.open(narrow)
        assert clock.seconds < 3
        assert "\n" not in str(caught.value)
    for _ in range(100):
        with contextlib.suppress(cs.DatabaseUnavailable):
            store = faces.open(narrow)
            break
        time.sleep(0.02)
    assert store.append("t", HI)[0].seq == 1


def test_a_call_waits_for_a_connection_of_the_server_until_the_deadline(
    faces: Any, narrow: str, superuser: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    store = faces.open(narrow)
    store.append("t", HI)
    superuser.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s",
        [sa.make_url(narrow).username],
    )
    with psycopg.connect(narrow):
        append: Future[list[cs.Message]] = pool.submit(store.append, "t", LATER)
        time.sleep(0.5)
        assert not append.done()
    assert append.result(20)[0].seq == 2
    assert contents(store) == ["hi", "later"]


def test_a_call_waits_for_a_connection_of_the_pool_longer_than_for_the_server(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    with cs.Store.open(url, pool_size=1, connect_timeout=1, deadline=60) as store:
        store.append("t", HI)
        hold(holder)
        append: Future[list[cs.Message]] = pool.submit(store.append, "t", LATER)
        until_waiting(superuser)
        view = pool.submit(store.view, "t")
        time.sleep(1.5)
        assert not view.done()
        holder.rollback()
        assert append.result(20)[0].seq == 2
        assert len(view.result(20).elements) == 2
        assert contents(store) == ["hi", "later"]


def test_a_task_waits_for_a_connection_of_the_pool_longer_than_for_the_server(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any]
) -> None:
    async def run() -> None:
        async with await cs.AsyncStore.open(url, pool_size=1, connect_timeout=1, deadline=60) as store:
            await store.append("t", HI)
            hold(holder)
            append = asyncio.create_task(store.append("t", LATER))
            await until_waiting_async(superuser)
            view = asyncio.create_task(store.view("t"))
            await asyncio.sleep(1.5)
            assert not view.done()
            holder.rollback()
            assert (await append)[0].seq == 2
            assert len((await view).elements) == 2

    asyncio.run(run())
