"""Parts that the adapters share: calls of a store, appends of a size that it accepts, messages of a view, caches."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from compaction_store.errors import InvalidInput, ThreadNotFound
from compaction_store.messages.encoding import MAX_BATCH, MAX_BATCH_BYTES, encode
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased
from compaction_store.rendering.view import View
from compaction_store.store import AsyncStore, Store
from compaction_store.waiting import in_thread

_ROLE = "given_role"


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

    async def found(self, method: str, *given: Any, **options: Any) -> Any:
        """Calls a method; returns None if there is no such thread."""
        try:
            return await self(method, *given, **options)
        except ThreadNotFound:
            return None

    async def listed(self, method: str, *given: Any, **options: Any) -> list[Any]:
        """Calls a method that yields values, and returns the values as a list."""
        function = attrgetter(method)(self.store)
        if isinstance(self.store, Store):
            return await in_thread(lambda: list(function(*given, **options)))
        return [each async for each in function(*given, **options)]

    async def delete(self, thread_id: str, how: str, reason: str, actor: str | None) -> None:
        """Erases a thread or hides its messages, as `how` says. Does nothing if there is no such thread."""
        method, options = deletion(how)
        await self.found(method, thread_id, reason=reason, actor=actor, **options)


def joined_name(names: Sequence[object], what: str) -> str:
    """Returns the name of a thread that has several parts. `what` says what they are, for an error."""
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"{what} must be strings, not {type(name).__name__}")
    return json.dumps(names, ensure_ascii=False)


def deletion(how: str) -> tuple[str, dict[str, Any]]:
    """Returns the method of a store that deletes a thread as an option `on_delete` says, and its options."""
    return ("custody.erase", {}) if how == "erase" else ("clear", {"hide": True})


def batches(payloads: Sequence[Any]) -> Iterator[slice]:
    """Yields slices of the messages, each small enough for one append."""
    start = size = 0
    for place, payload in enumerate(payloads):
        own = encode(payload).size
        if place > start and (place - start == MAX_BATCH or size + own > MAX_BATCH_BYTES):
            yield slice(start, place)
            start, size = place, 0
        size += own
    if start < len(payloads):
        yield slice(start, len(payloads))


class ViewItem(NamedTuple):
    """A message of a view, its element, and its place in the element."""

    payload: Payload
    element: Element
    place: int


def items_in(view: View | None) -> list[ViewItem]:
    """Returns the messages of a view, without erased ones."""
    return [
        ViewItem(payload, element, place)
        for element in (() if view is None else view.elements)
        for place, payload in enumerate(element.messages)
        if not is_erased(payload)
    ]


def as_user(payload: Payload) -> Payload:
    """Converts a system message to a user message that keeps the original role in a field; returns others unchanged.

    The store accepts no system message as a replacement.
    """
    if payload.get("role") not in {"system", "developer"}:
        return payload
    return {**payload, "role": "user", _ROLE: payload["role"]}


def as_given(payload: Payload) -> Payload:
    """Reverses `as_user`."""
    if _ROLE not in payload:
        return payload
    return {name: value for name, value in payload.items() if name != _ROLE} | {"role": payload[_ROLE]}


def remember(cache: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Puts a value into a cache, and drops the values that were put there first if there are too many."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
