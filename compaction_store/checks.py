"""Checks of summaries: what a summary must keep, and must not say.

Give them to `ctx.compact(…, checks=(KeepsOrders(), NothingInvented()))`, to a strategy or to a summarizer. They are
rules and call no model. If a check fails, a summarizer of this package gets the missing items and tries once more;
lines of the messages that are then still missing are appended word for word. With `strict=True`, a summary that fails
is rejected. The record has the outcome.
"""

from __future__ import annotations

from compaction_store.compaction.checks import (
    Check,
    CheckedSpan,
    KeepsFiles,
    KeepsIdentifiers,
    KeepsOrders,
    NothingInvented,
    NothingStale,
    QuotesAreQuotes,
)

__all__ = [
    "Check",
    "CheckedSpan",
    "KeepsFiles",
    "KeepsIdentifiers",
    "KeepsOrders",
    "NothingInvented",
    "NothingStale",
    "QuotesAreQuotes",
]
