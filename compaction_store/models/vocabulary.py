"""The words that describe records and events, each list once: as a type for checkers and as a tuple for programs.

A newer release may write other kinds of records and events, so a stored kind may be another text. The SQL has the same
lists, and the limits of texts; tests compare them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from compaction_store.module_data import ModuleData

Kind = Literal["summary", "truncation", "removal", "revocation", "rewind", "clear", "adoption"]
Outcome = Literal["applied", "rejected", "failed", "observed"]
# The status of a record is its outcome, unless it was applied to a view and may have been undone since.
Status = Literal["active", "superseded", "revoked", "redacted", "unknown", "applied", "rejected", "failed", "observed"]
# The kinds of events that concern no single thread. The log of a tenant has these and no others.
LogEvent = Literal["verification", "policy", "rule", "removal", "shred", "grant", "ungrant", "migration"]
EventKind = Literal[
    "redaction", "hold", "release", "retention", "fork", "origin", "refusal", "verdict", "evaluation",
    "metadata", "subject", LogEvent
]  # fmt: skip
Judgement = Literal["good", "bad", "unsure"]
# Why a retention policy keeps a thread whose last message was old enough. The SQL function kept_by has the same words.
KeptBy = Literal["written", "held", "retained", "damaged"]

KINDS: tuple[Kind, ...] = get_args(Kind)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
STATUSES: tuple[Status, ...] = get_args(Status)
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
LOG_EVENTS: tuple[LogEvent, ...] = get_args(LogEvent)
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)

# The kinds of records that a provider's compaction may be recorded as.
ReplacingKind = Literal["summary", "truncation", "removal"]
REPLACING_KINDS: tuple[ReplacingKind, ...] = get_args(ReplacingKind)
# The kinds of records with which a user takes messages out of the view. They have no replacement.
Withdrawal = Literal["rewind", "clear"]
WITHDRAWALS: tuple[Withdrawal, ...] = get_args(Withdrawal)
# The kinds of records that replace their span by a summary. Others hide the span, or replace it by shorter messages.
SUMMARY_KINDS: tuple[Kind, ...] = ("summary", "adoption")
# The kinds of records that are not attempts to compact.
NO_ATTEMPTS: tuple[Kind, ...] = ("revocation", *WITHDRAWALS)
#: The attribute of spans and logs that says that a view has the replacements of compactions.
COMPACTED = "gen_ai.conversation.compacted"
# The kinds of events that change how views are made.
CRITICAL_EVENTS: frozenset[EventKind] = frozenset({"redaction"})


def sql_list(words: Iterable[str]) -> str:
    """Returns words as a list for SQL, such as ('summary', 'truncation')."""
    return "(" + ", ".join(f"'{word}'" for word in words) + ")"


#: The most bytes of each column, and of two texts in the bodies of records and events.
MOST_BYTES: dict[str, int] = ModuleData(__file__).values["most_bytes"]
NAME_BYTES = MOST_BYTES["thread_id"]
