"""Compaction records as they are written and as they come back: pure, between the plan and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from compaction_store.messages import documents
from compaction_store.models import Attempt, Compaction, CompactionTree, Payload


def to_json(
    attempts: Iterable[Attempt], *, trigger: str, actor: str | None, counter: str, measured: Payload | None = None
) -> str:
    """What a run decided, as the commit takes it: columns, and a body with a salt of its own for each record."""
    of_run = {} if measured is None else {"measured": measured}
    records = []
    for attempt in attempts:
        columns = {
            "kind": attempt.kind, "outcome": attempt.outcome, "start_seq": attempt.start_seq,
            "end_seq": attempt.end_seq, "tokens_before": attempt.tokens_before, "tokens_after": attempt.tokens_after,
            "callback": attempt.callback, "trigger": trigger, "actor": actor, "counter": counter,
            "model": None if attempt.summary is None else attempt.summary.model, "inputs": list(attempt.inputs),
        }  # fmt: skip
        records.append(documents.record(columns, _body(attempt) | of_run))
    return json.dumps(records)


def revocation(number: int, *, reason: str | None, actor: str | None) -> str:
    columns = {"kind": "revocation", "outcome": "applied", "revokes": number, "actor": actor, "trigger": "manual"}
    return json.dumps([documents.record(columns, {} if reason is None else {"reason": reason})])


def _body(attempt: Attempt) -> Payload:
    """Only what is there: a body is read by people."""
    body: Payload = {}
    if (summary := attempt.summary) is not None:
        # An attempt that failed or was rejected keeps what it cost, and no text.
        parts = {
            "summary_text": summary.text or None, "summarizer": summary.summarizer, "prompt": summary.prompt,
            "settings": summary.settings, "usage": summary.usage, "provider": summary.provider,
            "coverage": summary.coverage, "duration": summary.duration,
        }  # fmt: skip
        body |= {name: value for name, value in parts.items() if value is not None}
    if attempt.outcome == "applied":
        body["replacement"] = list(attempt.replacement)
    if attempt.allow:
        body["allow"] = sorted(attempt.allow)
    if attempt.reason is not None:
        body["reason"] = attempt.reason
    if attempt.error is not None:
        body["error"] = attempt.error
    return body


def from_row(row: Sequence[Any]) -> Compaction:
    """A record from a row of the audit query."""
    (
        thread_id, number, pos, created_at, kind, outcome, start_seq, end_seq, before, after, count, inputs, run_id,
        callback, trigger, actor, model, counter, revokes, redacted_pos, superseded_by, revoked_by, text, _uid,
    ) = row  # fmt: skip
    body, fault = (None, None) if text is None else documents.parsed("body", text)
    return Compaction(
        thread_id, number, pos, created_at, kind, outcome, start_seq, end_seq, before, after, count, tuple(inputs),
        run_id, callback, trigger, actor, model, counter, revokes, redacted_pos, superseded_by, revoked_by,
        body, fault,
    )  # fmt: skip


def no_progress(body: str | None) -> bool:
    """Whether a rejected attempt was rejected for making no progress."""
    said = None if body is None else documents.parsed("body", body)[0]
    error = None if said is None else said.get("error")
    return isinstance(error, dict) and error.get("no_progress") is True


def tree(record: Compaction, log: Iterable[Compaction]) -> CompactionTree:
    """What a record was made of, and what that was made of, from the records inside its span.

    Spans in force are nested or apart, and the record that holds others came after them. Sorted from left to right and
    from outside to inside, they are a walk of the tree, and a stack of the records that are still open shows where each
    belongs. Nothing recurses, however deep they lie.
    """
    inside = sorted(
        (entry for entry in log if entry.number < record.number and _is_part(entry, record)),
        key=lambda entry: (entry.start_seq or 0, -(entry.end_seq or 0), -entry.number),
    )
    children: dict[int, list[Compaction]] = {record.number: []}
    open_: list[Compaction] = [record]
    for entry in inside:
        while (open_[-1].end_seq or 0) < (entry.start_seq or 0):
            open_.pop()
        around = next(one for one in reversed(open_) if entry.number < one.number and _holds(one, entry))
        # What was undone or erased before the record around it was written is no part of that one. It may overlap with
        # others in any way: only those that are open end at their place.
        if _was_in_force(entry, around):
            children[around.number].append(entry)
            children[entry.number] = []
            open_.append(entry)
    made: dict[int, CompactionTree] = {}
    # Whatever is inside of a record has a lower number.
    for entry in sorted([record, *(one for some in children.values() for one in some)], key=lambda one: one.number):
        made[entry.number] = CompactionTree(entry, tuple(made[child.number] for child in children[entry.number]))
    return made[record.number]


def _is_part(entry: Compaction, record: Compaction) -> bool:
    return entry.outcome == "applied" and entry.kind != "revocation" and _holds(record, entry)


def _was_in_force(entry: Compaction, when: Compaction) -> bool:
    if entry.revoked_by is not None and entry.revoked_by < when.number:
        return False
    return entry.redacted_pos is None or entry.redacted_pos >= when.pos


def _holds(outer: Compaction, inner: Compaction) -> bool:
    if outer.start_seq is None or outer.end_seq is None or inner.start_seq is None or inner.end_seq is None:
        return False
    return outer.start_seq <= inner.start_seq and inner.end_seq <= outer.end_seq
