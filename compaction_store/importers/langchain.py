"""Converts LangChain's messages to chat messages. Their other fields are kept under "langchain"."""

from __future__ import annotations

import json
from typing import Any

from compaction_store.importers.checkpoint_values import Object

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
# Values of fields that carry no information.
_NOTHING: tuple[Any, ...] = (None, "", [], {}, False)


def identity(value: Any) -> str | None:
    """Returns the message's own id, if it has one."""
    found = (
        value.fields.get("id") if isinstance(value, Object) else value.get("id") if isinstance(value, dict) else None
    )
    return found if isinstance(found, str) and found else None


def is_summary(value: Any) -> bool:
    """Returns whether the message is a summary by LangChain's summarization middleware."""
    more = value.fields.get("additional_kwargs") if isinstance(value, Object) else None
    return isinstance(more, dict) and more.get("lc_source") == "summarization"


def chat_message(value: Any) -> Any:
    """Converts a LangChain message, or a value that LangGraph accepts as one; returns None for other values."""
    if isinstance(value, Object):
        return _of_object(value)
    if isinstance(value, str):
        return {"role": "user", "content": value}
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value):  # noqa: PLR2004
        return {"role": _ROLES.get(value[0], value[0]), "content": value[1]}
    return _plain(value) if isinstance(value, dict) and "content" in value else None


def _of_object(value: Object) -> Any:
    rest = dict(value.fields)
    kind = rest.pop("type", None)
    kind = kind.removesuffix("MessageChunk").lower() if isinstance(kind, str) else ""
    role = rest.pop("role", None) if kind == "chat" else _ROLES.get(kind)
    if "content" not in rest or not isinstance(role, str):
        return None
    message: dict[str, Any] = {"role": role, "content": _plain(rest.pop("content"))}
    for name in ("name", "id", "tool_call_id"):
        if (found := rest.pop(name, None)) is not None:
            message[name] = _plain(found)
    calls = rest.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_call(_plain(call)) for call in calls]
    if kept := {name: _plain(found) for name, found in rest.items() if found not in _NOTHING}:
        message["langchain"] = kept
    return message


def _call(call: Any) -> Any:
    if not isinstance(call, dict) or "name" not in call:
        return call
    arguments = json.dumps(call.get("args"), ensure_ascii=False, separators=(",", ":"))
    return {"id": call.get("id"), "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _plain(value: Any) -> Any:
    """Replaces each object inside a value with a dict of its fields."""
    if isinstance(value, Object):
        return {name: _plain(found) for name, found in value.fields.items()}
    if isinstance(value, dict):
        return {name: _plain(found) for name, found in value.items()}
    return [_plain(found) for found in value] if isinstance(value, list) else value
