"""The connections of a Store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar, TypeVarTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.postgres.call import Caller, Observer
from compaction_store.postgres.engines import Engine
from compaction_store.postgres.thread_names import ThreadNames

_P = ParamSpec("_P")
_Ts = TypeVarTuple("_Ts")
_T = TypeVar("_T")


class Connections(Caller):
    """Calls queries on the connections of an engine."""

    def __init__(
        self,
        engine: Engine,
        deadline: float,
        *,
        retries: bool = True,
        spread: bool = False,
        names: ThreadNames | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(
            engine, time.sleep, deadline, retries=retries, spread=spread, names=names,
            observer=observer,
        )  # fmt: skip

    def call(
        self,
        query: Callable[[Connection, *_Ts], _T],
        *arguments: *_Ts,
        key: str | None = None,
        is_in_doubt: bool = False,
    ) -> _T:
        """Runs a query and retries it until the deadline; errors name the thread of a ThreadKey.

        A call without a key is a read. A write has a key, which makes it safe to repeat; UNKEYED is for a write that is
        safe without one. A write is in doubt if an earlier attempt with its key may have happened.
        """
        return self._call(query, arguments, key, is_in_doubt=is_in_doubt)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def run_in_thread(self, function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        """Runs slow work that needs no database in a thread, to keep the event loop free. A Store calls it directly."""
        return function(*arguments, **keywords)

    def close(self) -> None:
        self.closed = True
        self.engine.dispose()
