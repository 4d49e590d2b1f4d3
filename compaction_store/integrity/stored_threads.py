"""Checks the name and the head that are stored for a thread_uid, before its chain is walked. Pure.

A login that can write to the tables can give a thread the name of another thread, an empty name or no name. Each of
these is a finding, so that `audit.verify()` neither confuses threads nor skips one.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import InvalidInput
from compaction_store.integrity import erasure
from compaction_store.models import Finding, Report


class StoredThread(NamedTuple):
    """A thread_uid in rows of a tenant. `leading` are the names that lead to it, on a Citus cluster."""

    thread_uid: UUID
    thread_id: str | None
    has_head: bool
    namesakes: int
    leading: tuple[str, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the thread has a name and a head. Only then can its chain be walked."""
        return self.thread_id is not None and self.has_head

    @property
    def is_stub(self) -> bool:
        return self.thread_id is not None and erasure.stub_uid(self.thread_id) == self.thread_uid

    @property
    def is_named(self) -> bool:
        """Whether the table of names has only the thread's name, or nothing for a stub. True without such a table."""
        return self.leading is None or self.leading == (() if self.is_stub else (self.thread_id,))


def findings(stored: StoredThread) -> tuple[Finding, ...]:
    """Returns the findings about a thread's rows in `threads`, `heads` and, on a cluster, the table of names."""
    name = stored.thread_id
    found = []
    if name is None:
        found.append(
            "the thread has a head and no row in threads under this tenant: its name is gone"
            if stored.has_head
            else "there are rows of a thread that has neither a head nor a name"
        )
    elif not stored.has_head:
        found.append("the thread has no head under this tenant")
    if name is not None:
        try:
            arguments.check_thread_id(name)
        except InvalidInput:
            found.append("the thread is stored under an invalid name")
        if stored.namesakes:
            found.append("other threads of the tenant have the same name")
        if name.startswith("erased:") and erasure.stub_uid(name) != stored.thread_uid:
            found.append("the thread has the name of another thread's stub")
    if not stored.is_named:
        if name is not None and not stored.is_stub and name not in (stored.leading or ()):
            found.append("the table of names does not lead to the thread by its name")
        if any(leading != name for leading in stored.leading or ()):
            found.append(
                "the table of names still has the name of an erased thread"
                if stored.is_stub
                else "the table of names leads to the thread by another name"
            )
    return tuple(Finding(None, what) for what in found)


def place(after: object) -> UUID | None:
    """Converts the argument `after` of `audit.verify()` to a thread_uid. None means to begin with the first thread."""
    if after is None or after == "":
        return None
    if isinstance(after, UUID):
        return after
    if isinstance(after, Report):
        if after.thread_uid is None:
            raise InvalidInput("after must be the report on a thread, not the report on the whole store")
        return after.thread_uid
    raise InvalidInput(f"after must be a report, a thread_id or a UUID, not {type(after).__name__}")
