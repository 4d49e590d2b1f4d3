"""The async classes: AsyncReader, which has no method that writes, and AsyncStore.

`scripts/unasync.py` derives the package `_sync` from the package `_async`. Edit only the files of `_async`.
"""

from compaction_store.store._async.reader import AsyncReader
from compaction_store.store._async.store import AsyncStore

__all__ = ["AsyncReader", "AsyncStore"]
