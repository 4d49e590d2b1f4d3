"""Makes a thread to compact, and callbacks with fixed spans."""

from __future__ import annotations

from typing import Any

import compaction_store as cs
from support.faces import Face

LONG = "word " * 60


def chat(count: int = 12) -> list[dict[str, Any]]:
    return [{"role": "assistant" if i % 2 else "user", "content": f"{i} {LONG}"} for i in range(count)]


def span(start: int, end: int, text: str | cs.Summary = "a summary", **options: Any) -> Any:
    def compact(ctx: cs.CompactionContext) -> None:
        ctx.compact(start, end, text, **options)

    return compact


def log(store: Face, **filters: Any) -> list[cs.Compaction]:
    return list(store.compactions("t", **filters))
