"""Makes threads to rewind, and shows their views in a short form."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import psycopg

import compaction_store as cs
from compaction_store.models import Payload
from support.view_base import base

Shown = int | tuple[int, int, str | None]


def said(content: str, role: str = "user") -> Payload:
    return {"role": role, "content": content}


def many(first: int, last: int) -> list[Payload]:
    """Returns messages of the user and the assistant, in turn."""
    return [said(f"number {i}, and more words. " * 6, "user" if i % 2 else "assistant") for i in range(first, last + 1)]


SAID = many(1, 10)


def shown(view: cs.View) -> list[Shown]:
    """Returns the seqs of messages, and the spans of records with their kinds."""
    return [e.seq if e.number is None else (e.seq, e.end_seq, e.kind) for e in view.elements]


def unfolded(connection: psycopg.Connection[Any], thread_id: str, columns: Payload, body: Payload) -> None:
    """Writes one record by SQL. It is a rewind unless `columns` has another kind."""
    record = {
        "columns": {"kind": "rewind", "outcome": "applied", "tokens_after": 0} | columns,
        "salt": uuid4().hex, "body": json.dumps({"replacement": []} | body),
    }  # fmt: skip
    [(uid,)] = connection.execute(
        "SELECT thread_uid FROM compaction_store.threads WHERE thread_id = %s", (thread_id,)
    ).fetchall()
    connection.execute(
        "SELECT compaction_store.commit_compactions(%s, 'default', %s, %s, %s, %s, %s)",
        (uid, thread_id, uuid4(), *base(connection, uid), json.dumps([record])),
    )
