"""The async face of verification: a thread, or all of them, held to what was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compaction_store import audit, checks, ledger
from compaction_store.aio.exporting import AsyncExporting
from compaction_store.audit import Place, Standing
from compaction_store.errors import InvalidInput
from compaction_store.models import Report

Progress = Callable[[int, int], object]


class AsyncVerifying(AsyncExporting):
    """Reads threads, and says whether they are as they were written."""

    async def verify(
        self,
        thread_id: str,
        *,
        level: audit.Level = "content",
        since: Report | tuple[int, bytes] | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Recomputes a thread's chain; the report names the level reached and every finding."""
        if level not in audit.LEVELS:
            raise InvalidInput(f"the levels are {', '.join(audit.LEVELS)}")
        return await self._walk(thread_id, level, audit.place(since), progress)

    async def _walk(self, thread_id: str, level: audit.Level, since: Place | None, progress: Progress | None) -> Report:
        key = self._key(thread_id)
        about = checks.about(thread_id)
        pos = None if since is None else since.pos
        standing = Standing._make(await self._reach.write(None, about, ledger.standing, key, pos))
        walk = audit.verify(self._tenant, thread_id, standing, level, since=since)
        wanted = next(walk)
        while True:
            if progress is not None:
                progress(wanted.done, wanted.total)
            rows: list[tuple[Any, ...]]
            if wanted.kind == "head":
                rows = [await self._reach.write(None, about, ledger.standing, key, None)]
            else:
                rows = await self._reach.write(
                    None, about, ledger.entries, key, wanted.kind, wanted.start, level != "structure", wanted.limit
                )
            try:
                wanted = walk.send(rows)
            except StopIteration as stop:
                report: Report = stop.value
                if progress is not None:
                    progress(report.pos, report.pos)
                return report
