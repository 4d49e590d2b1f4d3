"""Verdicts of reviewers on compaction records."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from compaction_store.jsonable import AsDict
from compaction_store.models.messages import Payload
from compaction_store.models.threads import Event
from compaction_store.models.vocabulary import JUDGEMENTS, Judgement


@dataclass(frozen=True, slots=True)
class Verdict(AsDict):
    """A verdict on a compaction record, stored as an event of the kind `verdict`.

    `sample` describes the sample for which the record was drawn. `actor` is the reviewer's name as the program gave it,
    and `login` is the database login that wrote the verdict.
    """

    thread_id: str
    number: int
    verdict: Judgement
    note: str | None = field(repr=False)
    sample: Payload | None
    pos: int
    actor: str | None
    login: str
    created_at: datetime

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """Returns the verdict in an event, or None if the event has no valid verdict.

        In a bundle, the body may be anything.
        """
        number, verdict = event.body.get("number"), event.body.get("verdict")
        if event.kind != "verdict" or type(number) is not int or verdict not in JUDGEMENTS:
            return None
        note, sample = event.body.get("note"), event.body.get("sample")
        return cls(
            event.thread_id, number, verdict, note if isinstance(note, str) else None,
            sample if isinstance(sample, dict) else None, event.pos, event.actor, event.login, event.created_at,
        )  # fmt: skip
