"""Runs the tests on a Citus cluster. Every test's database is a copy of a distributed template, on each node.

`scripts/test-cluster` sets COMPACTION_STORE_TEST_CLUSTER to the coordinator's URL. This machine must reach the nodes by
the names and ports in pg_dist_node, with the login of that URL.
"""

from __future__ import annotations

import os

import psycopg
import sqlalchemy as sa

from compaction_store import migrate
from compaction_store.deploy import citus

SHARDS = 4
_SETTING_UP = 7_301_957
# Some tests play an attacker who disables triggers. Citus refuses this even to a superuser unless these are set.
_SETTINGS = ("citus.propagate_set_commands = 'local'", "citus.enable_unsafe_triggers = on")


def given() -> str | None:
    return os.environ.get("COMPACTION_STORE_TEST_CLUSTER")


def node_urls(url: str) -> tuple[str, ...]:
    """Returns the URLs of all nodes. The coordinator's URL comes first."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT nodename, nodeport FROM pg_dist_node WHERE isactive ORDER BY groupid, nodeid"
        ).fetchall()
    return tuple(
        sa.make_url(url).set(host=host, port=port).render_as_string(hide_password=False) for host, port in found
    )


def create(nodes: tuple[str, ...], name: str, template: str) -> None:
    for url in reversed(nodes):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET citus.enable_create_database_propagation = off")
            connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template} STRATEGY WAL_LOG")
            for setting in _SETTINGS:
                connection.execute(f"ALTER DATABASE {name} SET {setting}".encode())


def drop(nodes: tuple[str, ...], name: str) -> None:
    for url in nodes:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET citus.enable_create_database_propagation = off")
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def connect_nodes(nodes: list[sa.URL], *, extensions_in: list[sa.URL]) -> None:
    """Connects databases to a cluster whose coordinator is the first one. Adds the extension to `extensions_in`."""
    for url in extensions_in:
        with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION citus")
    with psycopg.connect(nodes[0].render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("SELECT citus_set_coordinator_host(%s, %s)", (nodes[0].host, nodes[0].port))
        for url in nodes[1:]:
            connection.execute("SELECT citus_add_node(%s, %s)", (url.host, url.port))


def make_template(nodes: tuple[str, ...], name: str) -> None:
    """Makes a migrated and distributed database, of which tests get copies.

    Only one worker of the tests does so at a time. Citus sends the cluster's roles to each added node, and two such
    changes of one role at once fail with "tuple concurrently updated".
    """
    with psycopg.connect(nodes[0], autocommit=True) as connection:
        connection.execute(f"SELECT pg_advisory_lock({_SETTING_UP})".encode())
        _make_template(nodes, name)


def _make_template(nodes: tuple[str, ...], name: str) -> None:
    create(nodes, name, "template0")
    here = [sa.make_url(url).set(database=name) for url in nodes]
    connect_nodes(here, extensions_in=here)
    coordinator = here[0].render_as_string(hide_password=False)
    migrate.upgrade(coordinator)
    citus.distribute(coordinator, shards=SHARDS)
    for address in nodes:
        with psycopg.connect(address, autocommit=True) as connection:
            # Forbid connections: Citus would keep one open, and a database with a connection cannot be a template.
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
