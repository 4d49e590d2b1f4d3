"""The rules of the APIs: one test for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, get_args

import openai.types.chat as chat_types
import openai.types.responses.response_input_item_param as item_types
import pytest
import typing_extensions as te
from anthropic.types import ContentBlockParam, MessageParam
from anthropic.types.beta import BetaContentBlockParam, BetaMessageParam
from anthropic.types.beta import beta_system_message_param as system_types
from anthropic.types.beta import beta_tool_result_block_param as result_types
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_input_content_param import ResponseInputContentParam
from openai.types.responses.response_output_message_param import Content as OutputContent
from support import random_threads as threads

from compaction_store.api_rules import (
    Problem,
    anthropic,
    refused_by_anthropic,
    refused_by_openai,
    refused_by_openai_responses,
)
from compaction_store.messages.parts import PARTS

Payload = dict[str, Any]
Rules = list[tuple[int | None, str]]
CHECKS: dict[str, Callable[[list[Any]], list[Problem]]] = {
    "anthropic": refused_by_anthropic,
    "chat": refused_by_openai,
    "responses": refused_by_openai_responses,
}


def rules(problems: list[Problem]) -> Rules:
    return [(problem.index, problem.rule) for problem in problems]


@pytest.mark.parametrize("name", CHECKS)
@given(data=st.data())
def test_a_well_formed_thread_passes(name: str, data: st.DataObject) -> None:
    assert CHECKS[name](data.draw(threads.WELL_FORMED[name]())) == []


@pytest.mark.parametrize("name", CHECKS)
@given(data=st.data())
def test_a_well_formed_thread_without_one_call_or_one_result_is_refused(name: str, data: st.DataObject) -> None:
    thread = data.draw(threads.WELL_FORMED[name]())
    # A call of a server's tool without a result may be waiting for results of the client's tools.
    kinds = {"tool_use", "tool_result", "server_tool_use"}
    places = [
        (message, key, part)
        for message in thread
        for key in ("content", "tool_calls")
        if isinstance(message.get(key), list)
        for part in message[key]
        if part.get("type") in kinds or key == "tool_calls"
    ]
    whole = [m for m in thread if m.get("role") == "tool" or "call" in m.get("type", "")]
    if whole:
        thread.remove(data.draw(st.sampled_from(whole)))
    elif places:
        message, key, part = data.draw(st.sampled_from(places))
        message[key] = [other for other in message[key] if other is not part]
    else:
        return
    assert CHECKS[name](thread)


@pytest.mark.parametrize("name", CHECKS)
@given(
    value=st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.sampled_from(["user", "tool_use", "function_call", "text", ""]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["type", "role", "content", "id", "call_id", "tool_calls", "tool_use_id", "text"]),
                    inner,
                )
            ),
        ),
        max_size=4,
    )
)
def test_no_json_raises(name: str, value: list[Any]) -> None:
    CHECKS[name](value)


@pytest.mark.parametrize("name", CHECKS)
def test_problems_show_no_content(name: str) -> None:
    secret = "s3cret"
    thread = [
        {"role": secret, "content": secret},
        {"role": "user", secret: secret, "content": [{"type": secret, secret: secret}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": secret + "!", secret: 1}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": secret, "name": secret, "input": secret}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": secret * 9, "type": secret, secret: {}}]},
        {"role": "tool", "tool_call_id": secret, "content": [{"type": secret}]},
        {"type": "function_call", "call_id": secret * 20, "name": secret, "id": secret},
        {"type": "function_call_output", "call_id": secret},
        {"type": secret, "id": secret},
    ]
    found = CHECKS[name](thread)
    assert found
    assert secret not in repr(found)
    assert all(problem.text for problem in found)


@pytest.mark.parametrize("name", CHECKS)
def test_nothing_and_erased_messages_are_refused(name: str) -> None:
    assert rules(CHECKS[name]([])) == [(None, "no_messages")]
    assert (1, "no_object") in rules(CHECKS[name]([{"role": "user", "content": "hi"}, None]))


# ---- Anthropic

USER: Payload = {"role": "user", "content": "hi"}
SAID: Payload = {"role": "assistant", "content": "hm"}
SYSTEM: Payload = {"role": "system", "content": "Mind the gap."}


def text(says: str = "hm") -> Payload:
    return {"type": "text", "text": says}


def use(name: str = "x") -> Payload:
    return {"type": "tool_use", "id": name, "name": "look", "input": {}}


def result(name: str = "x") -> Payload:
    return {"type": "tool_result", "tool_use_id": name, "content": "seen"}


def thinking(**more: Any) -> Payload:
    return {"type": "thinking", "thinking": "hm", "signature": "sig", **more}


def compaction(**more: Any) -> Payload:
    return {"type": "compaction", "content": "They met.", **more}


SEARCH: Payload = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Payload = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
MCP: Payload = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "look", "server_name": "s", "input": {}}


def user(*blocks: Payload) -> Payload:
    return {"role": "user", "content": list(blocks)}


def reply(*blocks: Payload) -> Payload:
    return {"role": "assistant", "content": list(blocks)}


REFUSED_BY_ANTHROPIC: list[tuple[str, list[Any], Rules]] = [
    ("an unknown role", [USER, {"role": "tool", "content": "x"}], [(1, "role")]),
    ("no role", [{"content": "x"}], [(0, "role")]),
    ("an assistant first", [SAID, USER], [(0, "first_role")]),
    ("a field beside role and content", [{**USER, "name": "bob"}], [(0, "extra_field")]),
    ("no content", [{"role": "user"}], [(0, "content")]),
    ("content of another form", [{"role": "user", "content": {"text": "x"}}], [(0, "content")]),
    ("empty text", [{"role": "user", "content": ""}], [(0, "empty_content")]),
    ("no blocks", [user()], [(0, "empty_content")]),
    ("an empty reply in the middle", [USER, reply(), USER], [(1, "empty_content")]),
    ("blank text", [{"role": "user", "content": " \n"}], [(0, "empty_text")]),
    ("a blank block", [user(text(), text(""))], [(0, "empty_text")]),
    ("a block of no known type", [user({"type": "hologram"})], [(0, "block_type")]),
    ("a block that is no object", [user("hi")], [(0, "block_type")]),  # type: ignore[arg-type]
    ("a block without its field", [user({"type": "image"})], [(0, "missing_field")]),
    ("a block with a strange field", [user({**text(), "index": 1})], [(0, "extra_field")]),
    ("a chat block in a result", [USER, reply(use()), user({**result(), "content": [{"type": "audio"}]})],
     [(2, "block_type")]),
    ("whitespace before the model goes on", [USER, {"role": "assistant", "content": "The answer is "}],
     [(1, "trailing_whitespace")]),
    ("whitespace in the last block", [USER, reply(text("The answer is\n"))], [(1, "trailing_whitespace")]),
    ("input that is no object", [USER, reply({**use(), "input": "{}"}), user(result())], [(1, "tool_input")]),
    ("an id with strange characters", [USER, reply(use("a:b")), user(result("a:b"))], [(1, "tool_id"), (2, "tool_id")]),
    ("a server's id without its prefix", [USER, reply({**SEARCH, "id": "x"}, {**FOUND, "tool_use_id": "x"}, text())],
     [(1, "tool_id")]),
    ("one id twice", [USER, reply(use()), user(result()), reply(use()), user(result())], [(3, "duplicate_id")]),
    ("a call at the end", [USER, reply(use())], [(1, "unanswered_call")]),
    ("a call that is passed over", [USER, reply(use()), USER], [(1, "unanswered_call")]),
    ("one of two calls that is not answered", [USER, reply(use("a"), use("b")), user(result("a"))],
     [(1, "unanswered_call")]),
    ("a late result", [USER, reply(use()), USER, SAID, user(result())], [(1, "unanswered_call"), (4, "orphan_result")]),
    ("a result of nothing", [user(result())], [(0, "orphan_result")]),
    ("two results for a call", [USER, reply(use()), user(result(), result())], [(2, "duplicate_result")]),
    ("text before a result", [USER, reply(use()), user(text(), result())], [(2, "results_first")]),
    ("a message before the results", [USER, reply(use()), USER, user(result())], [(3, "results_first")]),
    ("a result of the assistant", [USER, reply(result())], [(1, "block_role"), (1, "orphan_result")]),
    ("a call of the user", [user(use())], [(0, "block_role"), (0, "unanswered_call")]),
    ("thinking of the user", [user(thinking(), text())], [(0, "block_role")]),
    ("a search without its finding", [USER, reply(SEARCH, text()), USER], [(1, "unanswered_call")]),
    ("a finding without its search", [USER, reply(FOUND, text()), USER], [(1, "orphan_result")]),
    ("an MCP call without its result", [USER, reply(MCP, text()), USER], [(1, "unanswered_call")]),
    ("unsigned thinking", [USER, reply(thinking(signature=""), text()), USER], [(1, "thinking_signature")]),
    ("thinking with no signature", [USER, reply({"type": "thinking", "thinking": "hm"}, text()), USER],
     [(1, "missing_field")]),
    ("empty redacted thinking", [USER, reply({"type": "redacted_thinking", "data": ""}, text()), USER],
     [(1, "thinking_signature")]),
    ("thinking that leads to nothing", [USER, reply(text(), thinking()), USER], [(1, "thinking_last")]),
    ("a system message first", [SYSTEM, USER], [(0, "system_place")]),
    ("a system message after a reply", [USER, SAID, SYSTEM], [(2, "system_place")]),
    ("a system message between a user's", [USER, SYSTEM, USER], [(1, "system_place")]),
    ("a picture in a system message", [USER, {"role": "system", "content": [{"type": "image", "source": {}}]}],
     [(1, "block_role")]),
    ("a change of tools by the user", [user({"type": "tool_removal", "tool": {}})], [(0, "block_role")]),
    ("an empty compaction block", [reply(compaction(content="")), USER], [(0, "empty_text")]),
    ("a signed compaction block in the middle", [USER, reply(compaction(signature="s")), USER],
     [(1, "compaction_misplaced")]),
    ("a compaction block of the system", [USER, {"role": "system", "content": [compaction()]}],
     [(1, "compaction_misplaced")]),
    ("two signed compaction blocks", [reply(compaction(signature="s")), USER, reply(compaction(signature="s")), USER],
     [(2, "compaction_ambiguous")]),
    ("a result whose call was compacted", [USER, reply(use()), reply(compaction()), user(result())],
     [(3, "orphan_result")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("thread", "expected"), [c[1:] for c in REFUSED_BY_ANTHROPIC], ids=[c[0] for c in REFUSED_BY_ANTHROPIC]
)
def test_anthropic_refuses(thread: list[Any], expected: Rules) -> None:
    assert rules(refused_by_anthropic(thread)) == expected


TAKEN_BY_ANTHROPIC: dict[str, list[Any]] = {
    "two messages of one role": [USER, USER, SAID, SAID, USER],
    "a reply to be begun": [USER, reply()],
    "a reply to be continued": [USER, {"role": "assistant", "content": "The answer is"}],
    "whitespace at the end of an earlier reply": [USER, {"role": "assistant", "content": "hm \n"}, USER],
    "results over two messages": [USER, reply(use("a"), use("b")), user(result("b")), user(result("a"), text())],
    "calls over two messages": [USER, reply(use("a")), reply(use("b")), user(result("a"), result("b"))],
    "a result with nothing in it": [USER, reply(use()), user({"type": "tool_result", "tool_use_id": "x"})],
    "a system message after results": [USER, reply(use()), user(result()), SYSTEM, SAID],
    "a system message at the end": [USER, SYSTEM],
    "two system messages": [USER, SYSTEM, SYSTEM, SAID, USER],
    "a search and its finding": [USER, reply(SEARCH, FOUND, text()), USER],
    "a paused turn": [USER, reply(text(), SEARCH)],
    "a turn that went on after a pause": [USER, reply(SEARCH), reply(FOUND, text()), USER],
    "a finding after the client's results": [
        USER, reply(SEARCH, use()), user(result()), reply(FOUND, text()), USER,
    ],
    "thinking between calls": [
        USER, reply(thinking(), use("a")), user(result("a")), reply(thinking(), text(), use("b")), user(result("b")),
    ],
    "a signed compaction block first": [reply(compaction(signature="s")), USER, SAID, USER],
    "a threshold's compaction block": [USER, SAID, USER, reply(compaction(), text()), USER],
    "calls of which the results were compacted": [USER, reply(use()), reply(compaction(), text()), USER],
    "a compaction that failed": [USER, reply(compaction(content=None), text()), USER],
    "a picture": [user({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}})],
    "options alone from the system": [USER, {"role": "system", "output_config": {"effort": "low"}}],
    "a tool taken away": [USER, {"role": "system", "content": [{"type": "tool_removal", "tool": {}}]}, SAID, USER],
}  # fmt: skip


@pytest.mark.parametrize("thread", TAKEN_BY_ANTHROPIC.values(), ids=TAKEN_BY_ANTHROPIC)
def test_anthropic_takes(thread: list[Any]) -> None:
    assert refused_by_anthropic(thread) == []


def test_anthropics_system_prompt_is_text() -> None:
    assert refused_by_anthropic([USER], system="Be brief.") == []
    assert refused_by_anthropic([USER], system=[text()]) == []
    assert rules(refused_by_anthropic([USER], system=[text(" ")])) == [(None, "empty_text")]
    assert rules(refused_by_anthropic([USER], system=[{"type": "image"}])) == [(None, "system")]
    assert rules(refused_by_anthropic([USER], system=5)) == [(None, "system")]


def test_anthropic_takes_a_hundred_thousand_messages() -> None:
    assert refused_by_anthropic([USER] * anthropic.MOST_MESSAGES) == []
    assert rules(refused_by_anthropic([USER] * (anthropic.MOST_MESSAGES + 1))) == [(None, "too_many_messages")]


def test_manual_thinking_comes_first() -> None:
    looped = [USER, reply(text(), use()), user(result())]
    assert refused_by_anthropic(looped) == []
    assert rules(refused_by_anthropic(looped, manual_thinking=True)) == [(1, "thinking_first")]
    begun = [USER, reply(thinking(), text(), use()), user(result())]
    assert refused_by_anthropic(begun, manual_thinking=True) == []
    late = [USER, reply(text(), thinking(), text()), USER]
    assert rules(refused_by_anthropic(late, manual_thinking=True)) == [(1, "thinking_first")]
    assert refused_by_anthropic([USER, SAID, USER], manual_thinking=True) == []


# ---- OpenAI, chat completions


def called(*names: str) -> Payload:
    return threads.written([threads.Word("call", name) for name in names], "chat")[0]


def tool(name: str = "x") -> Payload:
    return {"role": "tool", "tool_call_id": name, "content": "seen"}


LONG = "c" * 65
REFUSED_BY_CHAT: list[tuple[str, list[Any], Rules]] = [
    ("an unknown role", [{"role": "human", "content": "x"}], [(0, "role")]),
    ("a user who says nothing", [{"role": "user", "content": None}], [(0, "empty_content")]),
    ("an assistant who says and calls nothing", [USER, {"role": "assistant"}], [(1, "empty_content")]),
    ("no parts", [user()], [(0, "empty_content")]),
    ("content of another form", [{"role": "user", "content": 7}], [(0, "content")]),
    ("Anthropic's blocks", [user({"type": "image", "source": {}})], [(0, "block_type")]),
    ("a picture from the assistant", [USER, reply({"type": "image_url", "image_url": {}})], [(1, "block_type")]),
    ("a picture from the system", [{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}],
     [(0, "block_type")]),
    ("a part without its field", [user({"type": "text"})], [(0, "missing_field")]),
    ("a function without a name", [USER, {"role": "function", "content": "x"}], [(1, "missing_field")]),
    ("a function that says a list", [USER, {"role": "function", "name": "f", "content": []}], [(1, "content")]),
    ("an empty list of calls", [USER, {**SAID, "tool_calls": []}], [(1, "tool_calls")]),
    ("calls that are no list", [USER, {**SAID, "tool_calls": {"id": "x"}}], [(1, "tool_calls")]),
    ("a call of nothing", [USER, {**SAID, "tool_calls": [{"id": "x", "type": "function"}]}], [(1, "tool_calls")]),
    ("a call without a name", [USER, {**SAID, "tool_calls": [{"id": "x", "type": "custom", "custom": {"input": ""}}]},
     tool()], [(1, "missing_field")]),
    ("a call without an id", [USER, {**SAID, "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": "{}"}}]}], [(1, "missing_field")]),
    ("a long id", [USER, called(LONG), tool(LONG)], [(1, "long_id")]),
    ("a call at the end", [USER, called("x")], [(1, "unanswered_call")]),
    ("a call that is passed over", [USER, called("x"), USER, tool()], [(1, "unanswered_call"), (3, "orphan_result")]),
    ("one of two calls that is not answered", [USER, called("a", "b"), tool("a"), USER], [(1, "unanswered_call")]),
    ("a result of nothing", [USER, tool()], [(1, "orphan_result")]),
    ("a result of another call", [USER, called("x"), tool(), tool("y")], [(3, "orphan_result")]),
    ("two results for a call", [USER, called("x"), tool(), tool()], [(3, "duplicate_result")]),
    ("a result without an id", [USER, {"role": "tool", "content": "x"}], [(1, "missing_field"), (1, "orphan_result")]),
]  # fmt: skip


@pytest.mark.parametrize(("thread", "expected"), [c[1:] for c in REFUSED_BY_CHAT], ids=[c[0] for c in REFUSED_BY_CHAT])
def test_chat_refuses(thread: list[Any], expected: Rules) -> None:
    assert rules(refused_by_openai(thread)) == expected


TAKEN_BY_CHAT: dict[str, list[Any]] = {
    "systems anywhere": [SYSTEM, USER, {"role": "developer", "content": "x"}, SAID, SYSTEM],
    "an assistant first": [SAID, USER],
    "empty text": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "a refusal": [USER, {"role": "assistant", "content": None, "refusal": "no"}],
    "a spoken reply": [USER, {"role": "assistant", "audio": {"id": "a"}}],
    "results in another order": [USER, called("a", "b"), tool("b"), tool("a"), USER],
    "an id used again": [USER, called("x"), tool(), called("x"), tool()],
    "the deprecated way": [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None},
    ],
    "a custom tool": [
        USER, {**SAID, "tool_calls": [{"id": "x", "type": "custom", "custom": {"name": "f", "input": ""}}]}, tool(),
    ],
    "a picture": [user({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, text())],
}  # fmt: skip


@pytest.mark.parametrize("thread", TAKEN_BY_CHAT.values(), ids=TAKEN_BY_CHAT)
def test_chat_takes(thread: list[Any]) -> None:
    assert refused_by_openai(thread) == []


# ---- OpenAI, responses

CALL: Payload = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}
OUTPUT: Payload = {"type": "function_call_output", "call_id": "x", "output": "seen"}
THOUGHT: Payload = {"type": "reasoning", "id": "rs_1", "summary": []}
ASKED: Payload = {"type": "mcp_approval_request", "id": "m", "name": "f", "arguments": "{}", "server_label": "s"}
APPROVED: Payload = {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True}
CLIENT_SEARCH: Payload = {"type": "tool_search_call", "call_id": "x", "arguments": {}, "execution": "client"}
TOOLS: Payload = {"type": "tool_search_output", "call_id": "x", "tools": []}
SHELL: Payload = {"type": "local_shell_call", "call_id": "x", "action": {}}
REFUSED_BY_RESPONSES: list[tuple[str, list[Any], Rules]] = [
    ("an unknown item", [{"type": "hologram"}], [(0, "item_type")]),
    ("an item that is none", [{"text": "x"}], [(0, "item_type")]),
    ("the role tool", [USER, {"role": "tool", "content": "x"}], [(1, "role")]),
    ("a message without content", [{"role": "user"}], [(0, "missing_field"), (0, "content")]),
    ("chat's parts", [user(text())], [(0, "block_type")]),
    ("a reply of input", [USER, reply({"type": "input_text", "text": "x"})], [(1, "block_type")]),
    ("a user's output", [user({"type": "output_text", "text": "x"})], [(0, "block_type")]),
    ("a part without text", [user({"type": "input_text"})], [(0, "missing_field")]),
    ("a call without a name", [{**CALL, "name": None}, OUTPUT], [(0, "missing_field")]),
    ("a custom call without input", [{"type": "custom_tool_call", "call_id": "x", "name": "f"},
     {**OUTPUT, "type": "custom_tool_call_output"}], [(0, "missing_field")]),
    ("a call without an output", [USER, CALL], [(1, "unanswered_call")]),
    ("an output of nothing", [USER, OUTPUT], [(1, "orphan_result")]),
    ("an output before its call", [OUTPUT, CALL], [(0, "orphan_result"), (1, "unanswered_call")]),
    ("an output of another kind", [CALL, {**OUTPUT, "type": "custom_tool_call_output"}],
     [(0, "unanswered_call"), (1, "orphan_result")]),
    ("an approval asked for", [ASKED], [(0, "unanswered_call")]),
    ("an approval of nothing", [APPROVED], [(0, "orphan_result")]),
    ("a search of the client's", [CLIENT_SEARCH], [(0, "unanswered_call")]),
    ("a long id", [{**CALL, "call_id": LONG}, {**OUTPUT, "call_id": LONG}], [(0, "long_id"), (1, "long_id")]),
    ("an item twice", [THOUGHT, THOUGHT, SAID], [(1, "duplicate_id")]),
    ("reasoning at the end", [USER, THOUGHT], [(1, "reasoning_last")]),
    ("reasoning cut short", [USER, THOUGHT, USER], [(1, "reasoning_last")]),
    ("reasoning before an output", [CALL, THOUGHT, OUTPUT], [(1, "reasoning_last")]),
    ("a trigger in the middle", [USER, {"type": "compaction_trigger"}, USER], [(1, "trigger_place")]),
    ("a compaction without its secret", [{"type": "compaction"}, USER], [(0, "missing_field")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("thread", "expected"), [c[1:] for c in REFUSED_BY_RESPONSES], ids=[c[0] for c in REFUSED_BY_RESPONSES]
)
def test_responses_refuses(thread: list[Any], expected: Rules) -> None:
    assert rules(refused_by_openai_responses(thread)) == expected


TAKEN_BY_RESPONSES: dict[str, list[Any]] = {
    "messages with and without a type": [SYSTEM, USER, {"type": "message", **SAID}, {**SYSTEM, "role": "developer"}],
    "a late output": [USER, CALL, USER, SAID, OUTPUT],
    "reasoning and its call": [USER, THOUGHT, CALL, OUTPUT, {"type": "reasoning", "summary": []}, SAID],
    "an approval": [USER, ASKED, APPROVED],
    "a search of the server's": [
        USER, {"type": "tool_search_call", "arguments": {}}, {"type": "tool_search_output", "tools": []},
    ],
    "a run of code that says nothing": [
        USER, {"type": "code_interpreter_call", "id": "c", "container_id": "c", "code": None, "outputs": None}, SAID,
    ],
    "a search of the client's": [USER, CLIENT_SEARCH, TOOLS],
    "a local shell": [USER, SHELL, {"type": "local_shell_call_output", "id": "x", "output": ""}],
    "a local shell as the API has it": [USER, SHELL, {"type": "local_shell_call_output", "call_id": "x", "output": ""}],
    "an item by reference": [USER, {"id": "fc_1"}, OUTPUT],
    "reasoning before a reference": [USER, THOUGHT, {"type": "item_reference", "id": "fc_1"}],
    "a trigger at the end": [USER, {"type": "compaction_trigger"}],
    "a compaction": [{"type": "compaction", "encrypted_content": "x"}, USER],
    "an output without an id": [USER, {"type": "function_call_output", "name": "f", "output": ""}],
    "a hosted call": [USER, {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}}, SAID],
    "pictures and files": [user({"type": "input_image", "image_url": "x"}, {"type": "input_file", "file_id": "f"})],
    "a refusal": [USER, reply({"type": "refusal", "refusal": "no"})],
}  # fmt: skip


@pytest.mark.parametrize("thread", TAKEN_BY_RESPONSES.values(), ids=TAKEN_BY_RESPONSES)
def test_responses_takes(thread: list[Any]) -> None:
    assert refused_by_openai_responses(thread) == []


# ---- the SDKs' own types say the same


def typed_dicts(union: Any) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yields the types in a union, with the required fields and all fields. Their annotations are strings."""
    for member in get_args(union):
        if not hasattr(member, "__required_keys__"):
            yield from typed_dicts(member)
            continue
        hints: dict[str, Any] = te.get_type_hints(member, include_extras=True)
        required = {field for field, hint in hints.items() if str(hint).startswith("typing.Required[")}
        for kind in literals(hints["type"]):
            yield kind, required, set(hints)


def literals(hint: Any) -> Iterator[str]:
    for inner in get_args(hint):
        if isinstance(inner, str):
            yield inner
        else:
            yield from literals(inner)


def test_anthropics_blocks_are_those_of_the_sdk() -> None:
    found: dict[str, tuple[AbstractSet[str], AbstractSet[str]]] = {}
    for union in (ContentBlockParam, BetaContentBlockParam, system_types.ContentBlock):
        for kind, required, known in typed_dicts(union):
            before = found.get(kind, (required, known))
            found[kind] = before[0] & required, before[1] | known
    shapes = {kind: row.anthropic for kind, row in PARTS.items() if row.anthropic is not None}
    assert {kind: ({"type", *shape.needed}, shape.known) for kind, shape in shapes.items()} == found
    assert {kind for kind, _, _ in typed_dicts(result_types.Content)} == anthropic.IN_TOOL_RESULT


def test_anthropics_roles_are_those_of_the_sdk() -> None:
    for union in (MessageParam, BetaMessageParam):
        roles = {role for member in get_args(union) for role in literals(te.get_type_hints(member)["role"])}
        assert roles == {"user", "assistant", "system"}


def test_chats_roles_and_parts_are_those_of_the_sdk() -> None:
    roles = {
        role
        for member in get_args(chat_types.ChatCompletionMessageParam)
        for role in literals(te.get_type_hints(member)["role"])
    }
    assert roles == {"system", "developer", "user", "assistant", "tool", "function"}
    parts = {kind: required for kind, required, _ in typed_dicts(chat_types.ChatCompletionContentPartParam)}
    assert parts.keys() | {"refusal"} == {kind for kind, row in PARTS.items() if row.chat is not None}
    assert all(required == {"type", kind} for kind, required in parts.items())


def test_responses_items_are_those_of_the_sdk() -> None:
    found: dict[str, set[str]] = {}
    for kind, required, _ in typed_dicts(item_types.ResponseInputItemParam):
        found[kind] = found.get(kind, required) & required
    items = {kind: row.item for kind, row in PARTS.items() if row.item is not None}
    assert found.keys() == items.keys()
    for kind, required in found.items():
        lenient = {"type", "status"} if kind == "item_reference" else {"type", "status", "id"}
        assert set(items[kind]) == required - lenient, kind
    in_messages = {kind for kind, row in PARTS.items() if row.in_message is not None}
    assert {kind for kind, _, _ in typed_dicts(ResponseInputContentParam)} == in_messages
    in_replies = {kind for kind, row in PARTS.items() if row.in_reply is not None}
    assert {kind for kind, _, _ in typed_dicts(OutputContent)} == in_replies
