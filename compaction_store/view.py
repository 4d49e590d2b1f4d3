"""From the rows of a view to the view, and from a view to the receipt that is stored with a reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.models import Element, View
from compaction_store.payload import decode

RENDERER = "messages/1"


class ViewRow(NamedTuple):
    at_pos: int
    seq: int
    end_seq: int
    number: int | None
    pos: int
    role: str | None
    payload: str | None
    tokens: int
    created_at: datetime
    meta: str | None
    redacted_pos: int | None
    kind: str | None
    callback: str | None


def fold(thread_id: str, rows: Iterable[tuple[Any, ...]]) -> View:
    """The view of a thread from its rows, in order of seq. A thread at a pos has at least one."""
    elements = []
    pos = 0
    for values in rows:
        row = ViewRow._make(values)
        pos = row.at_pos
        if row.payload is None:
            messages: tuple[Any, ...] = (None,)
        elif row.number is None:
            messages = (decode(row.payload),)
        else:
            messages = tuple(decode(row.payload)["replacement"])
        place = (row.seq, row.end_seq, row.pos, messages, row.tokens, row.number, row.created_at)
        elements.append(Element(*place, row.kind, row.callback))
    return View(thread_id, pos, tuple(elements))


def receipt(view: View) -> str:
    """What a reply was written from, as JSON: it holds no content, only the hash of what was rendered."""
    fields = {"pos": view.pos, "renderer": RENDERER, "options": {}, "sha256": _rendered(view)}
    return json.dumps(fields, separators=(",", ":"))


def matches(view: View, receipt: Mapping[str, Any]) -> bool:
    """Whether a view rendered again is what the receipt says."""
    return receipt.get("renderer") == RENDERER and receipt.get("sha256") == _rendered(view)


def _rendered(view: View) -> str:
    rendered = json.dumps(view.messages, ensure_ascii=True, separators=(",", ":")).encode()
    return sha256(rendered).hexdigest()
