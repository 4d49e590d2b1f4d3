"""Making a checkpoint: the database held against the last one, and signed only if it still contains it.

One transaction, whose lock keeps every other checkpoint waiting until this one is on disk and every sink has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only

from compaction_store.checkpoints import signed_heads
from compaction_store.checkpoints.checkpoint_log import CheckpointLog, HeadsWriter
from compaction_store.checkpoints.signed_heads import Checkpoint, Head, Signer, Succession
from compaction_store.errors import CheckpointRefused, InvalidInput
from compaction_store.postgres import queries

PAGE = 1000

Sink = Callable[[Checkpoint, Path], Any]


@dataclass
class Commission:
    """What a checkpoint is to be made with; and the checkpoint, once it is made."""

    tenant: str | None
    signer: Signer
    log: CheckpointLog
    sinks: tuple[Sink, ...]
    patience: float
    made: Checkpoint | None = None

    def check(self, *, awaits: bool) -> None:
        if not isinstance(self.log, CheckpointLog):
            raise InvalidInput("a checkpoint needs a CheckpointLog, which holds the one before")
        if signed_heads.public_key(self.signer.key) not in self.log.keys:
            raise InvalidInput("the log is read with other keys than the signer's")
        if not all(map(callable, self.sinks)):
            raise InvalidInput("a sink is called with the checkpoint and the path of its list of heads")
        if not awaits and any(map(inspect.iscoroutinefunction, self.sinks)):
            raise InvalidInput("an async sink needs AsyncStore")


def take(connection: Connection, commission: Commission) -> Checkpoint:
    """Makes the checkpoint and hands it out; once only, also if the call is repeated because its end failed."""
    with queries.checkpointing(connection, commission.tenant, commission.patience):
        if commission.made is None:
            commission.made = _make(connection, commission)
        return commission.made


def _make(connection: Connection, commission: Commission) -> Checkpoint:
    log, signer = commission.log, commission.signer
    previous = log.last()
    if previous is not None and previous.origin != signed_heads.origin(signer, commission.tenant):
        raise InvalidInput(f"the log is one of {previous.origin}")
    with ExitStack() as stack:
        earlier = () if previous is None else stack.enter_context(log.heads(previous))
        writer = log.writer()
        stack.callback(writer.discard)
        _compare(connection, commission.tenant, Succession(earlier), writer)
        checkpoint = signed_heads.sign(
            signer, commission.tenant, writer.tree, writer.hash, previous, datetime.now(UTC)
        )  # fmt: skip
        heads = writer.keep()
    log.append(checkpoint)
    for sink in commission.sinks:
        _hand(sink, checkpoint, heads)
    return checkpoint


def _compare(connection: Connection, tenant: str | None, succession: Succession, writer: HeadsWriter) -> None:
    """Writes where every thread stands, having seen that it still has the entry it had."""
    hashes: dict[str, bytes] = {}
    for page in queries.heads(connection, all_tenants=tenant is None, page=PAGE):
        grown = []
        for uid, name, pos, entry in page:
            if name not in hashes:
                hashes[name] = signed_heads.tenant_hash(name)
            head = Head(uid, hashes[name], pos, entry)
            writer.add(head)
            if (earlier := succession.meet(head)) is not None:
                grown.append(earlier)
        if grown:
            found = queries.entries_at(connection, [(earlier.thread_uid, earlier.pos) for earlier in grown])
            for earlier, entry in zip(grown, found, strict=True):
                succession.holds(earlier, entry)
    if findings := succession.end():
        raise CheckpointRefused(
            f"the database contradicts the last checkpoint in {len(findings)} threads or more; nothing was signed",
            findings=tuple(findings),
        )


def _hand(sink: Sink, checkpoint: Checkpoint, heads: Path) -> None:
    result = sink(checkpoint, heads)
    if inspect.isawaitable(result):
        await_only(result)
