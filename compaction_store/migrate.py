"""Bringing a database's schema up to date: `compaction-store migrate`, or these functions.

Safe to start twice at once: a lock on alembic's version table, held to the end of the transaction, lets one go first.
Only a login that may change that table can take the lock, so no other can keep a migration waiting. Safe beside running
writers: a step that cannot have its lock at once gives up and the whole migration is tried again, so that nobody queues
behind it for longer than the lock timeout.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.errors import (
    CompactionStoreError,
    Conflict,
    DatabaseError,
    DatabaseUnavailable,
    UnsupportedDatabase,
)
from compaction_store.postgres import connections, engines, queries, schema

_T = TypeVar("_T")

LOCK_TIMEOUT_MS = 200
TURN_TIMEOUT_MS = 30_000
scripts = schema.scripts
TRIES = 120
# As alembic makes it, which then finds it there.
_VERSION_TABLE = f"""
    CREATE TABLE {schema.SCHEMA}.alembic_version (
        version_num varchar(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
    )
"""
# A login that may not change the version cannot migrate, and needs no turn to find that there is nothing to do.
_MAY_LOCK = f"""
    SELECT has_table_privilege('{schema.SCHEMA}.alembic_version', 'UPDATE, DELETE')
        AND current_setting('transaction_read_only') = 'off'
"""
# Somebody else has made the schema or the table at the same moment.
_MADE = frozenset({"23505", "42P06", "42P07"})
_BUSY = "55P03"
_NOT_EMPTY = "CS006"
# Lock not available; deadlock; and "tuple concurrently updated", two databases of one cluster granting roles at once.
_TRY_AGAIN = frozenset({"55P03", "40P01", "XX000"})


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _engine(url: str) -> sa.Engine:
    return engines.create_engine(url, pool_size=1, connect_timeout=10)


def upgrade(url: str, revision: str = "head") -> None:
    """Brings the database to a revision; does nothing where it is there already."""
    _alembic(url, lambda config: command.upgrade(config, revision))


def downgrade(url: str, revision: str, *, delete_everything: bool = False) -> None:
    """Takes the database back to a revision.

    Going below the first one deletes everything stored: it is refused (`Conflict`) while there is anything, unless
    `delete_everything` is true.
    """
    _alembic(url, lambda config: command.downgrade(config, revision), delete_everything=delete_everything)


def current(url: str) -> str | None:
    """The database's revision, or None where it has no schema of ours."""
    return _once(url, queries.revision)


def check(url: str) -> None:
    """Raises SchemaOutOfDate where the database is not at the revision this version needs."""
    _once(url, queries.check)


def with_connection(url: str, run: Callable[[sa.Connection], None]) -> None:
    """Runs one migration in one transaction, under the lock, again and again until its locks can be had."""
    engine = _engine(url)
    try:
        for last in [False] * (TRIES - 1) + [True]:
            if (failure := _transaction(engine, run)) is None:
                return
            if last:
                raise failure
            time.sleep(random.uniform(0.05, 0.25))  # noqa: S311 — jitter, not a secret
    finally:
        engine.dispose()


def _transaction(engine: sa.Engine, run: Callable[[sa.Connection], None]) -> CompactionStoreError | None:
    """None when it is done; the error when it is worth another try."""
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
    """Keeps every other migration and every checkpoint waiting until the end of this transaction."""
    if connection.scalar(sa.text(queries.IS_WORKER_ASKED)) and connection.scalar(sa.text(queries.IS_WORKER)):
        raise UnsupportedDatabase(queries.WORKER)
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {TURN_TIMEOUT_MS}"))
    try:
        while connection.scalar(sa.text(f"SELECT to_regclass('{schema.SCHEMA}.alembic_version')")) is None:
            _make_version_table(connection)
        if connection.scalar(sa.text(_MAY_LOCK)):
            with connection.begin_nested():
                connection.execute(
                    sa.text(f"LOCK TABLE {schema.SCHEMA}.alembic_version IN SHARE ROW EXCLUSIVE MODE")
                )  # fmt: skip
        return
    except sa.exc.DBAPIError as error:
        if _sqlstate(error) != _BUSY:
            raise
    row = connection.execute(sa.text(queries.HOLDER)).one_or_none()
    holder = queries.Holder(*row) if row is not None else None
    raise DatabaseUnavailable(f"another migration or a checkpoint did not end in time{queries.held_by(holder)}")


def _make_version_table(connection: sa.Connection) -> None:
    """Whoever makes the schema or the table goes first: others wait for that, and then find it."""
    try:
        with connection.begin_nested():
            # IF NOT EXISTS would ask for the right to make schemas where one is there.
            if connection.scalar(sa.text(f"SELECT to_regnamespace('{schema.SCHEMA}')")) is None:
                connection.execute(sa.text(f"CREATE SCHEMA {schema.SCHEMA}"))
            connection.execute(sa.text(_VERSION_TABLE))
    except sa.exc.DBAPIError as error:
        if _sqlstate(error) not in _MADE:
            raise


def _sqlstate(error: sa.exc.DBAPIError) -> str | None:
    return error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None


def _failure(error: sa.exc.DBAPIError) -> CompactionStoreError:
    state = _sqlstate(error)
    lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    if error.connection_invalidated or state is None:
        return DatabaseUnavailable(f"cannot reach the database: {lines[0]}", sqlstate=state)
    if state == _NOT_EMPTY:
        return Conflict(lines[0])
    # A migration handles no messages, so the server's own words are safe to pass on.
    return DatabaseError(f"the migration failed with SQLSTATE {state}: {lines[0]}", sqlstate=state)


def _alembic(url: str, run: Callable[[Config], None], *, delete_everything: bool = False) -> None:
    def migrate(connection: sa.Connection) -> None:
        config = _config()
        config.attributes["connection"] = connection
        config.attributes["delete_everything"] = delete_everything
        run(config)

    with_connection(url, migrate)


def _once(url: str, read: Callable[[Connection], _T]) -> _T:
    engine = _engine(url)
    try:
        return connections.call_once(engine, read)
    finally:
        engine.dispose()
