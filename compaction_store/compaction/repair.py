"""The strategy of a repair. It requests a new summary for the span of the record that the repair revokes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from compaction_store import waiting
from compaction_store.arguments import about
from compaction_store.compaction.asks import ALLOWED, Ask, Steps, Summarize, allowed_rules
from compaction_store.compaction.checks import Check, check_checks
from compaction_store.compaction.context import CompactionContext
from compaction_store.compaction.summary_request import SummaryResult, check_summarizer
from compaction_store.errors import Conflict, InvalidCallback
from compaction_store.messages.framing import ROLES, Role
from compaction_store.models import Compaction
from compaction_store.models.compactions import status_in_words
from compaction_store.models.vocabulary import WITHDRAWALS


def check_arguments(
    summarize: object, allow: Collection[str], reason: object, checks: Sequence[Check], *, awaits: bool
) -> None:
    """Checks the arguments of a repair before anything is read."""
    if not isinstance(summarize, SummaryResult):
        check_summarizer(summarize, "summarizer", choices="a callable, a text or a Summary")
    if not awaits and waiting.is_async(summarize):
        raise InvalidCallback("an async summarizer needs an AsyncStore: on a Store it must be synchronous")
    allowed_rules(allow, reason)
    check_checks(checks)


def check_repairable(record: Compaction) -> None:
    """Raises Conflict if a record is not active or hides messages. Reading the view says why a status is unknown."""
    place = about(record.thread_id)
    if record.status not in ("active", "unknown"):
        why = "it is a revocation" if record.kind == "revocation" else status_in_words(record)
        raise Conflict(f"compaction {record.number} is not active: {why}{place}")
    if record.kind in WITHDRAWALS:
        raise Conflict(f"compaction {record.number} is a {record.kind}, which has no summary: revoke it{place}")


class RepairStrategy:
    """A strategy that summarizes one span again. It may break the rules in `allow`, and those that the record broke."""

    name = "repair"

    def __init__(
        self,
        record: Compaction,
        summarize: SummaryResult | Summarize,
        *,
        reason: str | None,
        allow: Collection[str],
        checks: Sequence[Check],
    ) -> None:
        assert record.start_seq is not None  # noqa: S101 — an active record has a span
        assert record.end_seq is not None  # noqa: S101
        self._ask = Ask(
            record.start_seq, record.end_seq, summarize, allow=allowed_rules(allow, reason) | _allowed(record),
            reason=reason, framed=False, role=_role(record), checks=check_checks(checks),
        )  # fmt: skip

    @property
    def needs_async(self) -> bool:
        return waiting.is_async(self._ask.summarize)

    def steps(self, ctx: CompactionContext) -> Steps:  # noqa: ARG002 — every strategy gets a context
        yield self._ask


def _allowed(record: Compaction) -> frozenset[str]:
    found = (record.body or {}).get("allow")
    return ALLOWED.intersection(name for name in found if isinstance(name, str)) if type(found) is list else frozenset()


def _role(record: Compaction) -> Role:
    """Returns the role that the summary to repair has in the view."""
    replacement = record.replacement if record.kind == "summary" else None
    role = replacement[0].get("role") if replacement else None
    return cast("Role", role) if role in ROLES else "user"
