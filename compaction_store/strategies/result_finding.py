"""Finds the tool results in a view and the names of their tools, in the format of every supported API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compaction_store.messages.tool_pairs import CALLS, RESULTS
from compaction_store.models import Element, Payload
from compaction_store.strategies.result_forms import FORMS

WHOLE = -1


class ToolResult(NamedTuple):
    """The place and the tool of a result. `block` is -1 if the whole message is the result."""

    element: int
    message: int
    block: int
    tool: str


def tool_results(elements: Sequence[Element]) -> Iterator[ToolResult]:
    """Yields the results that can be cleared, in order.

    A result belongs to the nearest earlier call with its id that has no result yet.
    """
    waiting = defaultdict[str, list[str]](list)
    for place, element in enumerate(elements):
        if element.is_summary:
            continue
        for index, message in enumerate(element.messages):
            for block, part in _parts(message):
                if (called := _called(part)) is not None:
                    waiting[called[0]].append(called[1])
                if (name := _answered(part, waiting)) is not None:
                    yield ToolResult(place, index, block, name)


def _parts(message: Payload) -> Iterator[tuple[int, Payload]]:
    """Yields the index and value of the message, of each block of its content, and of each of its `tool_calls`."""
    yield WHOLE, message
    content = message.get("content")
    if isinstance(content, list):
        yield from ((index, part) for index, part in enumerate(content) if isinstance(part, dict))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield WHOLE, {**call, "type": "tool_call"}


def _called(part: Payload) -> tuple[str, str] | None:
    """Returns the id and the tool's name of a call, or None if the part is not a call."""
    kind = part.get("type")
    if not isinstance(kind, str):
        return None
    if kind == "tool_call":
        body = next((part[field] for field in ("function", "custom") if isinstance(part.get(field), dict)), None)
        name, id_ = None if body is None else body.get("name"), part.get("id")
    elif kind in CALLS:
        name, id_ = part.get("name", kind.removesuffix("_call")), part.get(CALLS[kind])
    else:
        return None
    return (id_, name) if isinstance(id_, str) and isinstance(name, str) else None


def _answered(part: Payload, waiting: dict[str, list[str]]) -> str | None:
    """Returns the name of the tool of a result, or None if the part is not a result that can be cleared."""
    kind, role = part.get("type"), part.get("role")
    if role == "tool":
        return _tool(part.get("tool_call_id"), waiting, "a tool")
    if role == "function":
        return str(part.get("name"))
    if not isinstance(kind, str) or kind not in FORMS:
        return None
    if kind in {"mcp_call", "code_interpreter_call", "file_search_call"}:
        return str(part.get("name", kind.removesuffix("_call")))
    usual = kind.removesuffix("_output").removesuffix("_call").removesuffix("_tool_result")
    return _tool(part.get(RESULTS.get(kind, "tool_use_id"), part.get("id")), waiting, usual)


def _tool(id_: object, waiting: dict[str, list[str]], usual: str) -> str:
    calls = waiting.get(id_) if isinstance(id_, str) else None
    if not calls:
        return usual
    # If only one name is left, do not remove it, because the same call may have a second result.
    return calls.pop() if len(calls) > 1 else calls[0]
