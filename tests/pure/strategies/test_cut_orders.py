"""Where a user's message is cut, its standing orders stay, in every format, as long as the view can fit with them."""

from __future__ import annotations

from typing import Any

import pytest
from support.strategy_runs import COUNTER, elements, run

from compaction_store import TokenBudget
from compaction_store.strategies import Ladder
from compaction_store.strategies.truncation import Rule, shorten

ORDERS = ["Never push to the main branch.", "From now on, answer in German.", "Always run the tests before a commit."]
FILLER = "It is thought that things of that sort are as they are and that there is little to add. "


def long_text(orders: list[str], rest: int = 60) -> str:
    half = FILLER * (rest // 2)
    return "\n".join(["Please mend the parser.", half, *orders, half, "Thank you."])


def contents(text: str) -> list[Any]:
    return [text, [{"type": "text", "text": text}], [{"type": "input_text", "text": text}]]


@pytest.mark.parametrize("place", range(3), ids=["string", "text", "input_text"])
def test_a_cut_user_message_keeps_its_orders(place: int) -> None:
    message = {"role": "user", "content": contents(long_text(ORDERS))[place]}
    view = elements([message, {"role": "assistant", "content": "I see."}, {"role": "user", "content": "Go on."}])
    limit = view[0].tokens // 2
    ctx = run(Ladder(target_tokens=limit, reserve=0), view)
    shown = str(ctx.result_messages)
    assert "[shortened]" in shown
    assert [order for order in ORDERS if order not in shown] == []
    assert sum(element.tokens for element in ctx.elements) <= limit


def test_each_order_is_there_once_and_another_cut_keeps_it() -> None:
    message = {"role": "user", "content": f"{ORDERS[0]}\n{long_text(ORDERS[1:])}\n{ORDERS[2]}"}
    for cap in (200, 100, 40):
        message = shorten(message, cap, COUNTER, Rule(orders=100))
        assert [message["content"].count(order) for order in ORDERS[:2]] == [1, 1]
        assert COUNTER.text(message["content"]) <= cap + 100


def test_the_words_of_others_have_no_orders() -> None:
    for payload in (
        {"role": "assistant", "content": long_text(ORDERS)},
        {"role": "tool", "tool_call_id": "a", "content": long_text(ORDERS)},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": long_text(ORDERS)}]},
    ):
        view = elements([{"role": "user", "content": "Go on."}, payload, {"role": "user", "content": "And now?"}])
        ctx = run(Ladder(target_tokens=view[1].tokens // 2, reserve=0), view)
        assert not any(order in str(ctx.result_messages) for order in ORDERS)


def test_the_view_fits_even_if_its_orders_do_not() -> None:
    orders = [f"Never change the file module_{n}.py without a test for it." for n in range(60)]
    view = elements([{"role": "user", "content": "\n".join(orders)}, {"role": "user", "content": "Go on."}])
    for limit in (view[0].tokens // 2, view[0].tokens // 4, 180):
        ctx = run(Ladder(target_tokens=limit, reserve=0), view, budget=TokenBudget(10 * limit))
        assert sum(element.tokens for element in ctx.elements) <= limit
