"""Runs queries for code that has no store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.postgres.calling._sync.connections import Connections
from compaction_store.postgres.calling.engines import Engine

__all__ = ["Connections", "call_once"]

_SECONDS = 10.0
_T = TypeVar("_T")


def call_once(engine: Engine, query: Callable[[Connection], _T]) -> _T:
    """Runs a query without retries, because a wrong address should fail at once."""
    return Connections(engine, _SECONDS, retries=False).call(query)
