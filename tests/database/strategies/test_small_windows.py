"""Small windows: nothing is cut before a model has read it, and there are not too many records."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faces import Face
from support.strategy_runs import COUNTER, Payload, attempts_of, committed, elements, run

from compaction_store import Summary, TokenBudget
from compaction_store.models import Element
from compaction_store.strategies import AssistantRuns, ClearToolResults, Ladder, Pipeline, SlidingWindow, SummaryTree
from compaction_store.strategies.outline import unread
from compaction_store.summarizers import StateSummary

TEXT = "the order service retries a payment when the gateway answers late and the ledger shows two rows"
SMALL = TokenBudget(context_window=3000, reserve_output=300)


def prose(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(TEXT.split(), k=count)).capitalize() + "."


def stack() -> tuple[Any, ...]:
    """Returns the strategies that docs/how-to/budgets.md recommends."""
    return ClearToolResults(keep=3), Ladder(StateSummary(), keep_recent=12)


def appended(view: list[Element], *messages: Payload) -> None:
    seq = view[-1].end_seq if view else 0
    for place, element in enumerate(elements(messages), 1):
        view.append(element._replace(seq=seq + place, end_seq=seq + place))


def fitted(view: list[Element], budget: TokenBudget, *callbacks: Any) -> tuple[list[Element], int]:
    """Returns the view after one run, and the number of its records."""
    if not budget.is_over(sum(element.tokens for element in view)):
        return view, 0
    ctx = run(Pipeline(*callbacks), view, budget=budget)
    return committed(ctx), len(attempts_of(ctx))


def calls(place: int, count: int, size: int, dice: random.Random) -> list[Payload]:
    """Returns a turn of the assistant with calls of tools, and their results."""
    ids = [f"c{place}-{n}" for n in range(count)]
    called = [{"id": i, "type": "function", "function": {"name": "read", "arguments": "{}"}} for i in ids]
    made: list[Payload] = [{"role": "assistant", "content": prose(dice, 20), "tool_calls": called}]
    return made + [{"role": "tool", "tool_call_id": i, "content": prose(dice, size)} for i in ids]


def agent(budget: TokenBudget, turns: int, count: int, size: int, *callbacks: Any) -> list[int]:
    """Runs an agent's loop. Returns the seqs of results that were not whole when the model first saw them."""
    dice = random.Random(2)
    view: list[Element] = []
    spoilt: list[int] = []
    appended(view, {"role": "user", "content": prose(dice, 40)})
    for turn in range(turns):
        appended(view, *calls(turn, count, size, dice))
        view, _ = fitted(view, budget, *callbacks)
        assert budget.fits(sum(element.tokens for element in view))
        spoilt += [view[index].seq for index in unread(view) if view[index].kind is not None]
    return spoilt


def test_results_are_whole_when_the_model_first_reads_them() -> None:
    for callbacks in (stack(), (ClearToolResults(keep=3), SlidingWindow(StateSummary(), retain=12), Ladder())):
        assert agent(TokenBudget(context_window=36_000), 40, 1, 7500, *callbacks) == []
        assert agent(TokenBudget(context_window=36_000), 20, 3, 7500, *callbacks) == []
        assert agent(SMALL, 40, 2, 400, *callbacks) == []
        # More results at once than are kept.
        assert agent(SMALL, 20, 5, 60, *callbacks) == []


@pytest.mark.parametrize("made", [
    SlidingWindow, lambda s: AssistantRuns(s, tool_results=True),
    lambda s: SummaryTree(s, leaf_tokens=600, keep_recent=0),
])  # fmt: skip
def test_no_strategy_folds_what_no_model_has_read(made: Any) -> None:
    dice = random.Random(4)
    messages = [{"role": "user", "content": prose(dice, 40)}, *(m for n in range(12) for m in calls(n, 2, 150, dice))]
    view = elements(messages)
    budget = TokenBudget(context_window=5000)
    ctx = run(made(StateSummary()), view, budget=budget)
    after = committed(ctx)
    assert any(element.is_summary for element in after)
    assert [element.messages for element in after[-2:]] == [element.messages for element in view[-2:]]
    assert after[-3].messages == view[-3].messages


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(5, 500)), min_size=1, max_size=25),
    seed=st.integers(0, 99),
    window=st.sampled_from([3000, 6000, 20_000]),
)
def test_that_holds_for_any_agents_thread(sizes: list[tuple[int, int]], seed: int, window: int) -> None:
    dice = random.Random(seed)
    budget = TokenBudget(context_window=window)
    ways = [
        stack(), (ClearToolResults(), SlidingWindow(StateSummary(), retain=2)),
        (AssistantRuns(StateSummary(), tool_results=True), Ladder()), (SlidingWindow(StateSummary()),),
    ]  # fmt: skip
    for callbacks in ways:
        view: list[Element] = []
        appended(view, {"role": "user", "content": prose(dice, 40)})
        for place, (count, size) in enumerate(sizes):
            appended(view, *calls(place, count, size, dice))
            new = [view[index] for index in unread(view)]
            view, _ = fitted(view, budget, *callbacks)
            spoilt = [one for one in new if one.messages not in [element.messages for element in view[-count:]]]
            # Otherwise the view would not fit with them.
            assert not spoilt or sum(one.tokens for one in new) > budget.limit // 2


@settings(max_examples=40, deadline=None)
@given(low=st.integers(5, 60), more=st.integers(10, 150), seed=st.integers(0, 99))
def test_every_record_of_a_chat_pays(low: int, more: int, seed: int) -> None:
    dice = random.Random(seed)
    view: list[Element] = []
    records: list[Any] = []
    for _ in range(60):
        for role in ("user", "assistant"):
            appended(view, {"role": role, "content": prose(dice, dice.randint(low, low + more))})
            if SMALL.is_over(sum(element.tokens for element in view)):
                ctx = run(Pipeline(*stack()), view, budget=SMALL)
                records += attempts_of(ctx)
                view = committed(ctx)
    assert len(records) <= 120 / 8
    # Whatever was paid for is in the view, and saves a tenth of its span.
    assert {record.outcome for record in records} <= {"applied"}
    assert [r for r in records if r.kind == "summary" and (r.tokens_after or 0) > 0.9 * (r.tokens_before or 0)] == []


def test_results_that_would_not_fit_are_cut_and_nothing_more_than_that() -> None:
    dice = random.Random(3)
    messages = [{"role": "user", "content": prose(dice, 40)}, *calls(1, 3, 2500, dice)]
    ctx = run(Ladder(), elements(messages), budget=TokenBudget(context_window=6000))
    assert 4000 < ctx.total_tokens <= 6000
    assert {attempt.kind for attempt in attempts_of(ctx)} == {"truncation"}
    assert len(ctx.result_messages) == len(messages)


def test_results_that_were_read_are_cut_as_ever() -> None:
    dice = random.Random(3)
    messages = [{"role": "user", "content": "Go."}, *calls(1, 3, 2500, dice), {"role": "assistant", "content": "So."}]
    ctx = run(Ladder(), elements(messages), budget=TokenBudget(context_window=6000))
    assert ctx.total_tokens <= 3000


def test_a_long_chat_in_a_small_window_leaves_few_records() -> None:
    for low, high in ((20, 60), (50, 120), (5, 180)):
        dice = random.Random(1)
        view: list[Element] = []
        records = 0
        appended(view, {"role": "system", "content": prose(dice, 30)})
        for _ in range(120):
            for role in ("user", "assistant"):
                appended(view, {"role": role, "content": prose(dice, dice.randint(low, high))})
                view, more = fitted(view, SMALL, *stack())
                records += more
        assert records <= 240 / 8
        # Everything that is gone is in summaries: nothing was removed.
        assert {element.kind for element in view} == {None, "summary"}
        assert sum(element.tokens for element in view) <= SMALL.trigger_tokens


ALONE: dict[str, Any] = {
    "ladder": lambda: Ladder(keep_recent=6),
    "ladder that keeps more than fits": Ladder,
    "ladder with summaries": lambda: Ladder(StateSummary(), keep_recent=6),
    "window": lambda: SlidingWindow(StateSummary(), retain=6),
    "window without a summarizer": lambda: SlidingWindow(Summary("Earlier messages are left out."), retain=6),
    "cleared, then a window": lambda: Pipeline(ClearToolResults(), SlidingWindow(StateSummary(), retain=6)),
    "cleared, then a ladder": lambda: Pipeline(ClearToolResults(), Ladder(keep_recent=6)),
}

REMOVING = {"ladder", "ladder that keeps more than fits", "cleared, then a ladder"}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("words", [(20, 60), (50, 120)])
def test_each_strategy_alone_holds_a_long_chat_with_few_records(name: str, words: tuple[int, int]) -> None:
    dice = random.Random(7)
    budget = TokenBudget(context_window=3000)
    view: list[Element] = []
    records: list[Any] = []
    for turn in range(80):
        for role in ("user", "assistant"):
            appended(
                view, {"role": role, "content": f"Parcel PRC-{turn % 9 + 1000}. " + prose(dice, dice.randint(*words))}
            )
            if role == "user" and budget.is_over(sum(element.tokens for element in view)):
                ctx = run(Pipeline(ALONE[name]()), view, budget=budget)
                records += attempts_of(ctx)
                view = committed(ctx)
                # Without a summarizer, a ladder removes nothing while the view fits.
                most = budget.limit if name in REMOVING else budget.trigger_tokens
                assert sum(element.tokens for element in view) <= most
    assert len(records) <= 160 / 8
    # No summary was paid for and dropped, and every record saves a tenth of its span.
    assert {record.outcome for record in records} == {"applied"}
    assert [r for r in records if (r.tokens_after or 0) > 0.9 * (r.tokens_before or 0)] == []


def test_the_summaries_of_a_window_are_summarized_again_before_they_fill_it() -> None:
    dice = random.Random(8)
    budget = TokenBudget(context_window=3000)
    view: list[Element] = []
    appended(view, {"role": "user", "content": "Begin."})
    inputs: list[tuple[int, ...]] = []
    for _ in range(120):
        for role in ("assistant", "user"):
            appended(view, {"role": role, "content": prose(dice, 60)})
        if budget.is_over(sum(element.tokens for element in view)):
            ctx = run(Pipeline(SlidingWindow(StateSummary(), retain=4)), view, budget=budget)
            inputs += [attempt.inputs for attempt in attempts_of(ctx)]
            view = committed(ctx)
        own = sum(element.tokens for element in view if element.is_summary)
        assert own <= budget.trigger_tokens // 2
    # Each stays for a while: a prompt cache ends where a summary is replaced.
    assert inputs[:2] == [(), ()]
    assert any(inputs)


def test_small_cuts_are_made_before_a_summary_is_removed() -> None:
    dice = random.Random(9)
    view = elements([{"role": "user", "content": prose(dice, 120)} for _ in range(4)])
    view[1:2] = [view[1]._replace(kind="summary", number=1, callback="test")]
    size = sum(element.tokens for element in view)
    # Only the two ends and the last but one could be cut, each by less than the least cut.
    budget = TokenBudget(context_window=size - 20, trigger=0.9, target=0.8)
    ctx = run(Ladder(keep_recent=4), view, budget=budget)
    assert ctx.total_tokens <= budget.limit
    assert any(element.is_summary for element in ctx.elements)


def test_what_other_callbacks_have_done_well_enough_is_left() -> None:
    view = elements([{"role": "user", "content": prose(random.Random(n), 60)} for n in range(60)])
    budget = TokenBudget(context_window=4000, trigger=0.8, target=0.4)

    def folds(ctx: Any) -> None:
        # This leaves 2,200 tokens, less than halfway between 3,200 and 1,600.
        ctx.compact(2, 40, "Said and done. " + prose(random.Random(4), 600))

    ctx = run(Pipeline(folds, Ladder()), view, budget=budget)
    assert 1600 < ctx.total_tokens < 2400
    assert [attempt.callback.split("(")[0].rsplit(".", 1)[-1] for attempt in attempts_of(ctx)] == ["folds"]


def test_it_is_so_in_a_store(store: Face) -> None:
    dice = random.Random(5)
    store.append("t", {"role": "user", "content": prose(dice, 40)})
    for callback in stack():
        store.on_compact(callback)
    for turn in range(12):
        store.append("t", calls(turn, 2, 400, dice))
        view = store.fit("t", SMALL)
        assert view.tokens <= SMALL.limit
        newest = view.elements[-2:]
        assert [element.kind for element in newest] == [None, None]
        assert all(COUNTER.messages(element.messages) > 400 for element in newest)
    assert store.audit.verify("t").findings == ()
