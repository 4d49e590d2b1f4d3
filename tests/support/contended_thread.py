"""Makes a thread to compact and callbacks with fixed spans, and checks who has the lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

import compaction_store as cs
from support.keys import key_of

LONG = "word " * 60
BUDGET = cs.TokenBudget(1400)


def said(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{number} {LONG}"}


def chat(count: int = 12) -> list[dict[str, Any]]:
    return [said(i) for i in range(count)]


def span(start: int, end: int, text: Any = "a summary", **options: Any) -> Callable[[cs.CompactionContext], None]:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(start, end, text, **options)

    return compact


def held(superuser: psycopg.Connection[Any], thread_id: str = "t") -> bool:
    """Returns whether any run has the thread's lease."""
    row = superuser.execute(
        "SELECT lease_run IS NOT NULL OR lease_until IS NOT NULL FROM compaction_store.heads WHERE thread_uid = %s",
        (key_of(superuser, thread_id),),
    ).fetchone()
    assert row is not None
    return bool(row[0])
