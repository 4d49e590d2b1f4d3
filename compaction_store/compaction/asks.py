"""Requests to summarize, replace or remove a span, and their results."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compaction_store import arguments
from compaction_store.compaction.checks import Check
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.errors import InvalidCallback, InvalidInput
from compaction_store.messages.framing import ROLES, Role
from compaction_store.models import Element, Payload, Span
from compaction_store.results import ItemsOf

Summarize = Callable[[Sequence[Element]], SummaryResult | Awaitable[SummaryResult]]

ALLOWED = frozenset({"larger", "system", "last_user"})


class Stalled(NamedTuple):
    """An attempt that was rejected because it made no progress. The thread has not changed since."""

    callback: str
    start_seq: int
    end_seq: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to summarize, replace or remove a span. A strategy that yields it is then sent None or an error.

    A summary must save at least `min_saving`, which is a number of tokens or, as a float, a share of the span's tokens.
    `room` is the maximum number of tokens of the framed summary. A longer summary is rejected or, with `cut`,
    shortened. `stated_room` is a smaller maximum that the summarizer is given. Without `framed`, the summary's frame is
    not counted. The summary must pass `checks`.
    """

    start_seq: int
    end_seq: int
    summarize: SummaryResult | Summarize | None = field(default=None, repr=False)
    replacement: tuple[Payload, ...] | None = field(default=None, repr=False)
    allow: frozenset[str] = frozenset()
    reason: str | None = field(default=None, repr=False)
    min_saving: float = 0
    room: int | None = None
    stated_room: int | None = None
    cut: bool = False
    framed: bool = True
    role: Role = "user"
    checks: tuple[Check, ...] = ()

    @property
    def span(self) -> Span:
        """The span that it asks about."""
        return Span(self.start_seq, self.end_seq)


Steps = Generator[Ask, "Exception | None", None]


class Planned(ItemsOf[Payload]):
    """The messages of the view with all planned compactions. If `is_waiting`, the plan is made when this is awaited."""

    def __init__(
        self, result: Callable[[], list[Payload]], waiting: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._result = result
        self._waiting = waiting
        self._known: list[Payload] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether this object must be awaited to make the plan."""
        return self._waiting is not None

    def __await__(self) -> Generator[Any, None, Planned]:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            yield from waiting().__await__()
        return self

    def settle(self) -> None:
        """Computes the messages now, before the plan changes."""
        if self._known is None and self._waiting is None:
            self._known = self._result()

    def _items_of(self) -> list[Payload]:
        if self._waiting is not None:
            raise InvalidCallback("the result of ctx.compact(…) must be awaited before its messages are read")
        self.settle()
        assert self._known is not None  # noqa: S101 — settled just now
        return self._known

    def __bool__(self) -> bool:
        # Without this method, bool() would call len(), which fails before the object is awaited.
        return True

    def __eq__(self, other: object) -> bool:
        return self._items_of() == (other._items_of() if isinstance(other, Planned) else other)

    # A class with __eq__ has no hash by default, but asyncio.gather keeps awaitables in a dict.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Planned: {len(self)} messages>" if self._waiting is None else "<Planned: to be awaited>"


class LastPlanned:
    """A weak reference to the last result of `compact`. Its messages must be computed before the plan changes."""

    def __init__(self) -> None:
        self._last: weakref.ref[Planned] | None = None

    def settle(self) -> None:
        planned = None if self._last is None else self._last()
        if planned is not None:
            planned.settle()
        self._last = None

    def forget(self) -> None:
        """Forgets the last result, so that its messages are not computed. Strategies never read them."""
        self._last = None

    def keep(self, planned: Planned) -> Planned:
        self._last = weakref.ref(planned)
        return planned


def allowed_rules(allow: Collection[str], reason: object) -> frozenset[str]:
    """Checks `allow` and `reason`, and returns the rules that may be broken."""
    arguments.reason(reason)
    return rules(allow, "allow")


def rules(allow: Collection[str], name: str) -> frozenset[str]:
    allowed = frozenset([allow] if isinstance(allow, str) or not isinstance(allow, Iterable) else allow)
    if not allowed <= ALLOWED:
        # Do not quote the names: a callback may have given content by mistake.
        wrong = f"{len(allowed - ALLOWED)} of {len(allowed)} names are not"
        raise InvalidInput(f"{name} must be among {', '.join(sorted(ALLOWED))}; {wrong}")
    return allowed


def check_role(role: object) -> None:
    if role not in ROLES:
        raise InvalidInput(f"role must be 'user' or 'assistant', not {role!r}")
