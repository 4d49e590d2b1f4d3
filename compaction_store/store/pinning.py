"""Binds a name to one thread, for callers that read a thread with several calls.

After a thread is erased, another thread may get its name. Then a call by name reads the other thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from compaction_store.store import AsyncReader, AsyncStore, Reader, Store

S = TypeVar("S", "AsyncReader", "AsyncStore", "Reader", "Store")


def pinned(store: S, thread_id: str, thread_uid: UUID) -> S:
    """Returns a store of the same kind that finds this thread by the name, even if the name goes to another thread."""
    return store._pinned(thread_id, thread_uid)  # noqa: SLF001 — for this package only
