"""Checks that a summary keeps what it must keep and invents nothing.

Pass checks to `ctx.compact(…, checks=(KeepsOrders(), NothingInvented()))`, to a strategy or to a summarizer. The checks
are rules and call no model. If a check fails, a summarizer of this package that uses a model gets a list of the missing
items and writes the summary once more. If the check still fails, lines with the missing items are appended or, with
`strict=True`, the summary is rejected. The compaction record has the result of each check.
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
