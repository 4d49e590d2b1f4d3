"""Counts the summaries that a running callback has requested but not awaited yet."""

from __future__ import annotations

from compaction_store.errors import InvalidCallback


class OpenSummaries:
    """A counter for one callback at a time. It refuses a summary that arrives after its callback has ended."""

    def __init__(self) -> None:
        self._turn = 0
        self._count = 0

    def begin(self) -> None:
        """Starts counting for a callback. After a failed callback, this makes `close` refuse its late summaries."""
        self._turn += 1
        self._count = 0

    def open(self) -> int:
        """Counts a requested summary. Returns the number of the running callback, to be given to `close`."""
        self._count += 1
        return self._turn

    def close(self, turn: int) -> bool:
        """Counts a summary as awaited. Returns False if the callback that requested it has ended."""
        if turn != self._turn:
            return False
        self._count -= 1
        return True

    def check(self, callback: str) -> None:
        """Raises InvalidCallback if the callback did not await all its summaries."""
        if self._count:
            raise InvalidCallback(
                f"{callback} must await ctx.compact(…): an async callback must await every summarizer, "
                "and a synchronous callback must not use an async summarizer"
            )
