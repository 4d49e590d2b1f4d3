"""What replies tell of compactions that a provider made by itself, as records to be written with the append.

They are `observed`: never active, never folding, only there so that an audit shows them. A compaction block stands for
everything before its message; of an edit the provider tells what it saved, not where.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compaction_store import payload, records
from compaction_store.errors import InvalidInput
from compaction_store.models import Payload

_NO_SUMMARY = {"type": "NoSummary", "text": "the provider's compaction came to no summary"}
_LONGEST_NAME = 100


def told_by(given: Sequence[Any], payloads: Iterable[Payload]) -> str | None:
    """The records to be written with these messages, as `append_observed` takes them; None where there are none.

    An SDK's reply tells more than what is stored of it, so that the objects themselves are looked at too.
    """
    found = []
    for number, (reply, stored) in enumerate(zip(given, payloads, strict=True), 1):
        blocks = list(_compactions(stored))
        edits = list(_edits(reply))
        if blocks or edits:
            model, usage = _name(_field(reply, "model")), _plain(_field(reply, "usage"))
            for place, block in enumerate(blocks):
                found.append(_compaction(number, model, block, _spent(usage, place)))
            found.extend(_edit(number, model, edit) for edit in edits)
    return json.dumps(found) if found else None


def _field(reply: Any, name: str) -> Any:
    return reply.get(name) if isinstance(reply, Mapping) else getattr(reply, name, None)


def _plain(value: Any) -> Any:
    """The JSON of a part of a reply; None where it has none."""
    if value is None:
        return None
    try:
        return payload.encode({"value": value}).payload["value"]
    except InvalidInput:
        return None


def _name(value: Any) -> str | None:
    """A model's name as a column may hold it."""
    return value[:_LONGEST_NAME] if isinstance(value, str) and value.isprintable() and value else None


def _compactions(stored: Payload) -> Iterator[Payload]:
    if stored.get("type") == "compaction":
        yield stored
    content = stored.get("content")
    if isinstance(content, list):
        yield from (part for part in content if isinstance(part, dict) and part.get("type") == "compaction")


def _edits(reply: Any) -> Iterator[Payload]:
    management = _field(reply, "context_management")
    edits = None if management is None else _plain(_field(management, "applied_edits"))
    if isinstance(edits, list):
        yield from (edit for edit in edits if isinstance(edit, dict))


def _spent(usage: Any, place: int) -> Payload | None:
    """What the block at a place among the reply's took, which the reply's own figures leave out."""
    iterations = usage.get("iterations") if isinstance(usage, dict) else None
    if not isinstance(iterations, list):
        return None
    spent = [entry for entry in iterations if isinstance(entry, dict) and entry.get("type") == "compaction"]
    return spent[place] if place < len(spent) else None


def _compaction(message: int, model: str | None, block: Payload, usage: Payload | None) -> Payload:
    text = block.get("content")
    folds = bool(text) if "content" in block else "encrypted_content" in block
    body: Payload = {"provider": block}
    if isinstance(text, str) and text:
        body["summary_text"] = text
    elif not folds:
        body["error"] = _NO_SUMMARY
    if usage is not None:
        body["usage"] = usage
    return _record(message, model, "summary", "compaction", body, folds=folds)


def _edit(message: int, model: str | None, edit: Payload) -> Payload:
    kind = edit.get("type")
    return _record(message, model, "truncation", _name(kind) or "edit", {"provider": edit}, folds=False)


def _record(message: int, model: str | None, kind: str, what: str, body: Payload, *, folds: bool) -> Payload:
    columns = {"kind": kind, "callback": f"provider:{what}", "trigger": "provider", "model": model}
    return records.record(columns, body) | {"message": message, "folds": folds}
