"""Pipelines of strategies, and strategies with pins."""

from __future__ import annotations

from typing import Any

import pytest
from support.faces import Face, Faces
from support.thread_patterns import chat

from compaction_store import CompactionContext, InvalidInput, Summary, TokenBudget
from compaction_store.compaction.asks import Steps
from compaction_store.errors import PinnedInside
from compaction_store.models.compactions import status_in_words
from compaction_store.strategies import Ask, AssistantRuns, Pipeline, SlidingWindow, over, pin

LONG = "Message {} " + "which goes on for quite some time " * 20


class Plain:
    """A strategy that knows nothing of pins: asks for one span after the other, and notes the results."""

    name = "Plain"

    def __init__(self, *asks: Ask) -> None:
        self.asks = asks
        self.told: list[str] = []

    def steps(self, ctx: CompactionContext) -> Steps:  # noqa: ARG002 — it knows beforehand
        for ask in self.asks:
            error = yield ask
            self.told.append("done" if error is None else type(error).__name__)


def spans(run: Any) -> list[tuple[str, int, int]]:
    return [(record.callback, record.start_seq, record.end_seq) for record in run if record.outcome == "applied"]


def test_each_works_on_what_the_ones_before_it_planned(store: Face, faces: Faces) -> None:
    messages = chat("suaaua" + "trua" * 4, LONG)
    store.append("t", messages)

    async def summarize_async(elements: Any) -> str:
        return f"{len(elements)} elements"

    window: Any = Summary("a window") if faces.kind == "sync" else summarize_async
    pipeline = Pipeline(AssistantRuns(Summary("a run")), SlidingWindow(window, retain=4))
    run = store.compact("t", pipeline)
    assert spans(run) == [("AssistantRuns()", 3, 4), ("SlidingWindow(retain=4)", 3, 18)]
    assert [status_in_words(record) for record in run] == ["superseded by 2", "active"]
    assert run[1].inputs == (1,)
    assert [message.payload for message in store.replay("t")] == messages
    assert store.compact("t", pipeline).records == ()
    # The window's own summary stays, whatever comes after it.
    store.append("t", chat("aauaauaau", LONG))
    run = store.compact("t", pipeline)
    assert [callback for callback, _, _ in spans(run)] == ["AssistantRuns()"] * 3 + ["SlidingWindow(retain=4)"]
    assert min(start for _, start, _ in spans(run)) > 18


def test_a_strategy_runs_only_while_the_threshold_is_reached(store: Face) -> None:
    store.append("t", chat("suaaaaaaua", LONG))
    pipeline = Pipeline(AssistantRuns(Summary("short")), SlidingWindow(Summary("short")), when=over(messages=6))
    assert spans(store.compact("t", pipeline)) == [("AssistantRuns()", 3, 8)]
    assert store.compact("t", pipeline).records == ()
    tokens = store.view("t").tokens
    by_budget = Pipeline(AssistantRuns(Summary("short"), min_length=1), when=over(fraction=0.9))
    assert spans(store.compact("t", by_budget, budget=TokenBudget(tokens), force=True))
    assert store.compact("t", by_budget, budget=TokenBudget(10 * tokens), force=True).records == ()


def test_a_failure_in_one_leaves_the_others(store: Face) -> None:
    store.append("t", chat("uaauaauaaau", LONG))

    def fail(_elements: Any) -> str:
        raise OSError("secret")

    run = store.compact(
        "t", Pipeline(AssistantRuns(fail, first_only=True), AssistantRuns(Summary("short"), min_length=3))
    )
    assert [(record.outcome, record.callback) for record in run] == [
        ("failed", "AssistantRuns(first_only=True)"), ("applied", "AssistantRuns(min_length=3)"),
    ]  # fmt: skip


def test_a_plain_callback_may_be_part_of_it(store: Face) -> None:
    store.append("t", chat("uaauaau", LONG))

    def first(ctx: CompactionContext) -> None:
        ctx.compact(2, 3, "by hand")

    run = store.compact("t", Pipeline(first, AssistantRuns(Summary("short"))))
    assert [(record.start_seq, record.summary_text) for record in run] == [(2, "by hand"), (5, "short")]
    assert run[0].callback.endswith("first")
    assert run[1].callback == "AssistantRuns()"


def test_nothing_pinned_is_touched_by_a_strategy_that_knows_of_pins(store: Face) -> None:
    store.append("t", chat("suaaaaaauaau", LONG))
    pipeline = Pipeline(
        AssistantRuns(Summary("short")),
        SlidingWindow(Summary("short")),
        pin=[4, lambda message: message["content"].startswith("Message 7 ")],
    )
    run = store.compact("t", pipeline)
    assert all(not start <= pinned <= end for _, start, end in spans(run) for pinned in (4, 7))
    assert [(start, end) for callback, start, end in spans(run) if callback.startswith("AssistantRuns")] == [
        (5, 6), (10, 11),
    ]  # fmt: skip


def test_any_strategy_is_cut_around_what_is_pinned(store: Face) -> None:
    """The cut is never between a call and its result."""
    store.append("t", chat("uaatraau", LONG))
    plain = Plain(Ask(2, 7, "short"))
    run = store.compact("t", pin(plain, 5))
    assert spans(run) == [("pin(Plain, 5)", 2, 3), ("pin(Plain, 5)", 6, 7)]
    assert plain.told == ["done"]


def test_a_span_that_cannot_be_cut_is_refused_and_the_strategy_sees_it(store: Face) -> None:
    messages = chat("uaatraau", LONG)
    store.append("t", messages)
    stand_in = ({"role": "assistant", "content": "short"},)
    plain = Plain(Ask(2, 3, replacement=stand_in), Ask(3, 3, replacement=stand_in), Ask(2, 2), Ask(4, 5), Ask(6, 7))
    run = store.compact("t", pin(plain, (1, 2), lambda message: message.get("role") == "tool"))
    assert plain.told == [PinnedInside.__name__, "done", PinnedInside.__name__, PinnedInside.__name__, "done"]
    assert [(record.kind, record.start_seq, record.end_seq) for record in run] == [
        ("truncation", 3, 3), ("removal", 6, 7),
    ]  # fmt: skip


def test_pins_may_be_many(store: Face) -> None:
    store.append("t", chat("u" + "a" * 30 + "u", LONG))
    run = store.compact("t", pin(AssistantRuns(Summary("short")), (5, 7), 9, (6, 12), *range(20, 25)))
    assert [(start, end) for _, start, end in spans(run)] == [(2, 4), (13, 19), (25, 31)]


@pytest.mark.parametrize("wrong", [0, -3, (5, 2), (1, 2, 3), "message", 1.5])
def test_a_pin_is_a_seq_a_span_or_a_predicate(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="pin"):
        pin(AssistantRuns(Summary("short")), wrong)


def test_a_pipeline_is_of_strategies(store: Face) -> None:
    with pytest.raises(TypeError, match="strategies"):
        Pipeline(3)  # type: ignore[arg-type]
    store.append("t", chat("ua"))
    assert store.compact("t", Pipeline()).records == ()
    assert repr(Pipeline(AssistantRuns(Summary("short")), SlidingWindow(Summary("short"), threshold=9))) == (
        "Pipeline(AssistantRuns(), SlidingWindow(threshold=over(tokens=9)))"
    )
