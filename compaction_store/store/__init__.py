"""What an application holds: Store and Reader, AsyncStore and AsyncReader.

`_async` is written by hand; `_sync` is derived from it by `scripts/unasync.py`.
"""

from compaction_store.store._async import AsyncReader, AsyncStore
from compaction_store.store._sync import Reader, Store

__all__ = ["AsyncReader", "AsyncStore", "Reader", "Store"]
