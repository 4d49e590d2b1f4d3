"""Formats messages for people: texts, tool calls as `call: read({"page": 7})`, and tool results as `result: …`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from compaction_store.messages.tool_pairs import CALLS, RESULTS
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.tokens.message_text import read

_ARGUMENTS = ("arguments", "input", "action")


def said(payload: Payload | None) -> str:
    """Formats a message of any API. If it has no text, call or result, returns its JSON."""
    if payload is None or is_erased(payload):
        return "(erased)"
    content = payload.get("content")
    if isinstance(content, str) and payload.keys() <= {"role", "content"}:
        return content
    return "\n".join(piece for piece in _pieces(payload) if piece) or json.dumps(payload, ensure_ascii=False)


def _pieces(payload: Payload) -> Iterator[str]:
    calls, content = payload.get("tool_calls"), payload.get("content")
    rest = dict(payload)
    if _is_call(payload) or _is_result(payload):
        yield _part(payload)
        return
    if isinstance(content, list) and any(_is_call(part) or _is_result(part) for part in content):
        rest.pop("content")
        yield from _texts(rest)
        yield from (_part(part) for part in content)
        return
    if isinstance(calls, list):
        rest.pop("tool_calls")
    yield from _texts(rest)
    yield from (_call(call) for call in calls) if isinstance(calls, list) else ()


def _texts(payload: Payload) -> list[str]:
    return [] if payload.keys() <= {"role"} else read(payload)[0]


def _part(part: Any) -> str:
    if _is_call(part):
        return _call(part)
    if not _is_result(part):
        return "\n".join(read({"content": [part]})[0])
    text = "\n".join(read({"content": part.get("content", part.get("output"))})[0])
    return f"{'error' if part.get('is_error') is True else 'result'}: {text}"


def _call(call: Any) -> str:
    """Formats a call of any API with its name and arguments. Any other value is returned as JSON."""
    inner = call.get("function") or call.get("custom") or call if isinstance(call, dict) else None
    if not isinstance(inner, dict):
        return json.dumps(call, ensure_ascii=False)
    given = next((inner[name] for name in _ARGUMENTS if name in inner), "")
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f"call: {inner.get('name') or call.get('type')}({text})"


def _is_call(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in CALLS


def _is_result(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and (kind in RESULTS or kind.endswith("_tool_result"))
