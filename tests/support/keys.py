"""Finds the thread_uid of a thread. It is made at the first append, so tests must read it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg


def key_of(connection: psycopg.Connection[Any], thread_id: str, tenant: str = "default") -> UUID:
    """Returns the thread_uid of a thread. The connection must see all tenants, as a superuser's does."""
    row = connection.execute(
        "SELECT thread_uid FROM compaction_store.threads WHERE tenant = %s AND thread_id = %s", (tenant, thread_id)
    ).fetchone()
    assert row is not None, f"there is no thread {thread_id!r} of tenant {tenant!r}"
    uid: UUID = row[0]
    return uid
