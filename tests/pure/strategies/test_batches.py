"""Results are cleared in batches, so that the prompt cache is not broken for every one of them."""

from __future__ import annotations

from typing import Any

import pytest
from support.strategy_runs import COUNTER, Payload, attempts_of, committed, elements, run

from compaction_store import InvalidInput, TokenBudget
from compaction_store.strategies import ClearToolResults, plan_clear_tool_results

SAID = "seen on the page " * 60


def turn(place: int, said: str = SAID) -> list[Payload]:
    call = {"id": f"c{place}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{place}", "content": said},
    ]


def agent(turns: int) -> list[Payload]:
    return [{"role": "user", "content": "Look. " * 200}, *(m for n in range(turns) for m in turn(n))]


def breaks(strategy: Any) -> int:
    """Returns how often the beginning of the request changes in a loop that runs the strategy before each turn."""
    view = elements(agent(1))
    found = 0
    for place in range(1, 40):
        before = [message for element in view for message in element.messages]
        more = elements(turn(place))
        seq = view[-1].end_seq
        view += [e._replace(seq=seq + n, end_seq=seq + n) for n, e in enumerate(more, 1)]
        view = committed(run(strategy, view))
        found += [message for element in view for message in element.messages][: len(before)] != before
    return found


def test_a_batch_breaks_the_cache_once_where_single_results_do_so_every_turn() -> None:
    assert breaks(ClearToolResults(keep=3, clear_at_least=0)) >= 35
    assert breaks(ClearToolResults(keep=3)) <= 20
    assert breaks(ClearToolResults(keep=3, clear_at_least=2000)) <= 5


def test_nothing_is_cleared_before_it_saves_enough() -> None:
    messages = agent(8)
    saved = COUNTER.messages(messages) - run(ClearToolResults(clear_at_least=0), elements(messages)).total_tokens
    assert attempts_of(run(ClearToolResults(clear_at_least=saved), elements(messages)))
    assert not attempts_of(run(ClearToolResults(clear_at_least=saved + 1), elements(messages)))
    assert plan_clear_tool_results(messages, clear_at_least=saved)
    assert plan_clear_tool_results(messages, clear_at_least=saved + 1) == []


def test_what_meets_the_target_of_the_budget_is_enough() -> None:
    messages = agent(8)
    total = COUNTER.messages(messages)
    strategy = ClearToolResults(clear_at_least=0.9)
    assert not attempts_of(run(strategy, elements(messages)))
    tight = TokenBudget(context_window=total, trigger=total - 1, target=total - 300)
    assert run(strategy, elements(messages), budget=tight).total_tokens <= total - 300
    tighter = TokenBudget(context_window=total, trigger=total - 1, target=300)
    assert not attempts_of(run(strategy, elements(messages), budget=tighter))


def test_results_that_nobody_has_read_stay() -> None:
    calls = [{"id": f"p{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in range(6)]
    results = [{"role": "tool", "tool_call_id": f"p{n}", "content": SAID} for n in range(6)]
    messages = [*agent(4), {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    spans = [(change.start_seq, change.end_seq) for change in plan_clear_tool_results(messages, keep=1)]
    assert spans == [(3, 3), (5, 5), (7, 7), (9, 9)]
    # With keep=0, unread results are cleared too.
    assert plan_clear_tool_results(messages, keep=0)[-1].end_seq == len(messages)


@pytest.mark.parametrize("bad", [-1, 1.0, 2.5, "x", None, True])
def test_what_a_batch_must_save_is_tokens_or_a_share(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="clear_at_least must be"):
        ClearToolResults(clear_at_least=bad)
