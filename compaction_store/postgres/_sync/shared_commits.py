"""Appends messages, and combines the appends of concurrent callers into one commit.

Every caller gets its own result after the commit. If the shared commit fails for any reason, each append is repeated
alone with its key. So each caller gets its own error, and learns whether an uncertain commit stored its append.
"""

from __future__ import annotations

import time

from compaction_store.arguments import about
from compaction_store.errors import CompactionStoreError, DatabaseUnavailable, OutcomeUnknown
from compaction_store.postgres import queries
from compaction_store.postgres._sync.connections import Connections
from compaction_store.postgres.append_queue import PATIENCE, AppendQueue, Signal, Waiting, may_share
from compaction_store.postgres.call import UNKEYED
from compaction_store.postgres.queries import Append, Written


class SharedCommits:
    """Runs the appends of a store and of the stores that it made for other tenants."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._queue = AppendQueue()

    def append(self, db: Connections, append: Append) -> Written:
        if not self._is_on or db.is_cluster or not may_share(append):
            return _alone(db, append)
        caller = self._queue.enter(append, Signal)
        if caller.has_place:
            return self._append_and_leave(db, caller)
        return self._append_later(db, caller)

    def _append_and_leave(self, db: Connections, caller: Waiting) -> Written:
        try:
            return _alone(db, caller.append)
        finally:
            self._queue.leave(caller)

    def _append_later(self, db: Connections, caller: Waiting) -> Written:
        start = time.monotonic()
        self._wait(caller, start + db.deadline)
        if caller.has_place:
            taken = self._queue.take(caller)
            if len(taken) == 1:
                return self._append_and_leave(db.with_time_left_since(start), caller)
            self._append_for_all(db.with_time_left_since(start), taken)
        if caller.written is not None:
            return caller.written
        return _alone(db.with_time_left_since(start), caller.append, is_in_doubt=caller.is_in_doubt)

    def _wait(self, caller: Waiting, end: float) -> None:
        """Waits until the caller has a place, or until another caller has appended for it."""
        try:
            is_done = caller.signal.wait(min(PATIENCE, end - time.monotonic()))
            if not is_done and time.monotonic() < end:
                self._queue.push_in(caller)
                is_done = caller.has_place or caller.signal.wait(end - time.monotonic())
        except BaseException:
            self._queue.withdraw(caller)
            raise
        if is_done:
            return
        thread = about(caller.append.thread.thread_id)
        if self._queue.withdraw(caller):
            raise DatabaseUnavailable(f"other appends of this store did not end before the deadline{thread}")
        what = f"the outcome of the write is unknown{thread}: repeat it with the error's key"
        raise OutcomeUnknown(what, key=caller.append.key.text)

    def _append_for_all(self, db: Connections, taken: list[Waiting]) -> None:
        """Appends for several callers in one commit. The first of them has a place, and gives it up at the end."""
        for one in taken:
            one.is_in_doubt = True
        try:
            results = db.once().call(
                queries.append_together, [one.append for one in taken], key=UNKEYED
            )  # fmt: skip
        except OutcomeUnknown:
            pass
        except CompactionStoreError:
            for one in taken:
                one.is_in_doubt = False
        else:
            for one, written in zip(taken, results, strict=True):
                one.written, one.is_in_doubt = written, False
        finally:
            for one in taken[1:]:
                one.signal.set()
            self._queue.leave(taken[0])


def _alone(db: Connections, append: Append, *, is_in_doubt: bool = False) -> Written:
    return db.call(queries.append, *append, key=append.key.text, is_in_doubt=is_in_doubt)
