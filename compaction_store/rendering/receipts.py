"""Receipts: they record from which view a reply was written, and how the view was rendered for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from compaction_store.arguments import about
from compaction_store.errors import NotRenderable, Unreadable
from compaction_store.models import Payload
from compaction_store.rendering import view as rendering
from compaction_store.rendering.view import Rendered, View


def receipt(seen: View | Rendered) -> str:
    """Makes the receipt of a reply as JSON: the view's pos, the renderer, and the hash of the rendering. No content."""
    rendered: Any
    if isinstance(seen, View):
        renderer, options, rendered = rendering.MESSAGES, {}, seen.messages
    else:
        renderer, options, rendered = seen.renderer, seen.options, seen
    fields = {"pos": seen.pos, "renderer": renderer, "options": options, "sha256": _sha256(rendered)}
    return json.dumps(fields, separators=(",", ":"))


def read_receipt(text: str, seq: int, thread_id: str) -> Payload:
    """Parses the receipt that is stored with a reply; raises `Unreadable` if it is not one."""
    try:
        found = json.loads(text)
        if type(found) is dict and type(found.get("pos")) is int:
            return found
    except (ValueError, RecursionError):
        pass
    raise Unreadable(f"the receipt of seq {seq} cannot be read; run verify{about(thread_id)}")


def matches(view: View, receipt: Mapping[str, Any]) -> bool:
    """Returns whether a view, rendered in the same way, has the hash in the receipt."""
    try:
        rendered = rendering.rerender(view, receipt.get("renderer"), receipt.get("options"))
    except NotRenderable:
        return False
    return rendered is not None and receipt.get("sha256") == _sha256(rendered)


def _sha256(rendered: Any) -> str:
    return sha256(json.dumps(rendered, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
