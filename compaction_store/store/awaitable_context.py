"""Lets callers either await `AsyncStore.open`, or use it with `async with`, which also closes the store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T", bound=AbstractAsyncContextManager[Any])


class AwaitableContext(Coroutine[Any, Any, _T], AbstractAsyncContextManager[_T]):
    """A coroutine that is also an async context manager: entering it awaits the coroutine and enters the result.

    Like any coroutine, it can be used only once.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        # asyncio shows a task by its coroutine's name.
        self.__name__ = getattr(coroutine, "__name__", "open")
        self.__qualname__ = getattr(coroutine, "__qualname__", "open")
        self._opened: _T | None = None

    def __getattr__(self, name: str) -> Any:
        # Only a caller who forgot the `await` asks for an attribute of the store; asyncio asks for its own with `_`.
        how = f"write `await {self.__qualname__}(…)`, or `async with {self.__qualname__}(…) as store`"
        raise AttributeError(f"the store is not open yet, so it has no {name!r}: {how}", name=name, obj=self)

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._coroutine.throw(*error)
        finally:
            # Break the reference cycle between the error's traceback and this frame, which would keep the opened store
            # alive.
            del error

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> _T:
        self._opened = await self._coroutine
        return cast("_T", await self._opened.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._opened is not None  # noqa: S101 — it was entered
        return await self._opened.__aexit__(kind, error, trace)


def awaitable_context(function: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, AwaitableContext[_T]]:
    """Decorates an async function so that it returns an AwaitableContext."""

    @wraps(function)
    def call(*arguments: _P.args, **keywords: _P.kwargs) -> AwaitableContext[_T]:
        made = AwaitableContext(function(*arguments, **keywords))
        if arguments and isinstance(arguments[0], type):
            # Name the class that the caller used, which may inherit the method.
            made.__qualname__ = f"{arguments[0].__name__}.{function.__name__}"
        return made

    return call
