"""The async face of verification: threads held to what was written, the schema to what was shipped, and both to
checkpoints.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from compaction_store.checkpoints.checkpoint_log import CheckpointLog
from compaction_store.checkpoints.comparison import Witness
from compaction_store.checkpoints.signed_heads import Checkpoint, Signer
from compaction_store.errors import DatabaseError, InvalidInput, ThreadNotFound
from compaction_store.integrity import entry_pages, stored_threads, thread_walk
from compaction_store.integrity.entry_pages import Place, Standing
from compaction_store.integrity.stored_threads import Stored
from compaction_store.models import Finding, Report
from compaction_store.postgres import checkpointing, introspection, queries, schema_check
from compaction_store.postgres.queries import ThreadKey
from compaction_store.postgres.schema_check import Judged
from compaction_store.store._async.exporting import AsyncExporting

Progress = Callable[[int, int], object]

_AWAITS = True
_PAGE = 1000
# A hundred times what a thread's place in a checkpoint takes.
_SECONDS_A_THREAD = 0.001
# How long a checkpoint waits for another: less than the deadline, so that the error can say which.
_OF_THE_DEADLINE = 0.7
_ONCE = 10.0
# Classes of SQLSTATE that tell of what is stored, not of the schema or the server: data, limits, corruption.
_OF_DATA = ("22", "54", "XX")


class AsyncVerifying(AsyncExporting):
    """Reads threads, and says whether they are as they were written."""

    async def verify(
        self,
        thread_id: str,
        *,
        level: thread_walk.Level = "content",
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
        key = self._key(thread_id)
        place = entry_pages.place(since)
        judged = await self._schema(level)
        witness = await self._db.run_in_thread(Witness, checkpoints)
        try:
            report = await self._held(key, thread_id, level, place, witness, progress)
        finally:
            witness.close()
        return report if judged is None else _with_schema(report, judged)

    async def verify_all(
        self,
        *,
        level: thread_walk.Level = "content",
        after: str | UUID | Report | None = None,
        checkpoints: CheckpointLog | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Report]:
        """A report on everything that is stored under the tenant, thread by thread, in the order of their thread_uid.

        Threads are walked by key, not by name: one whose name is wrong, missing or another's has a report like any
        other, and so has what is left of a thread that lost its head. Whatever is stored, it is a finding and never an
        exception. `after` goes on behind a thread, given by its report, its thread_uid or its name.

        From level schema on, the first report is on the schema. At level checkpoint, every note of the log is checked,
        and threads of the newest checkpoint that were not walked are findings of a last report. Both have an empty
        thread_id and no thread_uid. `progress` is told how many threads are done, of how many.
        """
        _check(level, checkpoints, progress)
        place = stored_threads.place(self._tenant, after)
        judged = await self._schema(level)
        if judged is not None:
            yield Report("", "schema", 0, 0, judged.findings, b"", notes=judged.notes)
        witness = await self._db.run_in_thread(Witness, checkpoints, whole=True)
        try:
            roll = await self._db.run_in_thread(witness.roll, self._tenant, place)
            total = await self._db.call(queries.count_heads, self._tenant, place)
            done = 0
            while page := await self._db.call(queries.stored_threads, self._tenant, place, _PAGE):
                for row in page:
                    yield await self._listed(Stored._make(row), level, witness)
                    roll.walked(row[0])
                    done += 1
                    if progress is not None:
                        progress(done, max(done, total))
                place = page[-1][0]
            if witness.checkpoint is not None:
                yield Report("", "checkpoint", 0, 0, await self._db.run_in_thread(roll.end), b"")
        finally:
            witness.close()

    async def checkpoint(
        self, signer: Signer, log: CheckpointLog, *sinks: checkpointing.Sink, all_tenants: bool = False
    ) -> Checkpoint:
        """Signs where every thread of the tenant stands, after the last checkpoint of the log, and appends it there.

        Refused where the database does not contain what the last checkpoint was made over: a thread that is gone, that
        ends earlier, or that has another entry there (`CheckpointRefused`). Idle times are worth a checkpoint too: they
        show that nothing was taken away. Each sink is called with the checkpoint and the path of its list of heads,
        once both are on disk. `all_tenants` needs a login that row-level security does not bind.
        """
        patience = _OF_THE_DEADLINE * (self._db.deadline or _ONCE)
        commission = checkpointing.Commission(None if all_tenants else self._tenant, signer, log, sinks, patience)
        commission.check(awaits=_AWAITS)
        last = await self._db.run_in_thread(log.last)
        db = self._db.with_more_time(0 if last is None else 2 * last.size * _SECONDS_A_THREAD)
        return await db.call(checkpointing.take, commission)

    async def _schema(self, level: thread_walk.Level) -> Judged | None:
        if level not in {"schema", "checkpoint"}:
            return None
        return schema_check.judge(await self._db.call(introspection.read))

    async def _listed(self, listed: Stored, level: thread_walk.Level, witness: Witness) -> Report:
        """The report on whatever is stored under a key."""
        name = listed.thread_id or ""
        found = stored_threads.findings(self._tenant, listed)
        report = Report(name, level, 0, 0, (), b"", thread_uid=listed.thread_uid)
        anchors = witness.anchors(listed.thread_uid)
        if listed.is_whole:
            try:
                report = await self._held(
                    ThreadKey(listed.thread_uid, self._tenant, name), name, level, None, witness, None
                )
            except DatabaseError as error:
                if type(error) is not DatabaseError or (error.sqlstate or _OF_DATA[0])[:2] not in _OF_DATA:
                    raise
                found += (Finding(None, f"Postgres cannot read the thread's rows: SQLSTATE {error.sqlstate}"),)
            except ThreadNotFound:
                found += (Finding(None, "the thread went while it was verified"),)
        elif anchors:
            found += (witness.gone(max(anchors)),)
        return replace(report, findings=(*found, *report.findings))

    async def _held(
        self,
        key: ThreadKey,
        thread_id: str,
        level: thread_walk.Level,
        since: Place | None,
        witness: Witness,
        progress: Progress | None,
    ) -> Report:
        """A thread's report, once it was held against the checkpoint as well."""
        anchors = witness.anchors(key.uid)
        try:
            report = await self._walk(key, thread_id, level, since, anchors, progress)
        except ThreadNotFound:
            if not anchors:
                raise
            report = Report(thread_id, level, 0, 0, (witness.gone(max(anchors)),), b"")
        return replace(witness.told(report, anchors), thread_uid=key.uid)

    async def _walk(
        self,
        key: ThreadKey,
        thread_id: str,
        level: thread_walk.Level,
        since: Place | None,
        anchors: Mapping[int, bytes],
        progress: Progress | None,
    ) -> Report:
        pos = None if since is None else since.pos
        standing = Standing._make(await self._db.call(queries.standing, key, pos))
        walk = thread_walk.verify(self._tenant, thread_id, standing, level, since=since, anchors=anchors)
        wanted = next(walk)
        while True:
            if progress is not None:
                progress(wanted.done, wanted.total)
            rows: list[tuple[Any, ...]]
            if wanted.kind == "head":
                rows = [await self._db.call(queries.standing, key, None)]
            else:
                rows = await self._db.call(
                    queries.entries, key, wanted.kind, wanted.start, level != "structure", wanted.limit
                )
            try:
                wanted = walk.send(rows)
            except StopIteration as stop:
                report: Report = stop.value
                if progress is not None:
                    progress(report.pos, report.pos)
                return report


def _check(level: thread_walk.Level, log: CheckpointLog | None, progress: Progress | None) -> None:
    if progress is not None and not callable(progress):
        raise InvalidInput(f"progress must be a callable, not {type(progress).__name__}")
    if level not in thread_walk.LEVELS:
        raise InvalidInput(f"level must be one of {', '.join(thread_walk.LEVELS)}")
    if (level == "checkpoint") != (log is not None):
        raise InvalidInput("level checkpoint goes with checkpoints=, a CheckpointLog")
    if log is not None and not isinstance(log, CheckpointLog):
        raise InvalidInput("checkpoints must be a CheckpointLog")


def _with_schema(report: Report, judged: Judged) -> Report:
    return replace(report, findings=(*judged.findings, *report.findings), notes=(*judged.notes, *report.notes))
