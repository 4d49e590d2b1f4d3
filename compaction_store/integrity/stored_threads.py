"""What is stored of a thread, judged by its key alone, before its chain is walked: pure.

A thread is read by its key and called by its name, and the key follows from the name. Whoever may write to the tables
may part the two: a name that another thread has, an empty one, none at all. Each shows here, so that no thread is taken
for another and none is passed over.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.integrity import erasure
from compaction_store.models import Finding, Report


class Stored(NamedTuple):
    """A key under which a tenant has rows. `thread_id` is None where the thread's name is gone."""

    thread_uid: UUID
    thread_id: str | None
    has_head: bool

    @property
    def is_whole(self) -> bool:
        """Whether there is a chain to walk: the name to start from and the head to end at."""
        return self.thread_id is not None and self.has_head


def findings(tenant: str, stored: Stored) -> tuple[Finding, ...]:
    """What is wrong with a thread's rows in `threads` and `heads`."""
    name = stored.thread_id
    found = []
    if name is None:
        found.append(
            "the thread has a head and no row in threads under this tenant: its name is gone"
            if stored.has_head
            else "rows are left of a thread that has neither a head nor a name"
        )
    elif not stored.has_head:
        found.append("the thread has no head under this tenant")
    if name is not None:
        try:
            arguments.check_thread_id(name)
        except InvalidInput:
            found.append("the thread is stored under a name that no thread can have")
        if erasure.thread_uid(tenant, name) != stored.thread_uid:
            found.append("the thread is stored under a name that is not its own")
    return tuple(Finding(None, what) for what in found)


def place(tenant: str, after: object) -> UUID | None:
    """The key behind which a walk over all threads goes on: that of a report, of a name, or the key itself."""
    if after is None or isinstance(after, UUID):
        return after
    if isinstance(after, Report):
        if after.thread_uid is None:
            raise InvalidInput("after must be the report of a thread, not one on the whole store")
        return after.thread_uid
    if not isinstance(after, str):
        raise InvalidInput(f"after must be a report, a thread_id or a UUID, not {type(after).__name__}")
    if not after:
        return None
    arguments.check_thread_id(after)
    return erasure.thread_uid(tenant, after)
