"""Replaces the content of a tool result with one line, in the format of every supported API."""

from __future__ import annotations

from collections.abc import Callable

from compaction_store.models import Payload
from compaction_store.strategies.contents import compact

SEARCH = "web_search_tool_result"


def with_line(part: Payload, line: str) -> Payload | None:
    """Returns the result with a line as its content, or None if its format has no place for a line."""
    if any(part.get("role") == role for role in ("tool", "function")):
        return {**part, "content": line}
    return FORMS[part["type"]](part, line)


def _content(part: Payload, line: str) -> Payload:
    return {**part, "content": line}


def _output(part: Payload, line: str) -> Payload:
    return {**part, "output": line}


def _json_output(part: Payload, line: str) -> Payload:
    return {**part, "output": compact(line)}


def _search(part: Payload, _line: str) -> Payload | None:
    """Removes the results of a web search, because they are encrypted and cannot be replaced by text."""
    return {**part, "content": []} if isinstance(part.get("content"), list) else None


def _shell(part: Payload, line: str) -> Payload | None:
    output = part.get("output")
    first = output[0] if isinstance(output, list) and output else None
    if not isinstance(first, dict):
        return None
    return {**part, "output": [{**first, "stdout": line, "stderr": ""}]}


def _inner(part: Payload, line: str) -> Payload | None:
    """Replaces the text of the object in `content`. Its type decides which field has the text."""
    content = part.get("content")
    kind = content.get("type") if isinstance(content, dict) else None
    inner: dict[str, Payload] = {
        "code_execution_result": {"stdout": line, "stderr": "", "content": []},
        "bash_code_execution_result": {"stdout": line, "stderr": "", "content": []},
        "text_editor_code_execution_view_result": {"content": line},
        "text_editor_code_execution_str_replace_result": {"lines": [line]},
        "web_fetch_result": {
            "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": line}}
        },
        "advisor_result": {"text": line},
    }
    if not isinstance(content, dict) or not isinstance(kind, str) or kind not in inner:
        return None
    return {**part, "content": {**content, **inner[kind]}}


FORMS: dict[str, Callable[[Payload, str], Payload | None]] = {
    "tool_result": _content,
    "mcp_tool_result": _content,
    SEARCH: _search,
    "web_fetch_tool_result": _inner,
    "code_execution_tool_result": _inner,
    "bash_code_execution_tool_result": _inner,
    "text_editor_code_execution_tool_result": _inner,
    "advisor_tool_result": _inner,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "apply_patch_call_output": _output,
    "local_shell_call_output": _json_output,
    "shell_call_output": _shell,
    "program_output": lambda part, line: {**part, "result": line},
    "mcp_call": _output,
    "code_interpreter_call": lambda part, line: {**part, "outputs": [{"type": "logs", "logs": line}]},
    "file_search_call": lambda part, line: {**part, "results": [{"text": line}]},
}
