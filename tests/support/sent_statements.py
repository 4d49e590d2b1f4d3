"""Records the statements that stores send, with a cursor of the driver or without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from compaction_store.postgres.driver import cursor


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which every statement is added as it is sent, until the end of the test."""
    found: list[str] = []

    def noting(send: Callable[..., Any]) -> Callable[..., Any]:
        def noted(sender: Any, statement: Any, *arguments: Any, **keywords: Any) -> Any:
            found.append(statement.decode() if isinstance(statement, bytes) else str(statement))
            return send(sender, statement, *arguments, **keywords)

        return noted

    for kind in (psycopg.Cursor, psycopg.AsyncCursor):
        monkeypatch.setattr(kind, "execute", noting(kind.execute))
    # A call of a SQL function needs no cursor.
    monkeypatch.setattr(cursor, "_send", noting(cursor._send))
    return found
