"""Room for a summary: summarizers get it, longer summaries are cut, and a view that can fit does fit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategy_runs import COUNTER, FORMS, REFUSED, Payload, attempts_of, elements, run, well_formed

from compaction_store import InvalidInput, Summary, TokenBudget
from compaction_store.compaction.context import planner_of
from compaction_store.errors import NotSmaller
from compaction_store.messages.framing import frame
from compaction_store.strategies import (
    AssistantRuns,
    Ladder,
    Pipeline,
    SlidingWindow,
    SummaryTree,
    compress_context,
    compress_context_async,
)
from compaction_store.summarizers import Request, StateSummary

TEXT = "the order service retries a payment when the gateway answers late and the ledger shows two rows"
WORDS = TEXT.split()


def prose(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count)).capitalize() + "."


def talk(turns: int, most: int, seed: int = 1) -> list[Payload]:
    """A conversation with messages of very different sizes."""
    dice = random.Random(seed)
    made: list[Payload] = [{"role": "system", "content": prose(dice, 40)}]
    for turn in range(turns):
        made.append({"role": "user", "content": prose(dice, dice.randint(3, most))})
        if turn % 3 == 1:
            call = {"id": f"c{turn}", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
            made.append({"role": "assistant", "content": prose(dice, 9), "tool_calls": [call]})
            made.append({"role": "tool", "tool_call_id": f"c{turn}", "content": prose(dice, dice.randint(3, 8 * most))})
        made.append({"role": "assistant", "content": prose(dice, dice.randint(3, most))})
    return made


def endless(_elements: Any) -> str:
    return prose(random.Random(5), 3000)


def every_other_time() -> Callable[[Any], str]:
    asked: list[int] = []

    def summarize(_elements: Any) -> str:
        asked.append(1)
        if len(asked) % 2 == 0:
            raise TimeoutError
        return prose(random.Random(5), 400)

    return summarize


SUMMARIZERS: dict[str, Callable[[], Any]] = {
    "state": StateSummary,
    "endless": lambda: endless,
    "every other time": every_other_time,
    "a fixed text": lambda: lambda _request: prose(random.Random(6), 2000),
    "a block of a provider": lambda: Summary(
        "s", replacement=({"role": "user", "content": prose(random.Random(7), 900)},)
    ),
}


@pytest.mark.parametrize("name", SUMMARIZERS)
@pytest.mark.parametrize("share", [0.03, 0.1, 0.3, 0.8])
def test_what_fits_without_a_summarizer_fits_with_one(name: str, share: float) -> None:
    for seed in range(6):
        messages = talk(12 + 5 * seed, 30 + 40 * seed, seed)
        target = int(COUNTER.messages(messages) * share)
        for keep_recent in (2, 15):
            plain = compress_context(messages, target, reserve=0, keep_recent=keep_recent)
            made = SUMMARIZERS[name]()
            with_one = compress_context(messages, target, reserve=0, keep_recent=keep_recent, client=made)
            assert with_one.token_count <= max(target, plain.token_count)
            assert not REFUSED["chat"](with_one.messages)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), target=st.sampled_from([60, 150, 400, 1500]), keep_recent=st.integers(0, 6))
def test_that_holds_for_any_thread(form: str, data: st.DataObject, target: int, keep_recent: int) -> None:
    messages = data.draw(well_formed(form))
    plain = compress_context(messages, target, reserve=0, keep_recent=keep_recent)
    if plain.token_count <= target:
        made = compress_context(messages, target, reserve=0, keep_recent=keep_recent, client=endless)
        assert made.token_count <= target
        assert not REFUSED[form](made.messages)


def test_a_summarizer_gets_its_room_and_keeps_most_of_it_filled() -> None:
    told: list[int] = []

    def summarize(asked: Sequence[Any]) -> str:
        assert isinstance(asked, Request)
        assert asked.budget is not None
        told.append(asked.budget)
        return COUNTER.cut(prose(random.Random(3), 4000), asked.budget)

    messages = talk(60, 80)
    result = compress_context(messages, 4000, reserve=0, client=summarize)
    assert len(told) == 1
    assert 0.8 * 4000 < result.token_count <= 4000
    assert result.error is None


def test_who_writes_too_much_is_asked_once_for_half_and_then_cut() -> None:
    told: list[int | None] = []

    def summarize(asked: Any) -> str:
        told.append(asked.budget)
        return endless(asked)

    ctx = run(Ladder(summarize, target_tokens=3000, reserve=0), elements(talk(60, 60)))
    assert [a.outcome for a in attempts_of(ctx)[:2]] == ["rejected", "applied"]
    assert told[0] is not None
    assert told[1] is not None
    assert told[1] < 0.6 * told[0]
    cut = attempts_of(ctx)[1]
    assert cut.summary is not None
    assert cut.summary.coverage is not None
    assert cut.summary.coverage["cut_to_tokens"] > 0
    assert "[shortened]" in cut.summary.text
    assert ctx.total_tokens <= 3000


def test_parts_share_the_room() -> None:
    told: list[int] = []

    def summarize(asked: Any) -> str:
        told.append(asked.budget)
        return COUNTER.cut(prose(random.Random(3), 900), asked.budget)

    ctx = run(Ladder(summarize, target_tokens=4000, reserve=0, part_chars=9000), elements(talk(60, 80)))
    assert len(told) > 3
    assert sum(told) < 4000
    assert [a.outcome for a in attempts_of(ctx) if a.summary is not None] == ["applied"]
    assert ctx.total_tokens <= 4000


def test_an_async_summarizer_gets_its_room_too() -> None:
    told: list[int] = []

    async def summarize(asked: Any) -> str:
        await asyncio.sleep(0)
        told.append(asked.budget)
        return endless(asked)

    messages = talk(40, 60)
    result = asyncio.run(compress_context_async(messages, 2000, reserve=0, client=summarize))
    assert len(told) == 2
    assert result.token_count <= 2000
    assert result.messages_summarized


def test_a_summary_that_leaves_no_room_is_withdrawn_and_stays_on_record() -> None:
    """A provider's block cannot be cut; it is smaller than its span, and still too large."""
    messages = talk(30, 60)
    block = Summary("s", model="m", replacement=({"role": "user", "content": prose(random.Random(7), 900)},))
    ctx = run(Ladder(block, target_tokens=900, reserve=0, keep_recent=3), elements(messages))
    assert ctx.total_tokens <= 900
    [withdrawn] = [attempt for attempt in attempts_of(ctx) if attempt.kind == "summary"]
    assert withdrawn.outcome == "rejected"
    assert withdrawn.summary is not None
    assert (withdrawn.summary.model, withdrawn.summary.text) == ("m", "")
    assert withdrawn.error == {
        "type": "NotSmaller", "text": "the view fits the limit only without the summary", "no_progress": True
    }  # fmt: skip
    assert not withdrawn.replacement


def test_summaries_of_another_callback_are_cut_where_nothing_else_is_left() -> None:
    """A sliding window folds all there is into a long summary; the ladder after it makes the view fit."""
    view = elements(talk(40, 60))
    budget = TokenBudget(context_window=1400, trigger=0.9, target=0.3)

    def long(_elements: Any) -> str:
        return prose(random.Random(2), 1500)

    ctx = run(Pipeline(SlidingWindow(long, retain=2), Ladder()), view, budget=budget)
    assert ctx.total_tokens <= 1400
    assert any(a.reason is not None and "2 summaries joined in" in a.reason for a in attempts_of(ctx))


def test_earlier_summaries_are_joined_before_recent_messages_are_removed() -> None:
    view = elements([{"role": "user", "content": prose(random.Random(n), 60)} for n in range(20)])
    notes = [f"[{n}] user: " + prose(random.Random(n), 150) for n in range(6)]
    for n, text in enumerate(notes, 1):
        message = frame(text, n + 1, n + 1)
        view[n] = view[n]._replace(
            messages=(message,), tokens=COUNTER.messages([message]), kind="summary", number=n, callback="x"
        )
    ctx = run(Ladder(target_tokens=1600, reserve=0, keep_recent=13), view)
    assert ctx.total_tokens <= 1600
    [made] = attempts_of(ctx)
    assert (made.kind, made.start_seq, made.end_seq, made.inputs) == ("summary", 2, 7, (1, 2, 3, 4, 5, 6))
    assert made.reason is not None
    assert made.reason.startswith("6 summaries joined in ")
    text = made.summary.text if made.summary else ""
    assert all(note[:12] in text for note in notes)


@pytest.mark.parametrize("kind", [AssistantRuns, SlidingWindow, SummaryTree, Ladder])
def test_a_summary_that_saves_too_little_is_refused(kind: Any) -> None:
    def nearly_all(asked: Any) -> str:
        return COUNTER.cut(endless(asked), asked.tokens * 93 // 100 - 60)

    messages = [
        {"role": "user", "content": "Go on."},
        *({"role": "assistant", "content": prose(random.Random(n), 90)} for n in range(30)),
        {"role": "user", "content": "And now?"},
    ]
    options: dict[str, Any] = {"leaf_tokens": 2000, "keep_recent": 1} if kind is SummaryTree else {}
    if kind is Ladder:
        options = {"target_tokens": 2700, "reserve": 0, "keep_recent": 1}
    ctx = run(kind(nearly_all, **options), elements(messages))
    assert [a.outcome for a in attempts_of(ctx)][:1] == ["rejected"]
    error = attempts_of(ctx)[0].error
    assert error is not None
    assert error["type"] == NotSmaller.__name__
    assert "the summary must have at most" in error["text"]
    anything = run(kind(nearly_all, min_saving=1, **options), elements(messages))
    assert attempts_of(anything)[0].outcome == "applied"
    for bad in (-1, 1.0, "a", None, True):
        with pytest.raises(InvalidInput, match="min_saving must be"):
            kind(nearly_all, min_saving=bad)


def test_what_is_too_small_to_save_enough_is_not_asked_for() -> None:
    def never(_elements: Any) -> str:
        raise AssertionError

    small = [{"role": "user", "content": "Hi."}, *({"role": "assistant", "content": "Well well."} for _ in range(5))]
    ctx = run(SlidingWindow(never), elements(small))
    assert not attempts_of(ctx)
    assert "would save too little" in (planner_of(ctx).idle_reason or "")


@pytest.mark.parametrize("kind", [AssistantRuns, SlidingWindow, Ladder])
def test_the_role_of_a_summary_is_the_users_unless_somebody_insists(kind: Any) -> None:
    messages = [
        {"role": "user", "content": "Go on."},
        *({"role": "assistant", "content": prose(random.Random(n), 90)} for n in range(30)),
        {"role": "user", "content": "And now?"},
    ]
    options: dict[str, Any] = {"target_tokens": 2000, "reserve": 0, "keep_recent": 1} if kind is Ladder else {}
    for role in ("user", "assistant"):
        ctx = run(kind(StateSummary(), role=role, **options), elements(messages))
        assert [element.role for element in ctx.elements if element.is_summary] == [role]
    with pytest.raises(InvalidInput, match="role must be 'user' or 'assistant', not 'system'"):
        kind(StateSummary(), role="system")
