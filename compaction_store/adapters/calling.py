"""How an adapter with async methods calls a store of either kind."""

from __future__ import annotations

from typing import Any

from compaction_store.drivers import in_thread
from compaction_store.errors import InvalidInput
from compaction_store.store import AsyncStore, Store


def checked_store(store: object) -> Any:
    """Returns a store of either kind, and refuses anything else."""
    if not isinstance(store, Store | AsyncStore):
        raise InvalidInput(f"store must be a Store or an AsyncStore, not {type(store).__name__}")
    return store


class Calls:
    """Calls the methods of a store: those of a `Store` run in a thread, those of an `AsyncStore` on the loop."""

    def __init__(self, store: Store | AsyncStore) -> None:
        self.store = checked_store(store)

    async def __call__(self, method: str, *given: Any, **options: Any) -> Any:
        function = getattr(self.store, method)
        if isinstance(self.store, Store):
            return await in_thread(function, *given, **options)
        return await function(*given, **options)

    async def listed(self, method: str, *given: Any, **options: Any) -> list[Any]:
        """Returns all that a method yields."""
        function = getattr(self.store, method)
        if isinstance(self.store, Store):
            return await in_thread(lambda: list(function(*given, **options)))
        return [each async for each in function(*given, **options)]
