"""Refuses a thread that a newer release may have changed in a way that this release cannot show."""

from __future__ import annotations

from compaction_store import arguments
from compaction_store.errors import UnknownEntry
from compaction_store.models import Thread


def refuse_unknown(thread: Thread) -> None:
    """Raises an error if the thread has an entry of an unknown kind that changes views.

    Callers need this check if they show messages without reading a view. The database makes the check for a view.
    """
    if thread.unknown_pos is not None:
        raise UnknownEntry(
            f"the entry at pos {thread.unknown_pos} is of a kind that this release does not know"
            f"{arguments.about(thread.thread_id)}"
        )
