"""The connections of a Store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar, TypeVarTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.postgres.calling.call import Caller, Observer
from compaction_store.postgres.calling.engines import Engine
from compaction_store.postgres.cluster import Server

_P = ParamSpec("_P")
_Ts = TypeVarTuple("_Ts")
_T = TypeVar("_T")


class Connections(Caller):
    """Runs queries on the connections of an engine."""

    def __init__(
        self,
        engine: Engine,
        deadline: float,
        *,
        retries: bool = True,
        server: Server | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(
            engine, time.sleep, deadline, retries=retries, server=server, observer=observer,
        )  # fmt: skip

    def call(
        self,
        query: Callable[[Connection, *_Ts], _T],
        *arguments: *_Ts,
        key: str | None = None,
        is_in_doubt: bool = False,
    ) -> _T:
        """Runs a query, and retries it until the deadline. Errors name the thread if the first argument is a ThreadKey.

        A call without a key is a read. A write has a key, so that it can be repeated safely. A write that is safe to
        repeat without a key has the key UNKEYED. `is_in_doubt` says that an earlier call with this key may have
        written.
        """
        return self._call(query, arguments, key, is_in_doubt=is_in_doubt)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def run_in_thread(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        """Runs a slow function in a thread, to keep the event loop free. A Store runs it in the calling thread."""
        return function(*arguments, **keywords)

    def close(self) -> None:
        self.closed = True
        self.engine.dispose()
