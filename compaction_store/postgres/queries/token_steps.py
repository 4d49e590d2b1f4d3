"""Reads how the number of tokens in a thread's view changed over time, for charts."""

from __future__ import annotations

from typing import Any

from compaction_store.module_data import ModuleData
from compaction_store.postgres.driver.cursor import Connection, select_of
from compaction_store.postgres.queries.functions import ThreadKey

_SQL = ModuleData(__file__).values
_APPLIED = ("pos", "number", "revokes", "tokens_before", "tokens_after")


def appended_tokens(connection: Connection, key: ThreadKey, ranges: int, last_pos: int) -> list[Any]:
    """Divides a thread up to `last_pos` into ranges. Returns the last pos and the sum of the tokens of each range.

    There are at most `ranges` ranges. Ranges without messages are left out. The server reads the row of every message,
    but sends only the sums. `key` must have the thread_uid, and `last_pos` must not be after the head.
    """
    width = max(1, (last_pos - 1) // ranges + 1)
    return select_of(connection, key.tenant, _SQL["appended"], {"uid": key.uid, "width": width, "last_pos": last_pos})


def applied_tokens(connection: Connection, key: ThreadKey, last_pos: int) -> list[dict[str, Any]]:
    """Returns the applied records up to a pos as their columns by name. `key` must have the thread_uid."""
    rows = select_of(connection, key.tenant, _SQL["applied"], {"uid": key.uid, "last_pos": last_pos})
    return [dict(zip(_APPLIED, row, strict=True)) for row in rows]
