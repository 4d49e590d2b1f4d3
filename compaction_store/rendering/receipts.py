"""Makes and reads receipts. A receipt says from which view a reply was written, and how the view was rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from compaction_store.arguments import about
from compaction_store.errors import NotRenderable, Unreadable
from compaction_store.models import Message, Payload
from compaction_store.rendering import given
from compaction_store.rendering import view as rendering
from compaction_store.rendering.given import System, digest
from compaction_store.rendering.view import Rendered, View

_LAST_POS = 2**63 - 1


def receipt(seen: View | Rendered, *, durable: bool = True) -> str:
    """Makes a reply's receipt as JSON: the view's pos, renderer and hashes, and whether the append is not durable."""
    if isinstance(seen, View):
        fields = {"pos": seen.pos, "renderer": rendering.MESSAGES, "options": {}, "sha256": digest(seen.messages)}
    else:
        parts = rendering.parts_of(seen)
        hashed = {"sha256": parts.rendered, "tools": parts.tools, "system": parts.system}
        fields = {"pos": seen.pos, "renderer": seen.renderer, "options": seen.options}
        fields |= {name: digest(part) for name, part in hashed.items() if part is not None}
    if not durable:
        fields["durable"] = False
    return json.dumps(fields, separators=(",", ":"))


class Digests(NamedTuple):
    """The hashes of the tools and of the system prompt of a request. A hash is None if the part is missing."""

    tools: str | None
    system: str | None


def digests(tools: Sequence[Any] | None, system: System | None) -> Digests:
    return Digests(
        *(None if part is None else digest(part) for part in (given.tools_of(tools), given.system_of(system)))
    )


def has_digest(receipt: Mapping[str, Any] | None, name: str, wanted: str | None) -> bool | None:
    """Returns whether a receipt has the hash `wanted` in the field `name`, or None if either hash is missing."""
    found = None if receipt is None else receipt.get(name)
    return None if found is None or wanted is None else bool(found == wanted)


def agents_receipt(message: Message) -> Payload | None:
    """Returns the receipt of a coding agent's request, which the importer has put into the meta of the reply."""
    found = (message.meta or {}).get("request")
    is_one = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("format", "lines", "sha256"))
    return found if is_one else None


def read_receipt(text: str, seq: int, thread_id: str) -> Payload:
    """Parses the receipt that is stored with a reply. Raises `Unreadable` if it is not a valid receipt."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if type(found) is dict and type(pos := found.get("pos")) is int and 0 <= pos <= _LAST_POS:
            return found
    raise Unreadable(f"the receipt of seq {seq} is malformed, so the store did not write it{about(thread_id)}")


def matches(view: View, receipt: Mapping[str, Any]) -> bool:
    """Returns whether a view, rendered as the receipt says, has the hash in the receipt."""
    try:
        rendered = rendering.rerender(view, receipt.get("renderer"), receipt.get("options"))
    except NotRenderable:
        return False
    return rendered is not None and receipt.get("sha256") == digest(rendered)
