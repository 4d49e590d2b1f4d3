"""What the newest checkpoint of a log saw of each thread, and what that adds to the thread's report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from compaction_store.checkpoints import signed_heads
from compaction_store.checkpoints.checkpoint_log import CheckpointLog, Heads
from compaction_store.checkpoints.signed_heads import Checkpoint, Head
from compaction_store.models import Finding, Report


class Witness:
    """Holds the list of heads open until it is closed. Without a log it has seen nothing and says nothing."""

    def __init__(self, log: CheckpointLog | None, *, whole: bool = False) -> None:
        """With `whole`, every note of the log is seen to follow from the one before; else the newest is enough."""
        self._is_asked = log is not None
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

    def anchors(self, thread_uid: UUID) -> dict[int, bytes]:
        """The entry that the thread had at the pos where it stood then."""
        found = None if self._heads is None else self._heads.find(thread_uid)
        return {} if found is None else {found[1].pos: found[1].entry}

    def roll(self, tenant: str, after: UUID | None) -> Roll:
        """The tenant's threads behind a key, to be seen in a walk."""
        wanted = signed_heads.tenant_hash(tenant)
        heads = (head for head in self._heads or () if head.tenant == wanted)
        return Roll((head for head in heads if after is None or head.thread_uid > after), self)

    def gone(self, pos: int) -> Finding:
        """The finding that a thread is not there any more."""
        return Finding(None, f"the thread was at pos {pos} at the checkpoint of {self._moment}, and is gone")

    @property
    def _moment(self) -> str:
        return "no time" if self.checkpoint is None else self.checkpoint.time.isoformat()

    def told(self, report: Report, anchors: Mapping[int, bytes]) -> Report:
        """The report, with the level that the checkpoint lets it reach and how much is newer than that."""
        if not self._is_asked:
            return report
        if not anchors:
            notes = (*report.notes, "no checkpoint was made over the thread yet")
            return replace(report, level="schema", notes=notes)
        newer = report.pos - report.covered
        if not report.covered or newer <= 0:
            return report
        entries = "1 entry is" if newer == 1 else f"{newer} entries are"
        return replace(report, notes=(*report.notes, f"{entries} newer than the checkpoint of {self._moment}"))


class Roll:
    """Calls the threads of a checkpoint, in the order of their keys, while a walk comes by them in the same order.

    It is not enough that a thread is there: it must have been walked, and held to its entry, in this very run.
    """

    def __init__(self, heads: Iterator[Head], witness: Witness) -> None:
        self._heads = heads
        self._witness = witness
        self._next = next(heads, None)
        self._findings: list[Finding] = []
        self._missed = 0

    def walked(self, thread_uid: UUID) -> None:
        """Takes note of a thread; whoever should have come before it was not walked."""
        while self._next is not None and self._next.thread_uid <= thread_uid:
            if self._next.thread_uid != thread_uid:
                self._miss(self._next)
            self._next = next(self._heads, None)

    def end(self) -> tuple[Finding, ...]:
        """A finding for each thread of the checkpoint that was not walked."""
        while self._next is not None:
            self._miss(self._next)
            self._next = next(self._heads, None)
        if self._missed > len(self._findings):
            self._findings.append(Finding(None, f"so are {self._missed - len(self._findings):,} more"))
        return tuple(self._findings)

    def _miss(self, head: Head) -> None:
        self._missed += 1
        if self._missed <= signed_heads.MOST_FINDINGS:
            gone = self._witness.gone(head.pos)
            self._findings.append(replace(gone, what=f"thread_uid {head.thread_uid}: {gone.what}"))
