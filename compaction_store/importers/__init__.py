"""Imports threads: from session files of Claude Code and Codex, JSON lines, account exports and databases."""

from compaction_store.importers.detecting import detect
from compaction_store.importers.formats import FORMATS, open_source
from compaction_store.importers.running import Progress, ThreadImported, import_into, import_into_async
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
