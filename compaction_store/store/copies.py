"""Makes copies of a store for callers in this package: one that binds a name to a thread, and one that waits less.

After a thread is erased, another thread may get its name. Then a call by name reads the other thread, unless the name
is bound.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from compaction_store.store import AsyncReader, AsyncStore, Reader, Store

S = TypeVar("S", "AsyncReader", "AsyncStore", "Reader", "Store")


def pinned(store: S, thread_id: str, thread_uid: UUID) -> S:
    """Returns a store of the same kind that finds this thread by the name, even if the name goes to another thread."""
    return store._pinned(thread_id, thread_uid)  # noqa: SLF001 — for this package only


def impatient(store: S, seconds: float) -> S:
    """Returns a store of the same kind that stops trying to reach an unreachable server after some seconds."""
    other = copy.copy(store)
    other._db = store._db.with_patience(seconds)  # noqa: SLF001 — for this package only
    return other
