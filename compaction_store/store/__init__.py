"""Store and Reader, AsyncStore and AsyncReader.

`scripts/unasync.py` derives `_sync` from `_async`.
"""

from compaction_store.store._async import AsyncReader, AsyncStore
from compaction_store.store._sync import Reader, Store

__all__ = ["AsyncReader", "AsyncStore", "Reader", "Store"]
