"""Fixtures of the loader's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.load_sources import CHUNK

from compaction_store.deploy import roles
from compaction_store.store import loads


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a hundred messages."""
    monkeypatch.setattr(loads, "CHUNK_MESSAGES", CHUNK)


@pytest.fixture
def login(url: str, superuser: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a login that is a member of the roles named."""
    name = f"cs_loader_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE {request.param}")
    yield sa.make_url(url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        [name],
    )
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def loader(superuser_url: str, superuser: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a login with only the rights that `grant` gives it."""
    name = f"cs_bound_{os.getpid()}"
    superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'".encode())
    roles.grant(superuser_url, name, "loader")
    yield sa.make_url(superuser_url).set(username=name, password="pw").render_as_string(hide_password=False)
    superuser.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()",
        [name],
    )
    superuser.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
