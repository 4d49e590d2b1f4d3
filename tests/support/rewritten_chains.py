"""Rewrites a thread as the owner of the tables can: other contents, with all hashes after them computed again."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from compaction_store.integrity import chain
from compaction_store.integrity.entry import Entry, Kind, header
from compaction_store.integrity.rows import RowParser
from support.keys import key_of

_TABLES: dict[Kind, tuple[str, str]] = {
    "message": ("messages", "payload"),
    "compaction": ("compactions", "body"),
    "event": ("events", "body"),
}


class Rewritten(NamedTuple):
    """A thread's entries, as they are or as they would be after a forgery. `head` is the hash of the last one."""

    uid: UUID
    entries: list[Entry]
    head: bytes

    def at(self, pos: int) -> bytes:
        return next(entry.entry for entry in self.entries if entry.pos == pos)

    def put_rows(self, root: psycopg.Connection[Any]) -> None:
        for entry in self.entries:
            table, body = _TABLES[entry.kind]
            root.execute(
                f"UPDATE compaction_store.{table} SET {body} = %s, commitment = %s, entry = %s"
                " WHERE thread_uid = %s AND pos = %s".encode(),
                (entry.body, entry.commitment, entry.entry, self.uid, entry.pos),
            )

    def put_head(self, root: psycopg.Connection[Any]) -> None:
        root.execute("UPDATE compaction_store.heads SET head = %s WHERE thread_uid = %s", (self.head, self.uid))


def rewritten(
    root: psycopg.Connection[Any], thread_id: str, bodies: dict[int, str], tenant: str = "default"
) -> Rewritten:
    """Computes a thread's entries with other bodies at some pos, up to the head. Changes nothing."""
    uid = key_of(root, thread_id, tenant)
    commitment, last = root.execute(
        "SELECT t.commitment, h.last_pos FROM compaction_store.threads AS t JOIN compaction_store.heads AS h"
        " USING (thread_uid) WHERE thread_uid = %s",
        (uid,),
    ).fetchone() or (b"", 0)
    parser, rows = RowParser(), []
    for kind in _TABLES:
        found = root.execute(
            "SELECT * FROM compaction_store.entries(%s, %s, '', %s, 0, true, 100000)", (uid, tenant, kind)
        ).fetchall()
        rows += [entry for entry in parser.entries(kind, found) if entry.pos <= last]
    entries: list[Entry] = []
    previous = chain.genesis(uid, tenant, commitment)
    for entry in sorted(rows, key=lambda row: row.pos):
        body = bodies.get(entry.pos, entry.body)
        assert entry.salt is not None
        assert body is not None
        changed = entry._replace(body=body, commitment=chain.commitment(entry.salt, body.encode()))
        assert changed.microseconds is not None
        previous = chain.entry(
            previous, changed.pos, changed.ordinal, changed.microseconds, changed.commitment, header(changed)
        )
        entries.append(changed._replace(entry=previous))
    return Rewritten(uid, entries, previous)
