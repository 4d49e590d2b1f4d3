"""A retained fraction does not shrink when a strategy runs again. Also async summarizers with generic items."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.faces import Face
from support.strategy_runs import Payload

from compaction_store.errors import InvalidCallback
from compaction_store.strategies import SlidingWindow, sliding_window, sliding_window_async


def talk(count: int, start: int = 0) -> list[Payload]:
    return [
        {"role": "assistant" if n % 2 else "user", "content": f"message {n} " + "and so it went on " * 20}
        for n in range(start, start + count)
    ]


def short(_elements: Any) -> str:
    return "They talked."


def kept(store: Face) -> int:
    return sum(element.kind is None for element in store.view("t").elements)


def test_a_fraction_keeps_the_same_in_every_run_without_a_new_message(store: Face) -> None:
    store.append("t", talk(60))
    window = SlidingWindow(short, retain=0.3)
    store.compact("t", window)
    first = kept(store)
    assert 15 <= first <= 20
    for _ in range(3):
        assert len(store.compact("t", window)) == 0
    assert kept(store) == first


def test_and_its_share_of_what_comes(store: Face) -> None:
    store.append("t", talk(60))
    window = SlidingWindow(short, retain=0.3)
    store.compact("t", window)
    first = kept(store)
    store.append("t", talk(40, 60))
    store.compact("t", window)
    assert first < kept(store) <= first + 15
    assert len(store.compact("t", window)) == 0


def fold(items: Sequence[Payload]) -> Payload:
    return {"role": "user", "content": f"{len(items)} messages"}


def test_in_the_generic_form_it_is_a_fraction_of_all_that_was_given() -> None:
    slid = sliding_window(talk(60), summarize=fold, retain=0.3)
    again = sliding_window(slid, summarize=fold, retain=0.3)
    assert again.items == slid.items
    given: list[Any] = [*slid, *talk(40, 60)]
    more = sliding_window(given, summarize=fold, retain=0.3)
    assert len(more.originals) == 100
    assert 25 <= sum(not piece.is_summary for piece in more) <= 32


async def later(items: Sequence[Payload]) -> Payload:
    await asyncio.sleep(0)
    return fold(items)


def hidden(items: Sequence[Payload]) -> Any:
    """A function that is not async, but returns an awaitable."""
    return later(items)


@pytest.mark.parametrize("summarize", [later, fold, hidden])
def test_a_summarizer_may_be_awaited(summarize: Any) -> None:
    slid = asyncio.run(sliding_window_async(talk(20), summarize=summarize, retain=4))
    assert slid == sliding_window(talk(20), summarize=fold, retain=4)
    assert slid.error is None


@pytest.mark.parametrize("summarize", [later, hidden])
def test_where_nothing_awaits_it_is_refused(summarize: Any) -> None:
    with pytest.raises(InvalidCallback, match="must be synchronous"):
        sliding_window(talk(20), summarize=summarize)


def test_what_fails_when_awaited_is_handed_back() -> None:
    async def fails(_items: Any) -> Payload:
        await asyncio.sleep(0)
        raise TimeoutError

    slid = asyncio.run(sliding_window_async(talk(20), summarize=fails))
    assert isinstance(slid.error, TimeoutError)
    assert slid.items == talk(20)
