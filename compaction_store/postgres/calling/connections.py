"""Runs queries for code that has no store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.calling.engines import Engine, create_engine

__all__ = ["Connections", "call_once", "one_engine", "run_once"]

_SECONDS = 10.0
_T = TypeVar("_T")


@contextmanager
def one_engine(url: str, connect_timeout: float = _SECONDS) -> Iterator[Engine]:
    """Makes an engine with one connection, and disposes of it at the end."""
    engine = create_engine(url, pool_size=1, connect_timeout=connect_timeout)
    try:
        yield engine
    finally:
        engine.dispose()


def run_once(url: str, query: Callable[[Connection], _T]) -> _T:
    """Runs a query on a connection of its own, without retries."""
    with one_engine(url) as engine:
        return call_once(engine, query)


def call_once(engine: Engine, query: Callable[[Connection], _T]) -> _T:
    """Runs a query without retries, because a wrong address should fail at once."""
    return Connections(engine, _SECONDS, retries=False).call(query)
