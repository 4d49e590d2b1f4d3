"""Finds faults of a whole store, so that no page of it looks sound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from uuid import UUID

from compaction_store.audit._async import threads
from compaction_store.checkpoints import Checkpoint, CheckpointLog
from compaction_store.checkpoints.heads import tenant_hash
from compaction_store.errors import CompactionStoreError, InvalidCheckpoint
from compaction_store.models import Event
from compaction_store.store import AsyncReader

# The longest comparison of the store with a checkpoint in seconds, and the number of threads that one query looks for.
_LONGEST_LOOK, _SOME = 10.0, 5000


class Alarms:
    """The reasons for red pages: the tenant is empty, the schema does not protect it, or threads are missing.

    The last recorded verification of all threads may also have had findings.

    A thread is missing if the newest checkpoint has it and the store has not. The tenant's threads are not verified.
    """

    def __init__(
        self, reader: AsyncReader, tenant: str, checkpoints: CheckpointLog | None, *, allow_empty: bool
    ) -> None:
        self.reasons: tuple[str, ...] = ()
        #: The newest recorded result of a verification of all threads.
        self.verification: Event | None = None
        self._reader = reader
        self._tenant = tenant
        self._checkpoints = checkpoints
        self._allow_empty = allow_empty
        self._running: asyncio.Task[None] | None = None
        # When the reasons are found again. A look takes at most a twentieth of the time.
        self._next = 0.0

    async def look(self, *, wait: bool) -> None:
        """Finds the reasons again if some time has passed. Waits for them if asked to, and the first time."""
        if self._running is None and time.monotonic() >= self._next:
            self._running = asyncio.create_task(self._look())
        if self._running is not None and (wait or not self._next):
            await asyncio.shield(self._running)

    async def _look(self) -> None:
        start = time.monotonic()
        try:
            # If the database cannot be read, the pages themselves say so.
            with suppress(CompactionStoreError):
                async with asyncio.timeout(_LONGEST_LOOK):
                    self.reasons = tuple([reason async for reason in self._found()])
        except TimeoutError:
            self.reasons = ("The store could not be compared with the newest checkpoint in time.",)
        finally:
            self._running = None
            self._next = time.monotonic() + 20 * (time.monotonic() - start)

    async def _found(self) -> AsyncIterator[str]:
        if not self._allow_empty and await self._is_empty():
            yield f"The tenant {self._tenant!r} has no threads."
        if findings := (await self._reader.audit.verify_schema()).findings:
            yield f"The schema does not protect the threads: {findings[0].what}{_more(len(findings))}."
        last = self.verification = await threads.verified(self._reader)
        if last is not None and last.body.get("findings") != 0:
            yield f"The verification of all threads at {last.created_at:%Y-%m-%d %H:%M:%S} UTC had findings."
        if self._checkpoints is not None:
            try:
                async for reason in self._compared(self._checkpoints):
                    yield reason
            except (InvalidCheckpoint, OSError) as error:
                yield f"The log of checkpoints cannot be read: {error}."

    async def _is_empty(self) -> bool:
        async for _ in self._reader.threads(hidden=True):
            return False
        return True

    async def _compared(self, log: CheckpointLog) -> AsyncIterator[str]:
        newest = await asyncio.to_thread(log.last)
        if newest is None:
            yield "The log has no checkpoint."
        elif not newest.covers(self._tenant):
            yield f"The checkpoints are those of {newest.origin}, and do not cover the tenant {self._tenant!r}."
        elif missing := await self._missing(log, newest):
            which = f"The thread with the key {missing[0]}{_more(len(missing))}"
            yield f"{which}: in the checkpoint of {newest.time:%Y-%m-%d %H:%M:%S} UTC, and not in the store."

    async def _missing(self, log: CheckpointLog, newest: Checkpoint) -> list[UUID]:
        signed = await asyncio.to_thread(self._signed, log, newest)
        missing: list[UUID] = []
        for start in range(0, len(signed), _SOME):
            some = signed[start : start + _SOME]
            there = await self._reader.audit.names_of(some)
            missing += [uid for uid in some if uid not in there]
        return missing

    def _signed(self, log: CheckpointLog, newest: Checkpoint) -> list[UUID]:
        wanted = tenant_hash(self._tenant)
        with log.heads(newest) as heads:
            return [head.thread_uid for head in heads if head.tenant == wanted]


def _more(count: int) -> str:
    return f", and {count - 1:,} more" if count > 1 else ""
