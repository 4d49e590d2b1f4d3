"""The synchronous classes: Reader, which has no method that writes, and Store.

`scripts/unasync.py` derives the package `_sync` from the package `_async`. Edit only the files of `_async`.
"""

from compaction_store.store._sync.reader import Reader
from compaction_store.store._sync.store import Store

__all__ = ["Reader", "Store"]
