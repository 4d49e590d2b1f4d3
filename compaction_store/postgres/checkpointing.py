"""Makes a checkpoint in a transaction with a lock, so that other checkpoints wait until the sinks have this one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import await_only

from compaction_store.checkpoints.make import CheckpointRequest, StoredHead, make
from compaction_store.checkpoints.notes import Checkpoint
from compaction_store.checkpoints.removals import Removal, proved
from compaction_store.integrity.rows import RowRequest, Rows, ThreadHead
from compaction_store.postgres import queries
from compaction_store.postgres.driver import timeouts
from compaction_store.postgres.driver.cursor import driver_of

# With this many threads in a page, the walks of an AsyncStore block the event loop for a few milliseconds at a time.
PAGE = 200

_T = TypeVar("_T")


class _StoredThreads:
    """The threads in the snapshot of a transaction. Each statement may take as long as the deadline of the call."""

    def __init__(self, connection: Connection, seconds: float | None, *, all_tenants: bool) -> None:
        self._connection = connection
        self._seconds = seconds
        self._all_tenants = all_tenants
        self._is_async = isinstance(driver_of(connection), psycopg.AsyncConnection)

    def pages(self) -> Iterable[list[StoredHead]]:
        for page in queries.heads(self._connection, all_tenants=self._all_tenants, page=PAGE):
            yield list(map(StoredHead._make, page))
            self.renew()

    def states(self, places: Sequence[tuple[UUID, str, int | None]]) -> dict[UUID, ThreadHead]:
        return {row[0]: ThreadHead._make(row) for row in (self._timed(queries.states, places) if places else [])}

    def answers(self, requests: Sequence[tuple[UUID, str, RowRequest]]) -> Mapping[UUID, Rows]:
        found: dict[UUID, list[tuple[Any, ...]]] = {uid: [] for uid, _, _ in requests}
        for kind in dict.fromkeys(request.kind for _, _, request in requests):
            of_kind = [(uid, tenant, request) for uid, tenant, request in requests if request.kind == kind]
            if kind is None:
                found |= {uid: [state] for uid, state in self.states([(u, t, None) for u, t, _ in of_kind]).items()}
                continue
            places = [(uid, tenant, request.start, request.limit) for uid, tenant, request in of_kind]
            for uid, *row in self._timed(queries.entries_of_many, kind, places):
                found[uid].append(tuple(row))
        return found

    def _timed(self, query: Callable[..., _T], *arguments: Any) -> _T:
        self.renew()
        if self._is_async:
            # The walks are Python code that runs on the event loop. A fast server would keep other tasks from running.
            await_only(asyncio.sleep(0))
        return query(self._connection, *arguments)

    def renew(self) -> None:
        if self._seconds is not None:
            timeouts.renew(self._seconds)


def make_checkpoint(connection: Connection, request: CheckpointRequest) -> Checkpoint:
    """Makes a checkpoint and calls the sinks. After that, a retry only returns the same checkpoint."""
    seconds = timeouts.left()
    end = time.monotonic() + request.patience
    while request.made is None:
        previous = request.last()
        with queries.checkpointing(connection, request.tenant, max(0.0, end - time.monotonic())):
            # The snapshot is older than the lock. If another checkpoint was made before this one had the lock, the
            # snapshot may lack what that one signed.
            if request.last() != previous:
                continue
            stored = _StoredThreads(connection, seconds, all_tenants=request.tenant is None)
            checkpoint, heads = make(request, previous, stored)
            for sink in request.sinks:
                result = sink(checkpoint, heads)
                if inspect.isawaitable(result):
                    await_only(result)
            request.made = checkpoint
            stored.renew()
    return request.made


def prove_removal(connection: Connection, tenant: str, patience: float) -> Removal:
    """Proves in one snapshot that all threads of a tenant are erased, and counts them."""
    seconds = timeouts.left()
    with queries.checkpointing(connection, tenant, patience):
        return proved(tenant, _StoredThreads(connection, seconds, all_tenants=False))
