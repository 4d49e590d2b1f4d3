"""An option of a strategy is written once, as a field: its check, its place in the name and in the signature follow."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from compaction_store import InvalidInput, Summary
from compaction_store.checks import KeepsOrders
from compaction_store.strategies import (
    AssistantRuns,
    ClearToolResults,
    Ladder,
    SlidingWindow,
    SummaryTree,
    base,
    over,
    pin,
    plan_assistant_runs,
    plan_sliding_window,
)

S = Summary("Notes.")


@dataclass(frozen=True, eq=False, repr=False)
class Later(SlidingWindow):
    """A sliding window with an option that a later release may bring."""

    patience: int = base.option(5, keep=base.a_count(1))


def test_a_new_option_is_checked_named_and_found_by_the_command_line() -> None:
    assert repr(Later(S)) == "Later()"
    later = Later(S, patience=7, retain=4, min_saving=3, pin=2)
    assert later.name == "Later(retain=4, patience=7, pin=2, min_saving=3)"
    assert "patience" in inspect.signature(Later).parameters
    with pytest.raises(InvalidInput, match="patience must be an integer >= 1, not 0"):
        Later(S, patience=0)
    # A copy with more pins keeps it.
    assert repr(pin(later, (5, 6))) == "Later(retain=4, patience=7, pin=2, 5-6, min_saving=3)"


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: SlidingWindow(S), "SlidingWindow()"),
        (
            lambda: SlidingWindow(S, threshold=9, checks=[KeepsOrders()]),
            "SlidingWindow(threshold=over(tokens=9), checks=(KeepsOrders(),))",
        ),
        (
            lambda: AssistantRuns(S, when=over(turns=3), role="assistant"),
            "AssistantRuns(when=over(turns=3), role='assistant')",
        ),
        (Ladder, "Ladder()"),
        (lambda: Ladder(S, keep_recent=3, min_saving=0.2), "Ladder(summarize=Summary, keep_recent=3, min_saving=0.2)"),
        (lambda: SummaryTree(S), "SummaryTree"),
        (lambda: SummaryTree(S, 100, role="assistant"), "SummaryTree(leaf_tokens=100, role='assistant')"),
        (lambda: ClearToolResults(exclude=["b", "a"]), "ClearToolResults(exclude=['a', 'b'])"),
        (lambda: ClearToolResults(exclude="a", clear_at_least=5), "ClearToolResults(exclude=['a'], clear_at_least=5)"),
    ],
)
def test_the_names_have_what_is_not_the_default(made: Any, name: str) -> None:
    assert made().name == repr(made()) == name


@pytest.mark.parametrize("strategy", [SlidingWindow(S), AssistantRuns(S), Ladder(), SummaryTree(S), ClearToolResults()])
def test_a_strategy_cannot_be_changed(strategy: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        strategy.pin = 3
    assert len({strategy, strategy}) == 1


@pytest.mark.parametrize("made", [SlidingWindow, AssistantRuns, SummaryTree, Ladder])
@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("min_saving", 1.0),
        ("min_saving", -1),
        ("role", "system"),
        ("checks", "x"),
        ("checks", [1]),
        ("pin", 0),
        ("pin", "x"),
    ],
)
def test_a_wrong_value_is_refused_when_the_strategy_is_made(made: Any, option: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        made(S, **{option: wrong})


def test_a_switch_is_no_number() -> None:
    for made, option in (
        (SlidingWindow, "keep_first"), (SlidingWindow, "before_reply"), (AssistantRuns, "first_only"),
        (AssistantRuns, "tool_results"), (Ladder, "truncate_tool_arguments"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=f"{option} must be True or False"):
            made(S, **{option: 1})  # type: ignore[arg-type]


def test_the_planners_for_lists_take_the_options_of_their_strategy() -> None:
    messages = [{"role": role, "content": "word " * 9} for _ in range(4) for role in ("user", "assistant", "assistant")]
    assert plan_assistant_runs(messages, first_only=True) == plan_assistant_runs(messages)[:1]
    assert plan_sliding_window(messages, retain=3) != plan_sliding_window(messages)
    for plan in (plan_assistant_runs, plan_sliding_window):
        with pytest.raises(TypeError, match="unknown"):
            plan(messages, unknown=1)
