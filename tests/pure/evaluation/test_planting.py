"""Planted sentences: found where they were kept, missed where they were not, and the same for the same seed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compaction_store import TokenBudget
from compaction_store.errors import InvalidInput
from compaction_store.evaluation import RECORDED, Policy, evaluate
from compaction_store.evaluation.evaluator import plant

from .test_results import COUNTER, thread

THREAD = thread(*[100] * 40)
KINDS = ("rule", "constraint", "fact", "goal", "preference")
BUDGET = TokenBudget(100_000, trigger=2500, target=500)


def whole(ctx: Any) -> None:
    """Replaces the first half by a summary that repeats it word for word."""
    if ctx.elements[0].number is None:
        half = ctx.elements[: len(ctx.elements) // 2]
        ctx.compact(1, half[-1].end_seq, "\n".join(str(m["content"]) for e in half for m in e.messages))


def nothing(ctx: Any) -> None:
    """Replaces the first half by a summary that has nothing of it."""
    if ctx.elements[0].number is None:
        ctx.compact(1, ctx.elements[: len(ctx.elements) // 2][-1].end_seq, "They talked.")


def test_the_same_seed_plants_the_same_at_the_ends_of_users_messages() -> None:
    first, again, other = (plant(THREAD, 10, seed=seed, counter=COUNTER) for seed in (1, 1, 2))
    assert first.messages == again.messages
    assert first.messages != other.messages
    assert sorted({one.kind for planted in first.planted.values() for one in planted}) == sorted(KINDS)
    assert sum(map(len, first.planted.values())) == 10
    for seq, planted in first.planted.items():
        before, message = THREAD.messages[seq - 1], first.messages[seq - 1]
        assert message.payload is not None
        assert before.payload is not None
        assert message.role == "user"
        assert message.payload["content"].startswith(before.payload["content"])
        assert message.tokens == COUNTER.messages([message.payload])
        assert all(one.text in message.payload["content"] for one in planted)
        assert all(phrase in one.text.lower() or phrase in one.text for one in planted for phrase in one.wanted)


def test_each_kind_is_kept_by_a_summary_that_has_it_and_lost_by_one_that_has_not() -> None:
    policies = [Policy("whole", (whole,), BUDGET), Policy("nothing", (nothing,), BUDGET)]
    found = evaluate([THREAD], policies, counter=COUNTER, plant=20)
    kept, lost = found.policies
    for kind in KINDS:
        name: Any = f"planted_{kind}"
        assert kept.rates[name].asked == lost.rates[name].asked > 0
        assert kept.rates[name].share == 1
        assert lost.rates[name].share == 0
    assert found.planted == 20
    assert THREAD.planted == {}


def test_what_was_recorded_saw_nothing_planted() -> None:
    with pytest.raises(InvalidInput, match="must not have 'recorded' with plant"):
        evaluate([THREAD], [RECORDED], counter=COUNTER, plant=5)
    with pytest.raises(InvalidInput, match="plant must be"):
        evaluate([THREAD], [Policy("nothing", (nothing,), BUDGET)], counter=COUNTER, plant=-1)


def test_a_thread_without_a_users_text_stays_as_it_is() -> None:
    silent = thread(5)
    assert plant(silent, 5, seed=0, counter=COUNTER) is silent


def test_the_document_for_an_event_quotes_nothing() -> None:
    found = evaluate([THREAD], [Policy("nothing", (nothing,), BUDGET)], counter=COUNTER, plant=5)
    [(name, document)] = found.documents()
    assert name == "t"
    assert len(document["inputs"]) == len(document["report"]) == 64
    assert document["kept"]["nothing"]["planted_rule"][0] > 0
    assert "word" not in json.dumps(document)
    again = evaluate([THREAD], [Policy("nothing", (nothing,), BUDGET)], counter=COUNTER, plant=5)
    assert list(again.documents()) == [(name, document)]
    other = evaluate([thread(*[100] * 41)], [Policy("nothing", (nothing,), BUDGET)], counter=COUNTER, plant=5)
    assert next(other.documents())[1]["inputs"] != document["inputs"]
