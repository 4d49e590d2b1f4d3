"""Runs strategies on plain lists of messages, without a database, and makes threads with long messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from compaction_store import CompactionContext, TokenBudget
from compaction_store.api_rules import Problem, refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.compaction.callbacks import run_steps
from compaction_store.compaction.context import planner_of
from compaction_store.compaction.planner import Planner
from compaction_store.models import Attempt, Element
from compaction_store.rendering.view import View
from compaction_store.strategies.outline import elements_of
from compaction_store.tokens import Counter, o200k_base
from compaction_store.waiting import drive
from support import random_threads as threads

Payload = dict[str, Any]
COUNTER = o200k_base()
REFUSED: dict[str, Callable[[Sequence[Payload | None]], list[Problem]]] = {
    "anthropic": refused_by_anthropic,
    "chat": refused_by_openai,
    "responses": refused_by_openai_responses,
}
# Refusals that a strategy must never cause. NotSmaller is not among them, because it depends on the summarizer.
MISTAKES = frozenset({"SplitPair", "PendingCall", "SystemInside", "LastUserInside", "IdsChanged", "EmptySummary"})
FORMS = sorted(REFUSED)


def elements(messages: Sequence[Payload | None], counter: Counter = COUNTER) -> list[Element]:
    return elements_of(messages, lambda message: counter.messages([message]))


def run(
    strategy: Any, view: Sequence[Element], *, budget: TokenBudget | None = None, counter: Counter = COUNTER
) -> CompactionContext:
    ctx = context_of(View("t", 0, tuple(view)), counter=counter, budget=budget)
    run_strategy(ctx, strategy)
    return ctx


def context_of(view: View, *, counter: Counter = COUNTER, callback: str = "test", **options: Any) -> CompactionContext:
    """Makes a context for a callback, as a store does."""
    planner = Planner(view, counter=counter, **options)
    planner.begin(callback)
    return CompactionContext(planner)


def run_strategy(ctx: CompactionContext, strategy: Any) -> None:
    drive(run_steps(planner_of(ctx), strategy.steps(ctx)))


def attempts_of(ctx: CompactionContext) -> Sequence[Attempt]:
    return planner_of(ctx).attempts


def committed(ctx: CompactionContext) -> list[Element]:
    """Returns the view as it is after the plan is committed, when its records have numbers."""
    return [
        element if element.number is None else element._replace(number=abs(element.number), pos=1)
        for element in ctx.elements
    ]


def mistakes(ctx: CompactionContext) -> list[str]:
    return [a.error["type"] for a in attempts_of(ctx) if a.error is not None and a.error["type"] in MISTAKES]


def until_stable(strategy: Any, view: Sequence[Element], *, most: int = 12) -> list[Element]:
    """Runs a strategy until it changes nothing more. Checks that every run makes the view smaller."""
    view = list(view)
    for _ in range(most):
        ctx = run(strategy, view)
        assert not mistakes(ctx)
        if not planner_of(ctx).applied:
            return view
        after = committed(ctx)
        assert sum(e.tokens for e in after) < sum(e.tokens for e in view)
        view = after
    raise AssertionError("the strategy still changes the view in the last run")


# ---- threads with long texts


def grown(value: Any, sizes: list[int]) -> Any:
    """Returns a thread with longer texts."""
    if isinstance(value, dict):
        return {key: item if key in _NOT_GROWN else _field(key, item, sizes) for key, item in value.items()}
    return [grown(item, sizes) for item in value] if isinstance(value, list) else value


_NOT_GROWN = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "type", "role", "name", "signature", "data"})


def _field(key: str, item: Any, sizes: list[int]) -> Any:
    size = sizes[0] if sizes else 1
    sizes.append(sizes.pop(0) if sizes else 1)
    if key == "arguments":
        return '{"path": "/a", "text": "' + "what is written " * size + '", "deep": [{"n": 1}]}'
    if key == "input" and isinstance(item, dict):
        return {"path": "/a", "text": "what is written " * size, "deep": [{"n": 1}]}
    if isinstance(item, str):
        return " ".join([item] * size)
    return grown(item, sizes)


_SIZES = st.lists(st.sampled_from([1, 3, 40, 150]), min_size=1, max_size=7)


def well_formed(form: str) -> st.SearchStrategy[list[Payload]]:
    def grow(drawn: tuple[list[Payload], list[int]]) -> list[Payload]:
        return [grown(message, list(drawn[1])) for message in drawn[0]]

    return st.tuples(threads.WELL_FORMED[form](), _SIZES).map(grow)


_JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["text", "tool_use", "a", "", "x" * 900]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "type", "content", "tool_calls", "id", "call_id", "tool_use_id", "output", "input", "source",
                 "function", "arguments", "text", "tool_call_id", "citations", "summary"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@st.composite
def malformed(draw: st.DrawFn) -> list[Payload]:
    """Makes calls and results in any order and any format, and values that are not messages."""
    found: list[Payload] = []
    for words in draw(threads.scripts()):
        found += threads.written(words, draw(st.sampled_from(threads.FORMATS)))
    junk = draw(
        st.lists(st.dictionaries(st.sampled_from(["role", "content", "type", "x"]), _JUNK, max_size=3), max_size=4)
    )
    for message in junk:
        found.insert(draw(st.integers(0, len(found))), message)
    sizes = draw(_SIZES)
    return [grown(message, list(sizes)) for message in found]
