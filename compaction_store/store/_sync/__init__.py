"""The synchronous face: Reader, which has no writing method, and Store.

One class a file, each on the one before: reading, exporting, verifying, auditing, writing, loading, importing,
redacting, compacting.
"""

from compaction_store.store._sync.auditing import Reader
from compaction_store.store._sync.compacting import Store

__all__ = ["Reader", "Store"]
