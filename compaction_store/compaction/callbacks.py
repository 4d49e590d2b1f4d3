"""Runs a callback on a context. A callback is an application's function, or a strategy, which yields requests.

On an event loop, only async functions run on the loop. Everything else runs in a thread, so that no callback, strategy
or summarizer can block the loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from itertools import product
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from compaction_store.arguments import name_of
from compaction_store.compaction.asks import Planned, Steps
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.planner import Planner
from compaction_store.compaction.records import log_listener
from compaction_store.errors import InvalidCallback, InvalidInput
from compaction_store.models import Compaction, Summary
from compaction_store.waiting import Call, Work, is_async

_Yielded = TypeVar("_Yielded")
_Sent = TypeVar("_Sent")
# Hints for values of other types that are given as a callback by mistake.
_SEVERAL = ": pass several callbacks one after the other"
_HINTS = {"TokenBudget": ": pass the budget as budget=…", "list": _SEVERAL, "tuple": _SEVERAL}
_MUST_BE_SYNCHRONOUS = "an async callback needs an AsyncStore: on a Store a callback must be synchronous"


@runtime_checkable
class Strategy(Protocol):
    """A callback that yields an `Ask` for each span. It is sent None if the span is planned, or else the error."""

    def steps(self, ctx: CompactionContext) -> Steps: ...


#: A function of a context, sync or async, or a strategy. A function must return None, or a result of the context's
#: methods.
Callback = Callable[[CompactionContext], object] | Strategy

#: A function, sync or async, of a record that was committed.
Listener = Callable[[Compaction], object]


def callback_name(callback: object) -> str:
    """Returns the name of a callback in records: its attribute `name`, or else the place of its definition."""
    return name_of(callback, "callback")


def check_callback(callback: object, *, awaits: bool) -> None:
    """Raises InvalidCallback if a callback cannot be called with a context, or is async on a synchronous store."""
    if isinstance(callback, type):
        raise InvalidCallback(f"a callback must be a callable or a strategy, not the class {callback.__name__}")
    if getattr(callback, "is_summarizer", False) is True and not isinstance(callback, Strategy):
        raise InvalidCallback(
            f"a callback must be a callable or a strategy, not the summarizer {type(callback).__name__}: pass the"
            " summarizer to a strategy, such as SlidingWindow(summarizer)"
        )
    if not isinstance(callback, Strategy) and not callable(callback):
        hint = _HINTS.get(type(callback).__name__, "")
        raise InvalidCallback(f"a callback must be a callable or a strategy, not {type(callback).__name__}{hint}")
    _check_call(callback, "the context", awaits=awaits)


def check_listener(listener: object, *, awaits: bool) -> None:
    """Raises InvalidCallback if a listener cannot be called with a record, or is async on a synchronous store."""
    if isinstance(listener, type) or not callable(listener):
        raise InvalidCallback(f"a callback must be a function of a record, not {type(listener).__name__}")
    _check_call(listener, "the record", awaits=awaits)


def _check_call(callback: Any, argument: str, *, awaits: bool) -> None:
    if not isinstance(callback, Strategy) and not _takes_one_argument(callback):
        raise InvalidCallback(f"a callback must take one argument, {argument}: {callback_name(callback)} does not")
    if not awaits and is_async(callback):
        raise InvalidCallback(_MUST_BE_SYNCHRONOUS)


def tell(listeners: Iterable[Listener], records: Iterable[Compaction]) -> Work[None]:
    """Calls the listeners with records that were committed. An error of a listener is only logged."""
    for record, listener in product(records, listeners):
        try:
            result = yield Call(listener, record)
            if inspect.iscoroutine(result):
                result.close()
                raise InvalidCallback(_MUST_BE_SYNCHRONOUS)
        except Exception as error:  # noqa: BLE001 — the record is committed, whatever a listener raises
            log_listener(record, error)


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions that are written in C have no signature.
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def run_callbacks(planner: Planner, callbacks: Iterable[Callback]) -> Work[None]:
    """Runs callbacks in turn. An error of a callback is recorded, and discards only the callback's own plan."""
    for callback in callbacks:
        mark = planner.begin(callback_name(callback))
        try:
            yield from run_callback(planner, callback)
        except Exception as error:  # noqa: BLE001 — a callback may raise anything
            planner.void(mark, error)


def run_callback(planner: Planner, callback: Any) -> Work[None]:
    """Runs one callback to its end. If it raises an error, the caller must withdraw the plan of the callback."""
    ctx = CompactionContext(planner)
    if isinstance(callback, Strategy):
        yield from run_steps(planner, callback.steps(ctx))
    else:
        result = yield Call(callback, ctx)
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidCallback(_MUST_BE_SYNCHRONOUS)
        check_nothing(result)
    planner.finish()


def check_nothing(result: object) -> None:
    """Raises InvalidInput for a callback that returns a result of its own, which would otherwise be ignored."""
    if isinstance(result, list | tuple) and type(result) in (list, tuple):
        for part in result:
            check_nothing(part)
    elif result is not None and not isinstance(result, bool | int | float | Planned):
        what = "the summary" if isinstance(result, str | Summary) else f"messages ({type(result).__name__})"
        raise InvalidInput(
            "a callback must call ctx.compact(start_seq, end_seq, summary), ctx.replace(start_seq, end_seq, messages)"
            f" or ctx.remove(start_seq, end_seq), not return {what}"
        )


def run_steps(planner: Planner, steps: Steps) -> Work[None]:
    """Runs a strategy to its end, and sends it the outcome of each request."""
    outcome: Exception | None = None
    while waiting := (yield Call(_advance, planner, steps, outcome)):
        [planned] = waiting
        try:
            yield planned
            outcome = None
        except Exception as error:  # noqa: BLE001 — the strategy decides how to continue
            planner.errors.append(error)
            outcome = error
        if planned.is_waiting:
            # The synchronous driver cannot await the result. `finish` then refuses the callback.
            return


def _advance(planner: Planner, steps: Steps, outcome: Exception | None) -> list[Planned]:
    """Runs steps until a result must be awaited. Returns it in a list, because the driver would await a bare result."""
    while (step := sent(steps, outcome)) is not None:
        try:
            planned = planner.ask(step)
            # Strategies never read the messages, so they need not be computed.
            planner.plan.last_planned.forget()
            outcome = None
        except Exception as error:  # noqa: BLE001 — the strategy decides how to continue
            planner.errors.append(error)
            outcome = error
        else:
            if planned.is_waiting:
                return [planned]
    return []


def sent(steps: Generator[_Yielded, _Sent, Any], value: _Sent | None) -> _Yielded | None:
    """Sends a value to a generator, None at first. Returns what the generator yields next; None at its end."""
    try:
        return steps.send(cast("_Sent", value))
    except StopIteration:
        return None
