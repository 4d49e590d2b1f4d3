"""The server of the tests, and a separate database for each test."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest
import sqlalchemy as sa

from support import cluster

TEMPLATE = f"cs_template_{os.getpid()}"
# Databases of finished tests that are not dropped yet, and how many of them may stay.
left: deque[str] = deque()
_LAG = 4
_ROLES = 7_301_956
_numbers = itertools.count(1)


class Server(NamedTuple):
    url: str
    kind: str
    version: str
    #: The URLs of a cluster's nodes, the coordinator's first; empty for a single server.
    nodes: tuple[str, ...] = ()

    def database(self, name: str) -> str:
        return sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def by_own_login(self, url: str) -> str:
        """Returns the URL of the same database with the server's own login, a superuser."""
        return self.database(sa.make_url(url).database or "")

    def create(self, name: str, template: str) -> None:
        if self.nodes and template == TEMPLATE:
            cluster.create(self.nodes, name, template)
            return
        # FILE_COPY is faster in memory, but on a disk it would wait for a checkpoint.
        strategy = "FILE_COPY" if self.kind == "embedded" else "WAL_LOG"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template} STRATEGY {strategy}")

    def drop(self, name: str) -> None:
        if self.nodes:
            cluster.drop(self.nodes, name)
            return
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def database(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"cs_{os.getpid()}_{next(_numbers)}"
    shared = "" if request.node.get_closest_marker("alters_roles") else "_shared"
    with psycopg.connect(server.url, autocommit=True) as connection:
        # Only one test at a time may change roles, because they belong to the server, which several workers may share.
        connection.execute(f"SELECT pg_advisory_lock{shared}({_ROLES})".encode())
        server.create(name, template)
        yield server.database(name)
        # Drop an earlier database, not this one: Postgres waits 100 ms if a connection was closed just before.
        left.append(name)
        if len(left) > _LAG:
            server.drop(left.popleft())
