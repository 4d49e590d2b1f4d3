"""The token budget of a thread's view: how many tokens fit, and when to compact."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.models import Measured
from compaction_store.rendering.view import View

ViewCounter = Callable[[View], "int | Measured | Awaitable[int | Measured]"]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """A model's context window, and two marks: compaction begins above `trigger` and aims for `target`.

    `reserve_output` tokens are kept for the model's answer, and `overhead` tokens for everything that is sent besides
    the view, such as tools and instructions. A mark is a number of tokens (an integer), or a fraction of the rest of
    the window (a float).

    `counter` counts a view exactly. It is an `AnthropicCounter`, or any callable that takes a view. It is called
    outside of transactions, and only if the estimate is above half the trigger. If it fails, the estimate is used.
    """

    context_window: int
    reserve_output: int = 0
    overhead: int = 0
    trigger: int | float = 0.8
    target: int | float = 0.5
    counter: ViewCounter | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("context_window", "reserve_output", "overhead"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise InvalidInput(f"{name} must be an integer >= 0{other(value)}")
        if self.limit < 1:
            raise InvalidInput(
                f"reserve_output and overhead must leave at least 1 token of the context window, not {self.limit}"
            )
        for name in ("trigger", "target"):
            value = getattr(self, name)
            fraction = type(value) is float and 0 < value <= 1
            if not (fraction or type(value) is int) or not 0 < self._tokens(value) <= self.limit:
                raise InvalidInput(f"{name} must be a fraction in (0, 1] or 1 to {self.limit} tokens{other(value)}")
        if self.target_tokens > self.trigger_tokens:
            raise InvalidInput(f"target must be <= trigger ({self.trigger_tokens} tokens), not {self.target_tokens}")

    def _tokens(self, mark: float) -> int:
        return mark if isinstance(mark, int) else round(mark * self.limit)

    @property
    def limit(self) -> int:
        """The maximum number of tokens of a view."""
        return self.context_window - self.reserve_output - self.overhead

    @property
    def trigger_tokens(self) -> int:
        return self._tokens(self.trigger)

    @property
    def target_tokens(self) -> int:
        return self._tokens(self.target)

    def is_over(self, view: View | int) -> bool:
        """Returns whether a view, or a number of tokens, is over the trigger."""
        return _best(view) > self.trigger_tokens

    def fits(self, view: View | int) -> bool:
        """Returns whether a view, or a number of tokens, is within the limit."""
        return _best(view) <= self.limit


def _best(view: View | int) -> int:
    if isinstance(view, int):
        return view
    return view.tokens if view.measured is None else view.measured.tokens
