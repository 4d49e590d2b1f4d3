"""Converts compaction records to the JSON of a commit and rows to records, and logs what failed in a run."""

from __future__ import annotations

import json
import logging
import traceback
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

from compaction_store.arguments import about
from compaction_store.messages import documents
from compaction_store.models import Attempt, Compaction, CompactionTree, Element, Payload, TokenStep
from compaction_store.models.vocabulary import COMPACTED, Outcome
from compaction_store.rendering.view import View


def to_json(
    attempts: Iterable[Attempt],
    *,
    trigger: str,
    actor: str | None,
    counter: str,
    measured: Payload | None = None,
    first: Iterable[Payload] = (),
) -> str:
    """Returns records and then attempts as JSON for the commit. Each has columns, and a body with its own salt."""
    of_run = {} if measured is None else {"measured": measured}
    records = list(first)
    for attempt in attempts:
        columns = {
            "kind": attempt.kind, "outcome": attempt.outcome, "start_seq": attempt.start_seq,
            "end_seq": attempt.end_seq, "tokens_before": attempt.tokens_before, "tokens_after": attempt.tokens_after,
            "callback": attempt.callback, "trigger": trigger, "actor": actor, "counter": counter,
            "model": None if attempt.summary is None else attempt.summary.model, "inputs": list(attempt.inputs),
        }  # fmt: skip
        records.append(documents.record(columns, _body(attempt) | of_run))
    return json.dumps(records)


def revocation(number: int, body: Payload, *, actor: str | None, trigger: str = "manual") -> Payload:
    columns = {"kind": "revocation", "outcome": "applied", "revokes": number, "actor": actor, "trigger": trigger}
    return documents.record(columns, body)


def stated(*, reason: str | None, authority: Payload | None) -> Payload:
    """Returns a body with the caller's reason and authority, without empty fields."""
    return {name: part for name, part in {"reason": reason, "authority": authority}.items() if part is not None}


def _body(attempt: Attempt) -> Payload:
    """Returns the body of an attempt's record. Empty fields are left out, because people read bodies."""
    body: Payload = {}
    if (summary := attempt.summary) is not None:
        # The summary of a failed or rejected attempt comes without its text, but with its cost.
        parts = {
            "summary_text": summary.text or None, "summarizer": summary.summarizer, "prompt": summary.prompt,
            "settings": summary.settings, "usage": summary.usage, "provider": summary.provider,
            "coverage": summary.coverage, "duration": summary.duration, "checks": summary.checks,
        }  # fmt: skip
        body |= {name: value for name, value in parts.items() if value is not None}
    if attempt.outcome == "applied":
        body["replacement"] = list(attempt.replacement)
        if summary is not None and summary.unreadable:
            body["unreadable"] = True
    if attempt.allow:
        body["allow"] = sorted(attempt.allow)
    rest = {"reason": attempt.reason, "authority": attempt.authority, "error": attempt.error}
    return body | {name: part for name, part in rest.items() if part is not None}


#: The columns of a record that a query returns: all fields of a record but `fault`.
COLUMNS = tuple(field.name for field in fields(Compaction) if field.name != "fault")


def from_row(row: Mapping[str, Any]) -> Compaction:
    """Returns a record from its columns by name."""
    body, fault = (None, None) if row["body"] is None else documents.parsed("body", row["body"])
    values = {name: row[name] for name in COLUMNS} | {"body": body, "inputs": tuple(row["inputs"])}
    if any(row[name] is not None for name in ("unknown_pos", "revoked_by", "revokes")):
        # Neither a revocation nor a revoked record can be superseded. After an entry of a kind that this release does
        # not know, nobody can say which records are superseded.
        values["superseded_by"] = None
    return Compaction(**values, fault=fault)


def from_commit(thread_id: str, run_id: UUID, rows: Iterable[Any]) -> list[Compaction]:
    """Returns the records of one run from the rows of its commit, with their status right after the commit."""
    own = dict.fromkeys(("superseded_by", "revoked_by", "unknown_pos")) | {"thread_id": thread_id, "run_id": run_id}
    found = [from_row(row._asdict() | own) for row in rows]
    later = _replaced(found)
    return [one if one.revokes is not None else replace(one, superseded_by=later.get(one.number)) for one in found]


def _replaced(written: Iterable[Compaction]) -> dict[int, int]:
    """Maps numbers of records to the number of the later record of the same run that replaced their spans."""
    found = {}
    # The records that are active so far. A new record contains each of them completely, or does not overlap it.
    starts: list[int] = []
    numbers: list[int] = []
    for record in written:
        if record.outcome != "applied" or record.start_seq is None or record.end_seq is None:
            continue
        first, end = bisect_left(starts, record.start_seq), bisect_right(starts, record.end_seq)
        found.update(dict.fromkeys(numbers[first:end], record.number))
        starts[first:end], numbers[first:end] = [record.start_seq], [record.number]
    return found


def view_after(view: View, written: Sequence[Compaction], head: bytes) -> View | None:
    """Computes the view just after the records of a run; None if it must be read from the database."""
    if written[0].pos != view.pos + 1:
        return None
    replaced = _replaced(written)
    active = {one.start_seq: one for one in written if one.outcome == "applied" and one.number not in replaced}
    if any(record.body is None for record in active.values()):
        return None
    elements: list[Element] = []
    covered_to = 0
    for element in view.elements:
        if (record := active.get(element.seq)) is not None:
            elements.append(_element(record))
            covered_to = elements[-1].end_seq
        elif element.seq > covered_to:
            elements.append(element)
    return replace(view, pos=written[-1].pos, elements=tuple(elements), head=head, measured=None)


def _element(record: Compaction) -> Element:
    assert record.start_seq is not None  # noqa: S101 — the table has no applied record without a span
    assert record.end_seq is not None  # noqa: S101
    assert record.tokens_after is not None  # noqa: S101
    assert record.body is not None  # noqa: S101
    return Element(
        record.start_seq, record.end_seq, record.pos, tuple(record.body["replacement"]), record.tokens_after,
        record.number, record.created_at, record.kind, record.callback,
    )  # fmt: skip


def no_progress(body: str | None) -> bool:
    """Returns whether an attempt was rejected for making no progress."""
    said = None if body is None else documents.parsed("body", body)[0]
    error = None if said is None else said.get("error")
    return isinstance(error, dict) and error.get("no_progress") is True


def token_steps(messages: Iterable[tuple[int, int]], applied: Iterable[Mapping[str, Any]]) -> list[TokenStep]:
    """Returns the changes of a view's size in tokens, in order. A revocation reverses the revoked record's change."""
    steps = [TokenStep(pos, tokens, None) for pos, tokens in messages]
    changes: dict[int, int | None] = {}
    for record in applied:
        number, revokes = record["number"], record["revokes"]
        before, after = record["tokens_before"], record["tokens_after"]
        if revokes is None:
            change = None if before is None or after is None else after - before
        else:
            change = None if (taken := changes.get(revokes)) is None else -taken
        changes[number] = change
        steps.append(TokenStep(record["pos"], change, number))
    return sorted(steps, key=lambda step: step.pos)


def tree(record: Compaction, log: Iterable[Compaction]) -> CompactionTree:
    """Returns the tree of a record: below each record are the records that it was made from.

    Active spans are nested or disjoint, and an outer record is newer than the records inside it. The records are sorted
    from left to right and from outside to inside, so the parent of each record is on a stack of open records. The tree
    may be very deep, so the function does not recurse.
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
        parent = next(one for one in reversed(open_) if entry.number < one.number and _holds(one, entry))
        # A record that was revoked or erased before the outer record was written is not part of it, and may overlap
        # others.
        if _was_in_force(entry, parent):
            children[parent.number].append(entry)
            children[entry.number] = []
            open_.append(entry)
    made: dict[int, CompactionTree] = {}
    # The records inside a record have lower numbers, so their trees are made first.
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


# ---- what went wrong in a run, for the log: types, the thread and the record, but never the content of a message

_log = logging.getLogger("compaction_store")
_WHAT: dict[Outcome, str] = {"failed": "a callback or summarizer failed", "rejected": "a compaction was rejected"}


def log_run(thread_id: str, records: Sequence[Compaction], errors: Iterable[Exception]) -> None:
    """Logs what failed and was rejected in a run, with OpenTelemetry's attribute if the run applied a record."""
    extra = {COMPACTED: True} if any(record.outcome == "applied" for record in records) else None
    for record in records:
        if record.outcome in _WHAT:
            kind = (record.error or {}).get("type")
            what = _WHAT[record.outcome]
            _log.warning("%s: %s in record %d%s", what, kind, record.number, about(thread_id), extra=extra)
        for failed in record.failed_before:
            _log.warning(
                "a summarizer failed, and another one was tried: %s in record %d%s",
                failed.get("type"), record.number, about(thread_id), extra=extra,
            )  # fmt: skip
    for error in errors:
        _log_frames(thread_id, error)


def log_listener(record: Compaction, error: Exception) -> None:
    """Logs that a callback of `on_recorded` failed."""
    kind, where = type(error).__name__, about(record.thread_id)
    _log.warning("a callback of on_recorded failed: %s after record %d%s", kind, record.number, where)
    _log_frames(record.thread_id, error)


def _log_frames(thread_id: str, error: Exception) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s%s was raised here:\n%s", type(error).__name__, about(thread_id), "".join(_frames(error)))


def log_failure(thread_id: str, error: Exception) -> None:
    """Logs that a view could not be compacted, if the caller gets the view in spite of it."""
    _log.warning("the view was not compacted: %s%s", type(error).__name__, about(thread_id))
    _log_frames(thread_id, error)


def _frames(error: BaseException | None) -> Iterator[str]:
    """Yields the lines of a traceback without the texts of exceptions, because these may quote a message."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        yield from traceback.format_tb(error.__traceback__)
        yield f"{type(error).__module__}.{type(error).__qualname__}\n"
        error = error.__cause__ or error.__context__
