"""Keeps the verifications that the audit pages have run, and finds how far the newest checkpoint covers a thread."""

from __future__ import annotations

from datetime import UTC, datetime

from compaction_store.checkpoints import Checkpoint, CheckpointLog
from compaction_store.checkpoints.heads import HeadsFile, file_name
from compaction_store.models import Report, Thread
from compaction_store.web import lists


class Verifications:
    """The last verification of each thread. Only the threads that were verified last are kept."""

    def __init__(self, checkpoints: CheckpointLog | None) -> None:
        self._checkpoints = checkpoints
        # The digest of the checkpoint whose list of heads was checked last.
        self._checked: str | None = None
        self.newest_first: dict[str, tuple[datetime, Report]] = {}

    def keep(self, name: str, report: Report) -> None:
        self.newest_first.pop(name, None)
        kept = [(name, (datetime.now(UTC), report)), *self.newest_first.items()]
        self.newest_first = dict(kept[: lists.ROWS])

    def of(self, thread: Thread) -> tuple[datetime, Report] | None:
        """Returns the last verification of a thread.

        Compares the thread_uid, because the name may have belonged to another thread when it was verified.
        """
        found = self.newest_first.get(thread.thread_id)
        return None if found is None or found[1].thread_uid != thread.thread_uid else found

    def newest_checkpoint(self) -> Checkpoint | None:
        return None if self._checkpoints is None else self._checkpoints.last()

    def signed_pos(self, newest: Checkpoint, thread: Thread, *, again: bool = True) -> int:
        """Returns the pos up to which a checkpoint covers a thread, or 0 if it does not cover the thread.

        Without `again`, the list of heads is not read whole if it has been checked since this checkpoint was made.
        """
        assert self._checkpoints is not None  # noqa: S101 — there is a newest checkpoint
        if again or self._checked != newest.digest:
            self._checkpoints.heads(newest).close()
            self._checked = newest.digest
        with HeadsFile(self._checkpoints.path.parent / file_name(newest.heads)) as heads:
            found = heads.find(thread.thread_uid)
        return 0 if found is None else found[1].pos
