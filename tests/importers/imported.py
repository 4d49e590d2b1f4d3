"""Helpers of the import tests: one call for both kinds of store, and the folder of the fixtures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.faces import Face

from compaction_store.importers import ThreadImported, import_into, import_into_async

FIXTURES = Path(__file__).parent / "fixtures"


def run(store: Face, source: Any, **options: Any) -> list[ThreadImported]:
    """Imports a source, and returns the results of all threads except those of the files' lines and requests."""
    return [r for r in run_all(store, source, **options) if not re.search("/(lines|requests/.*)$", r.source_id)]


def run_all(store: Face, source: Any, **options: Any) -> list[ThreadImported]:
    if store.runner is None:
        return list(import_into(store.store, source, **options))
    return list(store._iterate(import_into_async(store.store, source, **options)))


def stored(store: Face, thread_id: str) -> list[Any]:
    return [m.payload for m in store.replay(thread_id)]


def metas(store: Face, thread_id: str, name: str) -> list[Any]:
    return [m.meta.get(name) for m in store.replay(thread_id)]


def records(store: Face, thread_id: str) -> list[tuple[Any, ...]]:
    return [(r.pos, r.kind, r.callback, r.start_seq, r.end_seq) for r in store.compactions(thread_id)]


def sound(store: Face, *thread_ids: str) -> None:
    for thread_id in thread_ids:
        report = store.audit.verify(thread_id)
        assert (report.level, report.findings) == ("content", ())


def left_out(result: ThreadImported) -> dict[str, int]:
    """Returns how much of each type was left out. Every type has a reason."""
    assert all(found.why for found in result.left_out.values())
    return {name: found.number for name, found in result.left_out.items()}
