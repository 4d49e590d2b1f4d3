"""Reads the texts, calls and results in a message of any API, with places and authors. No form raises an error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from compaction_store.messages.framing import parts_of
from compaction_store.messages.parts import PartType, body_of, row_of, walk
from compaction_store.models import Payload
from compaction_store.models.messages import is_erased
from compaction_store.module_data import ModuleData

# A "label" is the name of a tool or of a field, or a number of lines to read or of seconds to wait. A summary may quote
# a label, but the names in it do not count as needed later.
SpeechKind = Literal["system", "user", "assistant", "thinking", "call", "label", "result", "notes"]

_REASONING = ("reasoning_content", "reasoning")
# The fields that may have a result.
_OUTPUTS = ("content", "output", "outputs", "results", "result", "error", "stdout", "stderr", "logs")
_DATA = ModuleData(__file__)
_ROLES: dict[str, SpeechKind] = _DATA.values["roles"]
_SILENT = _DATA.words("silent")
_WINDOW = re.compile(_DATA.pattern("window"), re.IGNORECASE)
_DEEPEST = 30
# A longer text without a space is data.
_LONGEST_WORD = 2000


class Said(NamedTuple):
    """A text in a message at the path `field`. If it is in a JSON string, `raw` is that string, with the offsets."""

    kind: SpeechKind
    field: str
    text: str
    raw: str | None = None


class ToolCall(NamedTuple):
    """A tool call. `given` is its input, parsed if it is JSON."""

    id: str | None
    name: str
    field: str
    given: Any


class ToolResult(NamedTuple):
    """A tool result: the id of its call, whether it reports a failure, and the number of characters in its texts."""

    id: str | None
    failed: bool
    size: int


class MessageReading:
    """The texts, calls and results of one message, in order."""

    def __init__(self, payload: Payload | None, *, is_summary: bool = False) -> None:
        self.said: list[Said] = []
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []
        if not isinstance(payload, dict) or is_erased(payload):
            return
        framed = parts_of(payload) if is_summary else None
        if framed is not None:
            self.said += [Said("notes", "content", part, payload["content"]) for part in framed if part]
        else:
            self._message(payload)

    def _message(self, payload: Payload) -> None:
        role, kind = payload.get("role"), payload.get("type")
        who: SpeechKind = _ROLES.get(role, "assistant") if isinstance(role, str) else "assistant"
        if isinstance(kind, str) and kind != "message" and not isinstance(role, str):
            self._part(payload, "", "assistant")
            return
        if who == "result":
            call = payload.get("tool_call_id", payload.get("name"))
            self._result(payload, "", call if isinstance(call, str) else None)
            return
        self._content(payload.get("content"), "content", who)
        for field in ("refusal", *_REASONING):
            if isinstance(text := payload.get(field), str) and text:
                self.said.append(Said("thinking" if field in _REASONING else who, field, text))
        for path, row, call in walk(payload):
            if path and path[0] != "content":
                self._call(row, call, f"{path[0]}[{path[1]}]" if path[1:] else str(path[0]))

    def _content(self, content: Any, field: str, who: SpeechKind) -> None:
        if isinstance(content, str) and content:
            self.said.append(Said(who, field, content))
        elif isinstance(content, list):
            for place, part in enumerate(content):
                if isinstance(part, str):
                    self.said.append(Said(who, f"{field}[{place}]", part))
                elif isinstance(part, dict):
                    self._part(part, f"{field}[{place}].", who)

    def _part(self, part: Payload, prefix: str, who: SpeechKind) -> None:
        row = row_of(part)
        # A request for an approval calls nothing yet.
        if row.step in ("call", "both") and row.name != "mcp_approval_request":
            self._call(row, part, prefix.rstrip("."))
            if row.step == "both":
                self._result({name: part.get(name) for name in _OUTPUTS}, prefix, row.id_of(part))
        elif row.step == "result":
            self._result(part, prefix, row.id_of(part), row.returns)
        elif row.name == "message":
            self._content(part.get("content"), f"{prefix}content", who)
        else:
            self._leaves(part, prefix, "thinking" if row.is_thinking else "notes" if row.name == "compaction" else who)

    def _call(self, row: PartType, call: Payload, field: str) -> None:
        body = body_of(call)
        if body is not call:
            field += ".function" if call.get("function") is body else ".custom"
        prefix = f"{field}." if field else ""
        given_field, given = row.input_of(call)
        tool = str(body.get("name") or row.name)
        raw = given if isinstance(given, str) else None
        given = given if raw is None else parsed(raw)
        self.calls.append(ToolCall(row.id_of(call), tool, field, given))
        where = f"{prefix}{given_field}"
        self.said.append(Said("label", f"{prefix}name", tool))
        if labels := " ".join(_field_names(given)):
            self.said.append(Said("label", where, labels, raw or ""))
        if raw is not None and not isinstance(given, str):
            # The arguments were parsed from a string, so the places of their texts are in this string.
            self.said.extend(Said(_says(place, text), where, text, raw) for place, text in leaves(given, ""))
        else:
            self.said.extend(Said(_says(place, text), place, text) for place, text in leaves(given, where))

    def _result(self, result: Payload, prefix: str, call: str | None, returns: str = "content") -> None:
        before = len(self.said)
        for field in _OUTPUTS if returns in _OUTPUTS else (*_OUTPUTS, returns):
            if (value := result.get(field)) is not None:
                self._leaves(value, f"{prefix}{field}", "result")
        failed = result.get("is_error") is True or result.get("status") in ("failed", "incomplete")
        size = sum(len(said.text) for said in self.said[before:])
        self.results.append(ToolResult(call, failed or bool(result.get("error")), size))

    def _leaves(self, value: Any, prefix: str, who: SpeechKind) -> None:
        self.said.extend(Said(who, place, text) for place, text in leaves(value, prefix.rstrip(".")))


def _field_names(value: Any) -> Iterator[str]:
    """Yields the names of the fields in the input of a call."""
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, dict):
            yield from map(str, one)
        if isinstance(one, dict | list) and depth < _DEEPEST:
            waiting.extend((item, depth + 1) for item in (one.values() if isinstance(one, dict) else one))


def _says(place: str, text: str) -> SpeechKind:
    """Returns the kind of a text in a call's input. A number of lines to read or of seconds to wait is a label."""
    return "label" if text.isdigit() and _WINDOW.search(place) is not None else "call"


def leaves(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Yields every text and number in a JSON value with its path, in order. Leaves out data and ids."""
    waiting: list[tuple[str, Any, int]] = [(field, value, 0)]
    while waiting:
        place, one, depth = waiting.pop()
        if isinstance(one, str) and one and not _is_data(one):
            yield place, one
        elif isinstance(one, bool) or one is None or depth > _DEEPEST:
            continue
        elif isinstance(one, int | float):
            yield place, str(one)
        elif isinstance(one, dict):
            inside = [
                (f"{place}.{name}" if place else name, item, depth + 1)
                for name, item in one.items()
                if name not in _SILENT or not isinstance(item, str) or (name == "data" and one.get("type") == "text")
            ]
            waiting.extend(reversed(inside))
        elif isinstance(one, list):
            waiting.extend((f"{place}[{n}]", one[n], depth + 1) for n in range(len(one) - 1, -1, -1))


def _is_data(text: str) -> bool:
    return len(text) > _LONGEST_WORD and (text.startswith("data:") or set(" \n\t").isdisjoint(text[:_LONGEST_WORD]))


def parsed(text: str) -> Any:
    """Parses a JSON object or array. Returns any other text unchanged."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
