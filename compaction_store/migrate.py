"""Migrates the schema of a database, as `compaction-store migrate` does.

Concurrent migrations run one after the other: each one locks Alembic's version table until its transaction ends. Only a
login that may change this table can lock it, so no other login can block a migration. Writers need not stop. If a step
of a migration cannot get its lock within the lock timeout, the whole migration is rolled back and retried. So writers
that queue behind a waiting migration are free again after the lock timeout.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from importlib.metadata import version

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store import errors
from compaction_store.module_data import ModuleData
from compaction_store.postgres import cluster, queries, tables
from compaction_store.postgres.calling import connections
from compaction_store.postgres.schema import layout

_SQL = ModuleData(__file__).values
LOCK_TIMEOUT_MS = 200
TURN_TIMEOUT_MS = 30_000
scripts = tables.scripts
TRIES = 120
MIN_PARTITIONS, MAX_PARTITIONS = 2, 1024
# SQLSTATEs if another migration created the schema or the table at the same time.
_MADE = frozenset({"23505", "42P06", "42P07"})
_BUSY = "55P03"
_NOT_EMPTY = "CS006"
# SQLSTATEs after which to retry: lock not available, deadlock, and "tuple concurrently updated", which Postgres raises
# if migrations of two databases grant the same roles.
_TRY_AGAIN = frozenset({"55P03", "40P01", "XX000"})


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(url: str, revision: str = "head", *, partitions: int | None = None) -> None:
    """Upgrades the database to a revision. Does nothing if the database already has the revision.

    `partitions` is the number of partitions of a new table of messages. By default, a new table has no partitions. The
    number cannot be changed later: if the table exists with another number, this raises `Conflict`.
    """
    _check_partitions(partitions)
    if partitions is not None and (there := connections.run_once(url, _count_partitions)) not in (None, partitions):
        what = f"the table of messages was made with {there or 'no'} partitions, which cannot be changed"
        raise errors.Conflict(what)
    before = _alembic(url, lambda config: command.upgrade(config, revision), partitions=partitions)
    # The first migration makes the tables of the log, and is no event in it.
    if before is not None and (after := current(url)) != before:
        said = {"from": before, "to": after, "release": version("compaction-store")}
        connections.run_once(url, lambda connection: cluster.record_in_database(connection, "migration", said))


def sql(*, partitions: int | None = None) -> str:
    """Returns the SQL that makes the schema in a database without it, for psql. Needs no database."""
    _check_partitions(partitions)
    config, text = _config(), io.StringIO()
    config.output_buffer, config.attributes["partitions"] = text, partitions or 0
    command.upgrade(config, "head", sql=True)
    return text.getvalue()


def _check_partitions(partitions: int | None) -> None:
    if partitions is not None and (type(partitions) is not int or not MIN_PARTITIONS <= partitions <= MAX_PARTITIONS):
        raise errors.InvalidInput(
            f"partitions must be an integer from {MIN_PARTITIONS} to {MAX_PARTITIONS:,}, not {partitions!r}"
        )


def downgrade(url: str, revision: str, *, delete_everything: bool = False) -> None:
    """Downgrades the database to a revision.

    A downgrade below the first revision deletes all stored data. It raises `Conflict` if there is any data, unless
    `delete_everything` is true.
    """
    _alembic(url, lambda config: command.downgrade(config, revision), delete_everything=delete_everything)


def current(url: str) -> str | None:
    """Returns the database's revision, or None if it has no compaction_store schema."""
    return connections.run_once(url, queries.revision)


def check(url: str) -> None:
    """Raises `SchemaOutOfDate` if the database is not at the revision that this version needs."""
    connections.run_once(url, queries.check)


def with_connection(url: str, run: Callable[[sa.Connection], None]) -> None:
    """Runs a migration in one transaction. If it cannot get a lock, makes up to `TRIES` attempts in all."""
    with connections.one_engine(url) as engine:
        for last in [False] * (TRIES - 1) + [True]:
            if (failure := _transaction(engine, run)) is None:
                return
            if last:
                raise failure
            time.sleep(random.uniform(0.05, 0.25))  # noqa: S311 — jitter, not a secret


def _transaction(engine: sa.Engine, run: Callable[[sa.Connection], None]) -> errors.CompactionStoreError | None:
    """Runs a migration in a transaction. Returns None if it succeeded, or the error if a retry may succeed."""
    try:
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
            _take_turn(connection)
            connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
            run(connection)
        return None
    except sa.exc.DBAPIError as error:
        failure = _failure(error)
        if _sqlstate(error) in _TRY_AGAIN:
            return failure
    raise failure


def _take_turn(connection: sa.Connection) -> None:
    """Blocks other migrations and checkpoints until the end of this transaction."""
    if connection.scalar(sa.text(queries.IS_WORKER_ASKED)) and connection.scalar(sa.text(queries.IS_WORKER)):
        raise errors.UnsupportedDatabase(queries.WORKER)
    queries.refuse_encoding(connection.scalar(sa.text("SHOW server_encoding")))
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {TURN_TIMEOUT_MS}"))
    try:
        while connection.scalar(sa.text(f"SELECT to_regclass('{tables.SCHEMA}.alembic_version')")) is None:
            _refuse_without_superuser(connection)
            _make_version_table(connection)
        if connection.scalar(sa.text(_SQL["may_lock"])):
            with connection.begin_nested():
                connection.execute(sa.text(_SQL["lock"]))
        return
    except sa.exc.DBAPIError as error:
        if _sqlstate(error) != _BUSY:
            raise
    row = connection.execute(sa.text(queries.HOLDER)).one_or_none()
    holder = queries.Holder(*row) if row is not None else None
    what = f"another migration or a checkpoint did not finish in time{queries.held_by(holder)}"
    raise errors.DatabaseUnavailable(what)


def _refuse_without_superuser(connection: sa.Connection) -> None:
    """Raises an error if Citus must create roles on other nodes and the login is not a superuser."""
    has_citus = connection.scalar(sa.text("SELECT to_regclass('pg_catalog.pg_dist_node') IS NOT NULL"))
    if has_citus and connection.scalar(sa.text(_SQL["is_refused"])):
        raise errors.PermissionDenied(_SQL["no_superuser"])


def _make_version_table(connection: sa.Connection) -> None:
    """Creates the schema and the version table. If another migration is creating them, waits until it is done."""
    try:
        with connection.begin_nested():
            # CREATE SCHEMA IF NOT EXISTS would need the privilege to create schemas even if the schema exists.
            if connection.scalar(sa.text(f"SELECT to_regnamespace('{tables.SCHEMA}')")) is None:
                connection.execute(sa.text(f"CREATE SCHEMA {tables.SCHEMA}"))
            connection.execute(sa.text(_SQL["version_table"]))
    except sa.exc.DBAPIError as error:
        if _sqlstate(error) not in _MADE:
            raise


def _sqlstate(error: sa.exc.DBAPIError) -> str | None:
    return error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None


def _failure(error: sa.exc.DBAPIError) -> errors.CompactionStoreError:
    state = _sqlstate(error)
    lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    if error.connection_invalidated or state is None:
        return errors.DatabaseUnavailable(f"cannot reach the database: {lines[0]}", sqlstate=state)
    if state == _NOT_EMPTY:
        return errors.Conflict(lines[0])
    # The server's message can be shown, because a migration handles no content of messages.
    return errors.DatabaseError(f"the migration failed with SQLSTATE {state}: {lines[0]}", sqlstate=state)


def _count_partitions(connection: Connection) -> int | None:
    """Returns the number of partitions of the table of messages, or None if there is no table yet."""
    return None if queries.revision(connection) is None else layout.count_partitions(connection)


def _alembic(
    url: str, run: Callable[[Config], None], *, delete_everything: bool = False, partitions: int | None = None
) -> str | None:
    """Runs a command of Alembic, and returns the revision that the database had before."""
    before: str | None = None

    def migrate(connection: sa.Connection) -> None:
        nonlocal before
        before = connection.scalar(sa.text(_SQL["revision"]))
        # Alembic would fail because it does not know a revision of a later release.
        queries.refuse_newer(before)
        config = _config()
        config.attributes["partitions"] = partitions or 0
        config.attributes["connection"] = connection
        config.attributes["delete_everything"] = delete_everything
        run(config)

    with_connection(url, migrate)
    return before
