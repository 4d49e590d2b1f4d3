"""The memory of the audit pages: charts that were drawn, threads that were verified, faults, and warm connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from compaction_store.arguments import DATABASE, LOG
from compaction_store.audit import charts
from compaction_store.audit._async import records, threads
from compaction_store.audit.facts import ROWS
from compaction_store.audit.safe_text import named
from compaction_store.checkpoints import Checkpoint, CheckpointLog
from compaction_store.checkpoints.heads import HeadsFile, file_name, tenant_hash
from compaction_store.errors import CompactionStoreError, InvalidCheckpoint
from compaction_store.models import Event, Finding, Report, Thread
from compaction_store.store import AsyncReader

# The most charts that stay in memory. A chart takes at most 130 kB.
_MOST_CHARTS = 32
_T = TypeVar("_T")
# For so many seconds, the figures of the overview stay as they were.
_LONGEST_KEPT = 60.0


class ChartCache:
    """The charts of threads by thread and head. Every entry changes the head, and only an entry changes a chart."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader
        self._drawn: dict[tuple[UUID, bytes], asyncio.Task[str]] = {}
        # Drawing reads a whole thread, so only one chart is drawn at a time: other pages need the connections.
        self._drawing = asyncio.Lock()

    async def chart(self, found: Thread) -> str:
        """Returns the chart of a thread as an SVG file."""
        # A request that is cancelled must not cancel the drawing, for which another request may wait.
        return await asyncio.shield(self.draw_ahead(found))

    def draw_ahead(self, found: Thread) -> asyncio.Task[str]:
        """Begins to draw a chart, for which the browser is about to ask."""
        at = found.thread_uid, found.head
        task = self._drawn.get(at)
        if task is None:
            task = self._drawn[at] = asyncio.create_task(self._draw(found))
            task.add_done_callback(partial(self._drop_failure, at))
            while len(self._drawn) > _MOST_CHARTS:
                self._drawn.pop(next(iter(self._drawn)))
        return task

    async def _draw(self, found: Thread) -> str:
        async with self._drawing:
            line = await threads.course(self._reader, found)
        return charts.svg(line, named(f"Tokens of the view of thread {found.thread_id}"))

    def _drop_failure(self, at: tuple[UUID, bytes], task: asyncio.Task[str]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._drawn.get(at) is task:
            del self._drawn[at]


class Cached(Generic[_T]):
    """Facts that are read again after a minute, because they count all threads or many records."""

    def __init__(self, read: Callable[[], Awaitable[_T]]) -> None:
        self._read = read
        self._reading = asyncio.Lock()
        self._found: _T | None = None
        self._next = 0.0

    async def now(self) -> _T:
        async with self._reading:
            if self._found is None or time.monotonic() >= self._next:
                self._found = await self._read()
                self._next = time.monotonic() + _LONGEST_KEPT
            return self._found


class Verifications:
    """The last verification of each thread. Only the threads that were verified last are kept."""

    def __init__(self, checkpoints: CheckpointLog | None) -> None:
        self._checkpoints = checkpoints
        # The digest of the checkpoint whose list of heads was checked last.
        self._checked: str | None = None
        self.newest_first: dict[str, tuple[datetime, Report]] = {}

    def keep(self, name: str, report: Report) -> None:
        self.newest_first.pop(name, None)
        self.newest_first = dict([(name, (datetime.now(UTC), report)), *self.newest_first.items()][:ROWS])

    def of(self, thread: Thread) -> tuple[datetime, Report] | None:
        """Returns the last verification of the thread with this thread_uid, as its name may have been another's."""
        found = self.newest_first.get(thread.thread_id)
        return None if found is None or found[1].thread_uid != thread.thread_uid else found

    def newest_checkpoint(self) -> Checkpoint | None:
        return None if self._checkpoints is None else self._checkpoints.last()

    def signed_pos(self, thread: Thread, *, again: bool = True) -> tuple[Checkpoint | None, int]:
        """Returns the newest checkpoint, and the pos up to which it covers a thread, or 0 if it does not cover it.

        Without `again`, the list of heads is not read whole if it has been checked since this checkpoint was made.
        """
        if self._checkpoints is None or (newest := self._checkpoints.last()) is None:
            return None, 0
        if again or self._checked != newest.digest:
            self._checkpoints.heads(newest).close()
            self._checked = newest.digest
        with HeadsFile(self._checkpoints.path.parent / file_name(newest.heads)) as heads:
            found = heads.find(thread.thread_uid)
        return newest, 0 if found is None else found[1].pos


async def warm_up(reader: AsyncReader, *, connections: int) -> None:
    """Opens connections, and has the statements of most kinds of pages compiled and planned on them.

    Does nothing if the tenant has no threads. An error here is not raised, because a page that meets it shows it.
    """
    with suppress(CompactionStoreError):
        listed = await threads.thread_list(reader)
        if listed.threads.rows:
            name = listed.threads.rows[0].thread_id
            await asyncio.gather(*(_read_all(reader, name) for _ in range(connections)))


async def _read_all(reader: AsyncReader, thread_id: str) -> None:
    found = (await threads.thread(reader, thread_id)).thread
    await records.view(reader, thread_id, None, found.last_pos, only_changes=False)
    await records.message(reader, thread_id, found.last_seq, content=False)
    await threads.course(reader, found)
    await records.record_list(reader, None, {})
    await threads.event_list(reader)
    if found.last_number:
        await records.record(reader, thread_id, found.last_number, content=False)


# ---- faults of a whole store, so that no page of it looks sound

# The longest comparison of the store with a checkpoint in seconds, and the number of threads that one query looks for.
_LONGEST_LOOK, _SOME = 10.0, 5000


class Alarms:
    """The reasons for red pages: the tenant is empty, the schema does not protect it, or threads are missing.

    The last recorded verification of all threads may also have had findings; the threads are not verified again. A
    thread is missing if the newest checkpoint has it and the store has not.
    """

    def __init__(
        self, reader: AsyncReader, tenant: str, checkpoints: CheckpointLog | None, *, allow_empty: bool
    ) -> None:
        self.reasons: tuple[str, ...] = ()
        #: The newest recorded result of a verification of all threads.
        self.verification: Event | None = None
        #: The faults of the schema, the newest checkpoint, and how many of its threads the tenant has and lacks.
        self.schema: tuple[Finding, ...] = ()
        self.newest: Checkpoint | None = None
        self.there = self.missing = 0
        self._reader = reader
        self._tenant = tenant
        self._checkpoints = checkpoints
        self._allow_empty = allow_empty or tenant == DATABASE
        self._running: asyncio.Task[None] | None = None
        # When the reasons are found again. A look takes at most a twentieth of the time.
        self._next = 0.0

    async def look(self, *, wait: bool) -> None:
        """Finds the reasons again if some time has passed. Waits for them if asked to, and the first time."""
        if self._running is None and time.monotonic() >= self._next:
            self._running = asyncio.create_task(self._look())
        if self._running is not None and (wait or not self._next):
            await asyncio.shield(self._running)

    async def again(self) -> None:
        """Finds the reasons anew, because something has changed."""
        if self._running is not None:
            await asyncio.shield(self._running)
        self._next = 0.0
        await self.look(wait=True)

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
        if not self._allow_empty and not [each async for each in self._reader.threads(hidden=True, limit=1)]:
            yield f"The tenant {self._tenant!r} has no threads."
        self.schema = (await self._reader.audit.verify_schema()).findings
        if self.schema:
            yield f"The schema does not protect the threads: {self.schema[0].what}{_more(len(self.schema))}."
        last = self.verification = await threads.verified(self._reader)
        if last is not None and last.body.get("findings") != 0:
            yield f"The verification of all threads at {last.created_at:%Y-%m-%d %H:%M:%S} UTC had findings."
        if self._checkpoints is not None:
            try:
                async for reason in self._compared(self._checkpoints):
                    yield reason
            except (InvalidCheckpoint, OSError) as error:
                yield f"The log of checkpoints cannot be read: {error}."

    async def _compared(self, log: CheckpointLog) -> AsyncIterator[str]:
        self.newest = newest = await asyncio.to_thread(log.last)
        self.there = self.missing = 0
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
        there = 0
        for start in range(0, len(signed), _SOME):
            some = signed[start : start + _SOME]
            names = await self._reader.audit.names_of(some)
            # The log of the tenant is no thread that a list has.
            there += len(names) - (LOG in names.values())
            missing += [uid for uid in some if uid not in names]
        self.there, self.missing = there, len(missing)
        return missing

    def _signed(self, log: CheckpointLog, newest: Checkpoint) -> list[UUID]:
        wanted = tenant_hash(self._tenant)
        with log.heads(newest) as heads:
            return [head.thread_uid for head in heads if head.tenant == wanted]


def _more(count: int) -> str:
    return f", and {count - 1:,} more" if count > 1 else ""
