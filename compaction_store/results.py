"""Results that are read or do their work while they are iterated over. They have no truth value.

If nobody iterates over a result that does work, it says so. Such a call would otherwise do nothing in silence: a load
would store nothing, and an audit would verify nothing.
"""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Context = TypeVar("_Context", bound=AbstractAsyncContextManager[Any])
_T_co = TypeVar("_T_co", covariant=True)
_log = logging.getLogger("compaction_store")


class _Iterated:
    """The base of the two classes below. Its instances warn if they were made with `works` and are never started."""

    def __init__(self, call: str, loop: str, items: Any, *, works: bool) -> None:
        self._call, self._loop = call, f"write `{loop} … in {call}`"
        self._items: Any = items
        self._is_waiting = works
        if works:
            _waiting.add(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the result of {self._call} must be iterated over, not used as a truth value: {self._loop}")

    def __del__(self) -> None:
        # The interpreter may be shutting down, when neither logging nor warnings work; `_at_exit` ran before.
        with suppress(AttributeError, ImportError, TypeError):
            self.warn()

    def warn(self) -> None:
        """Warns once if the work was never started."""
        if self._is_waiting:
            self._is_waiting = False
            text = f"{self._call} did nothing, because nobody iterated over its result: {self._loop}"
            # Python shows no ResourceWarning by default, so the log says it too.
            _log.warning(text)
            warnings.warn(text, ResourceWarning, stacklevel=3, source=self)


class Results(_Iterated, Generic[_T]):
    """The result of a call that reads, or does its work, while it is iterated over."""

    def __init__(self, call: str, items: Iterator[_T], *, works: bool = True) -> None:
        super().__init__(call, "for", items, works=works)

    def __iter__(self) -> Iterator[_T]:
        # Only a result that works needs this object to begin. The others are faster without it.
        return self if self._is_waiting else self._items

    def __next__(self) -> _T:
        self._is_waiting = False
        found: _T = next(self._items)
        return found

    def close(self) -> None:
        """Ends the work."""
        self._is_waiting = False
        self._items.close()


class AsyncResults(_Iterated, Generic[_T]):
    """The result of a call that reads, or does its work, while it is iterated over."""

    def __init__(self, call: str, items: AsyncIterator[_T], *, works: bool = True) -> None:
        super().__init__(call, "async for", items, works=works)

    def __aiter__(self) -> AsyncIterator[_T]:
        return self if self._is_waiting else self._items

    async def __anext__(self) -> _T:
        self._is_waiting = False
        found: _T = await anext(self._items)
        return found

    async def aclose(self) -> None:
        """Ends the work."""
        self._is_waiting = False
        await self._items.aclose()


_waiting: weakref.WeakSet[_Iterated] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for each in list(_waiting):
        each.warn()


class ItemsOf(Sequence[_T_co]):
    """The base class of results that are also sequences of the items in a list or a tuple of theirs."""

    __slots__ = ()

    @abstractmethod
    def _items_of(self) -> Sequence[_T_co]: ...

    @overload
    def __getitem__(self, index: int) -> _T_co: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_T_co]: ...

    def __getitem__(self, index: int | slice) -> _T_co | Sequence[_T_co]:
        return self._items_of()[index]

    def __len__(self) -> int:
        return len(self._items_of())


class AwaitableContext(Coroutine[Any, Any, _Context], AbstractAsyncContextManager[_Context]):
    """A coroutine, for one use, that is also an async context manager: entering it awaits it and enters the result."""

    def __init__(self, coroutine: Coroutine[Any, Any, _Context]) -> None:
        self._coroutine = coroutine
        # asyncio shows a task by its coroutine's name.
        self.__name__ = getattr(coroutine, "__name__", "open")
        self.__qualname__ = getattr(coroutine, "__qualname__", "open")
        self._opened: _Context | None = None

    def __getattr__(self, name: str) -> Any:
        # Only a caller who forgot the `await` asks for an attribute of the store; asyncio asks for its own with `_`.
        how = f"write `await {self.__qualname__}(…)`, or `async with {self.__qualname__}(…) as store`"
        raise AttributeError(f"the store is not open yet, so it has no {name!r}: {how}", name=name, obj=self)

    def __await__(self) -> Generator[Any, Any, _Context]:
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

    async def __aenter__(self) -> _Context:
        self._opened = await self._coroutine
        return cast("_Context", await self._opened.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._opened is not None  # noqa: S101 — it was entered
        return await self._opened.__aexit__(kind, error, trace)


def awaitable_context(
    function: Callable[_P, Coroutine[Any, Any, _Context]],
) -> Callable[_P, AwaitableContext[_Context]]:
    """Decorates an async function so that it returns an AwaitableContext."""

    @wraps(function)
    def call(*arguments: _P.args, **keywords: _P.kwargs) -> AwaitableContext[_Context]:
        made = AwaitableContext(function(*arguments, **keywords))
        if arguments and isinstance(arguments[0], type):
            # Name the class that the caller used, which may inherit the method.
            made.__qualname__ = f"{arguments[0].__name__}.{function.__name__}"
        return made

    return call
