"""Runs work in several processes, and yields its results in order."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")
_Opened = TypeVar("_Opened")


def count(wanted: int | None, parts: int) -> int:
    """Returns how many processes to use: as many as wanted, or one for each core, but no more than there are parts."""
    return max(1, min(wanted or os.cpu_count() or 1, parts))


def run(
    number: int, work: Callable[[_Part], _Found], parts: Sequence[_Part], begin: Callable[..., None], *given: Any
) -> Iterator[_Found]:
    """Yields the result of each part. Each process first calls `begin` with the arguments `given`."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=begin, initargs=given)
    try:
        yield from pool.map(work, parts)
    finally:
        pool.shutdown(cancel_futures=True)


def opened(manager: AbstractContextManager[_Opened]) -> _Opened:
    """Enters a context manager in a process of the pool, and leaves it when the process ends."""
    stack = ExitStack()
    entered = stack.enter_context(manager)
    atexit.register(stack.close)
    return entered
