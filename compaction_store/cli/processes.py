"""Runs work in several processes, and yields its results in order."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from typing import Any, TypeVar

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")
_Opened = TypeVar("_Opened")
_made: Callable[[], Any]


def count(wanted: int | None, parts: int) -> int:
    """Returns how many processes to use: as many as wanted, or one for each core, but no more than there are parts."""
    return max(1, min(wanted or os.cpu_count() or 1, parts))


def run(
    number: int, work: Callable[[Any, _Part], _Found], parts: Sequence[_Part], make: Callable[..., Any], *given: Any
) -> Iterator[_Found]:
    """Yields the result of `work` for each part. Its first argument is what `make(*given)` returned in the process."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin, initargs=(make, *given))
    try:
        yield from pool.map(partial(_work, work), parts)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(make: Callable[..., Any], *given: Any) -> None:
    global _made  # noqa: PLW0603 — how a pool hands something to its processes
    _made = cache(partial(make, *given))


def _work(work: Callable[[Any, _Part], _Found], part: _Part) -> _Found:
    return work(_made(), part)


def opened(manager: AbstractContextManager[_Opened]) -> _Opened:
    """Enters a context manager in a process of the pool, and leaves it when the process ends."""
    stack = ExitStack()
    entered = stack.enter_context(manager)
    atexit.register(stack.close)
    return entered
