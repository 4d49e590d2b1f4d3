"""Tenants behind a transaction pooler use the same names, keys and numbers, and no tenant sees another's data.

The pooler gives one connection to many clients in turn, so the next client would get anything that a call leaves on it.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import compaction_store as cs
from compaction_store.deploy import roles

TENANTS = 16
THREADS = ("t-1", "t-2")
POOL = 4
_BINARY = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def pooled(superuser_url: str, superuser: psycopg.Connection[Any], tmp_path: Path) -> Iterator[str]:
    """The database as its application reaches it, through pgbouncer with four connections for everybody."""
    if _BINARY is None:
        pytest.skip("pgbouncer is not installed")
    name = f"cs_pooled_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    for role in ("application", "custodian"):
        roles.grant(superuser_url, name, role)
    server = sa.make_url(superuser_url)
    host = str(server.host or server.query.get("host") or "localhost")
    port = server.port or 5432
    listen = _free_port()
    # pgbouncer refuses to run as root, and needs access to the folder of the server's socket.
    user = Path(host).owner() if host.startswith("/") else "nobody"
    config = tmp_path / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{server.database} = host={host} port={port} user={name} password=pw\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {POOL}\nmax_client_conn = 200\n"
        "ignore_startup_parameters = extra_float_digits\n",
        encoding="utf-8",
    )
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):  # noqa: S108 — where it lies is pytest's choice
            folder.chmod(folder.stat().st_mode | 0o055)
    command = [_BINARY, "-q", str(config)] if os.geteuid() else [_BINARY, "-q", "-u", user, str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        _wait(listen, process)
        yield f"postgresql://{name}@127.0.0.1:{listen}/{server.database}"
    finally:
        process.terminate()
        process.communicate()
        superuser.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
        superuser.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"pgbouncer did not start: {process.communicate()[1].decode()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("pgbouncer did not listen")


class Client:
    """One tenant's program: it knows what it wrote, and looks at everything that comes back."""

    def __init__(self, url: str, number: int, calls: int) -> None:
        self.tenant = f"tenant-{number}"
        self.store = cs.Store.open(url, tenant=self.tenant, pool_size=2)
        self.random = random.Random(number)
        self.count = dict.fromkeys(THREADS, 0)
        self.records = dict.fromkeys(THREADS, 0)
        self.calls = calls
        self.foreign = 0
        self.empty = 0
        self.failure: BaseException | None = None

    def mine(self, items: list[Any], *, expected: int | None = None) -> None:
        """Checks that every message is this client's own, and that none is missing."""
        for item in items:
            if self.tenant not in str(item):
                self.foreign += 1
        if expected is not None and len(items) != expected:
            self.empty += 1

    def run(self) -> None:
        doings: list[Callable[[str], None]] = [
            self.append, self.again, self.replay, self.view, self.message, self.thread, self.threads, self.compact,
            self.compactions, self.explain, self.metadata, self.events, self.verify,
        ]  # fmt: skip
        try:
            for thread_id in THREADS:
                self.append(thread_id)
            for _ in range(self.calls):
                self.random.choice(doings)(self.random.choice(THREADS))
        except BaseException as error:  # noqa: BLE001 — shown by the assertion
            self.failure = error

    def payload(self, number: int) -> dict[str, str]:
        return {"role": "user", "content": f"{self.tenant} says some words that could be fewer, {number}"}

    def append(self, thread_id: str) -> None:
        number = self.count[thread_id] + 1
        [message] = self.store.append(thread_id, self.payload(number), key=f"key-{number}")
        self.mine([message.payload])
        self.count[thread_id] = number
        if message.seq != number:
            self.foreign += 1

    def again(self, thread_id: str) -> None:
        """Retries an append with a key that every tenant uses."""
        number = self.random.randint(1, self.count[thread_id])
        [message] = self.store.append(thread_id, self.payload(number), key=f"key-{number}")
        if message.seq != number:
            self.foreign += 1

    def replay(self, thread_id: str) -> None:
        self.mine([m.payload for m in self.store.replay(thread_id)], expected=self.count[thread_id])

    def view(self, thread_id: str) -> None:
        view = self.store.view(thread_id)
        self.mine(view.messages)
        if view.elements[-1].end_seq != self.count[thread_id]:
            self.empty += 1

    def message(self, thread_id: str) -> None:
        number = self.random.randint(1, self.count[thread_id])
        self.mine([self.store.message(thread_id, number).payload])

    def thread(self, thread_id: str) -> None:
        if self.store.thread(thread_id).last_seq != self.count[thread_id]:
            self.foreign += 1

    def threads(self, _thread_id: str) -> None:
        listed = list(self.store.threads())
        if [t.thread_id for t in listed] != list(THREADS):
            self.empty += 1
        if [t.last_seq for t in listed] != [self.count[name] for name in THREADS]:
            self.foreign += 1

    def compact(self, thread_id: str) -> None:
        def fold(ctx: cs.CompactionContext) -> None:
            free = [e for e in ctx.elements if not e.is_summary]
            if len(free) > 2:
                ctx.compact(free[0].seq, free[0].end_seq, self.tenant)

        run = self.store.compact(thread_id, fold, force=True)
        self.records[thread_id] += len(run)
        if run and run[-1].number != self.records[thread_id]:
            self.foreign += 1

    def compactions(self, thread_id: str) -> None:
        found = list(self.store.compactions(thread_id))
        self.mine([record.summary_text for record in found], expected=self.records[thread_id])
        self.mine([record.summary_text for record in self.store.compactions()], expected=sum(self.records.values()))

    def explain(self, thread_id: str) -> None:
        self.mine([self.store.audit.explain(thread_id, 1).message.payload])

    def metadata(self, thread_id: str) -> None:
        self.store.set_metadata(thread_id, {"of": self.tenant})
        self.mine([self.store.thread(thread_id).metadata])

    def events(self, thread_id: str) -> None:
        self.store.custody.hold(thread_id, reason=self.tenant)
        self.mine([event.body for event in self.store.audit.events(thread_id, kind="hold")])

    def verify(self, thread_id: str) -> None:
        report = self.store.audit.verify(thread_id)
        if report.findings:
            self.foreign += 1


def _prove(pooled: str, calls: int) -> None:
    clients = [Client(pooled, number, calls // TENANTS + 1) for number in range(TENANTS)]
    workers = [threading.Thread(target=client.run) for client in clients]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for client in clients:
        client.store.close()
    assert [client.failure for client in clients] == [None] * TENANTS
    assert sum(client.foreign for client in clients) == 0
    assert sum(client.empty for client in clients) == 0
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        # No call has left a tenant on a connection.
        for _ in range(4 * POOL):
            rows = connection.execute("SELECT current_setting('compaction_store.tenant', true)").fetchall()
            assert rows[0][0] in {None, ""}


def test_no_tenant_sees_another_through_a_pooler(pooled: str) -> None:
    _prove(pooled, 640)


@pytest.mark.slow
def test_no_tenant_sees_another_through_a_pooler_in_five_thousand_calls(pooled: str) -> None:
    _prove(pooled, 5000)


@pytest.mark.parametrize("statement", [
    "SELECT * FROM compaction_store.messages", "SELECT * FROM compaction_store.heads",
    "SELECT count(*) FROM compaction_store.threads", "SELECT * FROM compaction_store.compactions LIMIT 1",
    "SELECT EXISTS (SELECT FROM compaction_store.events)",
])  # fmt: skip
def test_with_the_tenant_forgotten_there_is_an_error_and_never_rows(pooled: str, statement: str) -> None:
    with cs.Store.open(pooled, tenant="one") as store:
        store.append("t", {"n": 1}, raw=True)
        store.custody.hold("t", reason="r")
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(2 * POOL):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(statement.encode())
            assert caught.value.sqlstate == "CS009"


def test_what_collides_in_every_tenant_changes_only_its_own(faces: Any, url: str, superuser: Any) -> None:
    """The same thread, seq, key and number, in every way there is to write."""
    stores = [faces.open(url, tenant=f"tenant-{n}") for n in range(3)]
    for store in stores:
        store.append(
            "t", [{"role": "user", "content": f"some words that could be fewer {n}"} for n in range(4)], key="k"
        )
        store.compact("t", lambda ctx: ctx.compact(1, 2, "fewer"), force=True)
    before = {t: _rows(superuser, t) for t in ("tenant-0", "tenant-2")}
    one = stores[1]
    one.append("t", {"n": 1}, key="other", raw=True)
    one.revoke("t", 1, reason="r")
    one.compact("t", lambda ctx: ctx.compact(1, 3, "fewer"), force=True)
    one.set_metadata("t", {"x": 1})
    one.custody.hold("t", reason="r")
    one.custody.release("t", reason="r")
    one.custody.retain("t", datetime(2001, 1, 1, tzinfo=UTC), reason="r")
    one.custody.redact("t", [1], reason="r")
    one.load.messages("t", [{"n": n} for n in range(3)], key="load", raw=True)
    one.custody.erase("t", reason="r", override="o")
    assert {t: _rows(superuser, t) for t in ("tenant-0", "tenant-2")} == before
    for store in (stores[0], stores[2]):
        assert store.audit.verify("t").findings == ()
        assert len(list(store.replay("t"))) == 4


def _rows(superuser: Any, tenant: str) -> list[tuple[Any, ...]]:
    tables = ("threads", "heads", "messages", "compactions", "events")
    found = (
        superuser.execute(
            f"SELECT to_json(t)::text FROM compaction_store.{table} AS t WHERE tenant = %s ORDER BY 1", [tenant]
        ).fetchall()
        for table in tables
    )
    return list(itertools.chain.from_iterable(found))
