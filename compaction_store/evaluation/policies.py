"""Policies, which decide when and how a thread is compacted: callbacks with a budget, or the thread's own records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from compaction_store import arguments
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.callbacks import check_callback
from compaction_store.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Policy:
    """Callbacks or strategies. Before a call of the model, they compact a view that is over the budget."""

    name: str
    callbacks: tuple[Callable[..., Any], ...] = field(repr=False)
    budget: TokenBudget

    def __post_init__(self) -> None:
        arguments.name(self.name, "name")
        arguments.instance(self.budget, TokenBudget, "budget")
        if self.name == RECORDED:
            raise InvalidInput(f"name must not be {RECORDED!r}: that is the name of the thread's own compactions")
        if not self.callbacks:
            raise InvalidInput("callbacks must have at least one callback or strategy")
        for callback in self.callbacks:
            check_callback(callback, awaits=False)


#: The name of the policy that replays a thread's own records.
RECORDED: Final = "recorded"
