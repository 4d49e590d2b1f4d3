"""From the rows of a view to the view, and from a view to the receipt that is stored with a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from compaction_store import rendering
from compaction_store.errors import NotRenderable
from compaction_store.models import Element, View
from compaction_store.payload import decode
from compaction_store.rendering import Rendered


def fold(thread_id: str, rows: Sequence[tuple[Any, ...]]) -> View:
    """The view of a thread from its rows, in order of seq. A thread at a pos has at least one."""
    elements = []
    for _, seq, end_seq, number, own_pos, payload, tokens, created_at, kind, callback, _ in rows:
        if payload is None:
            messages: tuple[Any, ...] = (None,)
        elif number is None:
            messages = (decode(payload),)
        else:
            messages = tuple(decode(payload)["replacement"])
        elements.append(Element(seq, end_seq, own_pos, messages, tokens, number, created_at, kind, callback))
    return View(thread_id, rows[0][0], tuple(elements), head=rows[0][10])


def receipt(seen: View | Rendered) -> str:
    """What a reply was written from, as JSON: it holds no content, only the hash of what was rendered and how."""
    rendered: Any
    if isinstance(seen, View):
        renderer, options, rendered = rendering.MESSAGES, {}, seen.messages
    else:
        renderer, options, rendered = seen.renderer, seen.options, seen
    fields = {"pos": seen.pos, "renderer": renderer, "options": options, "sha256": _sha256(rendered)}
    return json.dumps(fields, separators=(",", ":"))


def matches(view: View, receipt: Mapping[str, Any]) -> bool:
    """Whether a view rendered again, in the same way, is what the receipt says."""
    try:
        rendered = rendering.again(view, receipt.get("renderer"), receipt.get("options"))
    except NotRenderable:
        return False
    return rendered is not None and receipt.get("sha256") == _sha256(rendered)


def _sha256(rendered: Any) -> str:
    return sha256(json.dumps(rendered, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
