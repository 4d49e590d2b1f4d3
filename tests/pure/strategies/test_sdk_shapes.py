"""Messages and items that strategies write have forms that the SDKs' own types allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types.beta import BetaMessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter
from support.strategy_runs import COUNTER, Payload

from compaction_store.api_rules import refused_by_openai_responses
from compaction_store.strategies import plan_clear_tool_results
from compaction_store.strategies.truncation import Rule, shorten

SAID = "what was seen on the page and in the log " * 60
DATA = "data:image/png;base64," + "iVBORw0KGgo" * 400
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 400}}
TYPES: dict[str, TypeAdapter[Any]] = {
    "anthropic": TypeAdapter(BetaMessageParam), "chat": TypeAdapter(ChatCompletionMessageParam),
    "responses": TypeAdapter(ResponseInputItemParam),
}  # fmt: skip


def said(**fields: Any) -> Payload:
    return {"type": "function_call_output", "call_id": "c", "status": "completed", **fields}


RESPONSES: dict[str, Payload] = {
    "a message": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": SAID}]},
    "an image": {
        "type": "message", "role": "user",
        "content": [{"type": "input_image", "image_url": DATA, "detail": "auto"}, {"type": "input_text", "text": "?"}],
    },
    "a file": {
        "type": "message", "role": "user", "content": [{"type": "input_file", "file_data": SAID, "filename": "a.txt"}],
    },
    "a reply": {
        "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
        "content": [{"type": "output_text", "text": SAID, "annotations": []}],
    },
    "a call": {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"text": "' + SAID + '"}'},
    "an output": said(output=SAID),
    "an output with an image": said(output=[{"type": "input_image", "image_url": DATA, "detail": "auto"}]),
    "a custom call": {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": SAID},
    "a custom output": {"type": "custom_tool_call_output", "call_id": "c", "output": SAID},
    "code": {
        "type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "status": "completed", "code": SAID,
        "outputs": [{"type": "logs", "logs": SAID}, {"type": "image", "url": DATA}],
    },
    "code with an image": {
        "type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "status": "completed", "code": "1",
        "outputs": [{"type": "image", "url": DATA}],
    },
    "a search in files": {
        "type": "file_search_call", "id": "fs_1", "queries": ["a"], "status": "completed",
        "results": [{"file_id": "f", "text": SAID}],
    },
    "a shell": {
        "type": "shell_call_output", "call_id": "c",
        "output": [{"stdout": SAID, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "a local shell": {"type": "local_shell_call_output", "id": "c", "output": SAID},
    "a patch": {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": SAID},
    "mcp": {
        "type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": '{"a": "' + SAID + '"}',
        "output": SAID,
    },
}  # fmt: skip
CHAT: dict[str, Payload] = {
    "a user": {"role": "user", "content": SAID},
    "an image": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA}}]},
    "a sound": {
        "role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA" * 900, "format": "wav"}}],
    },
    "a file": {"role": "user", "content": [{"type": "file", "file": {"file_data": DATA, "filename": "a.pdf"}}]},
    "a system": {"role": "system", "content": [{"type": "text", "text": SAID}]},
    "a refusal": {"role": "assistant", "content": [{"type": "refusal", "refusal": SAID}]},
    "calls": {
        "role": "assistant", "content": SAID,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"text": "' + SAID + '"}'}},
            {"id": "d", "type": "custom", "custom": {"name": "g", "input": SAID}},
        ],
    },
    "a result": {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": SAID}]},
    "a function": {"role": "function", "name": "f", "content": SAID},
}  # fmt: skip


def answered(*content: Any, **fields: Any) -> Payload:
    block = {"type": "tool_result", "tool_use_id": "c", "content": list(content), **fields}
    return {"role": "user", "content": [block]}


def served(kind: str, content: Any) -> Payload:
    return {"role": "assistant", "content": [{"type": kind, "tool_use_id": "srvtoolu_1", "content": content}]}


DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": SAID}}
ANTHROPIC: dict[str, Payload] = {
    "text": {"role": "user", "content": [{"type": "text", "text": SAID}]},
    "an image": {"role": "user", "content": [IMAGE, {"type": "text", "text": "?"}]},
    "a document": {"role": "user", "content": [DOCUMENT]},
    "a call": {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": SAID, "signature": "c2ln"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"text": SAID}},
        ],
    },
    "a result": answered({"type": "text", "text": SAID}),
    "a result with an image": answered(IMAGE),
    "a result with a document": answered(DOCUMENT, is_error=True),
    "a found text": answered(
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": SAID}]}
    ),
    "code": served(
        "code_execution_tool_result",
        {"type": "code_execution_result", "stdout": SAID, "stderr": "", "return_code": 0, "content": []},
    ),
    "bash": served(
        "bash_code_execution_tool_result",
        {"type": "bash_code_execution_result", "stdout": SAID, "stderr": SAID, "return_code": 0, "content": []},
    ),
    "an editor": served(
        "text_editor_code_execution_tool_result",
        {"type": "text_editor_code_execution_view_result", "content": SAID, "file_type": "text"},
    ),
    "a page": served("web_fetch_tool_result", {"type": "web_fetch_result", "url": "https://a", "content": DOCUMENT}),
    "mcp": served("mcp_tool_result", [{"type": "text", "text": SAID}]),
}
CASES: list[Any] = [
    pytest.param(form, message, id=f"{form}: {name}")
    for form, messages in (("responses", RESPONSES), ("chat", CHAT), ("anthropic", ANTHROPIC))
    for name, message in messages.items()
]


def looked_through(value: Any) -> None:
    """Lists in the SDKs' types are validated only when they are iterated."""
    if isinstance(value, dict):
        for item in value.values():
            looked_through(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            looked_through(item)


def valid(form: str, message: Payload) -> None:
    looked_through(TYPES[form].validate_python(message))


@pytest.mark.parametrize(("form", "message"), CASES)
@pytest.mark.parametrize("cap", [8192, 300, 128, 16])
def test_shortened_messages_are_still_of_the_sdks_types(form: str, message: Payload, cap: int) -> None:
    valid(form, message)
    new = shorten(message, cap, COUNTER, Rule(thinking=True))
    valid(form, new)
    if form == "responses":
        assert [p for p in refused_by_openai_responses([new]) if p.rule in {"block_type", "missing_field"}] == []


def results() -> Iterator[tuple[str, Payload, Payload]]:
    """Returns calls and results in every form that can be cleared."""
    chat = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    yield "chat", {"role": "assistant", "content": None, "tool_calls": [chat]}, CHAT["a result"]
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    for name in ("a result", "a result with an image", "a result with a document", "a found text"):
        yield "anthropic", use, ANTHROPIC[name]
    server = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {}}
    for name in ("code", "bash", "an editor", "a page", "mcp"):
        yield "anthropic", {"role": "assistant", "content": [server]}, ANTHROPIC[name]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for name, item in RESPONSES.items():
        if name not in {"a message", "an image", "a file", "a reply", "a call", "a custom call"}:
            yield "responses", call, item


@pytest.mark.parametrize(("form", "call", "result"), list(results()))
def test_cleared_results_are_still_of_the_sdks_types(form: str, call: Payload, result: Payload) -> None:
    changes = plan_clear_tool_results([{"role": "user", "content": "?"}, call, result], keep=0, clear_at_least=0)
    assert changes
    for change in changes:
        for message in change.messages:
            valid(form, message)


def test_an_image_that_code_put_out_becomes_a_log() -> None:
    new = shorten(RESPONSES["code with an image"], 100, COUNTER, Rule())
    assert new["outputs"] == [{"type": "logs", "logs": "[image left out]"}]
    wrong = {**RESPONSES["code with an image"], "outputs": [{"type": "text", "text": "[image left out]"}]}
    assert [problem.rule for problem in refused_by_openai_responses([wrong])] == ["block_type"]
