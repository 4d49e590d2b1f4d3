"""Estimates the size of a view in a model's tokens, by an exact count, a calibrated count or the store's own count.

If a reply has a receipt and reports its usage, the usage gives the size of the view that the model was sent. The ratio
of this size to the store's own count of that view calibrates later counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from compaction_store import waiting
from compaction_store.arguments import other, storable_name
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import InvalidCallback, InvalidInput, own_text
from compaction_store.messages.documents import parsed
from compaction_store.models import Measured, Payload
from compaction_store.rendering.view import View

# The highest credible ratio of a model's tokens to the store's. Above it, the request contained more than the view.
_MOST_RATE = 2.0
# The lowest credible ratio. Below it, a mock API made up the figure, or the server left out most of the request.
_LEAST_RATE = 0.25
_WHOLE_INPUT = "prompt_tokens"
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class Reported(NamedTuple):
    """A reply's seq, the input tokens of its request, and the store's own count of the view that the model was sent."""

    seq: int
    tokens: int
    local: int


def reported(rows: Iterable[Any]) -> Reported | None:
    """Returns the newest of a thread's last replies whose usage is known; None if there is none."""
    for row in rows:
        for text in (row.payload, row.meta):
            said = None if text is None else parsed("payload", text)[0]
            tokens = None if said is None else _input(said.get("usage"))
            if tokens is not None:
                return Reported(row.seq, tokens, row.view_tokens)
    return None


def _input(usage: Any) -> int | None:
    """Returns the sum of all input tokens. Anthropic reports cached tokens separately, and OpenAI includes them."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name) or 0 for name in ((_WHOLE_INPUT,) if _WHOLE_INPUT in usage else _INPUT)]
    return (sum(counts) if all(type(count) is int and count >= 0 for count in counts) else 0) or None


def calibrated(local: int, budget: TokenBudget, found: Reported | None) -> Measured:
    """Estimates a view of `local` tokens from the measurement of an earlier view."""
    if found is None or found.local < 1 or (own := found.tokens - budget.overhead) < found.local * _LEAST_RATE:
        return Measured(local, local)
    return Measured(own, found.local, "calibrated", min(_MOST_RATE, own / found.local), seq=found.seq).moved(local)


def is_worth_counting(measured: Measured, budget: TokenBudget) -> bool:
    """Returns whether to count a view exactly. A view is counted only once, and only above half the trigger."""
    return measured.source != "exact" and measured.error is None and 2 * measured.tokens > budget.trigger_tokens


def counted(estimate: Measured, given: Any, budget: TokenBudget) -> Measured:
    """Returns the count by a budget's counter, or the estimate with the reason why there is no count."""
    own = budget.overhead if getattr(budget.counter, "counts_overhead", False) else 0
    found = Measured(given, estimate.local, "exact") if type(given) is int and given >= 0 else given
    if not isinstance(found, Measured):
        if inspect.iscoroutine(given):
            given.close()
        what = given if type(given) is int else type(given).__name__
        return replace(estimate, error=f"the counter must return an integer >= 0, not {what}")
    if found.source != "exact":
        return replace(estimate, error=found.error or "the counter returned no exact figure")
    tokens = max(0, found.tokens - own)
    rate = tokens / estimate.local if estimate.local else 1.0
    rate = min(_MOST_RATE, max(_LEAST_RATE, rate))
    return Measured(tokens, estimate.local, "exact", rate, counter=found.counter or _name(budget.counter))


def failed(estimate: Measured, error: Exception) -> Measured:
    """Returns the estimate with the error of a counter. Leaves out texts of other code, which may quote the view."""
    return replace(estimate, error=own_text(error) or f"the counter raised {type(error).__name__}")


def _name(counter: object) -> str:
    name = getattr(counter, "name", None)
    own = getattr(counter, "__qualname__", type(counter).__qualname__)
    return storable_name(name if isinstance(name, str) else own)


def check_budget(budget: object, *, awaits: bool) -> None:
    """Raises an error if the argument is not a budget, or if its counter cannot be called by this kind of store."""
    if not isinstance(budget, TokenBudget):
        raise InvalidInput(f"budget must be a TokenBudget, not {type(budget).__name__}")
    if budget.counter is None:
        return
    if not callable(budget.counter):
        raise InvalidInput(
            f"a budget's counter must be a callable that takes a view and returns its tokens{other(budget.counter)}"
        )
    if not awaits and waiting.is_async(budget.counter):
        raise InvalidCallback("a budget's counter must be synchronous: an async counter needs an AsyncStore")


def in_own_tokens(budget: TokenBudget | None, view: View) -> TokenBudget | None:
    """Converts the limit, trigger and target of a budget to the store's own tokens, in which elements are counted."""
    measured = view.measured
    if budget is None or measured is None or measured.source == "local":
        return budget
    limit = max(1, measured.own(budget.limit))
    trigger = min(limit, max(1, measured.own(budget.trigger_tokens)))
    return TokenBudget(limit, trigger=trigger, target=min(trigger, max(1, measured.own(budget.target_tokens))))


def describe(view: View) -> str:
    """Returns a view's size for an error text, and its source if that is not the store's own counter."""
    measured = view.measured
    if measured is None or measured.source == "local":
        return f"{view.tokens} tokens"
    return f"{measured.tokens} tokens ({measured.source})"


def as_json(view: View) -> Payload | None:
    """Returns the measurement of a run's view for its records; None if only the store's own counter was used."""
    measured = view.measured
    if measured is None or (measured.source == "local" and measured.error is None):
        return None
    parts = {
        "tokens": measured.tokens, "local": measured.local, "source": measured.source, "counter": measured.counter,
        "seq": measured.seq, "error": measured.error,
    }  # fmt: skip
    return {name: value for name, value in parts.items() if value is not None}
