"""The sliding window without a store, for messages as dicts or for objects with the methods of `Item`.

Every summary in the result has its source, so no item is lost. The result can be passed in again with more items after
it; its summaries are not summarized again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from compaction_store.compaction.asks import rules
from compaction_store.compaction.callbacks import sent
from compaction_store.errors import InvalidCallback, InvalidInput
from compaction_store.jsonable import AsDict, named
from compaction_store.models import Payload
from compaction_store.results import ItemsOf
from compaction_store.strategies.folds import Fold, Folded, Scan
from compaction_store.strategies.outline import Outline, PinOption, Pins, elements_of
from compaction_store.strategies.sliding_window import ThresholdOption, tail_of
from compaction_store.strategies.thresholds import as_threshold, everything, fraction_of, sized
from compaction_store.tokens import o200k_base
from compaction_store.waiting import Call, Work, drive, drive_async, is_async

T = TypeVar("T")
_MUST_BE_SYNCHRONOUS = "the summarizer of sliding_window must be synchronous; for an async one use sliding_window_async"


class Item(Protocol):
    """The methods that an object needs for the sliding window.

    An object with tool calls counts as a message of the assistant. It may also have a method `toolcall_ids()`, which
    returns the ids of its calls, or of the calls whose results it has. Without that method, a result is paired with the
    nearest earlier call that has no result, or else with the last call.
    """

    def is_user(self) -> bool: ...
    def is_assistant(self) -> bool: ...
    def is_system(self) -> bool: ...
    def is_toolcall(self) -> bool: ...
    def is_toolcall_result(self) -> bool: ...


class Piece(NamedTuple, Generic[T]):
    """An item of the result with its source: the item itself or, for a summary, the items that were summarized."""

    item: T
    source: tuple[T, ...]
    is_summary: bool

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict, which `json.dumps` accepts if it accepts the items."""
        return named(self)


@dataclass(frozen=True, slots=True)
class Slid(AsDict, ItemsOf[Piece[T]]):
    """The pieces of the result, in order.

    If the summarizer raised an exception, `error` is that exception, and the pieces have the earlier summaries.
    """

    pieces: tuple[Piece[T], ...] = field(repr=False)
    error: Exception | None = None

    @property
    def items(self) -> list[T]:
        """The items of the result, with summaries in place of their sources."""
        return [piece.item for piece in self.pieces]

    @property
    def originals(self) -> list[T]:
        """All items that were passed in, in order."""
        return [item for piece in self.pieces for item in piece.source]

    def _items_of(self) -> tuple[Piece[T], ...]:
        return self.pieces


def sliding_window(
    items: Iterable[T | Piece[T]],
    *,
    summarize: Callable[[Sequence[T]], T],
    threshold: ThresholdOption = None,
    retain: float = 0,
    keep_first: bool = True,
    before_reply: bool = False,
    pin: PinOption = (),
    allow: Collection[str] = ("last_user",),
    limit: int | None = None,
    count: Callable[[T], int] | None = None,
) -> Slid[T]:
    """Folds items as `SlidingWindow` folds a thread. Predicates are called with a `Window` of items.

    Unlike in a thread, the last message of the user may be folded, unless `allow=()`. `count` returns the number of
    tokens of an item; it is not needed for dicts. If the summarizer raises an exception, the result has the earlier
    summaries, and the exception as `error`. An async summarizer needs `sliding_window_async`.
    """
    if is_async(summarize):
        raise InvalidCallback(_MUST_BE_SYNCHRONOUS)
    sliding = _Sliding(
        items, threshold, retain, pin, allow, count, limit=limit, keep_first=keep_first, before_reply=before_reply
    )
    return drive(sliding.work(summarize))


async def sliding_window_async(
    items: Iterable[T | Piece[T]],
    *,
    summarize: Callable[[Sequence[T]], T | Awaitable[T]],
    threshold: ThresholdOption = None,
    retain: float = 0,
    keep_first: bool = True,
    before_reply: bool = False,
    pin: PinOption = (),
    allow: Collection[str] = ("last_user",),
    limit: int | None = None,
    count: Callable[[T], int] | None = None,
) -> Slid[T]:
    """Does the same as `sliding_window` with an async summarizer. A synchronous summarizer runs in a worker thread."""
    sliding = _Sliding(
        items, threshold, retain, pin, allow, count, limit=limit, keep_first=keep_first, before_reply=before_reply
    )
    return await drive_async(sliding.work(summarize))


class _Sliding(Generic[T]):
    """One call of `sliding_window`."""

    def __init__(
        self,
        items: Iterable[T | Piece[T]],
        threshold: ThresholdOption,
        retain: float,
        pin: PinOption,
        allow: Collection[str],
        count: Callable[[T], int] | None,
        *,
        limit: int | None,
        keep_first: bool,
        before_reply: bool,
    ) -> None:
        self._pieces: list[Piece[T]] = [
            item if isinstance(item, Piece) else Piece(item, (item,), is_summary=False) for item in items
        ]
        self._shown: list[T] = [piece.item for piece in self._pieces]
        self._count = count
        reached = everything if threshold is None else sized(as_threshold(threshold))
        self._needs_tokens = reached.needs_tokens
        needed = reached.needs_tokens or isinstance(retain, float)
        tokens = _counted(self._shown, count) if needed else [0] * len(self._shown)
        elements = [
            element._replace(tokens=size, kind="summary" if piece.is_summary else None)
            for element, size, piece in zip(elements_of(_payloads(self._shown)), tokens, self._pieces, strict=True)
        ]
        tail = tail_of(tokens, retain, room=self._room(retain))
        outline = Outline(elements, pins=_pins(pin, self._shown), allow=rules(allow, "allow"), tail=tail)
        scan = Scan(outline, self._shown, reached, limit, keep_first=keep_first, before_reply=before_reply)
        self._found = scan.folds()
        self._made: list[tuple[Fold, Piece[T]]] = []

    def _room(self, retain: float) -> int | None:
        """Returns how many tokens `retain` keeps if `retain` is a fraction and there are summaries, else None.

        This is a fraction of the tokens of all sources. A fraction of the pieces' own tokens would keep less in each
        run.
        """
        if type(retain) is int or not any(piece.is_summary for piece in self._pieces):
            return None
        tail_of([], retain)
        sources = [item for piece in self._pieces for item in piece.source]
        return fraction_of(retain, sum(_counted(sources, self._count)))

    def work(self, summarize: Callable[[Sequence[T]], Any]) -> Work[Slid[T]]:
        folded: Folded | None = None
        error: Exception | None = None
        while error is None and (fold := sent(self._found, folded)) is not None:
            try:
                summary = yield Call(summarize, self._shown[fold.low : fold.high + 1])
            except Exception as raised:  # noqa: BLE001 — the result has the error and the earlier summaries
                error = raised
                continue
            if inspect.isawaitable(summary):
                if inspect.iscoroutine(summary):
                    summary.close()
                raise InvalidCallback(_MUST_BE_SYNCHRONOUS)
            folded = self._fold(fold, summary)
        return Slid(tuple(_put(self._pieces, self._made)), error)

    def _fold(self, fold: Fold, summary: T) -> Folded:
        source = tuple(item for piece in self._pieces[fold.low : fold.high + 1] for item in piece.source)
        self._made.append((fold, Piece(summary, source, is_summary=True)))
        return Folded(summary, _counted([summary], self._count)[0] if self._needs_tokens else 0)


def _put(pieces: Sequence[Piece[T]], made: list[tuple[Fold, Piece[T]]]) -> Iterator[Piece[T]]:
    at = 0
    for fold, piece in made:
        yield from pieces[at : fold.low]
        yield piece
        at = fold.high + 1
    yield from pieces[at:]


def _counted(items: Sequence[Any], count: Callable[[Any], int] | None) -> list[int]:
    if count is not None:
        return [count(item) for item in items]
    counter = o200k_base()
    # Objects have no tokens without `count`.
    return [counter.messages([dict(item)]) if isinstance(item, Mapping) else 0 for item in items]


def _pins(pin: PinOption, items: Sequence[Any]) -> Pins:
    """Evaluates the pins' predicates on the items, because the outline has only payloads made from the items."""
    pins = Pins(pin)
    held = [place for place, item in enumerate(items, 1) if any(predicate(item) for predicate in pins.predicates)]
    return Pins([*pins.spans, *held])


def _payloads(items: Sequence[Any]) -> list[Payload]:
    """Returns items as payloads. The payload of an object has only its speaker, its calls and its results."""
    pairs = _CallPairs()
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            pairs.read(place, item)
    return [dict(item) if isinstance(item, Mapping) else pairs.payload(place, item) for place, item in enumerate(items)]


class _CallPairs:
    """Pairs calls with results, by the ids that the objects return or else by their order."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}
        self._results: dict[int, list[str]] = {}
        # The places of calls without ids that have no result yet, and the place of the last call without an id.
        self._open: list[int] = []
        self._last: int | None = None

    def read(self, place: int, item: Item) -> None:
        try:
            call, result = item.is_toolcall(), item.is_toolcall_result()
        except AttributeError:
            raise InvalidInput(
                f"item {place} must be a dict or have the methods of an Item, not {type(item).__name__}"
            ) from None
        ids = getattr(item, "toolcall_ids", None)
        known = None if ids is None else list(ids())
        if result:
            self._results[place] = self._answer(place) if known is None else known
        if call:
            self._calls[place] = [] if known is None else known
            if known is None:
                self._open.append(place)
                self._last = place

    def _answer(self, place: int) -> list[str]:
        call = self._open.pop() if self._open else self._last
        name = f"result {place}"
        if call is not None:
            self._calls[call].append(name)
        return [name]

    def payload(self, place: int, item: Item) -> Payload:
        role = "system" if item.is_system() else "user" if item.is_user() else "tool"
        if item.is_assistant() or place in self._calls:
            role = "assistant"
        results = [{"type": "function_call_output", "call_id": name} for name in self._results.get(place, ())]
        text = [{"type": "text"}] if role == "user" else []
        # A call without a result needs an id that no result has.
        names = self._calls.get(place, ()) or ([f"call {place}"] if place in self._calls else ())
        calls = [{"type": "function_call", "call_id": name} for name in names]
        return {"role": role, "content": [*results, *text, *calls]}
