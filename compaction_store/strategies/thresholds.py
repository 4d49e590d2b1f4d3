"""Thresholds: conditions on the size of a view, of a part of it, or on time, that decide when to compact it.

They can be combined with `|` and `&`.

    over(tokens=100_000) | over(fraction=0.7)
    over(turns=20) & on_turn_end
    over(fraction=0.4) & idle(minutes=5)

A threshold is reached at its number, not only above that number. `over()` without a number is never reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple, TypeVar, overload

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput, NotConfigured
from compaction_store.jsonable import named
from compaction_store.models import Element, Payload
from compaction_store.strategies.outline import speaker, speakers
from compaction_store.tokens import o200k_base

_T_co = TypeVar("_T_co", covariant=True)


class Measure(NamedTuple):
    """The size of a thread or a window, without the messages that a `Window` has.

    `turns` is the number of messages of the user; `limit` is the limit of the budget. `idle` is the number of seconds
    since the assistant's last message, or 0 for a part of a view.
    """

    tokens: int = 0
    messages: int = 0
    turns: int = 0
    ends_with_user: bool = False
    limit: int | None = None
    idle: float = 0

    def as_dict(self) -> dict[str, Any]:
        return named(self)


class Window(Sequence[_T_co]):
    """A part of a thread during a scan, with its size. The items are not copied."""

    def __init__(self, items: Sequence[_T_co], start: int, end: int, measure: Measure) -> None:
        self._items = items
        self._range = range(start, end)
        self.tokens, self.messages, self.turns, self.ends_with_user, self.limit, self.idle = measure

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[_T_co]:
        return map(self._items.__getitem__, self._range)

    @overload
    def __getitem__(self, index: int) -> _T_co: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_T_co]: ...

    def __getitem__(self, index: int | slice) -> _T_co | Sequence[_T_co]:
        if isinstance(index, slice):
            return [self._items[place] for place in self._range[index]]
        return self._items[self._range[index]]


Predicate = Callable[[Window[Any]], Any]
Measurable = Measure | Window[Any]


class Threshold(ABC):
    """A condition on a window. Call it to find out whether it is reached; `fired` names the parts that are reached."""

    needs_tokens = False
    needs_time = False

    @abstractmethod
    def fired(self, measured: Measurable) -> tuple[str, ...]:
        """Returns the names of the parts that are reached. Returns no name if the whole condition is not reached."""

    def __call__(self, measured: Measurable) -> bool:
        return bool(self.fired(measured))

    def is_reached(self, elements: Sequence[Element], limit: int | None = None, now: datetime | None = None) -> bool:
        """Returns whether a whole view reaches the threshold. `now` is the current time if it is not given."""
        return self(window_of(elements, limit, now))

    def __or__(self, other: Threshold | Predicate) -> Threshold:
        return _Joined((self, as_threshold(other)))

    def __and__(self, other: Threshold | Predicate) -> Threshold:
        return _Joined((self, as_threshold(other)), needs_all=True)

    def __ror__(self, other: Predicate) -> Threshold:
        return _Joined((as_threshold(other), self))

    def __rand__(self, other: Predicate) -> Threshold:
        return _Joined((as_threshold(other), self), needs_all=True)


@dataclass(frozen=True, repr=False)
class _Over(Threshold):
    what: str
    number: float

    @property
    def needs_tokens(self) -> bool:  # type: ignore[override]
        return self.what in ("tokens", "fraction")

    @property
    def needs_time(self) -> bool:  # type: ignore[override]
        return self.what == "idle"

    def fired(self, measured: Measurable) -> tuple[str, ...]:
        if self.what != "fraction":
            return (self.what,) if getattr(measured, self.what) >= self.number else ()
        if measured.limit is None:
            raise NotConfigured("over(fraction=…) needs the limit of a budget: pass budget= to compact()")
        return ("fraction",) if measured.tokens >= fraction_of(self.number, measured.limit) else ()

    def __repr__(self) -> str:
        return f"idle(minutes={self.number / 60:g})" if self.needs_time else f"over({self.what}={self.number})"


@dataclass(frozen=True, repr=False)
class _Named(Threshold):
    """A threshold without a number. `reached` are the names of its parts if it `holds`."""

    name: str
    reached: tuple[str, ...]
    holds: Callable[[Measurable], bool] = lambda _: True

    def fired(self, measured: Measurable) -> tuple[str, ...]:
        return self.reached if self.holds(measured) else ()

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class _Predicate(Threshold):
    predicate: Predicate
    needs_tokens = True

    def fired(self, measured: Measurable) -> tuple[str, ...]:
        return ("predicate",) if self.predicate(measured) else ()  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return getattr(self.predicate, "__qualname__", type(self.predicate).__qualname__)


@dataclass(frozen=True, repr=False)
class _Joined(Threshold):
    parts: tuple[Threshold, ...]
    needs_all: bool = False

    @property
    def needs_tokens(self) -> bool:  # type: ignore[override]
        return any(part.needs_tokens for part in self.parts)

    @property
    def needs_time(self) -> bool:  # type: ignore[override]
        return any(part.needs_time for part in self.parts)

    def fired(self, measured: Measurable) -> tuple[str, ...]:
        fired = [part.fired(measured) for part in self.parts]
        return () if self.needs_all and not all(fired) else tuple(chain.from_iterable(fired))

    def __call__(self, measured: Measurable) -> bool:
        return (all if self.needs_all else any)(part(measured) for part in self.parts)

    def __repr__(self) -> str:
        return "(" + (" & " if self.needs_all else " | ").join(map(repr, self.parts)) + ")"


everything: Threshold = _Named("everything", ("everything",))
"""A threshold that every window reaches, even an empty one."""

on_turn_end: Threshold = _Named("on_turn_end", ("turn_end",), lambda measured: measured.ends_with_user)
"""A threshold that is reached when the last message is from the user."""


def over(
    *, tokens: int | None = None, messages: int | None = None, turns: int | None = None, fraction: float | None = None
) -> Threshold:
    """Returns a threshold on the number of tokens, messages or turns, or on a fraction of the budget's limit.

    A turn is a message of the user. If several are given, reaching any one is enough. `fraction` needs a budget.
    """
    parts: list[Threshold] = []
    for what, number in (("tokens", tokens), ("messages", messages), ("turns", turns)):
        if number is not None:
            if type(number) is not int or number < 0:
                raise InvalidInput(f"over({what}=) must be an integer >= 0{other(number)}")
            parts.append(_Over(what, number))
    if fraction is not None:
        check_fraction(fraction, "over(fraction=)")
        parts.append(_Over("fraction", fraction))
    return (parts[0] if len(parts) == 1 else _Joined(tuple(parts))) if parts else _Named("over()", ())


def idle(*, minutes: float = 5) -> Threshold:
    """Returns a threshold on the time since the assistant's last message.

    A provider's prompt cache is then cold, so a compaction loses nothing of it. Anthropic keeps a cache for 5 minutes
    or, with `cache="1h"`, for 60.
    """
    if type(minutes) not in (int, float) or not 0 <= minutes < float("inf"):
        raise InvalidInput(f"idle(minutes=) must be a number >= 0{other(minutes)}")
    return _Over("idle", minutes * 60)


def sized(threshold: Threshold) -> Threshold:
    """Returns a threshold for a window of a scan, which has no time."""
    if threshold.needs_time:
        raise InvalidInput("a sliding window's threshold must not have idle(…), which belongs in when=")
    return threshold


def as_threshold(value: Any) -> Threshold:
    """Converts a number of tokens, or a predicate of a window, to a threshold. Returns a threshold unchanged."""
    if isinstance(value, Threshold):
        return value
    if type(value) is int:
        return over(tokens=value)
    if callable(value):
        return _Predicate(value)
    raise InvalidInput(f"a threshold must be over(…), on_turn_end, a number of tokens or a predicate{other(value)}")


def check_fraction(value: object, name: str) -> None:
    if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator]
        raise InvalidInput(f"{name} must be a fraction from 0 to 1{other(value)}")


def fraction_of(fraction: float, whole: int) -> int:
    """Returns a fraction of a number, rounded down. Uses decimals, because with floats 0.29 of 100 would be 28."""
    return int(Decimal(str(fraction)) * whole)


def safe_tokens(tokens: int | None = None, *, context_window: int | None = None, fraction: float | None = None) -> int:
    """Returns the number of tokens at which to compact: `tokens`, but at most a fraction of the model's window.

    The defaults are 100,000 tokens and 0.7 of a window of 128,000 tokens.
    """
    check_fraction(0.7 if fraction is None else fraction, "fraction=")
    window = 128_000 if context_window is None else context_window
    return min(100_000 if tokens is None else tokens, fraction_of(0.7 if fraction is None else fraction, window))


def measure(messages: Iterable[Payload], *, tokens: int | None = None, limit: int | None = None) -> Measure:
    """Measures a plain list of messages. Without `tokens`, their tokens are counted with o200k_base."""
    listed = list(messages)
    who = [speaker(message) for message in listed]
    counted = o200k_base().messages(listed) if tokens is None else tokens
    return Measure(counted, len(listed), who.count("user"), who[-1:] == ["user"], limit)


def window_of(elements: Sequence[Element], limit: int | None = None, now: datetime | None = None) -> Window[Element]:
    """Returns a whole view as a window. Summaries count as messages, but not as turns."""
    who = [frozenset[str]() if element.is_summary else speakers(element) for element in elements]
    users = ["user" in each for each in who]
    size = Measure(
        sum(element.tokens for element in elements), sum(len(element.messages) for element in elements), sum(users),
        users[-1:] == [True], limit, _idle(elements, who, now),
    )  # fmt: skip
    return Window(elements, 0, len(elements), size)


def _idle(elements: Sequence[Element], who: Sequence[Collection[str]], now: datetime | None) -> float:
    """Returns the seconds since the assistant's last message, which has the database's time.

    If the clock of this process is behind that of the database, the newest message tells the time.
    """
    spoken = next((elements[i].created_at for i in range(len(who) - 1, -1, -1) if "assistant" in who[i]), None)
    if spoken is None:
        return 0
    return (max(now or datetime.now(UTC), elements[-1].created_at) - spoken).total_seconds()
