"""Verifies a stored thread: reads its rows and its head, and walks the chain. Does no I/O itself.

The level `structure` reads no content. The level `content` compares every body with its commitment, and every erased
row with the redaction that names it. The level `schema` also checks the database's schema (`postgres.schema`),
and the level `checkpoint` also compares the thread with checkpoints (`checkpoints.compare`). Before a checkpoint is
signed, the new entries of each thread are walked at the level `structure`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from compaction_store.arguments import LOG
from compaction_store.integrity import chain, erasure
from compaction_store.integrity.entry import ChainEnd, Entry, Kind, KnownEntry
from compaction_store.integrity.rows import LONGEST_PAGE, RowPages, RowParser, RowReader, RowRequest, Rows, ThreadHead
from compaction_store.integrity.walk import Walk
from compaction_store.messages import documents
from compaction_store.models import Finding, Level, Report

# Microseconds. An import accepts entries up to a day ahead of the server's clock, and the local clock may differ.
_MOST_AHEAD = 2 * 24 * 3600 * 1_000_000


def verify_rows(
    tenant: str,
    name: str,
    head: ThreadHead,
    level: Level,
    *,
    since: KnownEntry | None = None,
    checkpointed: Sequence[KnownEntry] = (),
) -> Generator[RowRequest, Rows, Report]:
    """Verifies a thread. Yields requests for rows, which the caller must send back, and returns the report.

    `name` is the name that the caller gave. An erased thread is stored under a different name. With `since`, the walk
    begins after that entry. `checkpointed` are the thread's entries in checkpoints, the newest first.
    """
    while True:
        run = _Verification(tenant, name, head, level, since, checkpointed)
        while (entry := (yield from run.next())) is not None:
            yield from run.check(entry)
        if not run.is_outdated:
            return (yield from run.report())
        head = run.head


def verify_entry(tenant: str, head: ThreadHead, kind: Kind, row: tuple[Any, ...]) -> tuple[Finding, ...]:
    """Verifies one entry. `head` is the thread's state at the pos before, whose entry is taken as it is stored."""
    genesis = chain.genesis(head.thread_uid, tenant, head.name_commitment)
    walk = Walk(tenant, genesis, is_log=head.thread_id == LOG, latest=time.time_ns() // 1000 + _MOST_AHEAD)
    [entry] = RowParser().entries(kind, [row])
    if entry.pos > 1 and head.entry_at is not None:
        walk.resume(KnownEntry(entry.pos - 1, head.entry_at), head.seq_at or 0, head.number_at, head.entry_at)
    walk.check(entry)
    return walk.findings.listed()


class _Verification:
    """One walk over a thread's rows. It is outdated if the whole thread is erased during the walk."""

    def __init__(
        self,
        tenant: str,
        name: str,
        head: ThreadHead,
        level: Level,
        since: KnownEntry | None,
        checkpointed: Sequence[KnownEntry],
    ) -> None:
        self.head = head
        self.is_outdated = False
        self._name = name
        self._level = level
        self._covered = checkpointed[0].pos if checkpointed else 0
        kept = since if since is not None and since.pos <= head.last_pos else None
        self._walk = Walk(
            tenant, chain.genesis(head.thread_uid, tenant, head.name_commitment),
            is_log=head.thread_id == LOG, content=level != "structure",
            latest=time.time_ns() // 1000 + _MOST_AHEAD, kept=kept, checkpointed=checkpointed,
        )  # fmt: skip
        if since is not None and kept is None:
            # The thread has lost entries. This is a finding even if the thread grows again during the walk.
            self._walk.find_cut_off(since.pos, head.last_pos)
        # For an erased thread, ignore `since`: all rows must be read to check that all of them are erased.
        self._since = kept if head.erased_pos is None else None
        if self._since is not None:
            self._walk.resume(self._since, head.seq_at or 0, head.number_at, head.entry_at)
        self._pages = RowPages(head, self._since)

    def next(self) -> Generator[RowRequest, Rows, Entry | None]:
        """Returns the next entry up to the head. Returns None at the end, or if the walk is outdated."""
        while not self.is_outdated:
            yield from self._pages.fill(self._walk.pos, self.head.last_pos)
            # If a row was erased during the walk, its redaction comes after the known head. So the head is read again.
            pos, kind = self._pages.next() or (self._walk.redactions.latest, None)
            if pos <= self.head.last_pos:
                return None if kind is None else self._pages.pop(kind)
            yield from self._read_head(pos, kind)
        return None

    def _read_head(self, pos: int, kind: Kind | None) -> RowReader:
        """Reads the head again, to find out whether a row beyond it was appended in the meantime or is forged."""
        known = self.head
        self.head = ThreadHead._make((yield RowRequest(None, done=self._walk.pos, total=known.last_pos))[0])
        if self.head.erased_pos is not None and known.erased_pos is None:
            # The walk starts again, because it read rows before they were erased. An erased thread cannot grow again.
            self.is_outdated = True
            return
        self._walk.redactions.unordered(beyond=self.head.last_pos)
        if self.head.last_pos > known.last_pos or self.head.head != known.head:
            self._pages.reopen()
        elif kind is not None:
            self._walk.findings.add(pos, f"a {kind} comes after the head")
            self._pages.pop(kind)

    def check(self, entry: Entry) -> RowReader:
        for kind, ranges in self._walk.check(entry).items():
            for start, end in ranges:
                yield from self._reread("message" if kind == "message" else "compaction", entry.pos, start, end)

    def _reread(self, kind: Kind, pos: int, start: int, end: int) -> RowReader:
        """Reads again the rows that a redaction names and that had content. What still has content is a finding."""
        while start <= end:
            page = self._pages.parser.entries(kind, (yield RowRequest(kind, start, min(LONGEST_PAGE, end - start + 1))))
            for entry in page:
                if entry.ordinal <= end and entry.redacted_pos == pos:
                    self._walk.redactions.rows += 1
                    self._walk.check_erased(entry)
                    if kind == "compaction":
                        self._walk.in_force.erase(entry.ordinal, pos)
                elif entry.ordinal <= end:
                    self._walk.findings.add(
                        entry.pos, f"the redaction at pos {pos} names this row, but did not erase it"
                    )
            start = page[-1].ordinal + 1 if page else end + 1

    def report(self) -> Generator[RowRequest, Rows, Report]:
        notes = self._finish()
        yield from self._compare_active()
        walk = self._walk
        return Report(
            self._name, self._level, walk.count, walk.redactions.rows, walk.findings.listed(), self.head.head,
            walk.redactions.count, notes, pos=self.head.last_pos, since=0 if self._since is None else self._since.pos,
            covered=0 if self._covered > walk.pos else self._covered,
        )  # fmt: skip

    def _compare_active(self) -> RowReader:
        """Compares the records in the view with those that must be there. Only a wrong index makes them differ."""
        walk, head = self._walk, self.head
        is_whole = self._level != "structure" and self._since is None and head.erased_pos is None
        if walk.findings or not is_whole or not walk.knows_views or not head.last_seq or not head.last_number:
            return
        _, *rows = yield RowRequest("active", head.last_pos)
        if [row[0] for row in rows] == walk.in_force.active(head.last_pos):
            return
        # An erasure after the walk leaves no record in the view.
        [state] = yield RowRequest(None, done=walk.pos, total=head.last_pos)
        if ThreadHead._make(state).erased_pos is None:
            walk.findings.add(None, "views do not show the records that are in force: an index may lack a row")

    def _finish(self) -> tuple[str, ...]:
        """Checks the head. Returns notes about entries that could not be checked."""
        walk, head = self._walk, self.head
        self._check_name()
        end = ChainEnd(
            head.last_pos, head.last_seq, head.last_number, head.head, erased_pos=head.erased_pos,
            is_bare=head.is_bare and head.thread_id == erasure.stub_name(head.thread_uid) and head.name_salt is None,
            subject=head.subject, salt=head.name_salt,
        )  # fmt: skip
        notes = walk.finish(end)
        if walk.count and walk.is_at(end) and walk.last_at != head.last_microseconds:
            walk.findings.add(None, "the head's time is not that of the last entry")
        if walk.is_at(end) and walk.last_message_at not in (None, head.active_microseconds):
            walk.findings.add(None, "the head's active_at is not the time of the last message")
        if walk.count and self._since is None and walk.first_at != head.created_microseconds:
            walk.findings.add(None, "the thread's time is not that of its first entry")
        if walk.count and self._since is None and chain.born_at(head.thread_uid) != chain.milliseconds(walk.first_at):
            walk.findings.add(None, "the thread's key is not a UUID of version 7 with the time of its first entry")
        hidden_seq = walk.in_force.hidden_seq
        if self._since is None and head.hidden_seq != hidden_seq:
            walk.findings.add(
                None, f"the head's hidden_seq is {head.hidden_seq}, by the clears in force it must be {hidden_seq}"
            )
        return notes

    def _check_name(self) -> None:
        head, findings = self.head, self._walk.findings
        if head.erased_pos is None and head.thread_id != self._name:
            findings.add(None, "the thread is stored under another name")
        elif head.erased_pos is None and erasure.stub_uid(self._name) is not None:
            findings.add(None, "the thread is called erased, but its head does not say so")
        elif head.erased_pos is None and not chain.is_name(head.name_salt, head.thread_id, head.name_commitment):
            findings.add(None, "the name is not the one that the thread was made with")
        if head.is_log is not (head.thread_id == LOG):
            findings.add(
                None, "by its name the thread is the log of its tenant, or not, and its head says the opposite"
            )
        if self._level != "structure" and (fault := documents.fault("metadata", head.metadata or "")) is not None:
            findings.add(None, fault)
