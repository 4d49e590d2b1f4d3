"""The async face of verification: threads held to what was written, the schema to what was shipped, and both to
checkpoints.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from compaction_store import audit, catalog, checks, ledger, notary, pages, payload, protection
from compaction_store.aio.exporting import AsyncExporting
from compaction_store.checkpoint_log import CheckpointLog
from compaction_store.checkpoints import Checkpoint, Signer
from compaction_store.errors import InvalidInput, ThreadNotFound
from compaction_store.models import Finding, Report
from compaction_store.pages import Place, Standing
from compaction_store.protection import Judged
from compaction_store.witness import Witness

Progress = Callable[[int, int], object]

_AWAITS = True
_PAGE = 1000
# A hundred times what a thread's place in a checkpoint takes.
_SECONDS_A_THREAD = 0.001
# How long a checkpoint waits for another: less than the deadline, so that the error can say which.
_OF_THE_DEADLINE = 0.7
_ONCE = 10.0


class AsyncVerifying(AsyncExporting):
    """Reads threads, and says whether they are as they were written."""

    async def verify(
        self,
        thread_id: str,
        *,
        level: audit.Level = "content",
        since: Report | tuple[int, bytes] | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Recomputes a thread's chain; the report names the level reached and every finding.

        structure reads no content, content does, schema also asks whether the database still protects it, and
        checkpoint whether it is the chain that was there when the newest of `checkpoints` was made. `since` goes on
        from an earlier report of the thread, or from a pos and the entry that was kept of it. `progress` is told how
        many entries are done, of how many.
        """
        _check(level, checkpoints, progress)
        place = pages.place(since)
        judged = await self._schema(level)
        witness = await self._reach.aside(Witness, checkpoints)
        try:
            report = await self._held(thread_id, level, place, witness, progress)
        finally:
            witness.close()
        return report if judged is None else _with_schema(report, judged)

    async def verify_all(
        self,
        *,
        level: audit.Level = "content",
        after: str = "",
        checkpoints: CheckpointLog | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Report]:
        """A report on each of the tenant's threads, in the order of their names; `after` goes on behind one.

        From level schema on, the first report is on the schema. At level checkpoint, every note of the log is checked,
        and threads that are in the newest checkpoint and gone since are findings of a last report. Both have an empty
        thread_id. `progress` is told how many threads are done, of how many.
        """
        _check(level, checkpoints, progress)
        if after:
            payload.check_thread_id(after)
        judged = await self._schema(level)
        if judged is not None:
            yield Report("", "schema", 0, 0, judged.findings, b"", notes=judged.notes)
        witness = await self._reach.aside(Witness, checkpoints, whole=True)
        try:
            total = await self._reach.run(ledger.count_threads, self._tenant, after)
            done = 0
            while names := await self._reach.run(ledger.thread_names, self._tenant, after, _PAGE):
                for name in names:
                    yield await self._listed(name, level, witness)
                    done += 1
                    if progress is not None:
                        progress(done, max(done, total))
                after = names[-1]
            if witness.checkpoint is not None:
                yield await self._vanished(witness)
        finally:
            witness.close()

    async def checkpoint(
        self, signer: Signer, log: CheckpointLog, *sinks: notary.Sink, all_tenants: bool = False
    ) -> Checkpoint:
        """Signs where every thread of the tenant stands, after the last checkpoint of the log, and appends it there.

        Refused where the database does not contain what the last checkpoint was made over: a thread that is gone, that
        ends earlier, or that has another entry there (`CheckpointRefused`). Idle times are worth a checkpoint too: they
        show that nothing was taken away. Each sink is called with the checkpoint and the path of its list of heads,
        once both are on disk. `all_tenants` needs a login that row-level security does not bind.
        """
        patience = _OF_THE_DEADLINE * (self._reach.deadline or _ONCE)
        commission = notary.Commission(None if all_tenants else self._tenant, signer, log, sinks, patience)
        commission.check(awaits=_AWAITS)
        last = await self._reach.aside(log.last)
        reach = self._reach.longer(0 if last is None else 2 * last.size * _SECONDS_A_THREAD)
        return await reach.run(notary.take, commission)

    async def _schema(self, level: audit.Level) -> Judged | None:
        if level not in {"schema", "checkpoint"}:
            return None
        return protection.judge(await self._reach.run(catalog.read))

    async def _listed(self, thread_id: str, level: audit.Level, witness: Witness) -> Report:
        """The report of a thread that is known by the name it is stored under."""
        try:
            return await self._held(thread_id, level, None, witness, None)
        except ThreadNotFound:
            finding = Finding(None, "the thread has no head, or is stored under a name that is not its own")
            return Report(thread_id, level, 0, 0, (finding,), b"")

    async def _held(
        self,
        thread_id: str,
        level: audit.Level,
        since: Place | None,
        witness: Witness,
        progress: Progress | None,
    ) -> Report:
        """A thread's report, once it was held against the checkpoint as well."""
        anchors = witness.anchors(self._tenant, thread_id)
        try:
            report = await self._walk(thread_id, level, since, anchors, progress)
        except ThreadNotFound:
            if not anchors:
                raise
            return Report(thread_id, level, 0, 0, (witness.gone(max(anchors)),), b"")
        return witness.told(report, anchors)

    async def _walk(
        self,
        thread_id: str,
        level: audit.Level,
        since: Place | None,
        anchors: Mapping[int, bytes],
        progress: Progress | None,
    ) -> Report:
        key = self._key(thread_id)
        about = checks.about(thread_id)
        pos = None if since is None else since.pos
        standing = Standing._make(await self._reach.write(None, about, ledger.standing, key, pos))
        walk = audit.verify(self._tenant, thread_id, standing, level, since=since, anchors=anchors)
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

    async def _vanished(self, witness: Witness) -> Report:
        """What is in the checkpoint, of this tenant, and not in the database."""
        findings: list[Finding] = []
        ours = witness.heads_of(self._tenant)
        while page := list(islice(ours, _PAGE)):
            there = await self._reach.run(ledger.present, self._tenant, [head.thread_uid for head in page])
            for head in page:
                if head.thread_uid not in there and len(findings) < audit.MOST_FINDINGS:
                    gone = witness.gone(head.pos)
                    findings.append(replace(gone, what=f"thread_uid {head.thread_uid}: {gone.what}"))
        return Report("", "checkpoint", 0, 0, tuple(findings), b"")


def _check(level: audit.Level, log: CheckpointLog | None, progress: Progress | None) -> None:
    if progress is not None and not callable(progress):
        raise InvalidInput(f"progress must be a callable, not {type(progress).__name__}")
    if level not in audit.LEVELS:
        raise InvalidInput(f"level must be one of {', '.join(audit.LEVELS)}")
    if (level == "checkpoint") != (log is not None):
        raise InvalidInput("level checkpoint goes with checkpoints=, a CheckpointLog")
    if log is not None and not isinstance(log, CheckpointLog):
        raise InvalidInput("checkpoints must be a CheckpointLog")


def _with_schema(report: Report, judged: Judged) -> Report:
    return replace(report, findings=(*judged.findings, *report.findings), notes=(*judged.notes, *report.notes))
