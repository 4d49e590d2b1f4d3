"""Sends a view as a request. If the model refuses it as too long, compacts the view further and sends it again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from compaction_store.api_rules.too_long import TooLong, too_long
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.plan import CompactionRun, FittedView
from compaction_store.errors import InvalidInput
from compaction_store.jsonable import plain
from compaction_store.rendering.view import Rendered, View
from compaction_store.waiting import Call, Work

R = TypeVar("R")
# If the provider gives no figures, each request is limited to this share of the size of the previous one.
_SHORTER = 0.75
# A margin, because the provider's figures include the tools and the system prompt, which do not get shorter.
_MARGIN = 0.9


@dataclass(frozen=True, slots=True)
class Sent(Generic[R]):
    """A reply, its request, and the runs that compacted the view: before the first request, and after each refusal."""

    reply: R = field(repr=False)
    request: View | Rendered
    runs: tuple[CompactionRun, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the request and the runs as a dict for `json.dumps`. The reply, an object of the SDK, is left out."""
        return {"request": self.request.as_dict(), "runs": plain(list(self.runs))}


def send(
    fitted: FittedView,
    budget: TokenBudget,
    call: Callable[[Any], Any],
    render: Callable[[View], Any] | None,
    compact: Callable[[TokenBudget], Any],
    attempts: int,
) -> Work[Sent[Any]]:
    """Calls the model until it replies, all attempts are refused, or nothing more can be compacted."""
    runs: list[CompactionRun] = [] if fitted.run is None else [fitted.run]
    view: View = fitted
    refusals = 0
    while True:
        request = view if render is None else render(view)
        if not isinstance(request, View | Rendered):
            raise InvalidInput(f"render must return a View or its rendering, not {type(request).__name__}")
        try:
            reply = yield Call(call, request)
        except Exception as error:
            if (refused := too_long(error)) is None:
                raise
            refusals += 1
            if refusals == attempts:
                error.add_note(f"compaction_store: sent {attempts} times, compacted harder each time")
                raise
            budget = harder(budget, view, refused)
            run = yield compact(budget)
            if run.view.pos == view.pos:
                error.add_note(f"compaction_store: the view was not compacted: {run.reason}")
                raise
            runs.append(run)
            view = run.view
            continue
        if inspect.iscoroutine(reply):
            reply.close()
            raise InvalidInput("call must be synchronous on a Store; an async call needs an AsyncStore")
        return Sent(reply, request, tuple(runs))


def harder(budget: TokenBudget, view: View, refused: TooLong) -> TokenBudget:
    """Returns a smaller budget. Its limit is a share of the size of the refused view.

    The share is the provider's limit divided by its count of the request, with a margin. Without these figures, it is
    `_SHORTER`.
    """
    size = view.tokens if view.measured is None else view.measured.tokens
    share = _SHORTER
    if refused.tokens is not None and refused.limit is not None:
        share = min(_MARGIN * refused.limit / refused.tokens, _MARGIN)
    limit = max(1, min(math.floor(size * share), budget.limit))
    trigger, target = (_within(mark, limit) for mark in (budget.trigger, budget.target))
    window = limit + budget.reserve_output + budget.overhead
    return replace(budget, context_window=window, trigger=trigger, target=target)


def _within(mark: float, limit: int) -> float:
    """Adapts a mark to a smaller limit. A fraction that gives less than one token becomes 1.0."""
    if isinstance(mark, int):
        return min(mark, limit)
    return mark if round(mark * limit) >= 1 else 1.0
