"""AsyncStore.load: async sources, the event loop's turns, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.load_sources import message, messages

import compaction_store as cs


def test_an_awaited_source_is_loaded_and_the_event_loop_has_its_turns(url: str) -> None:
    async def source() -> AsyncIterator[dict[str, Any]]:
        for i in range(12_000):
            if i % 5000 == 0:
                await asyncio.sleep(0.01)
            yield {"role": "user", "content": "x" * 500, "i": i}

    async def run() -> int:
        turns = 0
        done = asyncio.Event()

        async def tick() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        async with await cs.AsyncStore.open(url) as store:
            ticking = asyncio.create_task(tick())
            assert (await store.load.messages("t", source())).added == 12_000
            done.set()
            await ticking
            assert not (await store.audit.verify("t")).findings
        return turns

    # The loop runs while messages are prepared, and while the server stores them.
    assert asyncio.run(run()) > 20


@pytest.mark.usefixtures("small")
def test_a_cancelled_load_goes_on_where_it_stood(url: str) -> None:
    async def source(reached: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        for i in range(400):
            if i == 230:
                reached.set()
                await asyncio.sleep(60)
            yield message(i)

    async def run() -> None:
        async with await cs.AsyncStore.open(url, pool_size=1) as store:
            reached = asyncio.Event()
            load = asyncio.create_task(store.load.messages("t", source(reached), key="k"))
            await reached.wait()
            load.cancel()
            with pytest.raises(asyncio.CancelledError):
                await load
            assert (await store.load.messages("t", messages(400), key="k")).added == 200
            assert [m.payload async for m in store.replay("t")] == messages(400)

    asyncio.run(run())
