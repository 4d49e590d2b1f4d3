"""Runs a callback on a context: a function of the caller's, or a strategy, which is driven step by step.

A strategy is written once for sync and async: it yields what it wants, and its driver awaits where that is needed. On
an event loop, only what is async runs on the loop; everything else runs in a thread, so that no callback, strategy or
summarizer can block the loop.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable

from compaction_store import drivers
from compaction_store.compaction.asking import Ask, Planned, Steps
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.naming import name_of
from compaction_store.errors import InvalidCallback, InvalidInput
from compaction_store.models import Summary


@runtime_checkable
class Strategy(Protocol):
    """A callback that yields what it wants, and is sent what each wish came to: None, or the error."""

    def steps(self, ctx: CompactionContext) -> Steps: ...


def callback_name(callback: object) -> str:
    """How records name a callback: its own name, else where it is defined."""
    return name_of(callback, "callback")


def check_callback(callback: object, *, awaits: bool) -> None:
    """Refuses what cannot be called, and what is async where nothing awaits it."""
    if isinstance(callback, type):
        raise InvalidCallback(f"a callback must be a callable or a strategy, not the class {callback.__name__}")
    if not callable(callback) and not isinstance(callback, Strategy):
        raise InvalidCallback(f"a callback must be a callable or a strategy, not {type(callback).__name__}")
    if not awaits and drivers.is_async(callback):
        raise InvalidCallback("an async callback needs an AsyncStore: on a Store a callback must be synchronous")


def run_callback(ctx: CompactionContext, callback: Any) -> None:
    if isinstance(callback, Strategy):
        drive(ctx, callback.steps(ctx))
    else:
        result = callback(ctx)
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidCallback("an async callback needs an AsyncStore: on a Store a callback must be synchronous")
        _check_result(result)
    ctx.finish()


async def run_callback_async(ctx: CompactionContext, callback: Any) -> None:
    """The same on an event loop, which a callback that is not async cannot block: it runs in a thread."""
    if isinstance(callback, Strategy):
        await drive_async(ctx, callback.steps(ctx))
    else:
        _check_result(await drivers.Call(callback, ctx).run_async())
    ctx.finish()


def _check_result(result: object) -> None:
    if isinstance(result, str | Summary):
        raise InvalidInput("a callback plans with ctx.compact(…); the summary that it returned stands for no span")


def drive(ctx: CompactionContext, steps: Steps) -> None:
    """Takes a strategy through its steps, and sends it the outcome of each."""
    _advance(ctx, steps, None)


async def drive_async(ctx: CompactionContext, steps: Steps) -> None:
    """The same on an event loop: steps are taken in a thread, and awaitable summaries are awaited on the loop."""
    outcome: Exception | None = None
    while (planned := await drivers.in_thread(_advance, ctx, steps, outcome)) is not None:
        try:
            await planned
            outcome = None
        except Exception as error:  # noqa: BLE001 — the strategy decides what to make of it
            ctx.errors.append(error)
            outcome = error


def _advance(ctx: CompactionContext, steps: Steps, outcome: Exception | None) -> Planned | None:
    """Takes steps until one has to be awaited, and returns that one; None at the strategy's end."""
    while (step := _next(steps, outcome)) is not None:
        try:
            planned = ctx.ask(step)
            outcome = None
        except Exception as error:  # noqa: BLE001 — the strategy decides what to make of it
            ctx.errors.append(error)
            outcome = error
        else:
            if planned.is_waiting:
                return planned
    return None


def _next(steps: Steps, outcome: Exception | None) -> Ask | None:
    try:
        return steps.send(outcome)
    except StopIteration:
        return None
