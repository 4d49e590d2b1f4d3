"""Moves shards between the nodes of a Citus cluster, for the command `rebalance`.

Citus copies a shard as the owner of its tables, a role that otherwise cannot log in. It cannot copy a table with
row-level security while rows are written, so writers of a shard wait while it is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.deploy import citus
from compaction_store.errors import NotConfigured, PermissionDenied
from compaction_store.postgres import queries
from compaction_store.postgres.calling import connections, engines

# Moving a shard of gigabytes takes minutes.
_SECONDS = 24 * 3600.0
# How often a move is repeated after a deadlock.
_REPEATS = 10
_PLAN = """
    SELECT count(*) FROM pg_catalog.get_rebalance_table_shards_plan(rebalance_strategy := 'by_shard_count')
"""
_MOVE = """
    SELECT pg_catalog.rebalance_table_shards(
        shard_transfer_mode := 'block_writes', rebalance_strategy := 'by_shard_count'
    )
"""
_HAS_OWNER = "SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname = 'compaction_store_owner'"


def rebalance(url: str) -> int:
    """Moves shards until all nodes of a Citus cluster have about the same number. Returns the number of moved shards.

    The URL must be that of the coordinator, and its login must be a superuser on every node. During the call, the role
    compaction_store_owner can log in. If the process dies, run the function again to remove this permission.
    """
    engine = engines.create_engine(url, pool_size=1, connect_timeout=10)
    try:
        caller = connections.Connections(engine, _SECONDS)
        with _login(caller):
            return caller.once().call(_rebalance)
    finally:
        engine.dispose()


@contextmanager
def _login(caller: connections.Connections) -> Iterator[None]:
    has_owner = caller.call(_prepare)
    try:
        yield
    finally:
        if has_owner:
            # If the connection is broken, this opens a new one.
            caller.call(_set_login, "NOLOGIN")


def _prepare(connection: Connection) -> bool:
    queries.check(connection)
    citus.check(connection)
    if not citus.is_done(connection):
        raise NotConfigured("the tables are not distributed: run compaction-store distribute first")
    [(has_owner,)] = queries.fetch(connection, _HAS_OWNER)
    if has_owner:
        _set_login(connection, "LOGIN")
    return bool(has_owner)


def _set_login(connection: Connection, login: str) -> None:
    try:
        queries.fetch(connection, f"ALTER ROLE compaction_store_owner {login}")
    except psycopg.errors.InsufficientPrivilege as error:
        raise PermissionDenied(
            "moving shards needs a superuser that can log in on every node", sqlstate=error.sqlstate
        ) from None


def _rebalance(connection: Connection) -> int:
    [(planned,)] = queries.fetch(connection, _PLAN)
    for is_last in (*[False] * _REPEATS, True):
        try:
            queries.fetch(connection, _MOVE)
            break
        except psycopg.errors.DeadlockDetected:
            # A move and a transaction of a writer waited for each other. The shards that were moved stay moved.
            if is_last:
                raise
    return int(planned)
