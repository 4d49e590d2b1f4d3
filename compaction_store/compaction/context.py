"""The argument of an `on_compact` callback: it shows the view and plans compactions of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, cast, overload

from compaction_store.arguments import other
from compaction_store.compaction.asks import Ask, Planned, Summarize, allowed_rules, check_role
from compaction_store.compaction.budget import TokenBudget
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.planner import Planner
from compaction_store.compaction.size_estimate import check_budget
from compaction_store.compaction.summary_request import SummaryResult
from compaction_store.errors import InvalidInput, InvalidSpan, Rejected
from compaction_store.messages import encoding, tool_pairs
from compaction_store.messages.framing import Role
from compaction_store.models import Attempt, Element, Measured, Payload, Span
from compaction_store.rendering.view import View
from compaction_store.tokens import Counter, chosen
from compaction_store.waiting import is_on_event_loop


class CompactionContext:
    """The view of a thread, and the growing plan of compactions that a callback makes. Spans are given as seqs.

    `elements` and `result_messages` show the view with the plan applied, and are up to date after every call.
    `message_elements` and `tokens_before` describe the view before the compaction.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    @classmethod
    def from_messages(
        cls,
        messages: Iterable[Any],
        *,
        budget: TokenBudget | None = None,
        counter: Counter | Callable[[Payload], int] | None = None,
    ) -> CompactionContext:
        """Makes a context from plain messages, to test a callback or a strategy without a store.

        The context has the rules, tokens and errors of a store whose thread has these messages, with seqs from 1.
        Nothing is stored. On an event loop, the context behaves as on an `AsyncStore`, and otherwise as on a `Store`.
        `attempts` has the records that a store would write.
        """
        if budget is not None:
            check_budget(budget, awaits=is_on_event_loop())
        counting = chosen(counter)
        now = datetime.now(UTC)
        elements = [
            Element(seq, seq, seq, (one.payload,), counting.tokens(one.payload, one.size), None, now)
            for seq, one in enumerate(map(encoding.encode, messages), 1)
        ]
        if not elements:
            raise InvalidInput("messages must have at least one message")
        view = View("messages", len(elements), tuple(elements))
        return cls(Planner(view, counter=counting, budget=budget, awaits=is_on_event_loop()))

    @property
    def thread_id(self) -> str:
        """The thread's name."""
        return self._planner.plan.thread_id

    @property
    def budget(self) -> TokenBudget | None:
        """The `TokenBudget` that `compact` was given, with its marks converted to the store's tokens, or None."""
        return self._planner.budget

    @property
    def measured(self) -> Measured:
        """The best known figure for the size of the view."""
        return self._planner.measured

    @property
    def errors(self) -> list[Exception]:
        """The errors that callbacks and summarizers have raised so far, in order."""
        return self._planner.errors

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts of all callbacks so far, in order: planned, rejected and failed ones."""
        return tuple(self._planner.attempts)

    @property
    def authority(self) -> Payload | None:
        """The authority for the compaction that the caller of `compact` stated, or None. A callback may set another.

        The authority is recorded with all later attempts of the callback, including failed and rejected attempts.
        """
        return deepcopy(self._planner.plan.authority)

    @authority.setter
    def authority(self, authority: Mapping[str, Any] | None) -> None:
        self._planner.plan.authority = encoding.authority(authority)

    @property
    def elements(self) -> tuple[Element, ...]:
        """The view with all planned compactions applied."""
        return self._planner.plan.folded()

    @property
    def result_messages(self) -> list[Payload]:
        """The messages that the model will be sent if the plan is committed."""
        return self._planner.plan.messages()

    @property
    def total_tokens(self) -> int:
        """The tokens of the view with all planned compactions applied."""
        plan = self._planner.plan
        return plan.tokens(0, len(plan.base) - 1)

    @property
    def message_elements(self) -> tuple[Element, ...]:
        """The elements of the view before the compaction. A range in `compact` counts positions in this tuple."""
        return tuple(self._planner.plan.base)

    @property
    def tokens_before(self) -> int:
        """The tokens of the view before the compaction."""
        return sum(element.tokens for element in self._planner.plan.base)

    @property
    def counter(self) -> Counter:
        """The store's counter: it counts messages and plain text, and cuts text."""
        return self._planner.counter

    @property
    def links(self) -> tool_pairs.Links:
        """The links between tool calls and their results in `elements`."""
        if not self._planner.plan.folds:
            return self._planner.links
        return tool_pairs.Links(tool_pairs.items_of(self.elements))

    def count(self, messages: Iterable[Payload]) -> int:
        """Counts the tokens of messages with the store's counter."""
        return self._planner.count(messages)

    def safe_span(self, start_seq: int, end_seq: int) -> Span | None:
        """Returns the largest span from `start_seq` to `end_seq` that separates no tool call from its result, or None.

        The span does not lie between a call and its result either. The other rules, for system messages and the last
        message of the user, are not checked here.
        """
        return self._planner.safe_span(Span(start_seq, end_seq))

    @overload
    def compact(
        self,
        start_seq: int,
        end_seq: int,
        summary: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
        role: Role = "user",
        checks: Sequence[Check] = (),
    ) -> Planned: ...

    @overload
    def compact(
        self,
        start_seq: int | range | slice,
        end_seq: SummaryResult | Summarize,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
        role: Role = "user",
        checks: Sequence[Check] = (),
    ) -> Planned: ...

    def compact(
        self,
        start_seq: int | range | slice,
        end_seq: Any,
        summary: SummaryResult | Summarize | None = None,
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
        role: Role = "user",
        checks: Sequence[Check] = (),
    ) -> Planned:
        """Plans to replace a span by a summary: a text, a `Summary`, or a callable that is given the elements.

        The span is two seqs, or one position, range or slice of positions in `message_elements`, from 0:
        `compact(2, summary)` means the third element, and `compact(range(0, 5), summary)` the first five. An empty
        range plans nothing and calls no summarizer. Returns the messages that are then in the view. If the summary is a
        callable, an async callback must await the result. Async summarizers then run on the event loop, and others in a
        thread. The summary's message has the role `user` unless `role="assistant"` is given.

        A span that the same callback has already summarized is refused, because its summary would be summarized. A
        larger span may include that summary, and the record names it as an input.

        If a summary fails one of `checks`, a summarizer that can repair its summaries is asked once to do so. If a
        strict check still fails, the summary is rejected. Otherwise, lines with the items that are still missing are
        appended.
        """
        check_role(role)
        reasons = allowed_rules(allow, reason)
        if summary is not None and isinstance(start_seq, range | slice):
            raise InvalidInput("end_seq must be left out for a range: compact(range(0, 5), summary)")
        if summary is None and (end_seq is None or isinstance(end_seq, int)):
            raise InvalidInput(
                "the arguments of compact() must be two seqs and a summary, or a position or a range of positions and "
                "a summary: the summary is missing"
            )
        by_position = summary is None
        if by_position and isinstance(start_seq, int):
            reason = f"the element at position {start_seq}" if reason is None else reason
        span = self._span_at(start_seq) if by_position else Span(cast("int", start_seq), end_seq)
        if span is None:
            return self.planned()
        ask = Ask(
            *span, cast("SummaryResult | Summarize", end_seq if by_position else summary), allow=reasons, reason=reason,
            framed=False, role=role, checks=check_checks(checks),
        )  # fmt: skip
        try:
            self._planner.check_new(span)
            return self._planner.ask(ask)
        except Rejected as error:
            if by_position and isinstance(start_seq, int):
                error.add_note(
                    f"compact({start_seq}, summary) means the element at position {start_seq} of message_elements, "
                    f"{span}; a span of seqs needs both ends: compact(start_seq, end_seq, summary)"
                )
            raise

    def _span_at(self, positions: int | range | slice) -> Span | None:
        """Returns the span of positions in the view before any planning, or None if there are none."""
        base = self._planner.plan.base
        if not isinstance(positions, range | slice):
            if type(positions) is not int or not -len(base) <= positions < len(base):
                raise InvalidSpan(
                    f"a position must be an integer from 0 to {len(base) - 1}, or from -{len(base)} to -1"
                    f"{other(positions)}; a span of seqs needs both ends: compact(start_seq, end_seq, summary)"
                )
            return Span(base[positions].seq, base[positions].end_seq)
        try:
            found = range(*positions.indices(len(base))) if isinstance(positions, slice) else positions
        except TypeError:
            raise InvalidSpan("a slice of positions must be made of integers") from None
        if not found:
            return None
        if found.step != 1 or found.start < 0 or found.stop > len(base):
            raise InvalidSpan(f"a range of positions must lie within 0 to {len(base)} with step 1, not {found!r}")
        return Span(base[found.start].seq, base[found.stop - 1].end_seq)

    def planned(self) -> Planned:
        """Returns the messages of the view with all planned compactions applied."""
        return self._planner.planned()

    def replace(
        self,
        start_seq: int,
        end_seq: int,
        messages: Sequence[Payload],
        *,
        allow: Collection[str] = (),
        reason: str | None = None,
    ) -> None:
        """Plans to replace a span by shorter messages, which must keep the ids of the span's tool calls and results."""
        allowed = allowed_rules(allow, reason)
        self._planner.ask(Ask(start_seq, end_seq, replacement=tuple(messages), allow=allowed, reason=reason))

    def remove(self, start_seq: int, end_seq: int, *, allow: Collection[str] = (), reason: str | None = None) -> None:
        """Plans to remove a span from the view."""
        self._planner.ask(Ask(start_seq, end_seq, allow=allowed_rules(allow, reason), reason=reason))


def planner_of(ctx: CompactionContext) -> Planner:
    """Returns the planner behind a context, for the strategies of this package."""
    return ctx._planner  # noqa: SLF001 — it is hidden from callbacks of applications
