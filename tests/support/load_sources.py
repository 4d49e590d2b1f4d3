"""Messages to load, and iterators that fail in the middle."""

from __future__ import annotations

from typing import Any

CHUNK = 100


def message(i: int) -> dict[str, Any]:
    return {"role": "assistant" if i % 2 else "user", "content": f"message {i}"}


def messages(count: int) -> list[dict[str, Any]]:
    return [message(i) for i in range(count)]


def stored(store: Any, thread_id: str = "t") -> list[Any]:
    return [m.payload for m in store.replay(thread_id)]


def sound(store: Any, entries: int, thread_id: str = "t") -> None:
    report = store.audit.verify(thread_id)
    assert (report.level, report.entries, report.findings) == ("content", entries, ())
