"""What happens when the database is away, goes away, or refuses: typed errors in time, and never a message twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, LiteralString, Self

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

import compaction_store as cs
from compaction_store.errors import SchemaOutOfDate

HI = {"role": "user", "content": "hi"}
LATER = {"role": "user", "content": "later"}
READY = b"Z\x00\x00\x00\x05I"


class Proxy:
    """Stands before the server; may be closed, and may cut connections between an append and its reply."""

    def __init__(self, url: str) -> None:
        self.target = conninfo_to_dict(url)
        self.cuts = 0
        self.lost_replies = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        address = sa.make_url(url).set(host="127.0.0.1", port=self._port)
        options = {"sslmode": "disable", "gssencmode": "disable"}
        self.url = address.set(query=options).render_as_string(hide_password=False)

    def _connect(self) -> socket.socket:
        host, port = str(self.target.get("host", "127.0.0.1")), int(self.target.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._sockets += [client, server]
            appending = threading.Event()
            for source, sink, work in ((client, server, self._to_server), (server, client, self._to_client)):
                thread = threading.Thread(target=self._pump, args=(source, sink, work, appending))
                self._threads.append(thread)
                thread.start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, work: Callable[[bytes, threading.Event], bool],
        appending: threading.Event,
    ) -> None:  # fmt: skip
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and work(data, appending):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _to_server(self, data: bytes, appending: threading.Event) -> bool:
        if b"compaction_store.append" in data:
            appending.set()
        return True

    def _to_client(self, data: bytes, appending: threading.Event) -> bool:
        """False for the reply that gets lost: it is the server's word that the append is committed."""
        if appending.is_set() and self.cuts and data.endswith(READY):
            self.cuts -= 1
            self.lost_replies += 1
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(10)
        for end in self._sockets:
            end.close()
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    made = Proxy(url)
    yield made
    made.close()


@pytest.fixture
def holder(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another connection, which holds locks until it rolls back."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def hold(holder: psycopg.Connection[Any]) -> None:
    """Locks the heads of all threads, as an append of somebody else's would."""
    holder.execute("SELECT * FROM compaction_store.heads FOR UPDATE")


def waiting(superuser: psycopg.Connection[Any]) -> list[int]:
    """The backends of ours that wait for a lock in this database."""
    rows = superuser.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name = 'compaction-store'"
    ).fetchall()
    return [row[0] for row in rows]


def until_waiting(superuser: psycopg.Connection[Any]) -> int:
    for _ in range(500):
        if found := waiting(superuser):
            return found[0]
        time.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


def contents(store: Any) -> list[Any]:
    return [m.payload["content"] for m in store.replay("t")]


class Clock:
    """How long a block took."""

    def __enter__(self) -> Self:
        self.start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.start


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
    with pytest.raises(cs.DatabaseUnavailable, match="cs_no_such_database") as caught:
        faces.open(missing)
    assert "\n" not in str(caught.value)


def test_a_database_without_the_schema_names_the_command(faces: Any, empty_url: str) -> None:
    with pytest.raises(SchemaOutOfDate, match="compaction-store migrate"):
        faces.open(empty_url)


def test_a_database_at_another_revision_names_the_command(
    faces: Any, url: str, superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute("UPDATE compaction_store.alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaOutOfDate, match=r"9999.*compaction-store migrate"):
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
    # By now no connection is left on which the write could have got through.
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
    assert not store.verify("t").findings


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
    """What is tried once has the time that a busy server may take."""
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
    assert not store.verify("t").findings


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


@pytest.fixture
def narrow(url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a login that may connect once at a time, with nothing but the app's rights."""
    name = f"{superuser.info.dbname}_narrow"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'narrow' CONNECTION LIMIT 1 IN ROLE compaction_store_app")
    yield sa.make_url(url).set(username=name, password="narrow").render_as_string(hide_password=False)
    superuser.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name])
    superuser.execute(f"DROP ROLE {name}")


def test_the_apps_rights_are_enough(faces: Any, narrow: str) -> None:
    store = faces.open(narrow, pool_size=1)
    store.append("t", [HI, LATER])
    store.append("t", HI, view=store.view("t"))
    store.set_metadata("t", {"a": 1})
    assert contents(store) == ["hi", "later", "hi"]
    assert store.message("t", 1).payload == HI
    assert store.view("t", at=store.message("t", 3).created_at).pos == 3
    assert [t.metadata for t in store.threads()] == [{"a": 1}]
    assert not store.verify("t").findings


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


def test_running_out_of_the_pools_connections_is_unavailable_and_passes(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    with cs.Store.open(url, pool_size=1, connect_timeout=1, deadline=3) as store:
        store.append("t", HI)
        hold(holder)
        append: Future[list[cs.Message]] = pool.submit(store.append, "t", LATER)
        until_waiting(superuser)
        with Clock() as clock, pytest.raises(cs.DatabaseUnavailable, match="pool"):
            store.view("t")
        assert clock.seconds < 5
        holder.rollback()
        assert append.result(20)[0].seq == 2
        assert contents(store) == ["hi", "later"]


async def until_waiting_async(superuser: psycopg.Connection[Any]) -> None:
    for _ in range(500):
        if waiting(superuser):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


def test_running_out_of_the_pools_connections_is_the_same_for_tasks(
    url: str, superuser: psycopg.Connection[Any], holder: psycopg.Connection[Any]
) -> None:
    async def run() -> None:
        async with await cs.AsyncStore.open(url, pool_size=1, connect_timeout=1, deadline=3) as store:
            await store.append("t", HI)
            hold(holder)
            append = asyncio.create_task(store.append("t", LATER))
            await until_waiting_async(superuser)
            with pytest.raises(cs.DatabaseUnavailable, match="pool"):
                await store.view("t")
            holder.rollback()
            assert (await append)[0].seq == 2

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
            assert not (await store.verify("t")).findings

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


@pytest.mark.parametrize("messages", [LATER, [LATER, LATER]], ids=["one", "many"])
def test_a_rule_that_discards_inserts_makes_append_raise(
    store: Any, faces: Any, url: str, superuser: psycopg.Connection[Any], messages: Any
) -> None:
    store.append("t", HI)
    superuser.execute("CREATE RULE lose AS ON INSERT TO compaction_store.messages DO INSTEAD NOTHING")
    for thread_id in ("t", "new"):
        with pytest.raises(cs.DatabaseError, match="not stored"):
            store.append(thread_id, messages)
    superuser.execute("DROP RULE lose ON compaction_store.messages")
    assert contents(store) == ["hi"]
    assert [t.thread_id for t in store.threads()] == ["t"]
    # A connection that planned the insert under the rule goes on refusing: Postgres keeps the plan of nothing.
    assert faces.open(url).append("t", messages)[0].seq == 2


@pytest.mark.parametrize("level", ["one", "many"])
def test_a_trigger_that_discards_inserts_makes_append_raise(
    store: Any, superuser: psycopg.Connection[Any], level: str
) -> None:
    superuser.execute("CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    superuser.execute(
        "CREATE TRIGGER lose BEFORE INSERT ON compaction_store.messages FOR EACH ROW EXECUTE FUNCTION public.lose()"
    )
    with pytest.raises(cs.DatabaseError, match="not stored"):
        store.append("t", HI if level == "one" else [HI, LATER])
    assert list(store.threads()) == []


TABLES = ("threads", "heads", "messages", "compactions", "events")


def test_without_a_tenant_a_select_is_an_error_never_rows(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    superuser.execute("SET ROLE compaction_store_app")
    for tenant in (None, ""):
        if tenant is not None:
            superuser.execute("SELECT set_config('compaction_store.tenant', %s, false)", [tenant])
        for table in ("threads", "heads", "messages"):
            with pytest.raises(psycopg.Error, match="tenant is not set") as caught:
                superuser.execute(f"SELECT * FROM compaction_store.{table}")
            assert caught.value.sqlstate == "CS009"
    superuser.execute("SELECT set_config('compaction_store.tenant', 'other', false)")
    for table in TABLES:
        assert superuser.execute(f"SELECT * FROM compaction_store.{table}").fetchall() == []
    superuser.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
    assert len(superuser.execute("SELECT * FROM compaction_store.messages").fetchall()) == 1


def test_a_tenant_set_in_a_transaction_is_gone_with_it(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    superuser.execute("SET ROLE compaction_store_app")
    with superuser.transaction():
        superuser.execute("SELECT set_config('compaction_store.tenant', 'default', true)")
        assert len(superuser.execute("SELECT * FROM compaction_store.messages").fetchall()) == 1
    with pytest.raises(psycopg.Error, match="tenant is not set"):
        superuser.execute("SELECT * FROM compaction_store.messages")


CHANGES: tuple[LiteralString, ...] = (
    "INSERT INTO compaction_store.messages SELECT * FROM compaction_store.messages",
    "INSERT INTO compaction_store.heads (thread_uid, tenant, head) VALUES (gen_random_uuid(), 'default', '')",
    "INSERT INTO compaction_store.threads SELECT * FROM compaction_store.threads",
    "UPDATE compaction_store.messages SET payload = '{}'",
    "UPDATE compaction_store.heads SET last_seq = 0",
    "UPDATE compaction_store.threads SET metadata = '{}'",
    "DELETE FROM compaction_store.messages",
    "DELETE FROM compaction_store.heads",
    "DELETE FROM compaction_store.threads",
    "TRUNCATE compaction_store.messages",
    "TRUNCATE compaction_store.compactions",
    "DROP TABLE compaction_store.messages",
    "ALTER TABLE compaction_store.messages DISABLE ROW LEVEL SECURITY",
    "SELECT compaction_store.open_thread(thread_uid, tenant, 't') FROM compaction_store.threads",
)


def test_the_app_role_changes_nothing_by_itself(store: Any, superuser: psycopg.Connection[Any]) -> None:
    store.append("t", HI)
    before = store.thread("t")
    superuser.execute("SET ROLE compaction_store_app")
    superuser.execute("SELECT set_config('compaction_store.tenant', 'default', false)")
    for change in CHANGES:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            superuser.execute(change)
    assert store.thread("t") == before
    assert contents(store) == ["hi"]


def test_a_login_without_rights_is_told_which_to_get(
    faces: Any, url: str, narrow: str, superuser: psycopg.Connection[Any]
) -> None:
    faces.open(url).append("t", HI)
    name = sa.make_url(narrow).username
    superuser.execute(f"REVOKE compaction_store_app FROM {name}")
    with pytest.raises(cs.DatabaseError, match="compaction_store_app"):
        faces.open(narrow)


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE compaction_store.messages SET payload = '{}'",
        "UPDATE compaction_store.messages SET payload = NULL",
        "UPDATE compaction_store.messages SET payload = payload",
        "UPDATE compaction_store.messages SET redacted_pos = 1, salt = NULL, payload = NULL, meta = NULL, tokens = 9",
        "UPDATE compaction_store.messages SET redacted_pos = 1, salt = NULL, meta = NULL",
        "UPDATE compaction_store.messages SET created_at = now()",
        "UPDATE compaction_store.threads SET thread_id = 'other'",
        "DELETE FROM compaction_store.messages",
        "DELETE FROM compaction_store.threads",
        "DELETE FROM compaction_store.heads",
        "TRUNCATE compaction_store.messages",
        "TRUNCATE compaction_store.threads, compaction_store.heads CASCADE",
        "TRUNCATE compaction_store.compactions",
        "TRUNCATE compaction_store.events",
    ],
)
def test_even_a_superuser_changes_nothing_in_passing(
    store: Any, superuser: psycopg.Connection[Any], change: LiteralString, role: str
) -> None:
    store.append("t", [HI, {"content": "\0\ud800"}])
    stored = list(store.replay("t"))
    superuser.execute("SELECT set_config('session_replication_role', %s, false)", [role])
    with pytest.raises(psycopg.Error, match="append-only") as caught:
        superuser.execute(change)
    assert caught.value.sqlstate == "CS011"
    assert list(store.replay("t")) == stored
    assert not store.verify("t").findings


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
