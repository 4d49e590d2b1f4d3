"""From the rows of a view to the view, and from a view to the receipt that is stored with a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from compaction_store import documents, rendering
from compaction_store.checks import about
from compaction_store.errors import NotRenderable, Unreadable
from compaction_store.models import Element, Payload, View
from compaction_store.rendering import Rendered


def fold(thread_id: str, rows: Sequence[tuple[Any, ...]]) -> View:
    """The view of a thread from its rows, in order of seq. A thread at a pos has at least one."""
    if not rows:
        raise Unreadable(f"the thread has no messages; run verify{about(thread_id)}")
    elements = []
    for _, seq, end_seq, number, own_pos, text, tokens, created_at, kind, callback, _ in rows:
        if text is None:
            messages: tuple[Any, ...] = (None,)
        elif number is None:
            messages = (_read("payload", text, f"seq {seq}", thread_id),)
        else:
            messages = _stand_ins(text, number, thread_id)
        elements.append(Element(seq, end_seq, own_pos, messages, tokens, number, created_at, kind, callback))
    return View(thread_id, rows[0][0], tuple(elements), head=rows[0][10])


def _stand_ins(text: str, number: int, thread_id: str) -> tuple[Payload, ...]:
    found = _read("body", text, f"compaction {number}", thread_id).get("replacement")
    if type(found) is not list or any(type(message) is not dict for message in found):
        raise _unreadable("the body's replacement is not a list of JSON objects", f"compaction {number}", thread_id)
    return tuple(found)


def _read(kind: documents.Kind, text: str, what: str, thread_id: str) -> Payload:
    found, fault = documents.parsed(kind, text)
    if found is None:
        raise _unreadable(fault or "", what, thread_id)
    return found


def _unreadable(fault: str, what: str, thread_id: str) -> Unreadable:
    return Unreadable(f"{what} cannot be read: {fault}; run verify{about(thread_id)}")


def receipt(seen: View | Rendered) -> str:
    """What a reply was written from, as JSON: it holds no content, only the hash of what was rendered and how."""
    rendered: Any
    if isinstance(seen, View):
        renderer, options, rendered = rendering.MESSAGES, {}, seen.messages
    else:
        renderer, options, rendered = seen.renderer, seen.options, seen
    fields = {"pos": seen.pos, "renderer": renderer, "options": options, "sha256": _sha256(rendered)}
    return json.dumps(fields, separators=(",", ":"))


def read_receipt(text: str, seq: int, thread_id: str) -> Payload:
    """The receipt that is stored with a reply; an error where it is none."""
    try:
        found = json.loads(text)
        if type(found) is dict and type(found.get("pos")) is int:
            return found
    except (ValueError, RecursionError):
        pass
    raise Unreadable(f"the receipt of seq {seq} cannot be read; run verify{about(thread_id)}")


def matches(view: View, receipt: Mapping[str, Any]) -> bool:
    """Whether a view rendered again, in the same way, is what the receipt says."""
    try:
        rendered = rendering.again(view, receipt.get("renderer"), receipt.get("options"))
    except NotRenderable:
        return False
    return rendered is not None and receipt.get("sha256") == _sha256(rendered)


def _sha256(rendered: Any) -> str:
    return sha256(json.dumps(rendered, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
