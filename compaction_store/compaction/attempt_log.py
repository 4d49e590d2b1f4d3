"""Records the attempts of callbacks to compact a view: applied, rejected by a rule, or failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from compaction_store.compaction.plan import EVERYTHING, Mark, Plan
from compaction_store.compaction.summary_calls import CallRecord, without_text
from compaction_store.errors import ChecksFailed, EmptySummary, NotSmaller, Rejected, SpanConflict, own_text, raised_at
from compaction_store.models import Attempt, Payload, Span, Summary
from compaction_store.models.vocabulary import Kind, Outcome

# If an attempt is rejected by one of these rules, the same span is not tried again until the thread changes.
_NO_PROGRESS = (NotSmaller, EmptySummary, ChecksFailed)
Indexes = tuple[int, int]


class AttemptLog:
    """A log of attempts, each with the name of its callback, and the authority of the run or of the callback."""

    def __init__(self, plan: Plan, thread_id: str, authority: Payload | None = None) -> None:
        self.callback = "callback"
        self.authority = authority
        self._given_authority = authority
        #: The number of attempts before the running callback.
        self.began = 0
        self._plan = plan
        self._thread_id = thread_id
        self._failures: list[Exception] = []

    def begin(self, callback: str) -> None:
        """Records the next attempts under the name of this callback, and with the authority given to the run."""
        self.callback, self.authority = callback, self._given_authority
        self.began = len(self._plan.attempts)

    def apply(
        self,
        indexes: Indexes,
        span: Span,
        kind: Kind,
        tokens_after: int,
        *,
        replacement: tuple[Payload, ...] = (),
        summary: Summary | None = None,
        inputs: tuple[int, ...] = (),
        allow: frozenset[str],
        reason: str | None,
    ) -> None:
        """Adds a compaction to the plan."""
        before = self._plan.tokens(*indexes)
        attempt = Attempt(
            self.callback, kind, "applied", *span, before, tokens_after, replacement, summary, inputs, allow, reason,
            authority=self.authority,
        )  # fmt: skip
        self._plan.place(*indexes, attempt)

    def reject(
        self,
        kind: type[Rejected],
        span: Span,
        what: Kind,
        text: str,
        summary: Summary | None = None,
        call: CallRecord | None = None,
        *,
        reason: str | None,
    ) -> NoReturn:
        """Records that a rule refused an attempt, and raises the error."""
        kept = None if summary is None else without_text(summary)
        error: Payload = {"type": kind.__name__, "text": text, "no_progress": issubclass(kind, _NO_PROGRESS)}
        self._add(what, "rejected", span, kept, error, call, reason)
        raise kind(f"{text} ({span} of thread {self._thread_id!r})", start_seq=span[0], end_seq=span[1])

    def fail(
        self,
        span: Span,
        error: Exception,
        call: CallRecord | None,
        summary: Summary | None = None,
        *,
        reason: str | None,
    ) -> None:
        """Records that the summarizer failed, or that its summary cannot be used."""
        known = None if summary is None else without_text(summary)
        if known is None and call is not None:
            known = call.failed(error)
        self._add("summary", "failed", span, known, _as_recorded(error, "the summarizer failed"), call, reason)
        self._failures.append(error)

    def void(self, mark: Mark, error: Exception) -> None:
        """Withdraws everything that was planned since the mark.

        Records the callback's error, unless it is a `Rejected`, a `SpanConflict` or the error of a recorded attempt.

        A summary with known usage stays on record as a failed attempt, because it was paid for.
        """
        applied = [attempt for attempt in self._plan.attempts[mark.attempts :] if attempt.outcome == "applied"]
        self._plan.void(mark)
        for attempt in applied:
            if attempt.summary is not None and attempt.summary.usage is not None:
                self._plan.attempts.append(replace(
                    attempt, outcome="failed", tokens_after=None, replacement=(), summary=without_text(attempt.summary),
                    inputs=_recorded(attempt.inputs),
                    error=_as_recorded(error, "") | {"text": "the callback failed after this summary"},
                ))  # fmt: skip
        if not isinstance(error, Rejected | SpanConflict) and not any(error is known for known in self._failures):
            what = _as_recorded(error, "the callback failed")
            attempt = Attempt(self.callback, "summary", "failed", None, None, error=what, authority=self.authority)
            self._plan.attempts.append(attempt)

    def inputs(self, indexes: Indexes, call: CallRecord | None = None) -> tuple[int, ...]:
        """Returns the numbers of the records in a range, with EVERYTHING if the summarizer saw more than the range."""
        numbers = tuple(number for element in self._plan.elements(*indexes) if (number := element.number) is not None)
        saw_more = call is not None and call.view is not None and call.view.was_shown
        return (EVERYTHING, *numbers) if saw_more else numbers

    def _add(
        self,
        kind: Kind,
        outcome: Outcome,
        span: Span,
        summary: Summary | None,
        error: Payload,
        call: CallRecord | None,
        reason: str | None,
    ) -> None:
        indexes = self._plan.indexes(span)
        inputs = _recorded(self.inputs(indexes, call))
        before = self._plan.tokens(*indexes)
        attempt = Attempt(
            self.callback, kind, outcome, *span, before, summary=summary, inputs=inputs, reason=reason, error=error,
            authority=self.authority,
        )  # fmt: skip
        self._plan.attempts.append(attempt)


def _recorded(inputs: Iterable[int]) -> tuple[int, ...]:
    """Replaces planned records among inputs by EVERYTHING, because they have no number yet and may be withdrawn."""
    return tuple(dict.fromkeys(max(number, EVERYTHING) for number in inputs))


def _as_recorded(error: Exception, default: str) -> Payload:
    """Returns an error's type and place and, if this package wrote it, its text. Other texts may quote a message."""
    found: Payload = {"type": type(error).__qualname__, "text": own_text(error) or default}
    place = raised_at(error)
    return found if place is None else found | {"at": place}
