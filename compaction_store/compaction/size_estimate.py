"""What a view takes by the best figure known: counted exactly, calibrated by what an API reported, or the store's own.

Pure, and everything follows from rows. A reply with a receipt that says what its request took is a measurement of the
view it was written from; what the store's own figures for that view were, and are now, does the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from compaction_store import drivers
from compaction_store.compaction.budget import TokenBudget
from compaction_store.errors import InvalidCallback, InvalidInput, own_text
from compaction_store.messages.documents import parsed
from compaction_store.models import Measured, Payload
from compaction_store.rendering.view import View

# How many tokens of a model's one of the store's may be. What a request took beyond that was sent beside the view.
_MOST_RATE = 2.0
# A report of less than this is that of a stand-in, or of a request from which the server itself left most out.
_LEAST_RATE = 0.25
_WHOLE_INPUT = "prompt_tokens"
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_COUNTS = (*_INPUT, "output_tokens", _WHOLE_INPUT, "completion_tokens")


class Reported(NamedTuple):
    """A reply's seq, what its request took, and what the view it was written from took by the store's own figures."""

    seq: int
    tokens: int
    local: int


def usage_of(reply: Any) -> Payload | None:
    """The tokens that an SDK's reply tells of, as meta: what is stored of the reply itself has no place for them."""
    usage = None if isinstance(reply, Mapping) else getattr(reply, "usage", None)
    counts = {name: count for name in _COUNTS if type(count := getattr(usage, name, None)) is int}
    return {"usage": counts} if counts else None


def reported(rows: Sequence[tuple[Any, ...]]) -> Reported | None:
    """What the ledger found of a thread's last replies; None where no reply says what its request took."""
    for seq, local, *texts in rows:
        for text in texts:
            said = None if text is None else parsed("payload", text)[0]
            tokens = None if said is None else _input(said.get("usage"))
            if tokens is not None:
                return Reported(seq, tokens, local)
    return None


def _input(usage: Any) -> int | None:
    """All that went in. Of Anthropic's figures what was cached is not in the first; of OpenAI's it is."""
    if not isinstance(usage, dict):
        return None
    names = (_WHOLE_INPUT,) if _WHOLE_INPUT in usage else _INPUT
    counts = [usage.get(name) or 0 for name in names]
    tokens = sum(counts) if all(type(count) is int and count >= 0 for count in counts) else 0
    return tokens or None


def calibrated(local: int, budget: TokenBudget, found: Reported | None) -> Measured:
    """What a view of so many of the store's tokens takes, going by what an earlier view of the thread took."""
    if found is None or found.local < 1 or (own := found.tokens - budget.overhead) < found.local * _LEAST_RATE:
        return Measured(local, local)
    then = Measured(own, found.local, "calibrated", min(_MOST_RATE, own / found.local), seq=found.seq)
    return then.moved(local)


def is_worth_counting(measured: Measured, budget: TokenBudget) -> bool:
    """Whether an exact count could change what is done: not far below the trigger, nor where one just failed."""
    return measured.source != "exact" and measured.error is None and 2 * measured.tokens > budget.trigger_tokens


def counted(estimate: Measured, given: Any, budget: TokenBudget) -> Measured:
    """The estimate replaced by what a budget's counter says, or kept with the reason why it says nothing."""
    own = budget.overhead if getattr(budget.counter, "counts_overhead", False) else 0
    found = Measured(given, estimate.local, "exact") if type(given) is int and given >= 0 else given
    if not isinstance(found, Measured):
        if inspect.iscoroutine(given):
            given.close()
        return replace(estimate, error=f"the counter returned {_what(given)}, and no whole number from 0 on")
    if found.source != "exact":
        return replace(estimate, error=found.error or "the counter came to no exact figure")
    tokens = max(0, found.tokens - own)
    rate = tokens / estimate.local if estimate.local else 1.0
    name = found.counter or _name(budget.counter)
    rate = min(_MOST_RATE, max(_LEAST_RATE, rate))
    return Measured(tokens, estimate.local, "exact", rate, counter=name)


def failed(estimate: Measured, error: Exception) -> Measured:
    """The estimate, where a counter raised. Another's own words may quote the view."""
    return replace(estimate, error=own_text(error) or f"the counter raised {type(error).__name__}")


def _what(given: Any) -> str:
    return "such a number" if type(given) is int else type(given).__name__


def _name(counter: object) -> str:
    name = getattr(counter, "name", None)
    return name if isinstance(name, str) else getattr(counter, "__qualname__", type(counter).__qualname__)


def check_budget(budget: object, *, awaits: bool) -> None:
    """Refuses what is no budget, a counter that cannot be called, and one that must be awaited where nothing does."""
    if not isinstance(budget, TokenBudget):
        raise InvalidInput(f"budget must be a TokenBudget, not {type(budget).__name__}")
    if budget.counter is None:
        return
    if not callable(budget.counter):
        raise InvalidInput("a budget's counter is given a view and returns its tokens")
    if not awaits and drivers.is_async(budget.counter):
        raise InvalidCallback("an async counter needs an AsyncStore: on a Store a counter must be synchronous")


def in_own_tokens(budget: TokenBudget | None, view: View) -> TokenBudget | None:
    """The budget with its limit and marks in the store's own tokens, which are those of the view's elements."""
    measured = view.measured
    if budget is None or measured is None or measured.source == "local":
        return budget
    limit = max(1, measured.own(budget.limit))
    trigger = min(limit, max(1, measured.own(budget.trigger_tokens)))
    return TokenBudget(limit, trigger=trigger, target=min(trigger, max(1, measured.own(budget.target_tokens))))


def told(view: View) -> str:
    """What a view takes, for a sentence; by whose figure, if it is not the store's own."""
    measured = view.measured
    if measured is None or measured.source == "local":
        return f"{view.tokens} tokens"
    return f"{measured.tokens} tokens ({measured.source})"


def as_json(view: View) -> Payload | None:
    """What a record keeps of how its run measured the view; None where the record's own figures say it all."""
    measured = view.measured
    if measured is None or (measured.source == "local" and measured.error is None):
        return None
    parts = {
        "tokens": measured.tokens, "local": measured.local, "source": measured.source, "counter": measured.counter,
        "seq": measured.seq, "error": measured.error,
    }  # fmt: skip
    return {name: value for name, value in parts.items() if value is not None}
