"""Bringing a database's schema up to date: `compaction-store migrate`, or these functions.

Safe to start twice at once: a lock held to the end of the transaction lets one go first. Safe beside running writers:
a step that cannot have its lock at once gives up and the whole migration is tried again, so that nobody queues behind
it for longer than the lock timeout.
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

from compaction_store import connections, ledger, schema
from compaction_store.errors import DatabaseError, DatabaseUnavailable

_T = TypeVar("_T")

LOCK_TIMEOUT_MS = 200
scripts = schema.scripts
TRIES = 120
_ADVISORY_LOCK = 0x636F6D7061637400
# Lock not available; deadlock; and "tuple concurrently updated", two databases of one cluster granting roles at once.
_TRY_AGAIN = frozenset({"55P03", "40P01", "XX000"})


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _engine(url: str) -> sa.Engine:
    return connections.create_engine(url, pool_size=1, connect_timeout=10)


def upgrade(url: str, revision: str = "head") -> None:
    """Brings the database to a revision; does nothing where it is there already."""
    _alembic(url, lambda config: command.upgrade(config, revision))


def downgrade(url: str, revision: str) -> None:
    """Takes the database back to a revision. Going below the first one deletes everything stored."""
    _alembic(url, lambda config: command.downgrade(config, revision))


def current(url: str) -> str | None:
    """The database's revision, or None where it has no schema of ours."""
    return _once(url, ledger.revision)


def check(url: str) -> None:
    """Raises SchemaOutOfDate where the database is not at the revision this version needs."""
    _once(url, ledger.check)


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


def _transaction(engine: sa.Engine, run: Callable[[sa.Connection], None]) -> DatabaseError | None:
    """None when it is done; the error when it is worth another try."""
    try:
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
            # IF NOT EXISTS would ask for the right to make schemas where one is there.
            if connection.scalar(sa.text(f"SELECT to_regnamespace('{schema.SCHEMA}')")) is None:
                connection.execute(sa.text(f"CREATE SCHEMA {schema.SCHEMA}"))
            run(connection)
        return None
    except sa.exc.DBAPIError as error:
        failure = _failure(error)
        if failure.sqlstate in _TRY_AGAIN:
            return failure
    raise failure


def _failure(error: sa.exc.DBAPIError) -> DatabaseError:
    state = error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None
    lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    if error.connection_invalidated or state is None:
        return DatabaseUnavailable(f"cannot reach the database: {lines[0]}", sqlstate=state)
    # A migration handles no messages, so the server's own words are safe to pass on.
    return DatabaseError(f"the migration failed with SQLSTATE {state}: {lines[0]}", sqlstate=state)


def _alembic(url: str, run: Callable[[Config], None]) -> None:
    def migrate(connection: sa.Connection) -> None:
        config = _config()
        config.attributes["connection"] = connection
        run(config)

    with_connection(url, migrate)


def _once(url: str, read: Callable[[Connection], _T]) -> _T:
    engine = _engine(url)
    try:
        return connections.call(engine, time.sleep, None, None, "", read)
    finally:
        engine.dispose()
