"""Makes keys and logs for checkpoints, and cuts threads as a superuser could."""

from __future__ import annotations

import uuid
from hashlib import sha256
from typing import Any

import psycopg

import compaction_store as cs
from compaction_store.checkpoints.heads import Head, tenant_hash
from support.keys import key_of

KEY = cs.SigningKey.from_bytes("example.org/audit", bytes(range(32)))
OTHER = cs.SigningKey.from_bytes("example.org/audit", bytes(32))


def heads(count: int) -> list[Head]:
    uids = sorted(uuid.UUID(int=i * 7919 + 1) for i in range(count))
    tenant = tenant_hash("default")
    return [Head(uid, tenant, i + 1, sha256(uid.bytes).digest()) for i, uid in enumerate(uids)]


def cut(root: psycopg.Connection[Any], thread_id: str, last: int) -> None:
    """Removes the last messages of a thread that has only messages, and sets a head that matches."""
    uid = key_of(root, thread_id)
    root.execute("DELETE FROM compaction_store.messages WHERE thread_uid = %s AND seq > %s", (uid, last))
    root.execute(
        "UPDATE compaction_store.heads AS h"
        " SET last_seq = m.seq, last_pos = m.pos, head = m.entry, last_at = m.created_at"
        " FROM compaction_store.messages AS m WHERE m.thread_uid = h.thread_uid AND m.seq = %s AND h.thread_uid = %s",
        (last, uid),
    )


def contradictions(store: Any, log: cs.CheckpointLog) -> list[str]:
    reports = list(store.audit.verify(level="checkpoint", checkpoints=log))
    return [finding.what for report in reports[1:] for finding in report.findings]
