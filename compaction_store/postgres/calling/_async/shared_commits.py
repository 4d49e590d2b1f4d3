"""Appends messages, and combines the appends of concurrent callers into one commit.

Every caller gets its own result after the commit. If the shared commit fails for any reason, each append is repeated
alone with its key. So each caller gets its own error, and learns whether an uncertain commit stored its append.
"""

from __future__ import annotations

import time

from compaction_store import waiting
from compaction_store.arguments import about
from compaction_store.errors import CompactionStoreError, DatabaseUnavailable, OutcomeUnknown
from compaction_store.postgres import queries
from compaction_store.postgres.calling import append_queue
from compaction_store.postgres.calling._async.connections import AsyncConnections
from compaction_store.postgres.calling.append_queue import PATIENCE, AppendQueue, AppendQueues, AsyncSignal, Caller
from compaction_store.postgres.calling.call import UNKEYED
from compaction_store.postgres.queries import Append, Written

# The longest pause in seconds after which a waiting caller looks again for a place that it can take.
_LONGEST_PAUSE = 1.0
# A shorter wait for the place than this many seconds does not make the deadline earlier.
_NO_WAIT = 0.002


class AsyncSharedCommits:
    """Runs the appends of a store and of the stores that it made for other tenants."""

    def __init__(self, connections: int, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._queues = AppendQueues(connections)

    async def append(self, db: AsyncConnections, append: Append) -> Written:
        if not self._is_on or not db.server.has_all_threads or not append_queue.may_share(append):
            return await _alone(db, append)
        queue, caller = self._queues.of(AsyncSignal), Caller(append)
        try:
            return await self._append(db, queue, caller)
        except CompactionStoreError:
            # It has left the queue. To forget it nevertheless would be one more place for Ctrl-C to interrupt.
            raise
        except BaseException as error:
            queue.forget(caller, error)
            raise

    async def _append(self, db: AsyncConnections, queue: AppendQueue, caller: Caller) -> Written:
        start = time.monotonic()
        queue.enter(caller, AsyncSignal)
        while True:
            await self._wait(queue, caller, start + db.deadline)
            if caller.has_place:
                left = db if time.monotonic() < start + _NO_WAIT else db.with_time_left_since(start)
                queue.take(caller)
                if caller.taken:
                    await waiting.uninterrupted(self._append_for_all, left, queue, caller)
                else:
                    try:
                        caller.written = await _alone(left, caller.append, is_in_doubt=caller.is_in_doubt)
                    finally:
                        queue.leave(caller)
            if caller.written is not None:
                return caller.written
            queue.enter(caller, AsyncSignal, is_single=True)

    async def _wait(self, queue: AppendQueue, caller: Caller, end: float) -> None:
        """Waits until the caller has a place, or until another caller has appended for it."""
        pause = PATIENCE
        while not (caller.has_place or caller.is_done):
            left = end - time.monotonic()
            if left <= 0:
                raise self._too_late(queue, caller)
            if not await caller.signal.wait(min(pause, left)):
                queue.push_in(caller)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _too_late(self, queue: AppendQueue, caller: Caller) -> CompactionStoreError:
        thread = about(caller.append.thread.thread_id)
        if queue.withdraw(caller) and not caller.is_in_doubt:
            return DatabaseUnavailable(f"other appends of this store did not end before the deadline{thread}")
        what = f"the outcome of the write is unknown{thread}: repeat it with the error's key"
        return OutcomeUnknown(what, key=caller.append.key.text)

    async def _append_for_all(self, db: AsyncConnections, queue: AppendQueue, leader: Caller) -> None:
        """Appends in one commit for a caller that has a place and for those that it has taken."""
        callers = [leader, *leader.taken]
        try:
            for one in callers:
                one.is_in_doubt = True
            results = await db.once().call(queries.append_together, [one.append for one in callers], key=UNKEYED)
        except OutcomeUnknown:
            pass
        except CompactionStoreError:
            for one in callers:
                one.is_in_doubt = False
        else:
            for one, written in zip(callers, results, strict=True):
                one.written, one.is_in_doubt = written, False
        finally:
            queue.leave(leader)


async def _alone(db: AsyncConnections, append: Append, *, is_in_doubt: bool = False) -> Written:
    return await db.call(queries.append, *append, key=append.key.text, is_in_doubt=is_in_doubt)
