"""The connections of an AsyncStore.

A call runs inside a greenlet of SQLAlchemy, in which the driver can await the server. No statement runs in a worker
thread, so cancelling a task also cancels its statement on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar, TypeVarTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import greenlet_spawn

from compaction_store import waiting
from compaction_store.postgres.calling.call import Caller, Observer, sleep_in_greenlet
from compaction_store.postgres.calling.engines_aio import AsyncEngine
from compaction_store.postgres.cluster import Server

_P = ParamSpec("_P")
_Ts = TypeVarTuple("_Ts")
_T = TypeVar("_T")


class AsyncConnections(Caller):
    """Runs queries on the connections of an engine."""

    def __init__(
        self,
        engine: AsyncEngine,
        deadline: float,
        *,
        retries: bool = True,
        server: Server | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(
            engine.sync_engine, sleep_in_greenlet, deadline, retries=retries, server=server, observer=observer
        )

    async def call(
        self,
        query: Callable[[Connection, *_Ts], _T],
        *arguments: *_Ts,
        key: str | None = None,
        is_in_doubt: bool = False,
    ) -> _T:
        """Runs a query, and retries it until the deadline. Errors name the thread if the first argument is a ThreadKey.

        A read has no key. A write has a key, with which it can be repeated safely, or UNKEYED if it needs none for
        that. `is_in_doubt` says that an earlier call with this key may have written.
        """
        return await greenlet_spawn(self._call, query, arguments, key, is_in_doubt=is_in_doubt)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run_in_thread(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        """Runs a slow function in a thread, to keep the event loop free. A Store runs it in the calling thread."""
        return await waiting.in_thread(function, *arguments, **keywords)

    async def close(self) -> None:
        self.closed = True
        await greenlet_spawn(self.engine.dispose)
