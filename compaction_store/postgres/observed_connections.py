"""Connections that tell of every statement, for a store with telemetry. One without has the plain ones, at no cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import PoolProxiedConnection as Connection
from sqlalchemy.util import greenlet_spawn

from compaction_store.postgres.connections import AsyncConnections, Connections, call, pause_async
from compaction_store.telemetry.conventions import Attributes, plain
from compaction_store.telemetry.telemetry import Step, Telemetry

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Watched(Connections):
    def __init__(self, engine: sa.Engine, deadline: float, telemetry: Telemetry, *, spread: bool = False) -> None:
        super().__init__(engine, deadline, spread=spread)
        self._telemetry = telemetry
        self._server = _server(self.engine.url)

    def write(
        self,
        key: str | None,
        about: str,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        self.check_open()
        with self._telemetry.statement(self._server, function.__name__) as step:
            tried = _tried(step, lambda connection: function(connection, *arguments, **keywords))
            pause = _pausing(step, time.sleep)
            return call(self.engine, pause, self.deadline, key, about, tried, spread=self._spread)


class AsyncWatched(AsyncConnections):
    def __init__(self, engine: AsyncEngine, deadline: float, telemetry: Telemetry, *, spread: bool = False) -> None:
        super().__init__(engine, deadline, spread=spread)
        self._telemetry = telemetry
        self._server = _server(self.engine.url)

    async def write(
        self,
        key: str | None,
        about: str,
        function: Callable[Concatenate[Connection, _P], _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T:
        self.check_open()
        with self._telemetry.statement(self._server, function.__name__) as step:
            tried = _tried(step, lambda connection: function(connection, *arguments, **keywords))
            pause = _pausing(step, pause_async)
            return await greenlet_spawn(call, self.engine, pause, self.deadline, key, about, tried, spread=self._spread)


def _server(url: sa.URL) -> Attributes:
    """Where the statements go; never who sends them."""
    told: Attributes = {"db.namespace": f"{plain(url.database)}|compaction_store" if url.database else _SCHEMA}
    host = url.host or url.query.get("host")
    if isinstance(host, str):
        told["server.address"] = plain(host)
        if url.port is not None:
            told["server.port"] = url.port
    return told


_SCHEMA = "compaction_store"


def _tried(step: Step, function: Callable[[Connection], _T]) -> Callable[[Connection], _T]:
    """Keeps what Postgres called the error, should there be another try."""

    def run(connection: Connection) -> _T:
        try:
            return function(connection)
        except psycopg.Error as error:
            step.state = error.sqlstate
            raise

    return run


def _pausing(step: Step, pause: Callable[[float], object]) -> Callable[[float], object]:
    def run(seconds: float) -> None:
        step.retried()
        pause(seconds)

    return run
