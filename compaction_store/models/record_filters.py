"""The filters of compaction records: one row a filter, for the store, the SQL, the command line and the audit pages.

To add a filter, add its row to FILTERS and its type to the TypedDict. How the value of a form is checked, parsed and
entered is written once for each form, in the layer that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

from compaction_store.models.compactions import Compaction
from compaction_store.models.vocabulary import KINDS, OUTCOMES, STATUSES, Kind, Outcome, Status

# A `range` has a lowest and a highest number, of which either may be missing. An `object` is a JSON object.
Form = Literal["text", "choice", "number", "range", "time", "uuid", "object"]


class SampleFilters(TypedDict, total=False):
    """The filters of `sample` and `compactions`. A filter that is None matches all records."""

    outcome: Outcome | None
    kind: Kind | None
    actor: str | None
    model: str | None
    login: str | None
    callback: str | None
    trigger: str | None
    since: datetime | None
    until: datetime | None


class RecordFilters(SampleFilters, total=False):
    """The filters of `compactions`. A filter that is None matches all records."""

    status: Status | None
    tokens_before: tuple[int | None, int | None] | None
    tokens_after: tuple[int | None, int | None] | None
    counter: str | None
    summarizer: str | None
    error_type: str | None
    failed_before: str | None
    covering: int | None
    revokes: int | None
    made_from: int | None
    run_id: UUID | None
    authority: Mapping[str, Any] | None


class Filter(NamedTuple):
    """A filter of records.

    `where` is its condition in SQL on a row of the table `compactions`, with the value as a parameter of the filter's
    name. For a `range`, it is the expression that the bounds are compared with. If SQL cannot decide alone, `holds` is
    given a record and the value, and decides; then `where` may be empty, and `texts` are texts that the body of a
    matching record must contain.

    `help` is the text of the option, and `label` that of the form field. A filter with `has_words` compares words, so
    pages that show no words do not have it.
    """

    name: str
    form: Form
    help: str
    label: str
    where: str = ""
    holds: Callable[[Compaction, Any], bool] | None = None
    texts: Callable[[Any], list[str]] | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    example: str | None = None
    option: str | None = None
    has_words: bool = False

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return f"--{(self.option or self.name).replace('_', '-')}"

    @property
    def is_of_samples(self) -> bool:
        return self.name in SampleFilters.__annotations__


def _has_authority(record: Compaction, wanted: Mapping[str, Any]) -> bool:
    """Returns whether a record's authority has all members of `wanted`, as JSON: true is not 1 there."""
    return record.authority is not None and has_members(record.authority, wanted)


def has_members(stated: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Returns whether an object has all members of another one, as JSON: true is not 1 there."""
    return all(
        name in stated and json.dumps(stated[name], sort_keys=True) == json.dumps(value, sort_keys=True)
        for name, value in wanted.items()
    )


def _texts_of(authority: Mapping[str, Any]) -> list[str]:
    return ["authority", *authority, *(value for value in authority.values() if isinstance(value, str))]


_ROWS = (
    Filter("outcome", "choice", "Only records with this outcome.", "outcome", "compactions.outcome = :outcome",
           choices=OUTCOMES),
    Filter("kind", "choice", "Only records of this kind.", "kind", "compactions.kind = :kind", choices=KINDS),
    Filter("actor", "text", "Only records of this actor.", "actor", "compactions.actor = :actor"),
    Filter("model", "text", "Only records of this model, including failed attempts.", "model",
           "compactions.model = :model"),
    Filter("login", "text", "Only records of this database login.", "login", "compactions.login = :login"),
    Filter("callback", "text", "Only records of this strategy or callback.", "callback",
           "compactions.callback = :callback"),
    Filter("trigger", "text", "Only records with this trigger.", "trigger", "compactions.trigger = :trigger"),
    Filter("since", "time", "Only records since this time: a date such as 2026-05-01, or an age such as 24h or 7d.",
           "since", "compactions.created_at >= :since", example="7d or 2026-05-01"),
    Filter("until", "time", "Only records up to this time.", "until", "compactions.created_at <= :until"),
    Filter("status", "choice", "Only records with this status.", "status",
           holds=lambda record, status: record.status == status, choices=STATUSES),
    Filter("tokens_before", "range",
           "Only records whose span had so many tokens, such as 1000..5000, 1000.. or ..5000.", "tokens before",
           "compactions.tokens_before", example="1000..5000"),
    Filter("tokens_after", "range", "Only records whose replacement has so many tokens.", "tokens after",
           "compactions.tokens_after", example="..500"),
    Filter("counter", "text", "Only records whose tokens this counter counted.", "counted by",
           "compactions.counter = :counter"),
    Filter("summarizer", "text", "Only records of this summarizer.", "summarizer",
           holds=lambda record, name: record.summarizer == name, texts=lambda name: ["summarizer", name],
           has_words=True),
    Filter("error_type", "text", "Only attempts that this type of error ended.", "type of error",
           holds=lambda record, kind: (record.error or {}).get("type") == kind, texts=lambda kind: ["type", kind]),
    Filter("failed_before", "text",
           "Only records whose summarizer replaced one that this type of error ended, such as SummarizerUnavailable.",
           "type of error before", holds=lambda record, kind: any(f.get("type") == kind for f in record.failed_before),
           texts=lambda kind: ["failed_before", "type", kind]),
    Filter("covering", "number", "Only records whose span contains this seq.", "covers seq",
           "compactions.start_seq <= :covering AND compactions.end_seq >= :covering", metavar="SEQ"),
    Filter("revokes", "number", "Only the revocation of this record.", "revokes record",
           "compactions.revokes = :revokes", metavar="NUMBER"),
    Filter("made_from", "number", "Only records that were made from this record.", "made from record",
           ":made_from = ANY (compactions.inputs)", metavar="NUMBER"),
    Filter("run_id", "uuid", "Only records of this run.", "run", "compactions.run_id = :run_id", option="run"),
    Filter("authority", "object",
           'Only records whose authority has at least these members, such as {"ticket": "X-1"}.', "authority",
           holds=_has_authority, texts=_texts_of, example='{"approval":"A-1"}', has_words=True),
)  # fmt: skip

#: All filters by name, in the order in which help texts and forms list them.
FILTERS: dict[str, Filter] = {row.name: row for row in _ROWS}
