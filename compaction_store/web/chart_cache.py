"""Draws charts of threads before the browser asks for them, and keeps the newest charts in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

from compaction_store.audit import charts
from compaction_store.audit.safe_text import named
from compaction_store.models import Thread
from compaction_store.store import AsyncReader
from compaction_store.web import gathering

# The most charts that stay in memory. A chart takes at most 130 kB.
_MOST_CHARTS = 32


class ChartCache:
    """The charts of threads, by the thread and its head.

    Only a new entry, such as an erasure, changes a chart, and every entry changes the head.
    """

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader
        self._drawn: dict[tuple[UUID, bytes], asyncio.Task[str]] = {}
        # Drawing reads a whole thread, so only one chart is drawn at a time: other pages need the connections.
        self._drawing = asyncio.Lock()

    async def chart(self, found: Thread) -> str:
        """Returns the chart of a thread as an SVG file."""
        # A request that is cancelled must not cancel the drawing, for which another request may wait.
        return await asyncio.shield(self._task(found))

    def draw_ahead(self, found: Thread) -> None:
        """Begins to draw a chart, for which the browser is about to ask."""
        self._task(found)

    def _task(self, found: Thread) -> asyncio.Task[str]:
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
            line = await gathering.course(self._reader, found)
        return charts.svg(line, named(f"Tokens of the view of thread {found.thread_id}"))

    def _drop_failure(self, at: tuple[UUID, bytes], task: asyncio.Task[str]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._drawn.get(at) is task:
            del self._drawn[at]
