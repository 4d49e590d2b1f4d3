"""A caller's blocking code does not block the event loop of an AsyncStore.

Each blocking function here waits until the event loop has run another task: if it ran on the loop, it would wait
forever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

import compaction_store as cs
from compaction_store import Element, Summary
from compaction_store.strategies import AssistantRuns, Ladder, Pipeline, SlidingWindow, compress_context_async
from compaction_store.strategies.ladder import InParts
from compaction_store.summarizers import FallbackSummarizer

LONG = "word " * 60
PATIENCE = 10.0


def chat(count: int = 12) -> list[dict[str, Any]]:
    return [{"role": "assistant" if i % 2 else "user", "content": f"{i} {LONG}"} for i in range(count)]


class Loop:
    """An event loop that a blocking function asks to run another task."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns = 0

    def wait_for_a_turn(self) -> None:
        turn = threading.Event()
        self.loop.call_soon_threadsafe(turn.set)
        assert turn.wait(PATIENCE), "the event loop is blocked"
        self.turns += 1


def blocking(loop: Loop, text: str = "a summary") -> Callable[[Sequence[Element]], str]:
    def summarize(_elements: Sequence[Element]) -> str:
        loop.wait_for_a_turn()
        return text

    return summarize


def run(url: str, use: Callable[[cs.AsyncStore, Loop], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        loop = Loop()
        async with cs.AsyncStore.open(url, **options) as store:
            await store.append("t", chat(), tokens=100)
            await use(store, loop)
        assert loop.turns

    asyncio.run(main())


def test_a_callback_that_is_not_async(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        def callback(ctx: cs.CompactionContext) -> None:
            loop.wait_for_a_turn()
            ctx.compact(1, 4, blocking(loop))
            assert ctx.elements[0].end_seq == 4

        compaction = await store.compact("t", callback)
        assert [record.summary_text for record in compaction] == ["a summary"]
        assert (await store.plan("t", lambda _ctx: loop.wait_for_a_turn())).attempts == ()

    run(url, use)


def test_a_summarizer_that_is_not_async_in_a_callback_that_is(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        async def callback(ctx: cs.CompactionContext) -> None:
            one, two = ctx.compact(1, 2, blocking(loop)), ctx.compact(3, 4, blocking(loop))
            await asyncio.gather(one, two)
            assert ctx.elements[0].end_seq == 2

        assert sorted((r.start_seq, r.end_seq) for r in await store.compact("t", callback)) == [(1, 2), (3, 4)]

    run(url, use)


STRATEGIES: dict[str, Callable[[Any], Any]] = {
    "window": lambda summarize: SlidingWindow(summarize, retain=2),
    "runs": lambda summarize: AssistantRuns(summarize, min_length=1),
    "ladder": lambda summarize: Ladder(summarize, target_tokens=600, keep_recent=2, reserve=0),
    "pipeline": lambda summarize: Pipeline(SlidingWindow(summarize, retain=2)),
    "fallback": lambda summarize: SlidingWindow(FallbackSummarizer(broken, summarize), retain=2),
    "async, then not": lambda summarize: SlidingWindow(FallbackSummarizer(broken_async, summarize), retain=2),
    "parts": lambda summarize: SlidingWindow(InParts(summarize, [4, 10]), retain=2),
}


def broken(_elements: Sequence[Element]) -> str:
    raise ValueError


async def broken_async(_elements: Sequence[Element]) -> str:
    raise ValueError


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_with_a_summarizer_that_is_not_async(url: str, name: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        assert (await store.compact("t", STRATEGIES[name](blocking(loop)))).applied

    run(url, use)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_called_by_an_async_callback(url: str, name: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        async def callback(ctx: cs.CompactionContext) -> None:
            await STRATEGIES[name](blocking(loop))(ctx)

        assert (await store.compact("t", callback)).applied

    run(url, use)


def test_a_strategy_called_by_a_callback_that_is_not_async(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        def callback(ctx: cs.CompactionContext) -> None:
            STRATEGIES["window"](blocking(loop))(ctx)

        assert (await store.compact("t", callback)).applied

    run(url, use)


def test_a_threshold_that_blocks(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        def when(_window: Any) -> bool:
            loop.wait_for_a_turn()
            return True

        await store.compact("t", AssistantRuns(Summary("a summary"), min_length=1, when=when))

    run(url, use)


def test_counters(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        def count(_message: dict[str, Any]) -> int:
            loop.wait_for_a_turn()
            return 7

        def count_view(_view: cs.View) -> int:
            loop.wait_for_a_turn()
            return 150

        async with cs.AsyncStore.open(url, counter=count) as counted:
            [message] = await counted.append("u", {"role": "user", "content": "hi"})
            assert message.tokens == 7
            await counted.load.messages("v", chat(3))
            assert [m.tokens async for m in counted.replay("v")] == [7, 7, 7]
            await counted.compact("u", lambda ctx: ctx.compact(1, 1, "a summary", allow={"larger", "last_user"}))
        budget = cs.TokenBudget(1_000_000, counter=count_view, trigger=1000, target=50)
        view = await store.fit("t", budget, SlidingWindow(Summary("a summary"), retain=2))
        assert view.measured is not None
        assert view.measured.tokens == 150

    run(url, use)


def test_the_list_form(url: str) -> None:
    async def use(_store: cs.AsyncStore, loop: Loop) -> None:
        result = await compress_context_async(chat(40), 600, reserve=0, keep_recent=2, client=blocking(loop))
        assert result.messages_summarized

    run(url, use)


ASKED: ContextVar[str] = ContextVar("asked", default="nobody")


def test_a_callback_in_a_thread_sees_the_context_variables_of_its_caller(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        seen: list[str] = []
        ASKED.set("the caller")
        await store.plan("t", lambda _ctx: seen.append(ASKED.get()))
        assert seen == ["the caller"]
        await asyncio.to_thread(loop.wait_for_a_turn)

    run(url, use)


def test_a_cancelled_compaction_does_not_wait_for_a_summarizer_that_blocks(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        asked, release = asyncio.Event(), threading.Event()

        def summarize(_elements: Sequence[Element]) -> str:
            loop.loop.call_soon_threadsafe(asked.set)
            loop.wait_for_a_turn()
            release.wait(PATIENCE)
            return "too late"

        task = asyncio.create_task(store.compact("t", SlidingWindow(summarize, retain=2)))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()
        release.set()
        assert [record async for record in store.compactions("t")] == []

    run(url, use)


def test_what_an_async_callback_does_not_await_is_refused(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        await asyncio.to_thread(loop.wait_for_a_turn)

        async def callback(ctx: cs.CompactionContext) -> None:
            ctx.compact(1, 4, lambda _elements: "a summary")

        async def strategy(ctx: cs.CompactionContext) -> None:
            SlidingWindow(Summary("a summary"), retain=2)(ctx)

        def summarizes_async(ctx: cs.CompactionContext) -> None:
            ctx.compact(1, 4, broken_async)

        for careless in (callback, strategy, summarizes_async):
            compaction = await store.compact("t", careless)
            assert [r.outcome for r in compaction] == ["failed"]
            assert "must await" in str(compaction.errors[0])

    run(url, use)


def test_an_error_in_a_thread_is_on_record_as_it_was_raised(url: str) -> None:
    async def use(store: cs.AsyncStore, loop: Loop) -> None:
        def fail(_ctx: cs.CompactionContext) -> None:
            loop.wait_for_a_turn()
            raise KeyError

        def stop(_ctx: cs.CompactionContext) -> None:
            raise StopIteration

        failed = await store.compact("t", fail)
        assert [type(error) for error in failed.errors] == [KeyError]
        assert [record.outcome for record in failed] == ["failed"]
        assert [type(error) for error in (await store.compact("t", stop)).errors] == [RuntimeError]

    run(url, use)


def test_the_sync_face_runs_everything_in_the_callers_thread(url: str) -> None:
    threads: list[threading.Thread] = []

    def summarize(_elements: Sequence[Element]) -> str:
        threads.append(threading.current_thread())
        return "a summary"

    with cs.Store.open(url) as store:
        store.append("t", chat(), tokens=100)
        assert store.compact("t", SlidingWindow(summarize, retain=2)).applied
    assert threads == [threading.current_thread()]
