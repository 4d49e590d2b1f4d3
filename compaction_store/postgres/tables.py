"""The tables as SQLAlchemy objects. Queries across threads use them, and Alembic compares them with a database.

`migrations/sql/` defines the schema. A test compares it with these tables.
"""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from compaction_store.models.vocabulary import KINDS, sql_list

SCHEMA = "compaction_store"
REVISION = "0001"
# `verify_all` finds a thread that has lost its other rows by its messages with these seqs. The partial index has only
# these seqs, so it stays small, and a thread is still found if some of them are deleted.
LISTED = "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024"
# Conditions of partial indexes that are true for every row. Only the query that lists threads has these conditions, so
# only that query uses these indexes.
LISTED_RECORD = "(number * 1) IS NOT NULL"
LISTED_EVENT = "(pos * 1) IS NOT NULL"
_SHIFT = "(64 - strpos(((((start_seq - 1) # end_seq))::bit(64))::text, '1'::text))"
_SPAN_NODE = f"((end_seq >> {_SHIFT}) << {_SHIFT})"

metadata = sa.MetaData(schema=SCHEMA)
# Views for people who write SQL. The store itself does not read them.
VIEWS = ("audit_threads", "audit_messages", "audit_compactions", "audit_events")
_COMMENT = re.compile(r"COMMENT ON (?:TABLE|COLUMN) compaction_store\.(\w+)(?:\.(\w+))? IS\s+'((?:[^']|'')*)';")


def scripts() -> Path:
    """Returns the folder of the migrations. In an installed package it is inside the package, in a clone beside it."""
    package = Path(__file__).parent.parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


_text = sa.Text(collation="C")
_when = sa.DateTime(timezone=True)
_json = postgresql.JSON


def _own_xid(name: str) -> sa.Column[int]:
    """Makes a column with the number of the transaction that inserts the row."""
    number = sa.text("((pg_current_xact_id())::text)::bigint")
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=number)


def _feed_index(name: str) -> sa.Index:
    columns = ("tenant", "feed_xid", "thread_uid", "pos")
    return sa.Index(f"{name}_feed_idx", *columns, postgresql_where=sa.text("(pos + 0) IS NOT NULL"))


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", _text, nullable=False)


def _thread_uid() -> sa.Column[object]:
    return sa.Column("thread_uid", sa.Uuid(), primary_key=True)


threads = sa.Table(
    "threads",
    metadata,
    _thread_uid(),
    _tenant(),
    sa.Column("thread_id", _text, nullable=False),
    sa.Column("salt", sa.LargeBinary),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("metadata", _json, nullable=False, server_default=sa.text("'{}'::json")),
    sa.Column("created_at", _when, nullable=False),
    sa.Index("threads_tenant_thread_id_idx", "tenant", "thread_id", unique=True),
)

heads = sa.Table(
    "heads",
    metadata,
    _thread_uid(),
    sa.Column("last_seq", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("last_number", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("last_pos", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("view_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("stalled_tokens", sa.BigInteger),
    sa.Column("erased_pos", sa.BigInteger),
    sa.Column("hidden_seq", sa.BigInteger),
    *[
        sa.Column(name, _when, nullable=False, server_default=sa.text("'-infinity'::timestamptz"))
        for name in ("last_at", "active_at")
    ],
    sa.Column(
        "active_hour",
        sa.DateTime,
        sa.Computed("date_trunc('hour'::text, (active_at AT TIME ZONE 'UTC'::text))", persisted=True),
    ),
    sa.Column("lease_since", _when),
    sa.Column("lease_until", _when),
    sa.Column("lease_run", sa.Uuid()),
    _own_xid("feed_xid"),
    sa.Column("is_log", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column(
        "view_tokens_coarse",
        sa.Integer,
        sa.Computed("(LEAST((view_tokens >> 14), (2147483647)::bigint))::integer", persisted=True),
    ),
    _tenant(),
    sa.Column("lease_actor", _text),
    sa.Column("subject", _text),
    sa.Column("head", sa.LargeBinary, nullable=False),
    sa.Index("heads_due_idx", "tenant", "view_tokens_coarse", "thread_uid"),
    sa.Index("heads_recent_idx", "tenant", "active_hour", "thread_uid"),
    sa.Index(
        "heads_subject_idx",
        "tenant",
        "subject",
        "active_hour",
        "thread_uid",
        postgresql_where=sa.text("subject IS NOT NULL"),
    ),
)

messages = sa.Table(
    "messages",
    metadata,
    _thread_uid(),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("pos", sa.BigInteger, nullable=False),
    sa.Column("created_at", _when, nullable=False),
    sa.Column("redacted_pos", sa.BigInteger),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("call_size", sa.Integer),
    _own_xid("feed_xid"),
    _tenant(),
    sa.Column("role", _text),
    sa.Column("counter", _text, nullable=False),
    sa.Column("key", _text),
    sa.Column("actor", _text),
    sa.Column("login", _text, nullable=False),
    sa.Column("salt", sa.LargeBinary),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("meta_commitment", sa.LargeBinary),
    sa.Column("receipt", sa.Text),
    sa.Column("meta", _json),
    sa.Column("payload", _json),
    sa.Index("messages_key_idx", "thread_uid", "key", unique=True, postgresql_where=sa.text("key IS NOT NULL")),
    _feed_index("messages"),
    sa.Index("messages_listed_idx", "tenant", "thread_uid", postgresql_where=sa.text(f"seq IN ({LISTED})")),
)

compactions = sa.Table(
    "compactions",
    metadata,
    _thread_uid(),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("pos", sa.BigInteger, nullable=False),
    sa.Column("created_at", _when, nullable=False),
    sa.Column("redacted_pos", sa.BigInteger),
    sa.Column("start_seq", sa.BigInteger),
    sa.Column("end_seq", sa.BigInteger),
    sa.Column("tokens_before", sa.BigInteger),
    sa.Column("tokens_after", sa.BigInteger),
    sa.Column("source_count", sa.BigInteger),
    sa.Column("revokes", sa.BigInteger),
    sa.Column("run_id", sa.Uuid(), nullable=False),
    _own_xid("feed_xid"),
    _tenant(),
    sa.Column("kind", _text, nullable=False),
    sa.Column("outcome", _text, nullable=False),
    sa.Column("callback", _text),
    sa.Column("trigger", _text),
    sa.Column("actor", _text),
    sa.Column("login", _text, nullable=False),
    sa.Column("model", _text),
    sa.Column("counter", _text),
    sa.Column("inputs", postgresql.ARRAY(sa.BigInteger), nullable=False, server_default=sa.text("'{}'::bigint[]")),
    sa.Column("span_node", sa.BigInteger, sa.Computed(_SPAN_NODE, persisted=True)),
    sa.Column("source_before", sa.LargeBinary),
    sa.Column("source_end", sa.LargeBinary),
    sa.Column("salt", sa.LargeBinary),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("body", _json),
    _feed_index("compactions"),
    sa.Index("compactions_run_idx", "run_id", "thread_uid"),
    sa.Index(
        "compactions_revokes_idx",
        "thread_uid",
        "revokes",
        postgresql_include=["number", "pos", "tenant"],
        postgresql_where=sa.text("outcome = 'applied' AND revokes IS NOT NULL"),
    ),
    sa.Index("compactions_listed_idx", "tenant", "thread_uid", postgresql_where=sa.text(LISTED_RECORD)),
    sa.Index("compactions_audit_idx", "tenant", "created_at", "thread_uid", "number"),
    sa.Index(
        "compactions_in_force_idx",
        "thread_uid",
        "start_seq",
        sa.text("end_seq DESC"),
        sa.text("number DESC"),
        postgresql_include=["pos", "redacted_pos", "tokens_after", "tenant"],
        postgresql_where=sa.text("outcome = 'applied' AND revokes IS NULL"),
    ),
    sa.Index(
        "compactions_span_start_idx",
        "span_node",
        "thread_uid",
        "start_seq",
        sa.text("number DESC"),
        postgresql_include=["end_seq", "redacted_pos", "tenant"],
        postgresql_where=sa.text("outcome = 'applied' AND revokes IS NULL"),
    ),
    sa.Index(
        "compactions_span_end_idx",
        "span_node",
        "thread_uid",
        "end_seq",
        "number",
        postgresql_include=["start_seq", "redacted_pos", "tenant"],
        postgresql_where=sa.text("outcome = 'applied' AND revokes IS NULL"),
    ),
    sa.Index(
        "compactions_unknown_idx",
        "thread_uid",
        "pos",
        postgresql_where=sa.text(f"outcome = 'applied' AND kind NOT IN {sql_list(KINDS)}"),
    ),
)

events = sa.Table(
    "events",
    metadata,
    _thread_uid(),
    sa.Column("pos", sa.BigInteger, primary_key=True),
    sa.Column("created_at", _when, nullable=False),
    _own_xid("feed_xid"),
    _tenant(),
    sa.Column("critical", sa.Boolean, nullable=False),
    sa.Column("kind", _text, nullable=False),
    sa.Column("actor", _text),
    sa.Column("login", _text, nullable=False),
    sa.Column("salt", sa.LargeBinary),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("body", _json),
    _feed_index("events"),
    sa.Index("events_audit_idx", "tenant", "created_at", "thread_uid", "pos"),
    sa.Index("events_origin_idx", "tenant", "thread_uid", postgresql_where=sa.text("pos = 1 AND kind = 'origin'")),
    sa.Index("events_listed_idx", "tenant", "thread_uid", postgresql_where=sa.text(LISTED_EVENT)),
    sa.Index(
        "events_unknown_idx", "thread_uid", "pos", postgresql_where=sa.text("critical AND kind NOT IN ('redaction')")
    ),
)

# This table exists only on a cluster. `distribute` makes it.
naming = sa.MetaData(schema=SCHEMA)
names = sa.Table(
    "names",
    naming,
    sa.Column("name_uid", sa.Uuid(), primary_key=True),
    _tenant(),
    sa.Column("thread_id", _text, nullable=False),
    sa.Column("thread_uid", sa.Uuid(), nullable=False),
)

# Tables that are not part of the log.
beside_log = sa.MetaData(schema=SCHEMA)
turns = sa.Table(
    "turns",
    beside_log,
    sa.Column("turn_id", sa.Uuid()),
    sa.Column("held_since", _when),
    sa.Column("held_until", _when),
    sa.Column("tenant", _text, primary_key=True),
    sa.Column("thread_id", _text, primary_key=True),
    sa.Column("actor", _text),
    sa.Column("login", _text),
    sa.Column("waiting", postgresql.ARRAY(sa.Uuid()), nullable=False, server_default=sa.text("'{}'::uuid[]")),
    sa.Column("waiting_until", postgresql.ARRAY(_when), nullable=False, server_default=sa.text("'{}'::timestamptz[]")),
)
# An import writes the rows of a bundle to this table before it checks them.
staged = sa.Table(
    "staged",
    beside_log,
    _own_xid("staged_by"),
    sa.Column("thread_uid", sa.Uuid(), nullable=False),
    sa.Column("type", _text, nullable=False),
    sa.Column("ordinal", sa.BigInteger),
    sa.Column("pos", sa.BigInteger, nullable=False),
    sa.Column("created_at", _when, nullable=False),
    sa.Column("redacted_pos", sa.BigInteger),
    sa.Column("salt", sa.LargeBinary),
    sa.Column("commitment", sa.LargeBinary, nullable=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("body", sa.Text),
    sa.Column("tokens", sa.Integer),
    sa.Column("call_size", sa.Integer),
    *[sa.Column(name, _text) for name in ("role", "counter", "key")],
    sa.Column("receipt", sa.Text),
    sa.Column("meta_commitment", sa.LargeBinary),
    sa.Column("meta", sa.Text),
    sa.Column("critical", sa.Boolean),
    *[sa.Column(name, _text) for name in ("kind", "outcome")],
    *[
        sa.Column(name, sa.BigInteger)
        for name in ("start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "revokes")
    ],
    sa.Column("run_id", sa.Uuid()),
    *[sa.Column(name, _text) for name in ("callback", "trigger", "actor", "login", "model")],
    sa.Column("inputs", postgresql.ARRAY(sa.BigInteger)),
    sa.Column("source_before", sa.LargeBinary),
    sa.Column("source_end", sa.LargeBinary),
    sa.Index("staged_by_idx", "staged_by"),
)


def commented() -> list[sa.MetaData]:
    """Returns the tables with the comments of the migration, because Alembic compares comments too."""
    tables = {table.name: table for table in (*metadata.sorted_tables, *beside_log.sorted_tables)}
    for name, table in tables.items():
        text = (scripts() / "sql" / "comments" / f"{name}.sql").read_text(encoding="utf-8")
        for _, column, comment in _COMMENT.findall(text):
            (table.columns[column] if column else table).comment = comment.replace("''", "'")
    return [metadata, beside_log]
