"""Distributes the tables over the nodes of a Citus cluster, and moves shards to new nodes.

The tables of threads are distributed by thread_uid and colocated. So a thread is in one shard, and a call with a
thread's key runs as a whole on the node with this shard. A cluster has one more table, `names`, which is distributed by
a hash of the name; `postgres.cluster` finds the keys of threads in it. `distribute` runs in one transaction and
can be repeated. The functions are those of a single server, except for the files in `migrations/sql/citus/` and for one
setting; `verify` expects these differences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.errors import InvalidInput, NotConfigured, PermissionDenied, UnsupportedDatabase
from compaction_store.jsonable import named
from compaction_store.models.roles import OWNER
from compaction_store.module_data import ModuleData
from compaction_store.postgres import queries, tables
from compaction_store.postgres.calling import connections
from compaction_store.postgres.schema import layout

_SQL = ModuleData(__file__).values
_OLDEST = 12
_MOST_SHARDS = 64_000
# The other tables are colocated with the first.
LOG = ("threads", "heads", "messages", "compactions", "events")
NAMES = "names"
# An import stages its rows in this table, which is not part of the log.
_STAGED = "staged"
TABLES = (*LOG, _STAGED)
# This table is distributed by the name of the thread, because a turn may be on a thread that does not exist yet.
_TURNS = "turns"
_OF_TURNS = ["take_turn", "renew_turn", "leave_turn", "hold_turn", "end_turns"]
# Moving the stored rows, or shards of gigabytes, can take hours.
_SECONDS = 24 * 3600.0
# How often a move is repeated after a deadlock.
_REPEATS = 10
_IN_TRANSACTIONS = _SQL["in_transactions"].split()


class Distributed(NamedTuple):
    """The result of `distribute`: whether this call distributed the tables, and how many nodes take shards."""

    now: bool
    nodes: int

    def as_dict(self) -> dict[str, Any]:
        return named(self)


def distribute(url: str, *, shards: int | None = None) -> Distributed:
    """Distributes a migrated database's tables over the nodes of its Citus cluster, with all rows.

    The URL must be that of the coordinator, and its login a superuser on every node. `shards` defaults to the setting
    `citus.shard_count`; a second call does not change their number.
    """
    if shards is not None and (type(shards) is not int or not 1 <= shards <= _MOST_SHARDS):
        raise InvalidInput(f"shards must be an integer from 1 to {_MOST_SHARDS:,}, not {shards!r}")
    with connections.one_engine(url) as engine:
        return connections.Connections(engine, _SECONDS).call(_distribute, shards)


def _distribute(connection: Connection, shards: int | None) -> Distributed:
    queries.check(connection)
    nodes = check(connection)
    with _transaction(connection):
        for statement in _SQL["local"]:
            queries.fetch(connection, statement)
        now = not is_done(connection)
        if now:
            if layout.count_partitions(connection):
                raise UnsupportedDatabase("the table of messages has partitions, which cannot be distributed")
            if shards is not None:
                queries.fetch(connection, f"SET LOCAL citus.shard_count = {shards:d}")
            _spread(connection)
        for statement in (*replaced(), *_files("roles"), *_files("views")):
            queries.fetch(connection, statement)
        for (signature,) in queries.fetch(connection, _SQL["generic"]):
            queries.fetch(connection, f"ALTER FUNCTION {signature} RESET plan_cache_mode")
        functions = queries.fetch(connection, _SQL["functions"], (_OF_TURNS, _IN_TRANSACTIONS))
        for signature, argument, is_forced in functions:
            if argument is None:
                queries.fetch(connection, _SQL["function"], (signature,))
            else:
                with_ = _TURNS if argument == "p_thread_id" else TABLES[0]
                queries.fetch(connection, _SQL["called"], (signature, argument, f"{tables.SCHEMA}.{with_}", is_forced))
        [(name,)] = queries.fetch(connection, "SELECT pg_catalog.current_database()::text")
        # With this setting, queries across threads send their tenant to every node.
        setting = sql.SQL("ALTER DATABASE {} SET citus.propagate_set_commands = 'local'").format(sql.Identifier(name))
        queries.fetch(connection, setting.as_string().replace("%", "%%"))
    return Distributed(now, nodes)


def check(connection: Connection) -> int:
    """Returns the number of nodes that take shards."""
    found = queries.fetch(connection, _SQL["extension"])
    if not found:
        raise UnsupportedDatabase("the database has no Citus: run CREATE EXTENSION citus on every node of the cluster")
    version = found[0][0]
    if int(version.partition(".")[0]) < _OLDEST:
        raise UnsupportedDatabase(f"Citus {_OLDEST} or newer is needed; this is {version}")
    [(nodes,)] = queries.fetch(connection, _SQL["nodes"])
    if not nodes:
        raise NotConfigured(
            "no node of the cluster takes shards: run SELECT citus_set_coordinator_host(…) and SELECT citus_add_node(…)"
        )
    return int(nodes)


def is_done(connection: Connection) -> bool:
    found = {name: (fits, group) for name, fits, group in queries.fetch(connection, _SQL["done"])}
    if not found:
        return False
    if (
        found.keys() != {*TABLES, NAMES, _TURNS}
        or len({found[name] for name in (*TABLES, NAMES)}) != 1
        or not found["threads"][0]
    ):
        raise NotConfigured(
            "the tables are distributed already, but not colocated by thread_uid: distribute a newly migrated database"
        )
    return True


def _spread(connection: Connection) -> None:
    for table in (*LOG, _TURNS):
        # Citus does not support a sub-select in a policy.
        queries.fetch(connection, _SQL["policy"].format(table=table))
    for statement in _SQL["index"]:
        queries.fetch(connection, statement)
    _run_files(connection, "tables")
    for statement in (*_files("functions"), _SQL["copy_names"]):
        queries.fetch(connection, statement)
    for folder in ("triggers", "policies", "comments"):
        _run_files(connection, folder)
    # The rows of these two tables are temporary, so they need not be moved.
    queries.fetch(connection, "TRUNCATE compaction_store.staged, compaction_store.turns")
    for table in (*TABLES, NAMES, _TURNS):
        with_ = "none" if table in {TABLES[0], _TURNS} else f"{tables.SCHEMA}.{TABLES[0]}"
        column = {NAMES: "name_uid", _TURNS: "thread_id"}.get(table, "thread_uid")
        queries.fetch(connection, _SQL["table"].format(table=table, column=column, with_=with_))
    for table in (*LOG, NAMES):
        for statement in _SQL["emptied"]:
            queries.fetch(connection, statement.format(table=table))


def replaced() -> Iterator[str]:
    """Yields the functions that are different on a cluster, or exist only there; each file says why."""
    yield from _files("")
    yield from _files("functions")


def _run_files(connection: Connection, folder: str) -> None:
    """Executes files with several statements and no functions."""
    for text in _files(folder):
        for statement in filter(str.strip, re.sub(r"--[^\n]*", "", text).split(";")):
            queries.fetch(connection, statement)


def _files(folder: str) -> Iterator[str]:
    for path in sorted((tables.scripts() / "sql" / "citus" / folder).glob("*.sql")):
        yield path.read_text(encoding="utf-8").replace("%", "%%")


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    queries.fetch(connection, "BEGIN")
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        queries.fetch(connection, "ROLLBACK")
        raise PermissionDenied(
            "distributing the tables needs a superuser that can log in on every node", sqlstate=error.sqlstate
        ) from None
    except BaseException:
        queries.fetch(connection, "ROLLBACK")
        raise
    queries.fetch(connection, "COMMIT")


def rebalance(url: str) -> int:
    """Moves shards until all nodes of a Citus cluster have about the same number. Returns the number of moved shards.

    The URL must be that of the coordinator, and its login must be a superuser on every node. During the call, the role
    compaction_store_owner can log in. If the process dies, run the function again to remove this permission.
    """
    with connections.one_engine(url) as engine:
        caller = connections.Connections(engine, _SECONDS)
        with _login(caller):
            return caller.once().call(_rebalance)


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
    check(connection)
    if not is_done(connection):
        raise NotConfigured("the tables are not distributed: run compaction-store distribute first")
    [(has_owner,)] = queries.fetch(connection, _SQL["has_owner"], (OWNER,))
    if has_owner:
        _set_login(connection, "LOGIN")
    return bool(has_owner)


def _set_login(connection: Connection, login: str) -> None:
    try:
        queries.fetch(connection, f"ALTER ROLE {OWNER} {login}")
    except psycopg.errors.InsufficientPrivilege as error:
        raise PermissionDenied(
            "moving shards needs a superuser that can log in on every node", sqlstate=error.sqlstate
        ) from None


def _rebalance(connection: Connection) -> int:
    [(planned,)] = queries.fetch(connection, _SQL["plan"])
    for is_last in (*[False] * _REPEATS, True):
        try:
            queries.fetch(connection, _SQL["move"])
            break
        except psycopg.errors.DeadlockDetected:
            # A move and a transaction of a writer waited for each other. The shards that were moved stay moved.
            if is_last:
                raise
    return int(planned)
