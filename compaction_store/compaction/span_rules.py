"""Checks whether a span of a view may be compacted, before a summary is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from compaction_store.compaction.asking import Stalled
from compaction_store.compaction.attempt_log import AttemptLog, Indexes
from compaction_store.compaction.plan import Plan
from compaction_store.errors import (
    InvalidSpan,
    LastUserInside,
    NoProgress,
    PendingCall,
    Rejected,
    SplitPair,
    SystemInside,
)
from compaction_store.messages import tool_pairs
from compaction_store.models import Payload, Span
from compaction_store.models.vocabulary import Kind

_PAIRS: dict[str, tuple[type[Rejected], str]] = {
    "split_pair": (SplitPair, "the span separates a tool call from its result"),
    "pending_call": (PendingCall, "a tool call in the span still waits for its result"),
}


class SpanRules:
    """The rules for the spans of a view.

    It is enough to check them on the original view: every planned compaction folds whole pairs of a call and its
    result, or keeps their ids.
    """

    def __init__(self, plan: Plan, log: AttemptLog, stalled: Iterable[Stalled]) -> None:
        self._plan = plan
        self._log = log
        self._stalled = frozenset(stalled)

    def check(self, span: Span, kind: Kind, allow: Collection[str], reason: str | None) -> Indexes:
        """Returns the indexes of a span. If the span may not be compacted, records the rejection and raises it."""
        low, high = self._plan.indexes(span)
        if (refusal := self._refusal(low, high, kind, allow)) is not None:
            self._log.reject(refusal[0], span, kind, refusal[1], reason=reason)
        return low, high

    def check_progress(self, span: Span, allow: Collection[str]) -> None:
        """Raises NoProgress if the span was just rejected because it made no progress."""
        callback = self._log.callback
        if "larger" not in allow and Stalled(callback, *span) in self._stalled:
            raise NoProgress(
                f"{callback} was just rejected on {span} and nothing has changed since",
                start_seq=span.start_seq,
                end_seq=span.end_seq,
            )

    def check_new(self, span: Span) -> None:
        """Raises InvalidSpan if the running callback has already summarized exactly this span."""
        made = self._plan.attempts[self._log.began :]
        if any(a.outcome == "applied" and a.kind == "summary" and (a.start_seq, a.end_seq) == span for a in made):
            raise InvalidSpan(
                f"a callback must not summarize the same span twice: {span} already has a summary, from which the "
                "second one would be made"
            )

    def safe_span(self, span: Span) -> Span | None:
        """Returns the largest part of a span that separates no tool call from its result, or None if there is none."""
        low, high = self._plan.indexes_inside(span)
        if low > high or (found := self.links.safe(low, high, interrupting=False)) is None:
            return None
        return Span(self._plan.base[found[0]].seq, self._plan.base[found[1]].end_seq)

    @cached_property
    def links(self) -> tool_pairs.Links:
        """The links between tool calls and their results in the view."""
        return tool_pairs.Links(self._items)

    def _refusal(self, low: int, high: int, kind: Kind, allow: Collection[str]) -> tuple[type[Rejected], str] | None:
        if kind != "truncation" and (problem := self.links.problem(low, high)) is not None:
            return _PAIRS[problem]
        if "system" not in allow and any(
            m is not None and tool_pairs.is_system(m)
            for element in self._plan.base[low : high + 1]
            for m in element.messages
        ):
            return SystemInside, "a system message is inside the span"
        if "last_user" not in allow and self._last_user is not None and low <= self._last_user <= high:
            return LastUserInside, "the last user message is inside the span"
        return None

    @cached_property
    def _items(self) -> list[tuple[Payload | None, ...]]:
        return tool_pairs.items_of(self._plan.base)

    @cached_property
    def _last_user(self) -> int | None:
        return tool_pairs.last_user(self._items)
