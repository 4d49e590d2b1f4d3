"""Makes a checkpoint: compares the database with the last checkpoint, and signs only if every thread agrees with it.

`postgres.checkpointing` holds the transaction and reads the heads; this module does not access the database.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from compaction_store.arguments import other
from compaction_store.checkpoints import notes
from compaction_store.checkpoints.compare import EarlierHeads
from compaction_store.checkpoints.heads import Head, HeadsWriter, tenant_hash
from compaction_store.checkpoints.keys import Signer, public_key
from compaction_store.checkpoints.log import CheckpointLog
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.errors import CheckpointRefused, InvalidInput

Sink = Callable[[Checkpoint, Path], Any]


class StoredHeads(Protocol):
    """The threads that are in the database at one moment."""

    def pages(self) -> Iterable[list[tuple[UUID, str, int, bytes]]]:
        """Yields pages of thread_uid, tenant, last pos and last entry, in the order of thread_uid."""

    def entries_at(self, heads: Sequence[tuple[UUID, int]]) -> list[bytes | None]:
        """Returns the entry of each thread at the given pos; None for a thread that has no entry there."""


@dataclass
class CheckpointRequest:
    """The arguments of `Store.checkpoint`. `made` keeps the checkpoint, so that a retry does not make a second one."""

    tenant: str | None
    signer: Signer
    log: CheckpointLog
    sinks: tuple[Sink, ...]
    patience: float
    made: Checkpoint | None = None

    def check(self, *, is_async: bool) -> None:
        if not isinstance(self.log, CheckpointLog):
            raise InvalidInput(f"log must be a CheckpointLog, not {type(self.log).__name__}")
        if public_key(self.signer.key) not in self.log.keys:
            raise InvalidInput("log must be opened with the signer's public key among its keys")
        for sink in self.sinks:
            if not callable(sink):
                raise InvalidInput(
                    f"a sink must be a callable that takes a checkpoint and the path of its list of heads{other(sink)}"
                )
        if not is_async and any(map(inspect.iscoroutinefunction, self.sinks)):
            raise InvalidInput("a sink must not be async: only AsyncStore can call an async sink")


def make(request: CheckpointRequest, stored: StoredHeads) -> tuple[Checkpoint, Path]:
    """Signs a checkpoint and appends it to the log. Returns the checkpoint and the path of its list of heads."""
    log, signer = request.log, request.signer
    previous = log.last()
    origin = notes.origin(signer, request.tenant)
    if previous is not None and previous.origin != origin:
        raise InvalidInput(f"log must be the log of {origin}, not of {previous.origin}")
    with ExitStack() as stack:
        earlier = () if previous is None else stack.enter_context(log.heads(previous))
        writer = log.writer()
        stack.callback(writer.discard)
        _compare(stored, EarlierHeads(earlier), writer)
        checkpoint = notes.sign(signer, request.tenant, writer.tree, writer.hash, previous, datetime.now(UTC))
        heads = writer.keep()
    log.append(checkpoint)
    return checkpoint, heads


def _compare(stored: StoredHeads, earlier: EarlierHeads, writer: HeadsWriter) -> None:
    """Writes every head. Raises `CheckpointRefused` if an entry in the last checkpoint is now missing or different."""
    hashes: dict[str, bytes] = {}
    for page in stored.pages():
        grown = []
        for uid, tenant, pos, entry in page:
            if tenant not in hashes:
                hashes[tenant] = tenant_hash(tenant)
            head = Head(uid, hashes[tenant], pos, entry)
            writer.add(head)
            if (before := earlier.compare(head)) is not None:
                grown.append(before)
        if grown:
            entries = stored.entries_at([(before.thread_uid, before.pos) for before in grown])
            for before, now in zip(grown, entries, strict=True):
                earlier.compare_entry(before, now)
    if findings := earlier.finish():
        count = f"{len(findings):,} finding{'' if len(findings) == 1 else 's'}"
        raise CheckpointRefused(
            f"the database contradicts the last checkpoint ({count}); nothing was signed", findings=tuple(findings)
        )
