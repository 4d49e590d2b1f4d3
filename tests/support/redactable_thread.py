"""Threads with a secret, records that are written by SQL, and checks that must hold after any erasure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

import compaction_store as cs
from compaction_store.models import Level
from support.keys import key_of
from support.view_base import base as base_at

SECRET = "s3cr3t-of-the-user"
PLAIN = "nothing to see here " * 8
LEVELS: tuple[Level, ...] = ("structure", "content")
LATER = datetime.now(UTC) + timedelta(days=365)
BEFORE = datetime.now(UTC) - timedelta(days=1)


def rows(connection: psycopg.Connection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), parameters).fetchall()


def dump(connection: psycopg.Connection[Any]) -> str:
    """Returns every row of every table as text, as in a dump of the database."""
    tables = rows(connection, "SELECT tablename FROM pg_tables WHERE schemaname = 'compaction_store'")
    return "\n".join(
        row[0] for (table,) in tables for row in rows(connection, f"SELECT t::text FROM compaction_store.{table} AS t")
    )


def record(start: int | None = None, end: int | None = None, text: str = "short", **columns: Any) -> dict[str, Any]:
    given = {"kind": "summary", "outcome": "applied", "start_seq": start, "end_seq": end, "tokens_after": 3}
    body = {"summary_text": text, "replacement": [{"role": "user", "content": text}]}
    return {"columns": given | columns, "salt": uuid.uuid4().hex, "body": json.dumps(body)}


def commit(
    connection: psycopg.Connection[Any], *records: dict[str, Any], base: int | None = None, name: str = "t"
) -> list[int]:
    uid = key_of(connection, name)
    found = rows(
        connection,
        "SELECT number FROM compaction_store.commit_compactions(%s, 'default', %s, %s, %s, %s, %s)",
        uid, name, uuid.uuid4(), *base_at(connection, uid, base), json.dumps(records),
    )  # fmt: skip
    return [number for (number,) in found]


def span(start: int, end: int, text: str = "a summary") -> Callable[[cs.CompactionContext], None]:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(start, end, text)

    return compact


def shape(store: Any, at: int | None = None) -> list[tuple[int, int, int | None]]:
    return [(e.seq, e.end_seq, e.number) for e in store.view("t", at=at).elements]


def check(store: Any, name: str = "t") -> None:
    """Makes the checks that must hold after any erasure."""
    state, view = store.thread(name), store.view(name)
    assert (view.pos, view.tokens) == (state.last_pos, state.view_tokens)
    for level in LEVELS:
        assert store.audit.verify(name, level=level).findings == ()


def events(store: Any, name: str = "t") -> list[cs.Event]:
    return list(store.audit.events(name))
