"""Both drivers run work in the same way, and the async one never blocks the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from compaction_store.waiting import (
    Call,
    Pause,
    Result,
    UninterruptedCall,
    Work,
    begin,
    drive,
    drive_async,
    in_thread,
    is_async,
    iterate,
    iterate_async,
)

PATIENCE = 10.0
ASKED: ContextVar[str] = ContextVar("asked", default="nobody")


def run_async(work: Work[Any]) -> Any:
    return asyncio.run(drive_async(work))


def both(work: Callable[[], Work[Any]]) -> Iterator[Any]:
    yield drive(work())
    yield run_async(work())


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def fail(error: BaseException) -> None:
    raise error


# ---- both drivers


def test_a_call_is_answered_with_what_the_function_returns() -> None:
    def work() -> Work[int]:
        found: int = (yield Call(max, 1, 2)) + (yield Call(min, 3, 4))
        return found

    assert list(both(work)) == [5, 5]


def test_any_other_value_is_sent_back_as_it_is() -> None:
    def work() -> Work[list[object]]:
        return [(yield "a value"), (yield None), (yield 0)]

    assert list(both(work)) == [["a value", None, 0]] * 2


def test_an_error_is_raised_where_the_work_yielded() -> None:
    def work() -> Work[str]:
        try:
            yield Call(fail, KeyError("one"))
        except KeyError as error:
            return f"handled {error.args[0]}"
        return "went on"

    assert list(both(work)) == ["handled one"] * 2


def test_an_error_that_the_work_does_not_handle_reaches_the_caller() -> None:
    error = ValueError("one")
    closed: list[bool] = []

    def work() -> Work[None]:
        try:
            yield Call(fail, error)
        finally:
            closed.append(True)

    for run in (drive, run_async):
        with pytest.raises(ValueError, match="one") as raised:
            run(work())
        assert raised.value is error
        assert "fail" in [entry.name for entry in raised.traceback]
    assert closed == [True, True]


def test_an_error_of_the_work_after_a_handled_one_does_not_carry_that_one() -> None:
    def work() -> Work[None]:
        found: Exception | None = None
        try:
            yield Call(fail, KeyError("content"))
        except KeyError as error:
            found = error
        raise ValueError("of the work" if found else "nothing was raised")

    for run in (drive, run_async):
        with pytest.raises(ValueError, match="of the work") as raised:
            run(work())
        assert raised.value.__context__ is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through_and_the_work_cleans_up(kind: type[BaseException]) -> None:
    seen: list[str] = []

    def work() -> Work[None]:
        try:
            yield Call(fail, kind())
        except Exception:  # noqa: BLE001 — it must not get here
            seen.append("handled")
        finally:
            seen.append("cleaned up")

    with pytest.raises(kind):
        drive(work())
    with pytest.raises(kind):
        run_async(work())
    assert seen == ["cleaned up"] * 2


def test_a_function_that_raises_stop_iteration_does_not_end_the_work() -> None:
    def work() -> Work[str]:
        yield Call(fail, StopIteration("result"))
        return "went on"

    with pytest.raises(RuntimeError):
        drive(work())
    with pytest.raises(RuntimeError):
        run_async(work())


def test_a_pause_takes_its_time() -> None:
    def work() -> Work[float]:
        start = time.monotonic()
        yield Pause(0.02)
        return time.monotonic() - start

    assert all(took >= 0.02 for took in both(work))


def test_an_error_is_freed_without_the_garbage_collector() -> None:
    class Held:
        pass

    def work(_held: Held, function: Callable[[str], Any]) -> Work[None]:
        yield Call(function, "no number")

    async def read(text: str) -> int:
        return int(text)

    async def main(held: Held, function: Callable[[str], Any]) -> None:
        with suppress(ValueError):
            await drive_async(work(held, function))

    def run(held: Held) -> None:
        with suppress(ValueError):
            drive(work(held, int))

    def freed(run: Callable[[Held], None]) -> bool:
        held = Held()
        watched = weakref.ref(held)
        run(held)
        del held
        return watched() is None

    gc.disable()
    try:
        assert freed(run)
        assert freed(lambda held: asyncio.run(main(held, read)))
        assert freed(lambda held: asyncio.run(main(held, int)))
    finally:
        gc.enable()


# ---- the synchronous driver


def test_the_synchronous_driver_sends_an_awaitable_back() -> None:
    def work() -> Work[Any]:
        return (yield Call(doubled, 2))

    coroutine = drive(work())
    assert asyncio.run(coroutine) == 4


def test_begun_work_runs_here_until_it_must_be_awaited() -> None:
    def work(function: Callable[[int], Any]) -> Work[Any]:
        seen = [(yield Call(abs, -1)), (yield Call(function, 2))]
        return [*seen, (yield Call(threading.current_thread))]

    async def rest(waiting: Any) -> Any:
        return await waiting

    here = threading.current_thread()
    assert begin(work(abs)) == [1, 2, here]
    one, two, thread = asyncio.run(rest(begin(work(doubled))))
    assert (one, two) == (1, 4)
    assert thread is not here


def test_begun_work_has_errors_raised_in_it() -> None:
    def work(function: Callable[[int], Any]) -> Work[str]:
        try:
            yield Call(function, 1)
        except KeyError:
            return "handled"
        return "went on"

    def broken(_number: int) -> None:
        raise KeyError

    async def broken_async(_number: int) -> None:
        raise KeyError

    async def rest(waiting: Any) -> Any:
        return await waiting

    assert begin(work(broken)) == "handled"
    assert asyncio.run(rest(begin(work(broken_async)))) == "handled"


# ---- the event loop


def test_async_functions_run_on_the_loop_and_all_others_in_a_thread() -> None:
    async def thread_of_loop() -> threading.Thread:
        return threading.current_thread()

    def work() -> Work[list[threading.Thread]]:
        return [
            (yield Call(thread_of_loop)),
            (yield thread_of_loop()),
            (yield Call(lambda: thread_of_loop())),  # noqa: PLW0108 — a function that is not async itself
            (yield Call(threading.current_thread)),
        ]

    *on_loop, in_a_thread = run_async(work())
    assert on_loop == [threading.main_thread()] * 3
    assert in_a_thread is not threading.main_thread()
    assert in_a_thread.daemon


def test_a_call_that_blocks_does_not_block_the_loop() -> None:
    async def main() -> bool:
        turn = threading.Event()
        loop = asyncio.get_running_loop()

        def wait() -> bool:
            loop.call_soon_threadsafe(turn.set)
            return turn.wait(PATIENCE)

        def work() -> Work[bool]:
            done: bool = yield Call(wait)
            return done

        return await drive_async(work())

    assert asyncio.run(main())


def test_a_call_in_a_thread_sees_the_context_variables_of_its_caller() -> None:
    async def main() -> Any:
        ASKED.set("the caller")
        return await drive_async(work())

    def work() -> Work[Any]:
        return (yield Call(ASKED.get))

    assert asyncio.run(main()) == "the caller"


def test_a_cancelled_task_cleans_up_and_does_not_wait_for_a_call() -> None:
    release = threading.Event()
    seen: list[str] = []

    def work() -> Work[None]:
        try:
            yield Call(release.wait, PATIENCE)
        except Exception:  # noqa: BLE001 — it must not get here
            seen.append("handled")
        finally:
            seen.append((yield closed()))

    async def closed() -> str:
        await asyncio.sleep(0)
        return "closed"

    async def main() -> None:
        task = asyncio.create_task(drive_async(work()))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()

    try:
        asyncio.run(main())
    finally:
        release.set()
    assert seen == ["closed"]


def test_a_cancelled_task_waits_for_an_uninterrupted_call() -> None:
    seen: list[str] = []

    def slowly() -> None:
        time.sleep(0.05)
        seen.append("called")

    def work() -> Work[None]:
        try:
            yield UninterruptedCall(slowly)
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        task = asyncio.create_task(drive_async(work()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["called", "cleaned up"]
    seen.clear()
    drive(work())
    assert seen == ["called", "cleaned up"]


def test_a_thread_outlives_its_loop_without_a_word() -> None:
    release, done = threading.Event(), threading.Event()

    def wait() -> None:
        release.wait(PATIENCE)
        done.set()

    async def main() -> None:
        task = asyncio.create_task(in_thread(wait))
        await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(main())
    release.set()
    assert done.wait(PATIENCE)


def test_what_counts_as_async() -> None:
    class Async:
        async def __call__(self) -> None:
            pass

    class SaysSo:
        needs_async = True

        def __call__(self) -> None:
            pass

    assert [is_async(one) for one in (doubled, Async(), SaysSo())] == [True] * 3
    assert [is_async(one) for one in (fail, abs, object())] == [False] * 3


# ---- iterators


def counting(closed: list[str], count: int = 3) -> Work[None]:
    try:
        for number in range(count):
            yield Result((yield Call(abs, -number)))
    finally:
        closed.append((yield Call(str, "closed")))


async def collected(closed: list[str]) -> list[int]:
    return [number async for number in iterate_async(counting(closed))]


def test_results_are_handed_out_one_by_one() -> None:
    closed: list[str] = []
    assert list(iterate(counting(closed))) == [0, 1, 2]
    assert asyncio.run(collected(closed)) == [0, 1, 2]
    assert closed == ["closed", "closed"]


def test_a_closed_iterator_closes_its_work() -> None:
    closed: list[str] = []
    numbers = iterate(counting(closed))
    assert next(numbers) == 0
    numbers.close()
    assert closed == ["closed"]

    async def main() -> None:
        numbers = iterate_async(counting(closed))
        assert await anext(numbers) == 0
        await numbers.aclose()

    asyncio.run(main())
    assert closed == ["closed", "closed"]


def test_an_error_ends_an_iterator() -> None:
    def work() -> Work[None]:
        yield Result(1)
        yield Call(fail, KeyError("two"))

    async def main() -> None:
        numbers = iterate_async(work())
        assert await anext(numbers) == 1
        with pytest.raises(KeyError, match="two"):
            await anext(numbers)

    numbers = iterate(work())
    assert next(numbers) == 1
    with pytest.raises(KeyError, match="two"):
        next(numbers)
    asyncio.run(main())
