"""Threads from what people have: session files of Claude Code and Codex, messages as JSON lines, other stores."""

from compaction_store.importers.detecting import detect
from compaction_store.importers.running import (
    FORMATS,
    Progress,
    ThreadImported,
    import_into,
    import_into_async,
    open_source,
)
from compaction_store.importers.sources import Bad, Item, Notes, Source, SourceThread

__all__ = [
    "FORMATS",
    "Bad",
    "Item",
    "Notes",
    "Progress",
    "Source",
    "SourceThread",
    "ThreadImported",
    "detect",
    "import_into",
    "import_into_async",
    "open_source",
]
