"""The async face: AsyncReader, which has no writing method, and AsyncStore.

One class a file, each on the one before: reading, exporting, verifying, auditing, writing, loading, importing,
redacting, compacting.
"""

from compaction_store.store._async.auditing import AsyncReader
from compaction_store.store._async.compacting import AsyncStore

__all__ = ["AsyncReader", "AsyncStore"]
