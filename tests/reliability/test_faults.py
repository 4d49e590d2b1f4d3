"""When the database is away, goes away, or a reply is lost: typed errors in time, no write lost or stored twice."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.lock_waits import HI, LATER, Clock, contents, hold, until_waiting, until_waiting_async, waiting
from support.lost_replies import Proxy

import compaction_store as cs
from compaction_store.errors import LoginRefused, SchemaOutOfDate


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    made = Proxy(url)
    yield made
    made.close()


def test_an_address_where_nobody_listens_is_said_in_one_line(faces: Any) -> None:
    with Clock() as clock, pytest.raises(cs.DatabaseUnavailable, match=r"127\.0\.0\.1:1") as caught:
        faces.open("postgresql://postgres@127.0.0.1:1/nowhere", connect_timeout=3)
    assert clock.seconds < 4
    assert "\n" not in str(caught.value)


def test_a_server_that_never_answers_is_given_up_at_the_connect_timeout(faces: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/nowhere"
        with Clock() as clock, pytest.raises(cs.DatabaseUnavailable) as caught:
            faces.open(address, connect_timeout=2)
    assert clock.seconds < 5
    assert "\n" not in str(caught.value)


def test_a_database_that_is_not_there_is_said_in_one_line(faces: Any, url: str) -> None:
    missing = sa.make_url(url).set(database="cs_no_such_database").render_as_string(hide_password=False)
    with pytest.raises(LoginRefused, match="cs_no_such_database") as caught:
        faces.open(missing)
    assert "\n" not in str(caught.value)


def test_a_database_without_the_schema_names_the_command(faces: Any, empty_url: str) -> None:
    with pytest.raises(SchemaOutOfDate, match="compaction-store migrate"):
        faces.open(empty_url)


def test_a_database_at_an_older_revision_names_the_command(
    faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute("UPDATE compaction_store.alembic_version SET version_num = '0000'")
    with pytest.raises(SchemaOutOfDate, match=r"0000.*compaction-store migrate"):
        faces.open(url)


def test_a_database_that_goes_down_is_unavailable_by_the_deadline(faces: Any, proxy: Proxy) -> None:
    store = faces.open(proxy.url, deadline=1, connect_timeout=2)
    store.append("t", HI)
    proxy.close()
    for read in (lambda: list(store.replay("t")), lambda: store.view("t"), lambda: list(store.threads())):
        with Clock() as clock, pytest.raises(cs.DatabaseUnavailable) as caught:
            read()
        assert clock.seconds < 3
        assert "\n" not in str(caught.value)
    # No connection is left that could have sent the write.
    with Clock() as clock, pytest.raises(cs.DatabaseUnavailable):
        store.append("t", LATER)
    assert clock.seconds < 3


def test_a_database_that_comes_back_before_the_deadline_is_not_noticed(
    faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    store = faces.open(url)
    store.append("t", HI)
    for _ in range(3):
        superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'compaction-store'"
        )
        store.append("t", LATER)
    assert contents(store) == ["hi", "later", "later", "later"]


def test_an_append_whose_connection_is_killed_is_stored_once(
    store: Any, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    store.append("t", HI)
    hold(holder)
    append: Future[list[cs.Message]] = pool.submit(store.append, "t", LATER)
    killed = until_waiting(superuser)
    superuser.execute("SELECT pg_terminate_backend(%s)", [killed])
    while until_waiting(superuser) == killed:
        time.sleep(0.01)
    holder.rollback()
    assert append.result(20)[0].seq == 2
    assert contents(store) == ["hi", "later"]
    assert not store.audit.verify("t").findings


def test_an_append_waits_longer_than_one_lock_timeout(
    store: Any, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    store.append("t", HI)
    hold(holder)
    append: Future[list[cs.Message]] = pool.submit(store.append, "t", LATER)
    until_waiting(superuser)
    time.sleep(5.5)
    assert not append.done()
    holder.rollback()
    assert append.result(20)[0].seq == 2
    assert contents(store) == ["hi", "later"]


@pytest.mark.parametrize("deadline", [0, 1])
def test_an_append_that_cannot_have_the_lock_gives_up_by_the_deadline(
    faces: Any, url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any],
    pool: ThreadPoolExecutor, deadline: float,
) -> None:  # fmt: skip
    store = faces.open(url, deadline=deadline)
    store.append("t", HI)
    hold(holder)
    with Clock() as clock:
        append: Future[Any] = pool.submit(store.append, "t", LATER)
        until_waiting(superuser)
        with pytest.raises(cs.DatabaseUnavailable):
            append.result(20)
    holder.rollback()
    assert contents(store) == ["hi"]
    assert clock.seconds < 3


def test_a_store_opens_on_a_server_that_takes_its_time(
    faces: Any, url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    """A call without retries has the time that a busy server may take."""
    holder.execute("LOCK TABLE compaction_store.alembic_version IN ACCESS EXCLUSIVE MODE")
    opening: Future[Any] = pool.submit(faces.open, url)
    until_waiting(superuser)
    time.sleep(1.5)
    holder.rollback()
    assert opening.result(20).append("t", HI)[0].seq == 1


@pytest.mark.parametrize("messages", [LATER, [LATER, LATER]], ids=["one", "many"])
def test_an_append_whose_reply_is_lost_is_stored_once(faces: Any, proxy: Proxy, messages: Any) -> None:
    store = faces.open(proxy.url)
    store.append("t", HI)
    proxy.cuts = 2
    written = store.append("t", messages, expected_seq=1)
    assert proxy.lost_replies == 2
    assert [m.seq for m in written] == ([2] if messages is LATER else [2, 3])
    assert list(store.replay("t", after=1)) == written
    assert not store.audit.verify("t").findings


def test_the_first_append_of_a_thread_whose_reply_is_lost_is_stored_once(faces: Any, proxy: Proxy) -> None:
    store = faces.open(proxy.url)
    proxy.cuts = 1
    written = store.append("t", HI, expected_seq=0)
    assert proxy.lost_replies == 1
    assert list(store.replay("t")) == written


def test_an_unknown_outcome_is_settled_with_its_key(faces: Any, url: str, proxy: Proxy) -> None:
    store = faces.open(proxy.url, deadline=1)
    store.append("t", HI)
    proxy.cuts = 10**6
    with Clock() as clock, pytest.raises(cs.OutcomeUnknown) as caught:
        store.append("t", LATER)
    assert clock.seconds < 3
    assert proxy.lost_replies > 1
    assert caught.value.key
    assert "later" not in f"{caught.value!r}"
    healthy = faces.open(url)
    assert healthy.append("t", LATER, key=caught.value.key)[0].seq == 2
    assert contents(healthy) == ["hi", "later"]


def test_an_unknown_outcome_carries_the_callers_own_key(faces: Any, url: str, proxy: Proxy) -> None:
    store = faces.open(proxy.url, deadline=0.5)
    proxy.cuts = 10**6
    with pytest.raises(cs.OutcomeUnknown) as caught:
        store.append("t", [HI, LATER], key="mine")
    assert caught.value.key == "mine"
    healthy = faces.open(url)
    assert [m.seq for m in healthy.append("t", [HI, LATER], key="mine")] == [1, 2]
    assert contents(healthy) == ["hi", "later"]


def test_an_append_that_is_cancelled_while_it_is_sent_raises_nothing_else(url: str) -> None:
    """The driver has sent only a part of the statement."""
    large = {"role": "user", "content": "x" * 8_000_000}

    async def run() -> None:
        async with await cs.AsyncStore.open(url, pool_size=1) as store:
            for pause in range(1, 30):
                append = asyncio.create_task(store.append("t", large, tokens=1))
                for _ in range(pause):
                    await asyncio.sleep(0)
                append.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await append
            assert [m.seq for m in await store.append("u", HI)] == [1]

    asyncio.run(run())


def test_a_cancelled_append_stores_nothing_and_the_store_goes_on(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any]
) -> None:
    async def run() -> None:
        async with await cs.AsyncStore.open(url, pool_size=1) as store:
            await store.append("t", HI)
            hold(holder)
            for messages in (LATER, [LATER, LATER]):
                append = asyncio.create_task(store.append("t", messages))
                await until_waiting_async(superuser)
                append.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await append
                for _ in range(500):
                    if not waiting(superuser):
                        break
                    await asyncio.sleep(0.01)
                assert not waiting(superuser)
            holder.rollback()
            assert [m.payload async for m in store.replay("t")] == [HI]
            assert (await store.append("t", LATER))[0].seq == 2
            assert not (await store.audit.verify("t")).findings

    asyncio.run(run())


def test_a_timeout_around_an_append_stores_nothing(url: str, holder: psycopg.Connection[Any]) -> None:
    async def run() -> None:
        async with await cs.AsyncStore.open(url) as store:
            await store.append("t", HI)
            hold(holder)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await store.append("t", LATER)
            holder.rollback()
            assert (await store.append("t", HI))[0].seq == 2

    asyncio.run(run())


def test_a_commit_that_fails_after_the_statement_is_a_failure_like_any_other(
    faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    """The server answers twice then: with the row, and with what went wrong at the commit."""
    store = faces.open(url, deadline=1)
    store.append("t", {"role": "user", "content": "one"})
    superuser.execute(
        "CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'at commit' USING ERRCODE = '40001'; END $$"
    )
    superuser.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON compaction_store.messages DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.late()"
    )
    with pytest.raises(cs.DatabaseUnavailable, match="SQLSTATE 40001"):
        store.append("t", {"role": "user", "content": "two"})
    superuser.execute("DROP TRIGGER late ON compaction_store.messages")
    [message] = store.append("t", {"role": "user", "content": "three"})
    assert message.seq == 2
