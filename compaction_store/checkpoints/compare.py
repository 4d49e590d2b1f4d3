"""Compares threads with earlier checkpoints, to verify them or to sign a new checkpoint. Reads no database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from compaction_store.checkpoints.heads import Head, HeadsFile, tenant_hash
from compaction_store.checkpoints.log import CheckpointLog
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.integrity.entry import KnownEntry
from compaction_store.models import Finding, Report

_MOST_FINDINGS = 1000
# With one list of heads for each of these checkpoints, a verification takes about as long as with one list.
_MOST_LISTS = 16


class _Listed:
    """The heads of one checkpoint. `reach` reads them in the order of thread_uid, and `find` reads any of them."""

    def __init__(self, checkpoint: Checkpoint, heads: HeadsFile, after: UUID | None) -> None:
        self.time = checkpoint.time.isoformat()
        self._heads = heads
        self._rest = heads.between(0 if after is None else heads.first(after), heads.size)
        self.next = next(self._rest, None)
        if after is not None and self.next is not None and self.next.thread_uid == after:
            self.step()

    def step(self) -> None:
        self.next = next(self._rest, None)

    def find(self, thread_uid: UUID) -> Head | None:
        found = self._heads.find(thread_uid)
        return None if found is None else found[1]


class Known:
    """The entries of one thread in checkpoints, the newest first, and the contradictions between the checkpoints."""

    def __init__(self, heads: list[tuple[str, Head | None]]) -> None:
        found = [head for _, head in heads if head is not None]
        self.entries = tuple(KnownEntry(head.pos, head.entry) for head in found)
        self.is_in_newest = bool(heads) and heads[0][1] is not None
        self.findings = tuple(
            Finding(
                None,
                f"the checkpoints contradict each other: the thread was at pos {older.pos} at that of {then}, and"
                f" {'absent' if newer is None else f'at pos {newer.pos}'} at that of {later}",
            )
            for (later, newer), (then, older) in pairwise(heads)
            if older is not None and (newer is None or newer.pos < older.pos)
        )
        #: The finding for the thread if it is in a checkpoint but not in the database.
        self.gone: tuple[Finding, ...] = tuple(
            Finding(None, f"the thread was at pos {head.pos} at the checkpoint of {time}, and is gone")
            for time, head in heads
            if head is not None
        )[:1]


class KnownCheckpoints:
    """The newest checkpoint of a log and older ones, with their lists of heads, which stay open until `close`.

    The older ones are the oldest whose list of heads is kept, and up to 14 others. A walk over all threads calls
    `reach` with the thread_uids in their order. A thread of a checkpoint that the walk skips becomes a finding even if
    the thread is stored, because its entry was not compared. Without a log, there is nothing to compare with.
    """

    def __init__(self, log: CheckpointLog | None, tenant: str, after: UUID | None = None) -> None:
        """Checks the order of all notes of the log, and opens the lists. The walk begins after the thread `after`."""
        self._has_log = log is not None
        self._tenant = tenant_hash(tenant)
        self._lists: list[_Listed] = []
        self._missed: list[Finding] = []
        self._missed_count = 0
        self._stack = ExitStack()
        checkpoints = [] if log is None else log.kept(_MOST_LISTS)
        self.newest = checkpoints[0] if checkpoints else None
        #: Findings about the log as a whole.
        self.findings: tuple[Finding, ...] = ()
        if log is not None and self.newest is None:
            self.findings = (Finding(None, "the log has no checkpoint"),)
        elif self.newest is not None and not self.newest.covers(tenant):
            of = f"the checkpoints are those of {self.newest.origin}, and do not cover this tenant"
            self.findings = (Finding(None, of),)
        try:
            for checkpoint in checkpoints:
                if log is not None:
                    self._lists.append(_Listed(checkpoint, self._stack.enter_context(log.heads(checkpoint)), after))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    @property
    def notes(self) -> tuple[str, ...]:
        if len(self._lists) <= 1:
            return ()
        return (f"compared with {len(self._lists)} checkpoints, the oldest of {self._lists[-1].time}",)

    def find(self, thread_uid: UUID) -> Known:
        """Returns what the checkpoints say about a thread, without a walk."""
        return Known([(listed.time, listed.find(thread_uid)) for listed in self._lists])

    def reach(self, thread_uid: UUID) -> Known:
        """Returns what the checkpoints say about the next thread of the walk. Threads before it count as missed."""
        self._miss_until(thread_uid)
        heads: list[tuple[str, Head | None]] = []
        for listed in self._lists:
            head = listed.next
            if head is not None and head.thread_uid == thread_uid:
                listed.step()
            else:
                head = None
            heads.append((listed.time, head))
        return Known(heads)

    def end(self) -> tuple[Finding, ...]:
        """Returns a finding for each thread that the walk did not meet; beyond 1,000, one for the rest."""
        self._miss_until(None)
        rest = self._missed_count - len(self._missed)
        return (*self.findings, *self._missed, *([Finding(None, f"so are {rest:,} more")] if rest else ()))

    def _miss_until(self, thread_uid: UUID | None) -> None:
        """Counts the threads of this tenant that come before a thread, and in which the lists are not yet."""
        while (waiting := [listed.next for listed in self._lists if listed.next is not None]) and (
            (first := min(head.thread_uid for head in waiting)) != thread_uid
            and (thread_uid is None or first < thread_uid)
        ):
            known = self.reach(first)
            if all(head.tenant != self._tenant for head in waiting if head.thread_uid == first):
                continue
            self._missed_count += 1
            if self._missed_count <= _MOST_FINDINGS:
                self._missed += [replace(gone, what=f"thread_uid {first}: {gone.what}") for gone in known.gone]

    def annotate(self, report: Report, known: Known) -> Report:
        """Adds to a thread's report how many of its entries no checkpoint covers; level schema, if none covers it."""
        if not self._has_log:
            return report
        report = replace(report, findings=(*known.findings, *report.findings))
        if not known.is_in_newest or self.newest is None:
            return replace(report, level="schema", notes=(*report.notes, "no checkpoint covers the thread yet"))
        newer = report.pos - report.covered
        if not report.covered or newer <= 0:
            return report
        entries = "1 entry is" if newer == 1 else f"{newer} entries are"
        newest = f"newer than the checkpoint of {self.newest.time.isoformat()}"
        return replace(report, notes=(*report.notes, f"{entries} {newest}"))


class Completeness(NamedTuple):
    """How the stored threads of a tenant compare with the newest checkpoint of a log.

    `signed` is the number of the tenant's threads in the checkpoint. `gone` has the thread_uid and the pos of each
    thread that only the checkpoint has. `findings` include these.
    """

    signed: int
    gone: tuple[tuple[UUID, int], ...]
    findings: tuple[Finding, ...]


def completeness(log: CheckpointLog, tenant: str, read: Callable[[], Collection[UUID]]) -> Completeness:
    """Compares all stored threads of a tenant with the newest checkpoint. `read` is called after the log was read."""
    checkpoints = KnownCheckpoints(log, tenant)
    try:
        stored = read()
        for thread_uid in sorted(stored):
            checkpoints.reach(thread_uid)
        findings = checkpoints.end()
        if checkpoints.newest is None:
            return Completeness(0, (), findings)
        with log.heads(checkpoints.newest) as heads:
            signed = [head for head in heads if head.tenant == tenant_hash(tenant)]
        gone = tuple((head.thread_uid, head.pos) for head in signed if head.thread_uid not in stored)
        return Completeness(len(signed), gone, findings)
    finally:
        checkpoints.close()


class EarlierHeads:
    """The heads of an earlier checkpoint, to compare with the present heads. Both come in the order of thread_uid."""

    def __init__(self, earlier: Iterable[Head]) -> None:
        self._earlier: Iterator[Head] = iter(earlier)
        self._next = next(self._earlier, None)
        self.findings: list[str] = []

    def find(self, thread_uid: UUID, pos: int | None, what: str) -> None:
        if len(self.findings) < _MOST_FINDINGS:
            place = "" if pos is None else f", pos {pos}"
            self.findings.append(f"thread_uid {thread_uid}{place}: {what}")

    def reach(self, thread_uid: UUID) -> Head | None:
        """Returns the earlier head of a thread, if it had one. Threads before it become findings."""
        self._lose_until(thread_uid)
        if self._next is None or self._next.thread_uid != thread_uid:
            return None
        earlier, self._next = self._next, next(self._earlier, None)
        return earlier

    def _lose_until(self, thread_uid: UUID | None) -> None:
        while self._next is not None and (thread_uid is None or self._next.thread_uid < thread_uid):
            self.find(self._next.thread_uid, self._next.pos, "the thread is gone")
            self._next = next(self._earlier, None)

    def finish(self) -> list[str]:
        """Returns the findings. Earlier threads that were not reached are reported as gone."""
        self._lose_until(None)
        return self.findings
