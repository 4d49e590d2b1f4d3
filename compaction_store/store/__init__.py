"""Store and Reader, AsyncStore and AsyncReader.

`scripts/unasync.py` derives `_sync` from `_async`. Each package is imported on its first use, because most programs
need only one of them and importing both is slow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compaction_store.store._async import AsyncReader, AsyncStore
    from compaction_store.store._sync import Reader, Store
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{'_async' if name.startswith('Async') else '_sync'}"), name)


__all__ = ["AsyncReader", "AsyncStore", "Reader", "Store"]
