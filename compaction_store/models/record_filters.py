"""The filters of compaction records: one row a filter, for the store, the SQL, the command line and the audit pages.

To add a filter, add its row to the data file and its type to the TypedDict. How the value of a form is checked, parsed
and entered is written once for each form, in the layer that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

from compaction_store.models.compactions import Compaction
from compaction_store.models.vocabulary import KINDS, OUTCOMES, STATUSES, Kind, Outcome, Status
from compaction_store.module_data import ModuleData

# Of `choices`, several may be given. A `range` has a lowest and a highest number, of which either may be missing. An
# `object` is a JSON object.
Form = Literal["text", "choice", "choices", "number", "range", "time", "uuid", "object"]


class SampleFilters(TypedDict, total=False):
    """The filters of `sample` and `compactions`. A filter that is None matches all records."""

    outcome: Outcome | Sequence[Outcome] | None
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
    subject: str | None


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


def has_members(stated: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Returns whether an object has all members of another one, as JSON: true is not 1 there."""
    return all(
        name in stated and json.dumps(stated[name], sort_keys=True) == json.dumps(value, sort_keys=True)
        for name, value in wanted.items()
    )


# The facts of a filter that are no text: its choices, and the functions where SQL cannot decide alone.
_MORE: dict[str, dict[str, Any]] = {
    "outcome": {"choices": OUTCOMES},
    "kind": {"choices": KINDS},
    "status": {"choices": STATUSES, "holds": lambda record, status: record.status == status},
    "summarizer": {"holds": lambda record, name: record.summarizer == name, "texts": lambda name: ["summarizer", name]},
    "error_type": {
        "holds": lambda record, kind: (record.error or {}).get("type") == kind,
        "texts": lambda kind: ["type", kind],
    },
    "failed_before": {
        "holds": lambda record, kind: any(failed.get("type") == kind for failed in record.failed_before),
        "texts": lambda kind: ["failed_before", "type", kind],
    },
    "authority": {
        "holds": lambda record, wanted: record.authority is not None and has_members(record.authority, wanted),
        "texts": lambda wanted: ["authority", *wanted, *(value for value in wanted.values() if isinstance(value, str))],
    },
}

#: All filters by name, in the order in which help texts and forms list them.
FILTERS: dict[str, Filter] = {
    name: Filter(name, **row, **_MORE.get(name, {})) for name, row in ModuleData(__file__).values.items()
}
