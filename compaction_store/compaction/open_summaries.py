"""Counts the summaries that a running callback has asked for and not awaited yet."""

from __future__ import annotations

from compaction_store.errors import InvalidCallback


class OpenSummaries:
    """Counts for one callback at a time, and refuses a summary that arrives after its callback has ended."""

    def __init__(self) -> None:
        self._turn = 0
        self._count = 0

    def begin(self) -> None:
        """Starts the turn of a callback, or ends the turn of one that failed."""
        self._turn += 1
        self._count = 0

    def open(self) -> int:
        """Counts one more, and returns the turn it belongs to."""
        self._count += 1
        return self._turn

    def close(self, turn: int) -> bool:
        """Counts one less; returns False if the callback of that turn has ended."""
        if turn != self._turn:
            return False
        self._count -= 1
        return True

    def check(self, callback: str) -> None:
        """Refuses a callback that did not await all of them."""
        if self._count:
            raise InvalidCallback(
                f"{callback} must await ctx.compact(…): an async callback awaits every summarizer, "
                "and a callback that is not async can use no async one"
            )
