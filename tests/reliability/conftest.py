"""A separate server for the rigs, folders for embedded servers, and a thread to compact."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.contended_thread import chat
from support.embedded_servers import (
    FAST_FOLDER,
    is_roomy,
    kill_all,
    processes_in,
    server_folder,
    started_processes,
    wait_until,
)
from support.faces import Face

from compaction_store.deploy import roles
from reliability.rigs.ground import Postgres
from reliability.rigs.proxy import Proxy


@pytest.fixture(scope="session")
def own() -> Iterator[Postgres]:
    if not Postgres.possible():
        pytest.skip("needs the embedded Postgres, on Linux")
    with Postgres() as server:
        yield server


@pytest.fixture
def thread(store: Face) -> Face:
    store.append("t", chat(), tokens=100)
    return store


@pytest.fixture
def holder(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another connection, which holds locks until it rolls back."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def way(url: str) -> Iterator[Proxy]:
    """A way to the server on which connections can be cut and bytes held back."""
    with Proxy(url, random.Random(1)) as made:
        yield made
        made.hush(requests=False, replies=False)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def narrow(url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of an application's login that may have one connection at a time."""
    name = f"{superuser.info.dbname}_narrow"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'narrow' CONNECTION LIMIT 1 IN ROLE compaction_store_app")
    yield sa.make_url(url).set(username=name, password="narrow").render_as_string(hide_password=False)
    superuser.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [name])
    superuser.execute(f"DROP ROLE {name}")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short name, and nothing running in it when the test is over."""
    folder = Path(tempfile.mkdtemp(prefix="cs", dir=FAST_FOLDER if is_roomy(FAST_FOLDER) else None))
    yield folder
    while started_processes:
        with started_processes.pop() as process:
            process.kill()
    try:
        wait_until(lambda: not processes_in(folder))
    finally:
        kill_all(folder)
        shutil.rmtree(folder)


@pytest.fixture
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes that folder the data home of this process. Returns the server's folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    monkeypatch.delenv("COMPACTION_STORE_URL", raising=False)
    return server_folder(home)


@pytest.fixture
def logins(url: str, superuser: psycopg.Connection[Any]) -> Iterator[dict[str, str]]:
    """The URL of a login of each kind, made as an operator would."""
    made = {}
    for role in ("application", "owner"):
        name = f"cs_{role}_{os.getpid()}"
        superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
        roles.grant(url, name, role)
        made[role] = sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    yield made | {"superuser": url}
    for role in made:
        name = f"cs_{role}_{os.getpid()}"
        superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = %s AND datname = current_database()",
            [name],
        )
        superuser.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
