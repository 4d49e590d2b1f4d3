"""Reads the messages, records and events in a thread's bundle, as the values that a store would return. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from compaction_store.bundles import line_format
from compaction_store.bundles.line_format import Line
from compaction_store.compaction import records
from compaction_store.integrity import erasure
from compaction_store.messages import documents
from compaction_store.models import Compaction, Event, Message
from compaction_store.reporting.document import ReportedThread

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Contents:
    """A thread of a report, read from its bundle."""

    thread: ReportedThread
    manifest: Line
    messages: list[Message]
    records: list[Compaction]
    events: list[Event]
    #: The seqs of the messages that were stored with a receipt.
    receipts: set[int]

    @cached_property
    def checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint in the manifest of the bundle, or None."""
        found: dict[str, Any] | None = self.manifest["checkpoint"]
        return found

    @cached_property
    def by_number(self) -> dict[int | None, Compaction]:
        """The records by their numbers."""
        return {record.number: record for record in self.records}

    def span(self, record: Compaction) -> list[Message]:
        """Returns the messages in the span of a record."""
        if record.start_seq is None or record.end_seq is None:
            return []
        return self.messages[record.start_seq - 1 : record.end_seq]


def read(thread: ReportedThread) -> Contents:
    """Reads a thread of a report. Raises ValueError, without quoting content, if a line is not valid in a bundle."""
    manifest, *entries = (line_format.parse(line.encode() + b"\n") for line in thread.bundle)
    if manifest["type"] != "manifest":
        raise ValueError("the first line of a bundle must be its manifest")
    found = Contents(thread, manifest, [], [], [], set())
    standings = {standing.number: standing for standing in thread.standings}
    for line in entries:
        if line["type"] == "message":
            found.messages.append(_message(line))
            if line["receipt"] is not None:
                found.receipts.add(line["seq"])
        elif line["type"] == "compaction":
            record = _record(manifest, line)
            if (standing := standings.get(record.number)) is not None:
                record = replace(
                    record, superseded_by=standing.superseded_by, revoked_by=standing.revoked_by,
                    unknown_pos=thread.unknown_pos,
                )  # fmt: skip
                if record.body is None and standing.error_type is not None:
                    record = replace(record, body={"error": {"type": standing.error_type, "text": ""}})
            found.records.append(record)
        elif line["type"] == "event":
            found.events.append(erasure.event(_entry(manifest, line)))
    return found


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _message(line: Line) -> Message:
    payload, fault = (None, None) if line["payload"] is None else documents.parsed("payload", line["payload"])
    meta = None if line["meta"] is None else documents.parsed("meta", line["meta"])[0]
    return Message(
        line["seq"], line["pos"], line["role"], payload, line["tokens"], _moment(line["microseconds"]), meta,
        line["redacted_pos"] is not None, line["payload"], fault, line["actor"], line["login"],
    )  # fmt: skip


def _entry(manifest: Line, line: Line) -> Line:
    """Returns the columns of a record or of an event by name."""
    return {**line, "thread_id": manifest["thread_id"], "created_at": _moment(line["microseconds"])}


def _record(manifest: Line, line: Line) -> Compaction:
    ids = {"run_id": UUID(line["run_id"]), "thread_uid": UUID(manifest["thread_uid"])}
    return records.from_row(
        _entry(manifest, line) | ids | dict.fromkeys(("superseded_by", "revoked_by", "unknown_pos"))
    )


def metadata(manifest: Line) -> dict[str, Any]:
    """Returns the metadata of the thread."""
    found: dict[str, Any] = json.loads(manifest["metadata"])
    return found
