"""Parts that the adapters share: calls of a store, appends of a size that it accepts, messages of a view, caches."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from compaction_store.errors import Conflict, InvalidInput, ThreadNotFound
from compaction_store.messages.encoding import MAX_BATCH, MAX_BATCH_BYTES, encode
from compaction_store.messages.tool_pairs import is_system
from compaction_store.models import Element, Payload
from compaction_store.models.messages import is_erased
from compaction_store.models.vocabulary import WITHDRAWALS
from compaction_store.rendering.view import View
from compaction_store.store import AsyncStore, Store
from compaction_store.waiting import Call, Work, in_thread

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
        with suppress(ThreadNotFound):
            return await self(method, *given, **options)
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
    """Converts a system message, which no replacement may have, to a user message with the original role in a field."""
    if payload.get("role") not in {"system", "developer"}:
        return payload
    return {**payload, "role": "user", _ROLE: payload["role"]}


def as_given(payload: Payload) -> Payload:
    """Reverses `as_user`."""
    if _ROLE not in payload:
        return payload
    return {name: value for name, value in payload.items() if name != _ROLE} | {"role": payload[_ROLE]}


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns how many first items of two sequences are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def remember(cache: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Puts a value into a cache, and drops the values that were put there first if there are too many."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)


# ---- a thread's view follows a framework's states: new messages are appended, and removed ones leave the view
#
# A state is the list that the framework would send, such as the messages of a LangGraph thread or of a request. Each
# range of messages that a state removes or replaces becomes one record; the messages stay in the thread. If a range
# cannot be replaced, a rewind hides the view from there on, and the rest of the state is appended. Where the store
# itself compacted the view, a state is compared with the original messages.


# The size of each of two caches. One has the last states of threads, so that new messages are found without reading the
# view. The other has the identities of the messages that compactions replaced.
_KNOWN = 64
# After this many replacements towards one state, a rewind makes the remaining changes.
_ADOPTIONS = 8
# After this many conflicts with other writers, give up.
_CONFLICTS = 100
# The kinds of records that the adapters write. Records of other kinds are the store's own compactions.
_OF_STATES = ("adoption", *WITHDRAWALS)
Covered = Mapping[int, frozenset[str]]


class StateItem(NamedTuple):
    """A message of the view, None if erased, with its element. An element without messages is an item that is none."""

    payload: Payload | None
    element: Element
    is_message: bool = True


class StateChange(NamedTuple):
    """One step towards a state: a replacement of the view's items from `start` up to, but not including, `end`.

    The messages `new` of the state replace the items `gone`. The range may have more items than these; the others are
    repeated. If `end` is None, all items from `start` on are hidden.
    """

    start: int
    end: int | None
    gone: slice = slice(0)
    new: slice = slice(0)


class Threads:
    """The threads of a store, whose views follow the states of a framework's threads.

    `is_summary` returns whether a message is a summary that the framework put in place of all messages before it.
    `compared` returns the part of a message to compare; it is for frameworks whose states may have one message in
    different forms.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        actor: str | None,
        is_summary: Callable[[Payload], bool] = lambda _: False,
        compared: Callable[[Payload], Payload] = dict,
    ) -> None:
        self.store = checked_store(store)
        self._actor = actor
        self._is_summary = is_summary
        self._compared = compared
        self._known: OrderedDict[str, tuple[bytes, list[Payload]]] = OrderedDict()
        self._originals: OrderedDict[tuple[Any, ...], frozenset[str]] = OrderedDict()

    def follow(self, thread_id: str, state: list[Payload], reason: str, meta: Payload | None = None) -> Work[None]:
        """Makes the view of a thread follow a state. `meta` is stored with each message that is appended."""
        head, before = self._known.pop(thread_id, (None, []))
        if head is not None and list(map(self._compared, state[: len(before)])) == before:
            # If another writer came first, compare with the view.
            with suppress(Conflict):
                yield from self._append(thread_id, state, len(before), head, meta)
                return
        adoptions = conflicts = 0
        while True:
            try:
                if (yield from self._approach(thread_id, state, reason, meta, adoptions < _ADOPTIONS)):
                    return
                adoptions += 1
            except Conflict:
                conflicts += 1
                if conflicts == _CONFLICTS:
                    raise

    def view(self, thread_id: str) -> Work[View | None]:
        with suppress(ThreadNotFound):
            view: View = yield from self.call("view", thread_id)
            return view
        return None

    def call(self, method: str, *given: Any, **options: Any) -> Work[Any]:
        return (yield Call(partial(attrgetter(method)(self.store), *given, **options)))

    def remember(self, thread_id: str, head: bytes, state: list[Payload]) -> None:
        """Caches the state of a thread. The cached state is valid as long as the thread has this head."""
        remember(self._known, thread_id, (head, list(map(self._compared, state))), _KNOWN)

    def _approach(
        self, thread_id: str, state: list[Payload], reason: str, meta: Payload | None, may_adopt: bool
    ) -> Work[bool]:
        """Takes one step towards a state. Returns whether this step was the last."""
        view = yield from self.view(thread_id)
        if view is None:
            yield from self._append(thread_id, state, 0, (yield from self._hidden_head(thread_id)), meta)
            return True
        items = items_of(view)
        shorter = [each._replace(payload=each.payload and self._compared(each.payload)) for each in items]
        wanted = list(map(self._compared, state))
        covered = yield from self._covered(view, wanted)
        change, place = difference(shorter, wanted, covered, self._is_summary if may_adopt else None)
        if change is None:
            yield from self._append(thread_id, state, place, view.head, meta)
            return True
        start, end, gone, new = change
        about = {"view": view, "reason": reason, "actor": self._actor}
        first = items[start].element.seq
        if end is None:
            yield from self.call("rewind", thread_id, first - 1, **about)
        else:
            before, after = payloads(items[start : gone.start]), payloads(items[gone.stop : end])
            parts = [as_user(each) for each in (*before, *state[new], *after)]
            last = items[end - 1].element.end_seq
            yield from self.call("adopt", thread_id, parts, start_seq=first, end_seq=last, **about)
        return False

    def _append(
        self, thread_id: str, state: list[Payload], place: int, head: bytes | None, meta: Payload | None
    ) -> Work[None]:
        for part in batches(state[place:]):
            # Expect a new thread to be empty, because another writer, such as a middleware beside a checkpointer, may
            # create it first.
            expected: dict[str, Any] = {"expected_seq": 0} if head is None else {"expected_head": head}
            appended = yield from self.call("append", thread_id, state[place:][part], meta=meta, raw=True, **expected)
            head = appended.head
        if head is not None:
            self.remember(thread_id, head, state)

    def _hidden_head(self, thread_id: str) -> Work[bytes | None]:
        """Returns the head of a hidden thread; None if there is no thread, or it was erased."""
        with suppress(ThreadNotFound):
            thread = yield from self.call("thread", thread_id, hidden=True)
            return None if thread.erased_pos else thread.head
        return None

    def _covered(self, view: View, state: list[Payload]) -> Work[Covered]:
        """Maps the store's own compactions, whose results are not in the state, to the identities of their messages."""
        there = {name(payload) for payload in state}
        found: dict[int, frozenset[str]] = {}
        for element in view.elements:
            own = [self._compared(as_given(payload)) for payload in element.messages if not is_erased(payload)]
            if element.number is None or element.kind in _OF_STATES or (own and all(name(p) in there for p in own)):
                continue
            key = (view.thread_id, element.number, element.created_at)
            if key not in self._originals:
                messages = yield Call(partial(self._replayed, view.thread_id, element))
                names = (name(self._compared(each.payload)) for each in messages if each.payload is not None)
                remember(self._originals, key, frozenset(names), _KNOWN)
            found[element.number] = self._originals[key]
        return found

    def _replayed(self, thread_id: str, element: Element) -> Any:
        found: Any = self.store.replay(thread_id, after=element.seq - 1, until=element.end_seq)
        return list(found) if isinstance(self.store, Store) else _listed(found)


async def _listed(found: Any) -> list[Any]:
    return [each async for each in found]


def name(payload: Payload) -> str:
    """Returns the identity of a message: its id, or else the whole message as JSON."""
    found = payload.get("id")
    return found if isinstance(found, str) and found else json.dumps(payload, sort_keys=True)


def items_of(view: View) -> list[StateItem]:
    found: list[StateItem] = []
    for element in view.elements:
        found.extend(StateItem(None if is_erased(each) else as_given(each), element) for each in element.messages)
        if not element.messages:
            found.append(StateItem(None, element, is_message=False))
    return found


def difference(
    items: Sequence[StateItem], state: list[Payload], covered: Covered, is_summary: Callable[[Payload], bool] | None
) -> tuple[StateChange | None, int]:
    """Returns the first change from the view to the state, and the place in the state where they begin to differ.

    The change is None if the view only lacks messages at its end. Without `is_summary`, the change is a rewind.
    """
    i, j = _common(items, state, covered)
    if i == len(items):
        return None, j
    # An element is replaced as a whole, so its unchanged items are repeated.
    first = next(place for place, item in enumerate(items) if item.element is items[i].element)
    found = None if is_summary is None else _replacement(items, state, i, j, is_summary)
    if found is None:
        return StateChange(first, None), j
    gone, new = found
    last = max(place for place, item in enumerate(items) if item.element is items[gone.stop - 1].element)
    if any(is_system(message) for item in items[first : last + 1] for message in item.element.messages):
        return StateChange(first, None), j
    return StateChange(first, last + 1, gone, new), j


def payloads(items: Sequence[StateItem]) -> list[Payload]:
    return [item.payload for item in items if item.payload is not None]


def _common(items: Sequence[StateItem], state: list[Payload], covered: Covered) -> tuple[int, int]:
    """Returns how many items of the view, and how many messages of the state, come before the first difference."""
    i = j = 0
    while i < len(items):
        payload, element, is_message = items[i]
        if is_message and payload is None:
            # The message was erased in the store. The state may still have it.
            i += 1
            if j < len(state) and not (i < len(items) and items[i].payload == state[j]):
                j += 1
        elif payload is not None and j < len(state) and payload == state[j]:
            i, j = i + 1, j + 1
        else:
            names = covered.get(element.number or 0, frozenset())
            end = j
            while end < len(state) and name(state[end]) in names:
                end += 1
            if end == j and is_message:
                break
            j = end
            while i < len(items) and items[i].element is element:
                i += 1
    return i, j


def _replacement(
    items: Sequence[StateItem], state: list[Payload], i: int, j: int, is_summary: Callable[[Payload], bool]
) -> tuple[slice, slice] | None:
    """Returns the slice of `items` to replace, and the slice of `state` that replaces it.

    The view and the state differ from `i` and `j` on. Both slices end before the next message that the state and the
    view share; if a slice would be empty, both include that message. If no message is shared and `state[j]` is a
    summary, the summary replaces all items from `i` on. Otherwise, returns None.
    """
    places = {name(item.payload): place for place, item in enumerate(items) if place >= i and item.payload is not None}
    for other in range(j, len(state)):
        place = places.get(name(state[other]))
        if place is None or items[place].payload != state[other]:
            continue
        if place > i and other > j:
            return slice(i, place), slice(j, other)
        # Neither the replaced items nor the new messages may be empty, so add the next message to both.
        return slice(i, place + 1), slice(j, other + 1)
    if j < len(state) and is_summary(state[j]):
        return slice(i, len(items)), slice(j, j + 1)
    return None
