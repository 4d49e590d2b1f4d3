"""Connects alembic to the database, for `alembic upgrade head` and for `compaction_store.migrate`.

It uses the connection of `migrate` if there is one. Otherwise it uses the URL in `-x url=…`, in sqlalchemy.url of
alembic.ini, or in $COMPACTION_STORE_URL, in this order. With `--sql`, it prints SQL for psql and needs no database.
"""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy.engine import Connection

from compaction_store import migrate
from compaction_store.postgres import tables


def _configured_url() -> str:
    return (
        context.get_x_argument(as_dictionary=True).get("url")
        or context.config.get_main_option("sqlalchemy.url")
        or os.environ.get("COMPACTION_STORE_URL", "")
    )


def _run(connection: Connection | None) -> None:
    context.configure(
        connection=connection,
        dialect_name="postgresql",
        target_metadata=tables.commented(),
        version_table_schema=tables.SCHEMA,
        include_schemas=True,
        include_name=lambda name, kind, _parents: kind != "schema" or name == tables.SCHEMA,
        compare_type=True,
        transactional_ddl=True,
        literal_binds=connection is None,
        # Printed SQL is for psql, so percent signs must not be doubled.
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        if connection is None:
            context.execute(f"CREATE SCHEMA IF NOT EXISTS {tables.SCHEMA}")
        context.run_migrations()


if context.is_offline_mode():
    _run(None)
elif (given := context.config.attributes.get("connection")) is not None:
    _run(given)
else:
    migrate.with_connection(_configured_url(), _run)
