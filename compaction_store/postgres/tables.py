"""The tables as SQLAlchemy objects, for queries and Alembic, made from the files in migrations/sql/tables. The files
have defaults and generated columns as Postgres prints them, so that the check of the schema can compare texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.module_data import ModuleData

SCHEMA = "compaction_store"
REVISION = "0001"

# Views for people who write SQL. The store itself does not read them.
VIEWS = ("audit_threads", "audit_messages", "audit_compactions", "audit_events")
_COMMENT = re.compile(r"COMMENT ON (?:TABLE|COLUMN) compaction_store\.(\w+)(?:\.(\w+))? IS\s+'((?:[^']|'')*)';")
_DATA = ModuleData(__file__)
_COLUMN = re.compile(_DATA.pattern("column"), re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"PRIMARY KEY \(([^)]+)\)")
_INDEX = re.compile(_DATA.pattern("index"))
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "bigint": sa.BigInteger(), "boolean": sa.Boolean(), "bytea": sa.LargeBinary(), "integer": sa.Integer(),
    "json": postgresql.JSON(), "text": sa.Text(), "timestamp": sa.DateTime(),
    "timestamptz": sa.DateTime(timezone=True), "uuid": sa.Uuid(),
}  # fmt: skip


def scripts() -> Path:
    """Returns the folder of the migrations. In an installed package it is inside the package, in a clone beside it."""
    package = Path(__file__).parent.parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _table(name: str, metadata: sa.MetaData, folder: str = "tables") -> sa.Table:
    text = (scripts() / "sql" / folder / f"{name}.sql").read_text(encoding="utf-8")
    body, _, indexes = text.partition("CREATE ")[2].partition("\n)")
    key = match[1].split(", ") if (match := _KEY.search(body)) else ()
    return sa.Table(name, metadata, *_columns(body, key), *map(_index, _INDEX.finditer(indexes)))


def _columns(body: str, key: Any) -> Iterator[sa.Column[Any]]:
    for found in _COLUMN.finditer(body):
        kind = sa.Text(collation="C") if found["collate"] else _TYPES[found["type"]]
        default = found["default"]
        if default is not None and default.startswith("'"):
            default = f"{default}::{found['type']}{found['array'] or ''}"
        yield sa.Column(
            found["name"],
            postgresql.ARRAY(kind) if found["array"] else kind,
            *([sa.Computed(" ".join(found["computed"].split()), persisted=True)] if found["computed"] else []),
            primary_key=found["name"] in key,
            nullable=not found["required"],
            server_default=None if default is None else sa.text(default),
        )


def _index(found: re.Match[str]) -> sa.Index:
    columns = found["columns"].split(", ")
    where = found["where"]
    return sa.Index(
        found["name"],
        *[sa.text(column) if " " in column else column for column in columns],
        unique=bool(found["unique"]),
        postgresql_include=found["include"].split(", ") if found["include"] else [],
        postgresql_where=None if where is None else sa.text(" ".join(where.split())),
    )


metadata = sa.MetaData(schema=SCHEMA)
threads, heads, messages, compactions, events = (
    _table(name, metadata) for name in ("threads", "heads", "messages", "compactions", "events")
)
# This table exists only on a cluster. `distribute` makes it.
names = _table("names", sa.MetaData(schema=SCHEMA), "citus/tables")
# Tables that are not part of the log. An import writes the rows of a bundle to `staged` before it checks them.
beside_log = sa.MetaData(schema=SCHEMA)
turns, staged = _table("turns", beside_log), _table("staged", beside_log)


def condition(table: sa.Table, index: str) -> sa.TextClause:
    """Returns the condition of a partial index. A query that is to use the index must have exactly this condition."""
    [found] = [each for each in table.indexes if each.name == index]
    where: sa.TextClause = found.dialect_options["postgresql"]["where"]
    return where


def commented() -> list[sa.MetaData]:
    """Returns the tables with the comments of the migration, because Alembic compares comments too."""
    for table in (*metadata.sorted_tables, *beside_log.sorted_tables):
        text = (scripts() / "sql" / "comments" / f"{table.name}.sql").read_text(encoding="utf-8")
        for _, column, comment in _COMMENT.findall(text):
            (table.columns[column] if column else table).comment = comment.replace("''", "'")
    return [metadata, beside_log]
