"""Compares threads with the newest checkpoint of a log, and adds to a report what the checkpoint shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from compaction_store.checkpoints import signed_heads
from compaction_store.checkpoints.checkpoint_log import CheckpointLog, Heads
from compaction_store.checkpoints.signed_heads import Checkpoint, Head
from compaction_store.integrity.entry import KnownEntry
from compaction_store.models import Finding, Report


class NewestCheckpoint:
    """The newest checkpoint of a log and its list of heads, a file that stays open until `close`.

    Without a log it knows no entries and changes no report.
    """

    def __init__(self, log: CheckpointLog | None, *, whole: bool = False) -> None:
        """With `whole`, every note of the log is checked, and that each follows from the one before."""
        self._has_log = log is not None
        self.checkpoint: Checkpoint | None = None
        self._heads: Heads | None = None
        if log is None:
            return
        if whole:
            for self.checkpoint in log:
                pass
        else:
            self.checkpoint = log.last()
        if self.checkpoint is not None:
            self._heads = log.heads(self.checkpoint)

    def close(self) -> None:
        if self._heads is not None:
            self._heads.close()

    def entry(self, thread_uid: UUID) -> KnownEntry | None:
        """Returns the last pos that the thread had at the checkpoint, and the entry there."""
        found = None if self._heads is None else self._heads.find(thread_uid)
        return None if found is None else KnownEntry(found[1].pos, found[1].entry)

    def expected(self, tenant: str, after: UUID | None) -> ExpectedThreads:
        """Returns the tenant's threads after a uid, to be ticked off during a walk over all threads."""
        wanted = signed_heads.tenant_hash(tenant)
        heads = (head for head in self._heads or () if head.tenant == wanted)
        return ExpectedThreads((head for head in heads if after is None or head.thread_uid > after), self)

    def gone(self, pos: int) -> Finding:
        """Makes the finding that a thread of the checkpoint is gone."""
        return Finding(None, f"the thread was at pos {pos} at the checkpoint of {self._time}, and is gone")

    @property
    def _time(self) -> str:
        return "no time" if self.checkpoint is None else self.checkpoint.time.isoformat()

    def annotate(self, report: Report, known: KnownEntry | None) -> Report:
        """Returns the report with the level that the checkpoint lets it reach, and with how much is newer."""
        if not self._has_log:
            return report
        if known is None:
            notes = (*report.notes, "no checkpoint was made over the thread yet")
            return replace(report, level="schema", notes=notes)
        newer = report.pos - report.covered
        if not report.covered or newer <= 0:
            return report
        entries = "1 entry is" if newer == 1 else f"{newer} entries are"
        return replace(report, notes=(*report.notes, f"{entries} newer than the checkpoint of {self._time}"))


class ExpectedThreads:
    """The threads of a checkpoint, ticked off as a walk over all threads comes to each. Both go by thread_uid.

    A thread that is stored but was not walked in this run is a finding too: its entry was not compared.
    """

    def __init__(self, heads: Iterator[Head], newest: NewestCheckpoint) -> None:
        self._heads = heads
        self._newest = newest
        self._next = next(heads, None)
        self._findings: list[Finding] = []
        self._missed = 0

    def walked(self, thread_uid: UUID) -> None:
        """Ticks off a thread. The threads that should have come before it are missing."""
        while self._next is not None and self._next.thread_uid <= thread_uid:
            if self._next.thread_uid != thread_uid:
                self._miss(self._next)
            self._next = next(self._heads, None)

    def end(self) -> tuple[Finding, ...]:
        """Returns a finding for each thread that was not walked."""
        while self._next is not None:
            self._miss(self._next)
            self._next = next(self._heads, None)
        if self._missed > len(self._findings):
            self._findings.append(Finding(None, f"so are {self._missed - len(self._findings):,} more"))
        return tuple(self._findings)

    def _miss(self, head: Head) -> None:
        self._missed += 1
        if self._missed <= signed_heads.MOST_FINDINGS:
            gone = self._newest.gone(head.pos)
            self._findings.append(replace(gone, what=f"thread_uid {head.thread_uid}: {gone.what}"))
