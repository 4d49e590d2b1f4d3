"""A judge's answers, its agreement with people, and that its verdicts are in no other figure."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from compaction_store import TokenBudget, tokens
from compaction_store.audit.facts import agreement
from compaction_store.errors import InvalidInput, SummarizerError
from compaction_store.evaluation import RECORDED, Evaluation, Judge, Policy, evaluate
from compaction_store.evaluation.judge import JudgeVerdict, labels_of
from compaction_store.summarizers import AnthropicSummarizer

from .test_results import COUNTER, thread

THREAD = thread(100, 100, 100, 100, 100, 5)


def fold(ctx: Any) -> None:
    """Summarizes the first two messages."""
    if ctx.elements[0].number is None:
        ctx.compact(1, 2, "NOTES: word 1, word 2")


POLICY = Policy("fold", (fold,), TokenBudget(1000, trigger=250, target=100))


def judged_with(ask: Any, replicates: int = 3) -> Evaluation:
    judge = Judge(ask, model="judge-1", replicates=replicates)
    return evaluate([THREAD], [POLICY], counter=COUNTER, judge=judge)


def test_a_summary_is_judged_as_often_as_asked_by_its_source_and_text() -> None:
    asked: list[tuple[str, str]] = []

    def ask(prompt: str, document: str) -> str:
        asked.append((prompt, document))
        return ("Yes.", "no", "**YES**")[len(asked) - 1]

    judged = judged_with(ask).policies[0].judged
    assert judged is not None
    assert (judged.asked, judged.good, judged.split, judged.undecided, judged.failed) == (1, 1, 1, 0, 0)
    assert (judged.model, judged.replicates, judged.agreement) == ("judge-1", 3, None)
    assert len({document for _, document in asked}) == 1
    document = json.loads(asked[0][1])
    assert "word 1" in json.dumps(document["source"])
    assert "word 3" not in json.dumps(document["source"])
    assert "NOTES: word 1, word 2" in document["notes"]


def test_answers_that_are_neither_and_calls_that_fail_are_counted() -> None:
    answers = iter(["I cannot say", None, "no"])

    def ask(_prompt: str, _document: str) -> str:
        answer = next(answers)
        if answer is None:
            raise SummarizerError("no answer")
        return answer

    [run] = judged_with(ask).policies[0].runs
    assert run.verdicts == {1: JudgeVerdict(yes=0, no=1, unclear=1, failed=1)}
    assert run.verdicts[1].is_good is False
    assert not run.verdicts[1].is_unanimous


def test_verdicts_are_in_no_other_figure() -> None:
    good, bad = (judged_with(lambda _p, _d, say=say: say).as_dict()["policies"][0] for say in ("yes", "no"))
    assert good.pop("judge")["good"] == 1
    assert bad.pop("judge")["good"] == 0
    assert good == bad == evaluate([THREAD], [POLICY], counter=COUNTER).as_dict()["policies"][0]


def test_agreement_is_that_of_cohen() -> None:
    """20 yes of both, 15 no of both, 5 and 10 apart: kappa 0.4, a textbook's example."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert agreement(pairs) == (50, 35, 0.4)
    assert agreement([]) == (0, 0, None)
    assert agreement([(True, True)] * 3) == (3, 3, None)


def test_the_newest_verdict_of_people_counts_and_one_that_is_unsure_takes_it_back() -> None:
    said = [(1, "good"), (2, "bad"), (1, "bad"), (2, "unsure"), (3, "good"), ("x", "good")]
    events = [SimpleNamespace(kind="verdict", body={"number": n, "verdict": v}) for n, v in said]
    events.append(SimpleNamespace(kind="hold", body={"number": 4, "verdict": "good"}))
    assert labels_of(events) == {1: False, 3: True}


def test_a_judge_that_cannot_be_asked_is_refused() -> None:
    given: Any = "model"
    with pytest.raises(InvalidInput, match="ask must be a callable"):
        Judge(given)

    async def later(_prompt: str, _document: str) -> str:
        return "yes"

    awaited: list[Any] = [later, AnthropicSummarizer(AsyncAnthropic(api_key="k"), model="m").answer]
    for ask in awaited:
        with pytest.raises(InvalidInput, match="ask must not be async"):
            Judge(ask)
    with pytest.raises(InvalidInput, match="replicates must be"):
        Judge(lambda _p, _d: "yes", replicates=0)


def test_replicates_are_shown_with_their_spread() -> None:
    runs = iter(range(3))

    def write(ctx: Any) -> None:
        half = ctx.elements[: len(ctx.elements) // 2]
        if half[0].number is None:
            said = "\n".join(str(message["content"]) for element in half for message in element.messages)
            ctx.compact(1, half[-1].end_seq, "They talked." if next(runs) == 1 else said)

    policy = Policy("write", (write,), TokenBudget(100_000, trigger=2500, target=500))
    made = thread(*[100] * 40)
    [result] = evaluate([made], [policy], counter=COUNTER, replicates=3, plant=10).policies
    assert (result.replicates, len(result.runs), result.outcomes["applied"]) == (3, 3, 3)
    rate = result.rates["planted_rule"]
    assert rate.kept * 3 == rate.asked * 2 > 0
    assert rate.spread == (0.0, 1.0)
    with pytest.raises(InvalidInput, match="replicates must be"):
        evaluate([THREAD], [policy], counter=tokens.bytes_over_four(), replicates=0)


def test_recorded_compactions_do_not_change_with_replicates() -> None:
    one, three = (
        evaluate([THREAD], [RECORDED], counter=COUNTER, replicates=times).policies[0].as_dict() for times in (1, 3)
    )
    assert three["calls"] == 3 * one["calls"]
    assert three["tokens_per_call"] == one["tokens_per_call"]
