"""Sixteen clients, each of another tenant, behind pgbouncer in transaction mode with four connections.

Every message contains its tenant and its thread. Afterwards every row of every table is compared with its message: none
may be in another table, thread or tenant.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

import compaction_store as cs
from reliability.rigs.ground import Ground, superuser

CLIENTS = 16
POOL = 4
_NOBODY = 65534
_PATIENCE = 20.0


def program() -> str | None:
    """Finds pgbouncer. Debian's package installs it in a folder that is only in root's path."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def pooler(url: str, *, drops: str = "", mode: str = "transaction") -> Iterator[str]:
    """Yields the URL of a database through pgbouncer. Another database on the server has the same URL with its name.

    pgbouncer refuses most parameters of a new connection, and silently drops those named in `drops`.
    """
    found = program()
    assert found is not None
    target = conninfo_to_dict(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    # With auth_type any, a client may use any login. The login for the server is part of the database's line.
    login = "".join(f" {name}={target[name]}" for name in ("user", "password") if target.get(name))
    (folder / "ini").write_text(
        f"[databases]\n* = host={target.get('host', '127.0.0.1')} port={target.get('port') or 5432}{login}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {POOL}\nmax_client_conn = 500\nlogfile =\n"
        f"ignore_startup_parameters = {drops}\n"
    )
    folder.chmod(0o755)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen((found, str(folder / "ini")), stdout=log, stderr=log, cwd="/", **_account(target))
    try:
        address = sa.make_url(url).set(host="127.0.0.1", port=port).set(query={"sslmode": "disable"})
        through = address.render_as_string(hide_password=False)
        _await(process, through, folder / "log")
        yield through
    finally:
        process.terminate()
        process.wait(_PATIENCE)
        shutil.rmtree(folder)


def _account(target: dict[str, Any]) -> dict[str, Any]:
    """Returns the account to use instead of root: one that may use the server's socket."""
    if os.geteuid() != 0:
        return {}
    host = str(target.get("host", ""))
    owner = Path(host).stat() if host.startswith("/") else None
    uid, gid = (_NOBODY, _NOBODY) if owner is None else (owner.st_uid, owner.st_gid)
    return {"user": uid, "group": gid, "extra_groups": []}


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        else:
            return


def run(ground: Ground, chance: random.Random, *, calls: int) -> dict[str, Any]:
    """Makes `calls` calls with each client."""
    direct = ground.database()
    seen: Counter[str] = Counter()
    started = time.monotonic()
    with pooler(direct) as through, ThreadPoolExecutor(CLIENTS) as workers:
        seeds = [random.Random(chance.random()) for _ in range(CLIENTS)]
        for found in workers.map(lambda i: _client(through, f"tenant-{i}", seeds[i], calls), range(CLIENTS)):
            seen += found
    return {"seconds": round(time.monotonic() - started, 1), **seen, **_proved(direct, seen)}


def _client(url: str, tenant: str, chance: random.Random, calls: int) -> Counter[str]:
    """Makes mixed calls with statements of every shape. Each checks that it got nothing of another client."""
    seen: Counter[str] = Counter()
    # All tenants' threads have the same names, and their appends the same keys.
    threads = ("a", "b", "c")
    with cs.Store.open(url, tenant=tenant, pool_size=2) as store:
        for thread_id in threads:
            store.append(thread_id, _of(tenant, thread_id), tokens=10)
        for number in range(calls):
            thread_id = chance.choice(threads)
            what = chance.choice(("append", "append", "append", "many", "view", "replay", "threads", "compact", "log"))
            seen[what] += 1
            if what == "append":
                store.append(thread_id, _of(tenant, thread_id), tokens=10, key=f"k{number}")
                seen["messages"] += 1
            elif what == "many":
                store.append(thread_id, [_of(tenant, thread_id)] * 3, tokens=10, meta={"tenant": tenant})
                seen["messages"] += 3
            elif what == "compact":
                _fold(store, tenant, thread_id, chance)
            else:
                _looked(store, what, tenant, thread_id)
    seen["messages"] += len(threads)
    seen["calls"] = calls
    return seen


def _of(tenant: str, thread_id: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "word " * 20, "tenant": tenant, "thread": thread_id}


def _fold(store: cs.Store, tenant: str, thread_id: str, chance: random.Random) -> None:
    elements = store.view(thread_id).elements
    if len(elements) < 6:
        return
    low = chance.randrange(len(elements) - 4)

    def fold(ctx: cs.CompactionContext) -> None:
        ctx.compact(elements[low].seq, elements[low + 3].end_seq, "S")

    store.compact(thread_id, fold, actor=tenant)


def _looked(store: cs.Store, what: str, tenant: str, thread_id: str) -> None:
    if what == "view":
        found = [m for e in store.view(thread_id).elements if e.number is None for m in e.messages]
        assert {(m or {})["tenant"] for m in found} <= {tenant}
    elif what == "replay":
        messages = list(store.replay(thread_id, last=20))
        assert messages
        assert {((m.payload or {})["tenant"], (m.payload or {})["thread"]) for m in messages} == {(tenant, thread_id)}
    elif what == "threads":
        assert [t.thread_id for t in store.threads()] == ["a", "b", "c"]
    else:
        assert {r.actor for r in store.compactions(thread_id)} <= {tenant}


def _proved(url: str, seen: Counter[str]) -> dict[str, int]:
    """Compares the messages with the rows, as a superuser."""
    with superuser(url) as connection:
        rows = connection.execute(
            "SELECT t.thread_id, m.tenant, m.payload::text, m.meta::text FROM compaction_store.messages AS m"
            " JOIN compaction_store.threads AS t ON t.thread_uid = m.thread_uid AND t.tenant = m.tenant"
        ).fetchall()
        for name, tenant, payload, meta in rows:
            said = json.loads(payload)
            assert said["tenant"] == tenant, "a message in another tenant"
            assert meta is None or json.loads(meta) == {"tenant": tenant}, "meta of another tenant"
            assert name == said["thread"], "a message in another thread"
        records = connection.execute("SELECT tenant, actor FROM compaction_store.compactions").fetchall()
        assert all(tenant == actor for tenant, actor in records), "a record in another tenant"
        row = connection.execute("SELECT count(*), count(DISTINCT tenant) FROM compaction_store.threads").fetchone()
        assert row == (3 * CLIENTS, CLIENTS)
    assert len(rows) == seen["messages"]
    findings = 0
    for i in range(CLIENTS):
        with cs.Store.open(url, tenant=f"tenant-{i}") as store:
            findings += sum(len(store.audit.verify(t.thread_id).findings) for t in store.threads())
    assert findings == 0
    return {"rows": len(rows), "records": len(records), "rows in the wrong table, thread or tenant": 0, "findings": 0}
