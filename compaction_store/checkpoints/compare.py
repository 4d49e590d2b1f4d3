"""Compares threads with an earlier checkpoint, to verify them or to sign a new checkpoint. Reads no database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from uuid import UUID

from compaction_store.checkpoints.heads import Head, HeadsFile, tenant_hash
from compaction_store.checkpoints.log import CheckpointLog
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.integrity.entry import KnownEntry
from compaction_store.models import Finding, Report

_MOST_FINDINGS = 1000


class NewestCheckpoint:
    """The newest checkpoint of a log, with its list of heads, which stays open until `close`.

    If the log is None, there is no entry to compare with, and reports stay unchanged.
    """

    def __init__(self, log: CheckpointLog | None, *, whole: bool = False) -> None:
        """Opens the newest checkpoint. With `whole`, also checks every note of the log and the order of the notes."""
        self._has_log = log is not None
        self.checkpoint: Checkpoint | None = None
        self._heads: HeadsFile | None = None
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
        """Returns the last pos and entry of a thread at the checkpoint; None if the checkpoint lacks the thread."""
        found = None if self._heads is None else self._heads.find(thread_uid)
        return None if found is None else KnownEntry(found[1].pos, found[1].entry)

    def expected(self, tenant: str, after: UUID | None) -> ExpectedThreads:
        """Returns a tenant's threads in the checkpoint. A walk that begins after `after` must meet each of them."""
        wanted = tenant_hash(tenant)
        heads = (head for head in self._heads or () if head.tenant == wanted)
        return ExpectedThreads((head for head in heads if after is None or head.thread_uid > after), self)

    def gone(self, pos: int) -> Finding:
        """Returns the finding for a thread that is in the checkpoint but not in the database."""
        return Finding(None, f"the thread was at pos {pos} at the checkpoint of {self._time}, and is gone")

    @property
    def _time(self) -> str:
        return "no time" if self.checkpoint is None else self.checkpoint.time.isoformat()

    def annotate(self, report: Report, known: KnownEntry | None) -> Report:
        """Adds a note to a thread's report: the number of entries that are newer than the checkpoint, if there are any.

        If the thread is not in the checkpoint, the note says so and the level of the report is schema.
        """
        if not self._has_log:
            return report
        if known is None:
            notes = (*report.notes, "no checkpoint covers the thread yet")
            return replace(report, level="schema", notes=notes)
        newer = report.pos - report.covered
        if not report.covered or newer <= 0:
            return report
        entries = "1 entry is" if newer == 1 else f"{newer} entries are"
        return replace(report, notes=(*report.notes, f"{entries} newer than the checkpoint of {self._time}"))


class ExpectedThreads:
    """The threads of a checkpoint. A walk over the stored threads, in the same order of thread_uid, ticks them off.

    A thread that the walk skipped is a finding even if it is stored, because its entry was not compared. The text of
    the finding is that of a missing thread.
    """

    def __init__(self, heads: Iterator[Head], newest: NewestCheckpoint) -> None:
        self._heads = heads
        self._newest = newest
        self._next = next(heads, None)
        self._findings: list[Finding] = []
        self._missed = 0

    def walked(self, thread_uid: UUID) -> None:
        """Ticks off a thread. Each expected thread before it that the walk did not meet becomes a finding."""
        while self._next is not None and self._next.thread_uid <= thread_uid:
            if self._next.thread_uid != thread_uid:
                self._miss(self._next)
            self._next = next(self._heads, None)

    def end(self) -> tuple[Finding, ...]:
        """Returns a finding for each expected thread that the walk did not meet; beyond 1,000, one for the rest."""
        while self._next is not None:
            self._miss(self._next)
            self._next = next(self._heads, None)
        if self._missed > len(self._findings):
            self._findings.append(Finding(None, f"so are {self._missed - len(self._findings):,} more"))
        return tuple(self._findings)

    def _miss(self, head: Head) -> None:
        self._missed += 1
        if self._missed <= _MOST_FINDINGS:
            gone = self._newest.gone(head.pos)
            self._findings.append(replace(gone, what=f"thread_uid {head.thread_uid}: {gone.what}"))


class EarlierHeads:
    """The heads of an earlier checkpoint, to compare with the present heads. Both come in the order of thread_uid."""

    def __init__(self, earlier: Iterable[Head]) -> None:
        self._earlier = iter(earlier)
        self._next = next(self._earlier, None)
        self._findings: list[str] = []

    def _find(self, earlier: Head, what: str) -> None:
        if len(self._findings) < _MOST_FINDINGS:
            self._findings.append(f"thread_uid {earlier.thread_uid}, pos {earlier.pos}: {what}")

    def compare(self, head: Head) -> Head | None:
        """Compares a thread with its earlier head. If the thread has grown, returns that head for `compare_entry`."""
        while self._next is not None and self._next.thread_uid < head.thread_uid:
            self._gone(self._next)
        earlier = self._next
        if earlier is None or earlier.thread_uid != head.thread_uid:
            return None
        self._next = next(self._earlier, None)
        if head.pos > earlier.pos:
            return earlier
        if head.pos < earlier.pos:
            self._find(earlier, f"the thread ends at pos {head.pos} now")
        else:
            self.compare_entry(earlier, head.entry)
        return None

    def _gone(self, earlier: Head) -> None:
        self._find(earlier, "the thread is gone")
        self._next = next(self._earlier, None)

    def compare_entry(self, earlier: Head, entry: bytes | None) -> None:
        """Compares an earlier head with the present entry at the same pos."""
        if entry != earlier.entry:
            self._find(earlier, "another entry is there now")

    def finish(self) -> list[str]:
        """Returns the findings. Earlier threads that were not compared are reported as gone."""
        while self._next is not None:
            self._gone(self._next)
        return self._findings
