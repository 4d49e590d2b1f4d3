"""Tool calls in the formats of three APIs: Anthropic's Messages, OpenAI's Chat Completions and Responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from compaction_store.arguments import other
from compaction_store.errors import InvalidInput
from compaction_store.messages.answers import field
from compaction_store.messages.parts import PartType, answer_to, body_of, row_of
from compaction_store.models import Payload
from compaction_store.recall.definitions import NAMES, Tool
from compaction_store.recall.pages import Recalled, is_recalled


class AnswerableCall(NamedTuple):
    """A tool call, and a function that converts its result to the format that the call came in."""

    name: Any
    arguments: Any
    answer: Callable[[Recalled], Payload]


def for_anthropic(tools: Iterable[Tool]) -> list[Payload]:
    return [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in tools]


def for_openai(tools: Iterable[Tool], api: Literal["chat", "responses"]) -> list[Payload]:
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.schema, "strict": False}
        for tool in tools
    ]
    if api == "chat":
        return [{"type": "function", "function": function} for function in functions]
    if api == "responses":
        return [{"type": "function", **function} for function in functions]
    raise InvalidInput(f"api must be 'chat' or 'responses', not {api!r}")


def read(given: Any) -> AnswerableCall:
    """Parses a tool call from a model's reply, given as a dict or as an object of the API's SDK.

    The call is a `tool_use` block, a `function_call` item or an entry of `tool_calls`.
    """
    kind, function = field(given, "type"), field(given, "function")
    row = row_of({"type": kind})
    if row.answer is not None and isinstance(name := field(given, row.id[0]), str):
        arguments = _parsed(field(given, row.input[0]))
        return AnswerableCall(field(given, "name"), arguments, lambda result: _part(row, name, result))
    if kind in ("function", None) and function is not None and isinstance(name := field(given, "id"), str):
        arguments = _parsed(field(function, "arguments"))
        return AnswerableCall(field(function, "name"), arguments, lambda result: _message(name, result))
    raise InvalidInput(
        "call must be a tool_use block with an id, a function_call item with a call_id, or an entry of tool_calls with"
        f" an id{'' if isinstance(given, Mapping) else other(given)}"
    )


def _part(row: PartType, name: str, result: Recalled) -> Payload:
    part = answer_to({"type": row.name, row.id[0]: name}, result.text)
    # The items of Responses have no field for errors.
    return part | ({"is_error": True} if result.is_error and row.anthropic else {})


def _message(name: str, result: Recalled) -> Payload:
    return {"role": "tool", "tool_call_id": name, "content": result.text}


def _parsed(arguments: Any) -> Any:
    """Parses the arguments of a call, which are JSON text in OpenAI's APIs. Invalid JSON is returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


# ---- earlier recalls in the thread


def without_recall(message: Payload) -> Payload:
    """Returns a message without recall calls and recall results, so that a search does not find earlier searches."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        message = {**message, "content": [block for block in content if not _is_recall(block)]}
    if isinstance(calls, list):
        message = {**message, "tool_calls": [call for call in calls if not _is_recall(call)]}
    return {} if _is_recall(message) else message


def _is_recall(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    row = row_of(part)
    if (row.step == "call" and row.is_clients) or part.get("type") == "function":
        called = body_of(part).get("name")
        return isinstance(called, str) and called in NAMES
    if (row.step == "result" and row.is_clients) or part.get("role") == "tool":
        return is_recalled(part.get(row.returns))
    return False
