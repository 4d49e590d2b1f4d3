"""Turns that are cancelled or interrupted: nothing is left behind, and what `finally` appends is stored."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

import anyio
import psycopg
import pytest

import compaction_store as cs
from compaction_store.store import lease_keeper
from compaction_store.store._sync import turns

PARTIAL = {"role": "assistant", "content": "partial"}
# Counting these tokens takes so long that the store does it in a thread.
LONG = {"role": "assistant", "content": "a partial answer " * 40_000}
Body = Callable[[cs.AsyncStore, asyncio.Event], Awaitable[None]]


def held(superuser: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return superuser.execute("SELECT thread_id, turn_id, waiting FROM compaction_store.turns").fetchall()


# ---- what a turn does when it is cancelled


async def streaming(store: cs.AsyncStore, begun: asyncio.Event) -> None:
    async with store.turn("t"):
        begun.set()
        await asyncio.sleep(60)


async def appending(store: cs.AsyncStore, begun: asyncio.Event) -> None:
    async with store.turn("t") as turn:
        begun.set()
        while True:
            await turn.append(PARTIAL)


async def saving_the_rest(store: cs.AsyncStore, begun: asyncio.Event) -> None:
    async with store.turn("t") as turn:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await turn.append(PARTIAL)


async def saving_a_long_rest(store: cs.AsyncStore, begun: asyncio.Event) -> None:
    async with store.turn("t") as turn:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await store.append("t", LONG, turn=turn)


async def in_a_generator(store: cs.AsyncStore, begun: asyncio.Event) -> None:
    """As a web framework streams an answer."""

    async def parts() -> AsyncIterator[str]:
        async with store.turn("t") as turn:
            try:
                while True:
                    yield "a part"
                    await asyncio.sleep(0.01)
            finally:
                await turn.append(PARTIAL)

    async for _ in parts():
        begun.set()


async def entering(store: cs.AsyncStore, begun: asyncio.Event) -> None:
    begun.set()
    async with store.turn("t"):
        await asyncio.sleep(60)


BODIES = [streaming, appending, saving_the_rest, saving_a_long_rest, in_a_generator, entering]

# ---- ways to cancel it


async def by_task(body: Awaitable[None], begun: asyncio.Event, times: int = 1) -> None:
    task = asyncio.ensure_future(body)
    await begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await task


async def by_task_again_and_again(body: Awaitable[None], begun: asyncio.Event) -> None:
    await by_task(body, begun, 50)


async def by_anyio(body: Awaitable[None], begun: asyncio.Event) -> None:
    async def run() -> None:
        await body

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await begun.wait()
        group.cancel_scope.cancel()


async def by_anyio_s_timeout(body: Awaitable[None], begun: asyncio.Event) -> None:
    with anyio.move_on_after(0.2):
        await body
    assert begun.is_set()


async def by_timeout(body: Awaitable[None], begun: asyncio.Event) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await body
    assert begun.is_set()


async def by_task_group(body: Awaitable[None], begun: asyncio.Event) -> None:
    async def run() -> None:
        await body

    async def fail() -> None:
        await begun.wait()
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(run())
            group.create_task(fail())


WAYS = [by_task, by_task_again_and_again, by_anyio, by_anyio_s_timeout, by_timeout, by_task_group]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body", BODIES)
def test_no_cancelled_turn_is_left_and_what_it_appends_at_its_end_is_stored(
    url: str, superuser: psycopg.Connection[Any], body: Body, way: Callable[[Any, asyncio.Event], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with cs.AsyncStore.open(url) as store:
            await store.append("t", {"role": "user", "content": "hi"})
            for times in range(1, 5):
                await way(body(store, begun := asyncio.Event()), begun)
                # The next one does not wait for a lease.
                async with store.turn("t", wait=0):
                    pass
                count = (await store.thread("t")).last_seq - 1
                if body in {saving_the_rest, saving_a_long_rest, in_a_generator}:
                    assert count == times

    asyncio.run(main())
    assert held(superuser) == []


@pytest.mark.parametrize("body", [streaming, saving_the_rest, saving_a_long_rest])
def test_a_program_that_cancels_all_its_tasks_ends_its_turns(
    url: str, superuser: psycopg.Connection[Any], body: Body
) -> None:
    """As `asyncio.run` does at its end. It also cancels the tasks that end a turn just now."""

    async def main() -> None:
        async with cs.AsyncStore.open(url) as store:
            for pause in range(0, 60, 4):
                holder = asyncio.ensure_future(body(store, begun := asyncio.Event()))
                await begun.wait()
                holder.cancel()
                for _ in range(pause):
                    await asyncio.sleep(0)
                rest = asyncio.all_tasks() - {asyncio.current_task()}
                for task in rest:
                    task.cancel()
                await asyncio.gather(*rest, return_exceptions=True)
                assert holder.cancelled()
                assert held(superuser) == []
                if body is not streaming:
                    assert (await store.thread("t")).last_seq == pause // 4 + 1

    asyncio.run(main())


def test_a_cancelled_append_counts_as_the_turn_s_own(url: str) -> None:
    async def main() -> None:
        async with cs.AsyncStore.open(url) as store, store.turn("t") as turn:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await turn.append(PARTIAL)
            assert turn.last_seq == (await store.thread("t")).last_seq == 1
            await turn.append(PARTIAL, expected_seq=turn.last_seq)
            assert await turn.others() == ()

    asyncio.run(main())


def test_a_turn_that_nobody_ended_ends_when_nobody_has_it_any_more(
    url: str, superuser: psycopg.Connection[Any]
) -> None:
    with cs.Store.open(url) as store:
        turn = store.turn("t").__enter__()
        assert held(superuser) == [("t", turn.turn_id, [])]
        del turn
        gc.collect()
        with store.turn("t", wait=10):
            pass

    async def main() -> None:
        async with cs.AsyncStore.open(url) as store:
            turn = await store.turn("t").__aenter__()
            assert held(superuser) == [("t", turn.turn_id, [])]
            del turn
            gc.collect()
            async with store.turn("t", wait=10):
                pass
            # The loop may end before the turn was ended.
            await store.turn("t").__aenter__()

    asyncio.run(main())
    assert held(superuser) == []


def test_a_turn_may_end_after_its_store_was_closed(url: str, superuser: psycopg.Connection[Any]) -> None:
    with cs.Store.open(url) as store:
        turn = store.turn("t").__enter__()
    turn.__exit__(None, None, None)
    assert held(superuser) == []
    assert store._db.engine.pool.checkedin() == 0  # type: ignore[attr-defined]

    async def main() -> None:
        async with cs.AsyncStore.open(url) as store:
            turn = await store.turn("t").__aenter__()
        await turn.__aexit__(None, None, None)

    asyncio.run(main())
    assert held(superuser) == []


def test_a_loop_that_is_closed_under_a_turn_leaves_only_its_lease(url: str) -> None:
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(_opened(url))
    turn = loop.run_until_complete(store.turn("t", lease=1).__aenter__())
    loop.run_until_complete(store.close())
    loop.close()
    with cs.Store.open(url) as other, other.turn("t", wait=20):
        pass
    del turn
    gc.collect()


async def _opened(url: str) -> cs.AsyncStore:
    return await cs.AsyncStore.open(url)


# ---- an interrupt at every line


class Interruption:
    """Raises KeyboardInterrupt before the n-th line that runs in the code of a turn, in this thread."""

    FILES = (turns.__file__, lease_keeper.__file__)

    def __init__(self, line: int) -> None:
        self.left = line

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self.FILES else None

    def _line(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


def interrupted(store: cs.Store, line: int, body: Callable[[Any], None]) -> bool:
    """Runs a turn that is interrupted at a line. Returns whether it has so many lines."""
    interruption = Interruption(line)
    try:
        with interruption, store.turn("t", actor=f"line {line}") as turn:
            body(turn)
    except KeyboardInterrupt:
        return True
    return interruption.left <= 0


def _ends_well(turn: Any) -> None:
    turn.append(PARTIAL)


def _is_interrupted_itself(turn: Any) -> None:
    turn.append(PARTIAL)
    raise KeyboardInterrupt


@pytest.mark.parametrize("body", [_ends_well, _is_interrupted_itself])
def test_an_interrupt_at_any_line_leaves_no_turn(
    url: str, superuser: psycopg.Connection[Any], body: Callable[[Any], None]
) -> None:
    with cs.Store.open(url) as store:
        for line in range(1, 300):
            more = interrupted(store, line, body)
            with store.turn("t", wait=10):
                pass
            if not more or (body is _is_interrupted_itself and line == 120):
                break
        else:
            raise AssertionError("the lines do not end")
        assert line > 40
    assert held(superuser) == []
