"""The calls in a view that have no result yet, in the forms of all APIs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from compaction_store.models import Element, PendingCall
from compaction_store.rendering.view import View

Payload = dict[str, Any]


def view(*messages: Payload, kind: str | None = None) -> View:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return View(
        "t",
        len(messages),
        tuple(
            Element(seq, seq, seq, (message,), 1, None if kind is None else seq, now, kind)
            for seq, message in enumerate(messages, 1)
        ),
    )


def use(name: str, kind: str = "tool_use", **more: Any) -> Payload:
    return {"type": kind, "id": name, "name": "weather", "input": {"city": "Lyon"}} | more


def result(name: str) -> Payload:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "rain"}]}


def says(*blocks: Payload) -> Payload:
    return {"role": "assistant", "content": list(blocks)}


def chat(name: str, arguments: str = '{"city":"Lyon"}') -> Payload:
    return {"id": name, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def found(*messages: Payload) -> list[tuple[int, str, str, Any]]:
    return [(call.seq, call.id, call.name, call.input) for call in view(*messages).pending_calls]


LYON = {"city": "Lyon"}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (says({"type": "text", "text": "I look."}, use("c")), result("c")),
        ({"role": "assistant", "tool_calls": [chat("c")]}, {"role": "tool", "tool_call_id": "c", "content": "rain"}),
        (
            {"role": "assistant", "function_call": {"name": "weather", "arguments": '{"city":"Lyon"}'}},
            {"role": "function", "name": "weather", "content": "rain"},
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city":"Lyon"}'},
            {"type": "function_call_output", "call_id": "c", "output": "rain"},
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "weather", "input": LYON},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "rain"},
        ),
        (
            {"type": "mcp_approval_request", "id": "c", "name": "weather", "arguments": '{"city":"Lyon"}'},
            {"type": "mcp_approval_response", "approval_request_id": "c", "approve": True},
        ),
    ],
)  # fmt: skip
def test_a_call_is_pending_until_its_result(call: Payload, answer: Payload) -> None:
    name = "weather" if "function_call" in call else "c"
    assert found({"role": "user", "content": "?"}, call) == [(2, name, "weather", LYON)]
    assert found(call, answer) == []
    # An id may be used again.
    assert found(call, answer, call) == [(3, name, "weather", LYON)]


def test_of_several_calls_those_without_a_result_are_left_in_order() -> None:
    asked = says(use("a"), use("b"), use("c"))
    assert [call[1] for call in found(asked, result("b"))] == ["a", "c"]
    # A user who interrupted the agent does not answer the call.
    assert [call[1] for call in found(asked, result("b"), {"role": "user", "content": "Stop."}, says(use("d")))] == [
        "a", "c", "d",
    ]  # fmt: skip


def test_what_the_provider_answers_itself_and_what_was_summarized_is_not_pending() -> None:
    assert found(says(use("s", "server_tool_use"), use("m", "mcp_tool_use"), use("c"))) == [(1, "c", "weather", LYON)]
    assert view(says(use("c")), kind="summary").pending_calls == ()
    assert [call.id for call in view(says(use("c")), kind="truncation").pending_calls] == ["c"]


def test_a_call_that_is_kept_twice_is_one() -> None:
    both = {"role": "assistant", "content": [use("c")], "tool_calls": [chat("c")]}
    assert found(both) == [(1, "c", "weather", LYON)]


@pytest.mark.parametrize(
    ("call", "name", "given"),
    [
        ({"role": "assistant", "tool_calls": [chat("c", "{cut o")]}, "weather", "{cut o"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "custom": {"name": "sh", "input": "ls"}}]}, "sh", "ls"),
        ({"type": "local_shell_call", "call_id": "c", "action": {"run": "ls"}}, "local_shell_call", {"run": "ls"}),
        ({"type": "function_call", "call_id": "c", "name": 5}, "function_call", None),
    ],
)  # fmt: skip
def test_odd_calls_are_found_too(call: Payload, name: str, given: Any) -> None:
    assert found(call) == [(1, "c", name, given)]


def test_a_call_shows_no_content_and_can_be_sent_as_json() -> None:
    seen = view(says(use("c")))
    [call] = seen.pending_calls
    assert isinstance(call, PendingCall)
    assert call.call == use("c")
    assert "Lyon" not in repr(call)
    assert json.loads(json.dumps(seen.as_dict()))["pending_calls"] == [
        {"seq": 1, "id": "c", "name": "weather", "input": LYON, "call": use("c")}
    ]
