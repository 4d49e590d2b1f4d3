"""Lets an adapter with async methods call a `Store` or an `AsyncStore`."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from compaction_store.errors import InvalidInput
from compaction_store.store import AsyncStore, Store
from compaction_store.waiting import in_thread


def checked_store(store: object) -> Any:
    """Returns `store`. Raises InvalidInput if it is neither a `Store` nor an `AsyncStore`."""
    if not isinstance(store, Store | AsyncStore):
        raise InvalidInput(f"store must be a Store or an AsyncStore, not {type(store).__name__}")
    return store


class Calls:
    """A caller of a store's methods. It calls a `Store` in a worker thread and an `AsyncStore` on the event loop."""

    def __init__(self, store: Store | AsyncStore) -> None:
        self.store = checked_store(store)

    async def __call__(self, method: str, *given: Any, **options: Any) -> Any:
        function = attrgetter(method)(self.store)
        if isinstance(self.store, Store):
            return await in_thread(function, *given, **options)
        return await function(*given, **options)

    async def listed(self, method: str, *given: Any, **options: Any) -> list[Any]:
        """Calls a method that yields values, and returns the values as a list."""
        function = attrgetter(method)(self.store)
        if isinstance(self.store, Store):
            return await in_thread(lambda: list(function(*given, **options)))
        return [each async for each in function(*given, **options)]
