"""The verification of all threads that a reader of the audit pages starts, and that runs beside the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.requests import Request

from compaction_store.audit.facts import Tally
from compaction_store.checkpoints import CheckpointLog
from compaction_store.errors import CompactionStoreError
from compaction_store.models import Event, Finding, Level, Report
from compaction_store.store import AsyncReader, AsyncStore
from compaction_store.web.access import LOG, answer_to, log_failure
from compaction_store.web.caches import Alarms

# The most findings that are kept and shown.
_MOST_FINDINGS = 100


@dataclass
class Verifying(Tally):
    """A verification: `done` of `total` threads, the log among them, its first findings by thread, and its end.

    `unsigned` are the first threads that no checkpoint has yet, at level checkpoint. `failure` says why it ended early,
    and `event` is the record of its result.
    """

    level: Level = "content"
    by: str = ""
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    progress: tuple[int, int] = (0, 0)
    shown: list[tuple[str, Finding]] = field(default_factory=list)
    unsigned: list[str] = field(default_factory=list)
    ended: datetime | None = None
    failure: str | None = None
    event: Event | None = None

    def add(self, report: Report) -> None:
        super().add(report)
        self.shown += [(report.thread_id, each) for each in report.findings[: _MOST_FINDINGS - len(self.shown)]]
        if self.level == "checkpoint" and report.thread_id and not report.covered:
            self.unsigned += [report.thread_id][: _MOST_FINDINGS - len(self.unsigned)]


@dataclass
class VerificationJob:
    """Verifies all threads, one verification at a time, with one connection of `reader`. `writer` records the result.

    `last` is the verification that runs, or the one that ended last.
    """

    reader: AsyncReader
    writer: AsyncStore
    checkpoints: CheckpointLog | None
    alarms: Alarms
    last: Verifying | None = None
    task: asyncio.Task[None] | None = None

    async def join(self, level: Level, request: Request, seconds: float) -> None:
        """Starts a verification, or joins the one that runs, and waits for its end for some seconds."""
        if self.task is None or self.task.done():
            new = Verifying(level=level, by=request.scope["reader"])
            log = self.checkpoints if level == "checkpoint" else None
            reports = self.reader.audit.verify(
                level=level, checkpoints=log, progress=lambda *found: setattr(new, "progress", found)
            )
            self.last, self.task = new, asyncio.create_task(self._run(new, reports, log, request))
        await asyncio.wait([self.task], timeout=seconds)

    async def stop(self) -> None:
        """Ends the verification that runs. The log says what it found, because only a whole one is recorded."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _run(
        self, new: Verifying, reports: AsyncIterator[Report], log: CheckpointLog | None, request: Request
    ) -> None:
        try:
            async for report in reports:
                new.add(report)
            last = None if log is None else log.last()
            if new.threads:
                new.event = await self.writer.audit.record_verification(
                    level=new.level, threads=new.threads, findings=new.findings, actor=new.by,
                    seconds=round(max(0.0, (datetime.now(UTC) - new.since).total_seconds()), 3),
                    checkpoint=None if last is None else last.digest,
                )  # fmt: skip
            await self.alarms.again()
        except asyncio.CancelledError:
            stopped = {"verification": "stopped", "progress": new.progress, "findings": new.findings}
            LOG.warning("%s", json.dumps(stopped))
            raise
        except Exception as error:  # noqa: BLE001 — its text is not shown or logged, because it may have content
            log_failure(request, error)
            text = f": {answer_to(error)[2]}" if isinstance(error, CompactionStoreError) else ""
            new.failure = f"{type(error).__name__}{text}"
        finally:
            new.ended = datetime.now(UTC)
