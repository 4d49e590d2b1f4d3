"""Converts LangChain messages to chat messages, and back. Fields that a chat message lacks are kept under "langchain".

The command `import` stores messages in the same form. Only fields with default values are left out, so a message can
be restored if all its values are JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

from langchain_core import messages as lc

from compaction_store.adapters.common import as_given
from compaction_store.errors import InvalidInput
from compaction_store.models import Payload

OURS = "langchain"
_NAMES = ("Human", "AI", "System", "Tool", "Function", "Chat")
_KINDS: dict[str, type[Any]] = {
    **{name.lower(): getattr(lc, f"{name}Message") for name in (*_NAMES, "Remove")},
    **{f"{name}MessageChunk": getattr(lc, f"{name}MessageChunk") for name in _NAMES},
}
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
_OF_ROLE = {role: kind for kind, role in _ROLES.items()}
_CALL = {"id", "name", "args", "type"}


def to_payload(message: Any) -> Payload:
    """Converts a message for the store. A value that is not JSON is replaced by the name of its class."""
    if not isinstance(message, lc.BaseMessage):
        raise InvalidInput(f"a message must be a LangChain message, not {type(message).__name__}")
    own = type(message)
    # Without `warnings=False`, model_dump would quote values of undeclared types in warnings.
    found = _json(message.model_dump(exclude_defaults=True, warnings=False))
    found.pop("type", None)
    role = found.pop("role", None) if isinstance(message, lc.ChatMessage) else None
    kind = message.type.removesuffix("MessageChunk").lower()
    payload: Payload = {"role": role or _ROLES.get(kind, "user"), "content": found.pop("content", "")}
    for name in ("name", "id", "tool_call_id"):
        if name in found:
            payload[name] = found.pop(name)
    if calls := found.pop("tool_calls", None):
        payload["tool_calls"] = [_call(call) for call in calls]
    if _OF_ROLE.get(payload["role"]) != message.type:
        found["type"] = message.type
    if own is not _KINDS.get(message.type):
        found["class"] = own.__name__
    return {**payload, OURS: found} if found else payload


def from_payload(payload: Payload) -> Any:
    """Converts a stored message back. Missing content becomes an empty text, and other content JSON, as text."""
    payload = as_given(payload)
    ours = payload.get(OURS)
    ours = ours if isinstance(ours, dict) else {}
    role = payload.get("role")
    role = role if isinstance(role, str) else "user"
    own = _KINDS.get(ours.get("type", _OF_ROLE.get("system" if role == "developer" else role, "chat")), lc.ChatMessage)
    fields = {name: value for name, value in ours.items() if name not in {"type", "class"}}
    for name in ("name", "id", "tool_call_id"):
        if name in payload:
            fields[name] = payload[name]
    if isinstance(calls := payload.get("tool_calls"), list):
        fields["tool_calls"] = [_loaded(call) for call in calls]
    if issubclass(own, lc.ChatMessage):
        fields["role"] = role
    content = payload.get("content")
    if not isinstance(content, str | list):
        content = "" if content is None else json.dumps(content, ensure_ascii=False)
    return own(content=content, **fields)


def is_summary(payload: Payload) -> bool:
    """Returns whether LangChain's summarization wrote the message."""
    more = payload.get(OURS, {}).get("additional_kwargs")
    return isinstance(more, dict) and more.get("lc_source") == "summarization"


def usage(message: Any) -> Payload | None:
    """Returns the token usage that the model's API reported for a reply, as meta for the store; None without usage."""
    found = getattr(message, "usage_metadata", None)
    if not isinstance(found, dict) or not isinstance(found.get("input_tokens"), int):
        return None
    return {"usage": {"input_tokens": found["input_tokens"], "output_tokens": found.get("output_tokens", 0)}}


def _call(call: Payload) -> Payload:
    rest = {name: value for name, value in call.items() if name not in _CALL}
    function = {"name": call["name"], "arguments": json.dumps(call["args"], ensure_ascii=False, separators=(",", ":"))}
    return {"id": call.get("id"), "type": "function", "function": function, **rest}


def _loaded(call: Payload) -> Payload:
    rest = {name: value for name, value in call.items() if name not in {"id", "type", "function"}}
    function = call["function"]
    args = json.loads(function["arguments"])
    return {"name": function["name"], "args": args, "id": call.get("id"), "type": "tool_call", **rest}


def _json(value: Any) -> Any:
    """Converts a value to JSON; a value that has no JSON form becomes the name of its class."""
    if isinstance(value, dict) and all(type(name) is str for name in value):
        return {name: _json(each) for name, each in value.items()}
    if type(value) is list:
        return [_json(each) for each in value]
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, str):
        # The value is of a subclass of str, such as a TextAccessor or an Enum member.
        return str.__str__(value)
    return {"python": f"{type(value).__module__}.{type(value).__qualname__}"}
