"""Makes a checkpoint in a transaction with a lock, so that other checkpoints wait until the sinks have this one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only

from compaction_store.checkpoints.make import CheckpointRequest, make
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.postgres import queries

PAGE = 1000


class _StoredHeads:
    def __init__(self, connection: Connection, *, all_tenants: bool) -> None:
        self._connection = connection
        self._all_tenants = all_tenants

    def pages(self) -> Iterable[list[tuple[Any, ...]]]:
        return queries.heads(self._connection, all_tenants=self._all_tenants, page=PAGE)

    def entries_at(self, heads: Sequence[tuple[UUID, int]]) -> list[bytes | None]:
        return queries.entries_at(self._connection, heads)


def make_checkpoint(connection: Connection, request: CheckpointRequest) -> Checkpoint:
    """Makes a checkpoint and calls the sinks. After that, a retry only returns the same checkpoint."""
    with queries.checkpointing(connection, request.tenant, request.patience):
        if request.made is None:
            checkpoint, heads = make(request, _StoredHeads(connection, all_tenants=request.tenant is None))
            for sink in request.sinks:
                result = sink(checkpoint, heads)
                if inspect.isawaitable(result):
                    await_only(result)
            request.made = checkpoint
        return request.made
