"""Thresholds are reached at their number, not only above it. They compose, and without a number are never reached."""

from __future__ import annotations

from typing import Any

import pytest
from support.thread_patterns import chat

from compaction_store import InvalidInput, NotConfigured, Summary
from compaction_store.strategies import Measure, SlidingWindow, Threshold, measure, on_turn_end, over, safe_tokens

CASES: list[tuple[str, Threshold, int, list[str]]] = [
    ("", over(tokens=100), 150, ["tokens"]),
    ("", over(tokens=100), 100, ["tokens"]),
    ("", over(tokens=100), 50, []),
    ("", over(), 1000, []),
    ("uauau", over(turns=2), 0, ["turns"]),
    ("uau", over(turns=2), 0, ["turns"]),
    ("uasa", over(turns=2), 0, []),
    ("uaua", over(messages=3), 0, ["messages"]),
    ("uau", over(messages=3), 0, ["messages"]),
    ("ua", over(messages=5), 0, []),
    ("", over(messages=1), 0, []),
    ("ua", over(tokens=200, turns=5, messages=10), 250, ["tokens"]),
    ("ua", over(tokens=200, turns=5, messages=10), 100, []),
    ("ua", over(tokens=200) | over(messages=2), 250, ["tokens", "messages"]),
    ("ua", over(tokens=200) & over(messages=2), 250, ["tokens", "messages"]),
    ("ua", over(tokens=200) & over(messages=3), 250, []),
    ("au", on_turn_end, 10, ["turn_end"]),
    ("ua", on_turn_end, 10, []),
    ("us", on_turn_end, 10, []),
    ("", on_turn_end, 10, []),
    ("utr", on_turn_end, 10, []),
    ("au", over(messages=5) & on_turn_end, 10, []),
    ("au", (over(messages=5) | over(turns=1)) & on_turn_end, 10, ["turns", "turn_end"]),
    ("au", over(messages=2) & (lambda window: window.turns == 1), 10, ["messages", "predicate"]),
    ("au", (lambda window: window.turns == 2) | over(messages=2), 10, ["messages"]),
]


@pytest.mark.parametrize(("pattern", "threshold", "tokens", "fired"), CASES)
def test_what_fires(pattern: str, threshold: Threshold, tokens: int, fired: list[str]) -> None:
    size = measure(chat(pattern), tokens=tokens)
    assert list(threshold.fired(size)) == fired
    assert threshold(size) is bool(fired)


def test_tokens_are_counted_where_they_are_not_given() -> None:
    assert measure(chat("uau")).tokens > measure(chat("u")).tokens > 0


def test_a_message_of_the_user_that_holds_only_results_is_no_turn() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
    only = {"role": "user", "content": [result]}
    beside = {"role": "user", "content": [result, {"type": "text", "text": "and hurry"}]}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    assert measure([only], tokens=0) == Measure(messages=1)
    assert measure([only, beside, image], tokens=0) == Measure(0, 3, 2, ends_with_user=True)


def test_a_fraction_is_of_what_fits_the_model() -> None:
    assert over(fraction=0.7)(Measure(tokens=56_000, limit=80_000))
    assert not over(fraction=0.7)(Measure(tokens=55_999, limit=80_000))
    # The fraction is decimal, as it is written.
    assert over(fraction=0.29)(Measure(tokens=29, limit=100))
    assert not over(fraction=0.29)(Measure(tokens=28, limit=100))
    with pytest.raises(NotConfigured, match="budget"):
        over(fraction=0.7)(Measure(tokens=1))
    # If another part is reached first, the fraction needs no budget.
    assert (over(tokens=1) | over(fraction=0.7))(Measure(tokens=1))


@pytest.mark.parametrize(
    ("tokens", "window", "fraction", "safe"),
    [
        (100_000, 80_000, None, 56_000),
        (60_000, 80_000, None, 56_000),
        (50_000, 80_000, None, 50_000),
        (100_000, 80_000, 0.5, 40_000),
        (None, 128_000, None, 89_600),
        (None, None, None, 89_600),
        (None, 1_000_000, None, 100_000),
        (100_000, None, 1.0, 100_000),
    ],
)
def test_a_safe_number_of_tokens(tokens: int | None, window: int | None, fraction: float | None, safe: int) -> None:
    assert safe_tokens(tokens, context_window=window, fraction=fraction) == safe


@pytest.mark.parametrize(
    "make",
    [
        lambda: over(fraction=1.5),
        lambda: over(fraction=-0.1),
        lambda: over(tokens=-1),
        lambda: over(messages=1.5),  # type: ignore[arg-type]
        lambda: over(turns=True),
        lambda: over(tokens=1) | "much",  # type: ignore[operator]
        lambda: safe_tokens(fraction=7),
        lambda: SlidingWindow(Summary("short"), threshold="much"),  # type: ignore[arg-type]
        lambda: SlidingWindow(Summary("short"), retain=1.5),
        lambda: SlidingWindow(Summary("short"), retain=-1),
        lambda: SlidingWindow(Summary("short"), allow={"much"}),
    ],
)
def test_what_means_nothing_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_a_threshold_tells_what_it_is() -> None:
    def late(_window: Any) -> bool:
        return True

    composed = (over(tokens=5, turns=2) | on_turn_end) & over(fraction=0.5) & late
    name = repr(composed)
    assert name.startswith("((((over(tokens=5) | over(turns=2)) | on_turn_end) & over(fraction=0.5)) & ")
    assert name.endswith("late)")
