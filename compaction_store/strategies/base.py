"""What every strategy shares: it is an ordinary callback, it has a name for the records, and it takes failures calmly.

A strategy decides which spans, and is told what came of each; it neither awaits nor touches a database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable
from typing import Any

from compaction_store.compaction import summary_request, summary_room
from compaction_store.compaction.asking import ALLOWED, Ask, Planned, Steps, Summarize
from compaction_store.compaction.callbacks import run_steps
from compaction_store.compaction.context import CompactionContext, builder_of
from compaction_store.compaction.plan_builder import PlanBuilder
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.drivers import Work
from compaction_store.errors import InvalidInput, NoProgress, PinnedInside
from compaction_store.messages import framing
from compaction_store.models import Summary

SummarySource = SummaryResult | Summarize
Attempted = Generator[Ask, "Exception | None", "Exception | None"]


class Planner(ABC):
    """The base of the strategies. Called with a context it plans, so that it can be part of another callback.

    An async callback awaits the call. With an async summarizer a strategy needs an AsyncStore.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What a record's `callback` says."""

    @property
    def needs_async(self) -> bool:
        return False

    @abstractmethod
    def steps(self, ctx: CompactionContext) -> Steps: ...

    def __call__(self, ctx: CompactionContext) -> Planned:
        builder = builder_of(ctx)
        return builder.run(self._work(builder, ctx))

    def _work(self, builder: PlanBuilder, ctx: CompactionContext) -> Work[None]:
        caller = builder.rename(self.name)
        yield from run_steps(builder, self.steps(ctx))
        builder.rename(caller)

    def __repr__(self) -> str:
        return self.name


def attempt(ctx: CompactionContext, ask: Ask) -> Attempted:
    """Asks for a span; returns what spoke against it, None if it is planned.

    What the context has put on record, or was told before, is for the strategy to take note of. Anything else is a
    mistake in how the strategy is used, and nobody else would ever hear of it.
    """
    attempts = builder_of(ctx).attempts
    tried = len(attempts)
    error = yield ask
    if error is not None and len(attempts) == tried and not isinstance(error, NoProgress | PinnedInside):
        raise error
    return error


TOO_LITTLE = "a summary of what can be folded would be no shorter"
# A fold that saves less than this share of its span costs a model's time and a prompt cache for next to nothing.
MIN_SAVING = 0.1


def worth(ctx: CompactionContext, tokens: int, summarize: SummarySource, min_saving: float) -> bool:
    """Whether a summary of a span of so many tokens could save enough."""
    return tokens - least_summary(ctx, summarize) > summary_room.least_saving(min_saving, tokens)


def least_summary(ctx: CompactionContext, summarize: SummarySource) -> int:
    """The tokens of the shortest summary there can be.

    A frame's own letters come from the summary's hash, so that some take a few tokens less. A summary that brings what
    stands for the span along has no frame; of a callable it is not known before it is asked.
    """
    if isinstance(summarize, Summary) and summarize.replacement:
        return 0
    return max(0, ctx.count([framing.frame("-", 1, 1)]) - summary_room.FRAMES_DIFFER_BY)


def check_summarizer(summarize: object) -> None:
    if not isinstance(summarize, SummaryResult):
        summary_request.check_summarizer(summarize, "summarize", choices="a callable, a text or a Summary")


def check_allow(allow: Collection[str]) -> frozenset[str]:
    allowed = frozenset([allow] if isinstance(allow, str) or not isinstance(allow, Iterable) else allow)
    if not allowed <= ALLOWED:
        raise InvalidInput(f"allow must be among {', '.join(sorted(ALLOWED))}")
    return allowed


def check_saving(value: object, name: str = "min_saving") -> None:
    """A saving is a number of tokens, or as a float a share."""
    if type(value) not in (int, float) or value < 0 or (type(value) is float and value >= 1):  # type: ignore[operator]
        raise InvalidInput(f"{name} must be tokens, 0 or more, or a share from 0.0 to below 1.0, not {value!r}")


def check_count(value: object, name: str, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise InvalidInput(f"{name} must be an integer >= {least}")


def shown_call(kind: str, options: Iterable[tuple[str, Any, Any]]) -> str:
    """A strategy's name: its kind, and the options that are not as usual, given as (name, value, usual)."""
    told = [f"{name}={value!r}" for name, value, usual in options if value != usual]
    return f"{kind}({', '.join(told)})"
