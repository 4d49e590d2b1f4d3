"""Runs code that must wait for something, either in a thread or on an event loop.

Such code is a generator of type `Work`. It yields requests, and a driver sends back the answers. If a request fails,
the driver raises the error in the generator, at the `yield`. A generator may yield:

- `Call(function, *arguments)`, to call a function that may block or be async, such as a user's callback;
- `Pause(seconds)`, to sleep;
- `Result(value)`, to pass a value to the caller of `iterate` or `iterate_async`;
- any other value. An async driver awaits an awaitable; otherwise the value is sent back unchanged.

`drive` runs the generator in the calling thread and awaits nothing. `drive_async` runs it on the event loop and never
blocks the loop: it calls async functions on the loop and all other functions in a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

Work = Generator[Any, Any, _T]
_log = logging.getLogger("compaction_store")


class Call:
    """A request to call a function. On an event loop, a function that is not async is called in a thread."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    def run(self) -> Any:
        return self._function(*self._arguments)

    async def run_async(self) -> Any:
        result = self.run() if is_async(self._function) else await in_thread(self.run)
        return await result if inspect.isawaitable(result) else result


class UninterruptedCall(Call):
    """A call that a cancelled task still waits for, because the call may use its arguments until it ends."""

    async def run_async(self) -> Any:
        task = asyncio.ensure_future(super().run_async())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Result(Generic[_T]):
    value: _T


def drive(work: Work[_T]) -> _T:
    """Runs work in this thread and returns its result."""
    run = _Run(work)
    while not run.is_done:
        run.advance(_outcome(run.request))
    return run.result


async def drive_async(work: Work[_T]) -> _T:
    """Runs work on the event loop and returns its result."""
    return await _rest(_Run(work))


def begin(work: Work[_T]) -> _T | Awaitable[_T]:
    """Runs work in this thread and returns its result. If an answer must be awaited, returns an awaitable instead."""
    run = _Run(work)
    while not run.is_done:
        outcome = _outcome(run.request)
        if inspect.isawaitable(outcome.answer):
            run.request = outcome.answer
            return _rest(run)
        run.advance(outcome)
    return run.result


def iterate(work: Work[object]) -> Generator[Any, None, None]:
    """Runs work in this thread and yields its `Result` values. Closing the iterator closes the work."""
    run = _Run(work)
    while not run.is_done:
        outcome = _Outcome()
        if isinstance(run.request, Result):
            try:
                yield run.request.value
            except BaseException as error:  # noqa: BLE001 — the work handles it, or raises it again
                outcome.error = error
        else:
            outcome = _outcome(run.request)
        run.advance(outcome)


async def iterate_async(work: Work[object]) -> AsyncGenerator[Any, None]:
    """Runs work on the event loop and yields its `Result` values. Closing the iterator closes the work."""
    run = _Run(work)
    while not run.is_done:
        outcome = _Outcome()
        if isinstance(run.request, Result):
            try:
                yield run.request.value
            except BaseException as error:  # noqa: BLE001 — the work handles it, or raises it again
                outcome.error = error
        else:
            outcome = await _outcome_async(run.request)
        run.advance(outcome)


class _Outcome:
    """The answer to a request, or its error, which `take` clears first: a cycle would keep all frames alive."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None

    def take(self) -> Any:
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.answer
        finally:
            del error


class _Run(Generic[_T]):
    """Work that is running: the request that it waits for, and its result once it is done."""

    def __init__(self, work: Work[_T]) -> None:
        self._work = work
        # The first request is None, so its answer is None too. Sending None to a generator starts it.
        self.request: Any = None
        self.is_done = False
        self.result: _T

    def advance(self, outcome: _Outcome) -> None:
        error, outcome.error = outcome.error, None
        try:
            self.request = self._work.send(outcome.answer) if error is None else self._work.throw(error)
        except StopIteration as end:
            self.is_done, self.result = True, end.value
        finally:
            del error


async def _rest(run: _Run[_T]) -> _T:
    while not run.is_done:
        run.advance(await _outcome_async(run.request))
    return run.result


def _outcome(request: Any) -> _Outcome:
    """Answers a request. An error is returned, not raised, so that it is not the `__context__` of later errors."""
    outcome = _Outcome()
    try:
        if isinstance(request, Call):
            outcome.answer = request.run()
        elif isinstance(request, Pause):
            time.sleep(request.seconds)
        else:
            outcome.answer = request
    except BaseException as error:  # noqa: BLE001 — raised in the work
        outcome.error = error
    return outcome


async def _outcome_async(request: Any) -> _Outcome:
    outcome = _Outcome()
    try:
        if isinstance(request, Call):
            outcome.answer = await request.run_async()
        elif isinstance(request, Pause):
            await asyncio.sleep(request.seconds)
        else:
            outcome.answer = await request if inspect.isawaitable(request) else request
    except BaseException as error:  # noqa: BLE001 — raised in the work
        outcome.error = error
    return outcome


def is_async(function: object) -> bool:
    """Returns whether a callable is async, has an async `__call__`, or has an attribute `needs_async` that is True."""
    call = getattr(function, "__call__", None)  # noqa: B004 — the method itself is needed
    asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return asynchronous or getattr(function, "needs_async", False) is True


def is_on_event_loop() -> bool:
    """Returns whether an event loop is running in this thread. A blocking call would stop it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def in_thread(function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
    """Runs a function in a new daemon thread, with the caller's context variables.

    If the task is cancelled, the function still runs to its end. The loop's default executor is not used: a few
    summarizers that wait minutes for a model would occupy all of its threads, for which Python waits at exit.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[_Outcome] = loop.create_future()
    context = contextvars.copy_context()
    request = Call(partial(function, *arguments, **keywords))

    def settle(outcome: _Outcome) -> None:
        if not waiter.cancelled():
            waiter.set_result(outcome)

    def work() -> None:
        outcome = context.run(_outcome, request)
        # The loop may have been closed in the meantime. Nobody waits for the result then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name="compaction-store callback", daemon=True).start()
    return (await waiter).take()  # type: ignore[no-any-return]


async def uninterrupted(function: Callable[_P, Awaitable[_T]], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
    """Awaits an async function. If the task is cancelled, the function still runs to its end in the background."""
    return await asyncio.shield(asyncio.ensure_future(function(*arguments, **keywords)))


async def finished(function: Callable[[], Awaitable[_T]], *, patience: float = 5.0) -> _T:
    """Awaits an async function whose work must be done even if the task is cancelled.

    The function runs in a task of its own. If the caller is cancelled, it first waits for the function, for at most
    `patience` seconds. This also holds if it is cancelled again and again, as in a cancel scope of anyio. `asyncio.run`
    cancels all tasks at its end, also the function's own; the function is then called once more, so it must be safe to
    repeat.
    """
    task = asyncio.ensure_future(function())
    cancelled: asyncio.CancelledError | None = None
    is_repeated = False
    end = math.inf
    while not task.done() and time.monotonic() < end:
        try:
            await asyncio.wait({task}, timeout=None if cancelled is None else end - time.monotonic())
        except asyncio.CancelledError as error:
            if cancelled is None:
                cancelled, end = error, time.monotonic() + patience
        if task.cancelled() and not is_repeated:
            task, is_repeated = asyncio.ensure_future(function()), True
    if cancelled is None:
        return task.result()
    task.add_done_callback(_log_failure)
    try:
        raise cancelled
    finally:
        # Without this, the error and this frame would refer to each other.
        del cancelled


def _log_failure(task: asyncio.Future[Any]) -> None:
    """Logs the type of an error that nobody gets, because the caller was cancelled."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("a call whose caller was cancelled failed: %s", type(error).__name__)
