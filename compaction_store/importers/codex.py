"""Reads rollouts of the Codex CLI. A file becomes a thread with the items exchanged with OpenAI's Responses API.

A `compacted` line becomes a record of everything before it. Settings, events, and snapshots of the workspace, which no
model sees, are left out. Rollouts of the first versions, whose lines are bare items, are read too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compaction_store.importers.kept_lines import kept
from compaction_store.importers.line_files import Files, LineFile
from compaction_store.importers.sources import Item, Notes, SourceThread, moment, text, to_load
from compaction_store.models import Observed

FORMAT = "codex"
_LINE_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_NOT_FOR_MODELS = frozenset({"ghost_snapshot"})


def is_line(found: dict[str, Any]) -> bool:
    """Returns whether a JSON object is a line of a rollout."""
    if text(found.get("type")) in _LINE_TYPES and isinstance(found.get("payload"), dict):
        return True
    return "record_type" in found or _is_old_header(found)


def _is_old_header(found: dict[str, Any]) -> bool:
    return {"id", "timestamp"} <= found.keys() and found.keys().isdisjoint({"type", "role", "payload"})


class Codex(Files):
    """A rollout, or a folder of them such as ~/.codex/sessions."""

    format = FORMAT

    def threads(self) -> Iterator[SourceThread]:
        for file in self._files:
            notes = Notes(self.skip_bad)
            session = session_of(file)
            yield SourceThread(session, _items(file, notes), notes)
            if self.lines:
                yield kept(file, session, FORMAT)


def session_of(file: LineFile) -> str:
    """Returns the id in the first header, or else the file's name.

    A forked rollout begins with its own header, and copied headers follow.
    """
    for _, found in file.sample():
        header = found.get("payload") if found.get("type") == "session_meta" else found
        if isinstance(header, dict) and (found is not header or _is_old_header(found)):
            return text(header.get("id")) or file.path.stem
    return file.path.stem


def _items(file: LineFile, notes: Notes) -> Iterator[Item]:
    model: str | None = None
    for line, found in file.objects(notes):
        kind, body = found.get("type"), found.get("payload")
        if kind == "turn_context" and isinstance(body, dict):
            model = text(body.get("model")) or model
        if kind == "compacted" and isinstance(body, dict):
            yield Observed(
                "compacted", summary_text=text(body.get("message")), provider=body, model=model,
                occurred_at=moment(found.get("timestamp")),
            )  # fmt: skip
            continue
        item = body if kind == "response_item" else None if isinstance(body, dict) else found
        if not isinstance(item, dict) or not isinstance(item.get("type"), str) or item["type"] in _NOT_FOR_MODELS:
            if kind is None and not is_line(found):
                notes.refuse(file.where(line.number), "it is not a line of a rollout", line.number)
                continue
            notes.leave_out(str(kind), "it is no item of the conversation")
            continue
        meta = {
            "source": FORMAT, "occurred_at": moment(found.get("timestamp")), "external_id": text(item.get("id")),
            "model": model,
        }  # fmt: skip
        message = to_load(item, meta, notes, file.where(line.number), line.number)
        if message is not None:
            yield message
