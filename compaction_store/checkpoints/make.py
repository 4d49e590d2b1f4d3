"""Makes a checkpoint: proves that the database agrees with the last one, and signs only then. Reads no database."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from compaction_store.arguments import other
from compaction_store.checkpoints import notes
from compaction_store.checkpoints.compare import EarlierHeads
from compaction_store.checkpoints.heads import Head, HeadsWriter, tenant_hash
from compaction_store.checkpoints.keys import Signer, check_signer, public_key
from compaction_store.checkpoints.log import CheckpointLog
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.errors import CheckpointRefused, InvalidCheckpoint, InvalidInput
from compaction_store.integrity.entry import KnownEntry
from compaction_store.integrity.rows import RowRequest, Rows, ThreadHead
from compaction_store.integrity.thread import verify_rows
from compaction_store.models import Report

Sink = Callable[[Checkpoint, Path], Any]
_OTHER_ENTRY = "another entry is there now"


class StoredHead(NamedTuple):
    """The end of a thread, as the table of heads states it."""

    thread_uid: UUID
    tenant: str
    pos: int
    entry: bytes


class StoredThreads(Protocol):
    """The threads that are in the database at one moment."""

    def pages(self) -> Iterable[list[StoredHead]]:
        """Yields pages of the heads of all threads with an entry, in the order of thread_uid."""

    def states(self, places: Sequence[tuple[UUID, str, int | None]]) -> Mapping[UUID, ThreadHead]:
        """Returns the states of threads, given as thread_uid, tenant and pos. A thread without a name has none."""

    def answers(self, requests: Sequence[tuple[UUID, str, RowRequest]]) -> Mapping[UUID, Rows]:
        """Returns the rows that walks request, without their content."""


class _ThreadWalk:
    """A walk over a thread's new entries, and the rows that it waits for."""

    def __init__(self, tenant: str, steps: Generator[RowRequest, Rows, Report], request: RowRequest) -> None:
        self.tenant = tenant
        self.steps = steps
        self.request = request


@dataclass
class CheckpointRequest:
    """The arguments of `audit.checkpoint`. `made` keeps the checkpoint, so that a retry does not make a second one."""

    tenant: str | None
    signer: Signer
    log: CheckpointLog
    sinks: tuple[Sink, ...]
    patience: float
    allow_empty: bool = True
    made: Checkpoint | None = None

    def check(self, *, is_async: bool) -> None:
        if not isinstance(self.log, CheckpointLog):
            raise InvalidInput(f"log must be a CheckpointLog, not {type(self.log).__name__}")
        check_signer(self.signer)
        if public_key(self.signer.key) not in self.log.keys:
            raise InvalidInput("log must be opened with the signer's public key among its keys")
        for sink in self.sinks:
            if not callable(sink):
                raise InvalidInput(
                    f"a sink must be a callable that takes a checkpoint and the path of its list of heads{other(sink)}"
                )
        if not is_async and any(map(inspect.iscoroutinefunction, self.sinks)):
            raise InvalidInput("a sink must not be async: only AsyncStore can call an async sink")

    def last(self) -> Checkpoint | None:
        """Returns the last checkpoint of the log. Refuses a log of another tenant."""
        last = self.log.last()
        origin = notes.origin(self.signer.name, self.tenant)
        if last is not None and last.origin != origin:
            raise InvalidCheckpoint(f"log must be the log of {origin}, not of {last.origin}")
        return last


def make(request: CheckpointRequest, previous: Checkpoint | None, stored: StoredThreads) -> tuple[Checkpoint, Path]:
    """Signs a checkpoint and appends it to the log. Returns the checkpoint and the path of its list of heads."""
    log, signer = request.log, request.signer
    with ExitStack() as stack:
        earlier = () if previous is None else stack.enter_context(log.heads(previous))
        writer = log.writer()
        stack.callback(writer.discard)
        prove(stored, EarlierHeads(earlier), writer)
        if not writer.tree.size and not request.allow_empty:
            raise CheckpointRefused("there are no threads; nothing was signed", findings=())
        checkpoint = notes.sign(signer, request.tenant, writer.tree, writer.hash, previous, datetime.now(UTC))
        heads = writer.keep()
    log.append(checkpoint)
    return checkpoint, heads


def prove(
    stored: StoredThreads, earlier: EarlierHeads, writer: HeadsWriter, seen: Callable[[ThreadHead], object] = id
) -> None:
    """Writes every head, once it is proved that the thread only grew since the last checkpoint.

    A head that is stored is only a claim. So the chain of each thread that has grown is computed from the entry that
    the last checkpoint knows up to the head, and that of a new thread from its beginning. If anything is found,
    raises `CheckpointRefused`. `seen` is called with the state of each thread whose chain is computed.
    """
    hashes: dict[str, bytes] = {}
    for page in stored.pages():
        found: list[tuple[StoredHead, Head | None]] = [(head, earlier.reach(head.thread_uid)) for head in page]
        proved = _walked(
            stored, [pair for pair in found if pair[1] is None or pair[1].pos < pair[0].pos], earlier, seen
        )
        for head, before in found:
            if before is not None and head.pos < before.pos:
                earlier.find(head.thread_uid, before.pos, f"the thread ends at pos {head.pos} now")
            elif before is not None and head.pos == before.pos and head.entry != before.entry:
                earlier.find(head.thread_uid, before.pos, _OTHER_ENTRY)
            pos, entry = proved.get(head.thread_uid, (head.pos, head.entry))
            if head.tenant not in hashes:
                hashes[head.tenant] = tenant_hash(head.tenant)
            writer.add(Head(head.thread_uid, hashes[head.tenant], pos, entry))
    if findings := earlier.finish():
        count = f"{len(findings):,} finding{'' if len(findings) == 1 else 's'}"
        raise CheckpointRefused(
            f"the database contradicts the last checkpoint, or a chain does not hold ({count}); nothing was signed",
            findings=tuple(findings),
        )


def _walked(
    stored: StoredThreads,
    grown: list[tuple[StoredHead, Head | None]],
    earlier: EarlierHeads,
    seen: Callable[[ThreadHead], object],
) -> dict[UUID, KnownEntry]:
    """Walks the new entries of threads in step, to read the rows of many at once. Returns the entry at each end."""
    walks: dict[UUID, _ThreadWalk] = {}
    states = stored.states([(head.thread_uid, head.tenant, None if b is None else b.pos) for head, b in grown])
    for head, before in grown:
        state = states.get(head.thread_uid)
        if state is None:
            earlier.find(head.thread_uid, None, "the thread has no row in threads under its tenant")
        elif before is not None and state.entry_at != before.entry:
            earlier.find(head.thread_uid, before.pos, _OTHER_ENTRY)
        else:
            seen(state)
            since = None if before is None else KnownEntry(before.pos, before.entry)
            steps = verify_rows(head.tenant, state.thread_id, state, "structure", since=since)
            walks[head.thread_uid] = _ThreadWalk(head.tenant, steps, next(steps))
    ends: dict[UUID, KnownEntry] = {}
    while walks:
        for uid, rows in stored.answers([(uid, walk.tenant, walk.request) for uid, walk in walks.items()]).items():
            try:
                walks[uid].request = walks[uid].steps.send(rows)
            except StopIteration as stop:
                del walks[uid]
                report: Report = stop.value
                ends[uid] = KnownEntry(report.pos, report.head)
                for finding in report.findings:
                    earlier.find(uid, finding.pos, finding.what)
    return ends
