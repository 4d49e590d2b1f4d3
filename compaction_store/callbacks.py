"""Running a callback on a context: one's own function, or a strategy that is taken through its steps.

A strategy is written once for sync and async: it yields what it wants, and what drives it awaits where that is needed.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable

from compaction_store.context import Ask, CompactionContext, Steps
from compaction_store.errors import InvalidInput
from compaction_store.models import Summary
from compaction_store.naming import name_of


@runtime_checkable
class Strategy(Protocol):
    """A callback that yields what it wants, and is sent what each wish came to: None, or the error."""

    def steps(self, ctx: CompactionContext) -> Steps: ...


def callback_name(callback: object) -> str:
    """How records name a callback: its own name, else where it is defined."""
    return name_of(callback, "callback")


def check_callback(callback: object, *, awaits: bool) -> None:
    """Refuses what cannot be called, and what is async where nothing awaits it."""
    if not callable(callback) and not isinstance(callback, Strategy):
        raise TypeError(f"a callback is callable or a strategy, not {type(callback).__name__}")
    call = getattr(callback, "__call__", None)  # noqa: B004 — its kind is asked, not whether it is there
    is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call)
    if not awaits and (is_async or getattr(callback, "needs_async", False)):
        raise TypeError("an async callback needs an AsyncStore")


def run_callback(ctx: CompactionContext, callback: Any) -> None:
    if isinstance(callback, Strategy):
        drive(ctx, callback.steps(ctx))
    else:
        result = callback(ctx)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("an async callback needs an AsyncStore")
        _check_result(result)
    ctx.finish()


async def run_callback_async(ctx: CompactionContext, callback: Any) -> None:
    if isinstance(callback, Strategy):
        await drive_async(ctx, callback.steps(ctx))
    else:
        result = callback(ctx)
        # What compact() returns is awaitable too, and a lambda may hand it on.
        _check_result(await result if inspect.isawaitable(result) else result)
    ctx.finish()


def _check_result(result: object) -> None:
    if isinstance(result, str | Summary):
        raise InvalidInput("a callback plans with ctx.compact(…); the summary that it returned stands for no span")


def drive(ctx: CompactionContext, steps: Steps) -> None:
    """Takes a strategy through its steps, telling it what each came to."""
    told: Exception | None = None
    while (step := _next(steps, told)) is not None:
        try:
            ctx.ask(step)
            told = None
        except Exception as error:  # noqa: BLE001 — the strategy decides what to make of it
            ctx.errors.append(error)
            told = error


async def drive_async(ctx: CompactionContext, steps: Steps) -> None:
    """The same where summarizers may be awaited."""
    told: Exception | None = None
    while (step := _next(steps, told)) is not None:
        try:
            await ctx.ask(step)
            told = None
        except Exception as error:  # noqa: BLE001 — the strategy decides what to make of it
            ctx.errors.append(error)
            told = error


def _next(steps: Steps, told: Exception | None) -> Ask | None:
    try:
        return steps.send(told)
    except StopIteration:
        return None
