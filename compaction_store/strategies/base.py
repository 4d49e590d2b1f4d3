"""The base class of the strategies, and the checks of their options.

The `steps` of a strategy is a generator, which yields each span to compact and is sent the outcome. It does no I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable
from typing import Any

from compaction_store.arguments import name_of, other, without_addresses
from compaction_store.compaction import summary_request, summary_room
from compaction_store.compaction.asking import ALLOWED, Ask, Planned, Steps, Summarize
from compaction_store.compaction.callbacks import callback_name, run_steps
from compaction_store.compaction.context import CompactionContext, builder_of
from compaction_store.compaction.plan_builder import PlanBuilder
from compaction_store.errors import InvalidCallback, InvalidInput, NoProgress, PinnedInside
from compaction_store.messages import framing
from compaction_store.models import Summary
from compaction_store.strategies.thresholds import Threshold
from compaction_store.waiting import Work

SummarySource = Summary | Summarize
Attempted = Generator[Ask, "Exception | None", "Exception | None"]


class Planner(ABC):
    """The base class of the strategies.

    A callback can call a strategy with the context that it got; an async callback must await that call. A strategy with
    an async summarizer needs an AsyncStore.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the strategy in the `callback` field of records."""

    @property
    def needs_async(self) -> bool:
        return False

    @abstractmethod
    def steps(self, ctx: CompactionContext) -> Steps: ...

    def __call__(self, ctx: CompactionContext) -> Planned:
        builder = builder_of(ctx)
        return builder.run(self._work(builder, ctx))

    def _work(self, builder: PlanBuilder, ctx: CompactionContext) -> Work[None]:
        caller = builder.rename(callback_name(self))
        yield from run_steps(builder, self.steps(ctx))
        builder.rename(caller)

    def __repr__(self) -> str:
        return self.name


def attempt(ctx: CompactionContext, ask: Ask) -> Attempted:
    """Yields the `Ask` for a span. Returns None if the compaction of the span is planned, and otherwise an error.

    An error is returned if the attempt was recorded, if an earlier run has just tried the span in vain, or if a pin is
    inside the span. Any other error is raised, because it shows a mistake in the use of the strategy.
    """
    attempts = builder_of(ctx).attempts
    tried = len(attempts)
    error = yield ask
    if error is not None and len(attempts) == tried and not isinstance(error, NoProgress | PinnedInside):
        raise error
    return error


TOO_LITTLE = "a summary would save too little"
# The smallest share of a span's tokens that a summary must save to be worth a model call and a lost prompt cache.
MIN_SAVING = 0.1


def worth(ctx: CompactionContext, tokens: int, summarize: SummarySource, min_saving: float) -> bool:
    """Returns whether the shortest summary of a span with that many tokens would save enough."""
    return tokens - least_summary(ctx, summarize) > summary_room.least_saving(min_saving, tokens)


def least_summary(ctx: CompactionContext, summarize: SummarySource) -> int:
    """Returns the number of tokens of the shortest possible summary in its frame.

    The delimiters of frames are made from hashes, so their tokens vary; the result is a lower bound. A `Summary` with
    its own replacement has no frame.
    """
    if isinstance(summarize, Summary) and summarize.replacement:
        return 0
    return max(0, ctx.count([framing.frame("-", 1, 1)]) - summary_room.FRAMES_DIFFER_BY)


def check_summarizer(summarize: object) -> None:
    """Refuses an object that cannot summarize. A text is refused too, because it is often the name of a model."""
    if isinstance(summarize, str):
        raise InvalidCallback(
            "summarize must be a summarizer such as ExtractiveSummarizer() or AnthropicSummarizer(client, model=…), "
            "not text; for the same text in place of every span, pass Summary(text)"
        )
    if not isinstance(summarize, Summary):
        summary_request.check_summarizer(summarize, "summarize", choices="a summarizer or a Summary")


def check_allow(allow: Collection[str]) -> frozenset[str]:
    allowed = frozenset([allow] if isinstance(allow, str) or not isinstance(allow, Iterable) else allow)
    if not allowed <= ALLOWED:
        # Do not quote the names: a callback may have put content here by mistake.
        wrong = f"{len(allowed - ALLOWED)} of {len(allowed)} names are not"
        raise InvalidInput(f"allow must be among {', '.join(sorted(ALLOWED))}; {wrong}")
    return allowed


def check_saving(value: object, name: str = "min_saving") -> None:
    """Checks an option that is a number of tokens if it is an integer, or a share of the tokens if it is a float."""
    if type(value) not in (int, float) or value < 0 or (type(value) is float and value >= 1):  # type: ignore[operator]
        raise InvalidInput(f"{name} must be an integer >= 0 in tokens, or a float from 0.0 to below 1.0{other(value)}")


def check_count(value: object, name: str, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise InvalidInput(f"{name} must be an integer >= {least}{other(value)}")


def shown_call(kind: str, options: Iterable[tuple[str, Any, Any]]) -> str:
    """Returns a strategy's name: its kind and each option, given as (name, value, default), that is not the default."""
    given = [f"{name}={_shown(value)}" for name, value, default in options if value != default]
    return f"{kind}({', '.join(given)})"


def _shown(value: object) -> str:
    """Returns an option as it is written in a name, which must be the same in every process."""
    if isinstance(value, Summary):
        return "Summary"
    if callable(value) and not isinstance(value, Threshold):
        return name_of(value, "summarizer")
    return without_addresses(repr(value))
