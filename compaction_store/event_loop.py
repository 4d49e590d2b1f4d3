"""Keeps an event loop free: async functions run on it, and all other code of a caller's runs in a thread.

The threads are daemons of their own, not those of the loop's default executor: a summarizer may wait two minutes for a
model, a handful of them would use that executor up, and Python does not exit before its threads have ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def is_async(function: object) -> bool:
    """Whether a callable's result must be awaited: it is an async function, or says so by a true `needs_async`."""
    call = getattr(function, "__call__", None)  # noqa: B004 — its kind is asked, not whether it is there
    asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return asynchronous or getattr(function, "needs_async", False) is True


def is_running() -> bool:
    """Whether this thread is running an event loop, which a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def in_thread(function: Callable[_P, _T], *arguments: _P.args, **keywords: _P.kwargs) -> _T:
    """Runs a function in a thread of its own, with the caller's context variables.

    If the caller is cancelled, the function runs on and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def work() -> None:
        try:
            done: tuple[Any, BaseException | None] = context.run(function, *arguments, **keywords), None
        except StopIteration as error:
            # A future refuses this one.
            done = None, RuntimeError(f"the function raised {type(error).__name__}")
        except BaseException as error:  # noqa: BLE001 — raised again where the result is awaited
            done = None, error
        # The loop may have closed meanwhile: then nobody is left to be told.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, *done)

    threading.Thread(target=work, name="compaction-store callback", daemon=True).start()
    return await outcome


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A callable's result: called on the loop if it is async, else in a thread; awaited if it can be."""
    result = function(*arguments) if is_async(function) else await in_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result
