"""The server of the tests, and a database of its own for each of them."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest
import sqlalchemy as sa

TEMPLATE = f"cs_template_{os.getpid()}"
# Databases whose tests are over, and how many of them stay for now.
left: deque[str] = deque()
_LAG = 4
_ROLES = 7_301_956
_numbers = itertools.count(1)


class Server(NamedTuple):
    url: str
    kind: str
    version: str

    def database(self, name: str) -> str:
        return sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)


def database(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
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
        left.append(name)
        if len(left) > _LAG:
            connection.execute(f"DROP DATABASE {left.popleft()} WITH (FORCE)")
