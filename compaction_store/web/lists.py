"""Bounded lists of the audit pages. Each says whether there is more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

#: The most rows of a list, elements of a view, or originals of a record on one page.
ROWS = 50


class Listed(NamedTuple):
    """A page of a list. `more` is true if there are further pages, or if a search ran out of time."""

    rows: list[Any]
    more: bool


async def first(found: AsyncIterator[T], count: int = ROWS) -> Listed:
    rows: list[T] = []
    async for row in found:
        if len(rows) == count:
            return Listed(rows, more=True)
        rows.append(row)
    return Listed(rows, more=False)


async def first_within(seconds: float, found: AsyncIterator[T]) -> Listed:
    """Collects the results that are found within some seconds, up to one page of them."""
    rows: list[T] = []
    try:
        async with asyncio.timeout(seconds):
            async for row in found:
                if len(rows) == ROWS:
                    break
                rows.append(row)
            else:
                return Listed(rows, more=False)
    except TimeoutError:
        pass
    return Listed(rows, more=True)
