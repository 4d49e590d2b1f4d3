"""Old results of tools become a line, in every format, and nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from anthropic.types.beta import BetaMessageParam
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter
from support.strategy_runs import (
    COUNTER,
    FORMS,
    REFUSED,
    Payload,
    attempts_of,
    committed,
    elements,
    malformed,
    mistakes,
    run,
    until_stable,
    well_formed,
)

from compaction_store import CompactionStoreError, InvalidInput
from compaction_store.compaction.context import planner_of
from compaction_store.messages.tool_pairs import call_and_result_ids
from compaction_store.strategies import ClearToolResults, plan_clear_tool_results
from compaction_store.tokens import from_callable

LONG = "seen on the page " * 200
TYPES: dict[str, TypeAdapter[Any]] = {
    "anthropic": TypeAdapter(BetaMessageParam),
    "chat": TypeAdapter(ChatCompletionMessageParam),
    "responses": TypeAdapter(ResponseInputItemParam),
}


def chat_pair(name: str, tool: str, result: Any = LONG) -> list[Payload]:
    call = {"id": name, "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": result},
    ]


def anthropic_pair(name: str, tool: str, content: Any = LONG, **more: Any) -> list[Payload]:
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": tool, "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": content, **more}]},
    ]


def test_all_but_the_newest_results_become_a_line_with_tool_size_and_seq() -> None:
    messages = [{"role": "user", "content": "go"}]
    for n in range(5):
        messages += chat_pair(f"c{n}", f"tool{n}")
    before = copy.deepcopy(messages)
    ctx = run(ClearToolResults(), elements(messages))
    assert [(a.kind, a.start_seq, a.end_seq) for a in attempts_of(ctx)] == [("truncation", 3, 3), ("truncation", 5, 5)]
    tokens = COUNTER.messages([messages[2]])
    assert ctx.result_messages[2] == {
        "role": "tool", "tool_call_id": "c0", "content": f"[Result of tool0 cleared: {tokens:,} tokens, seq 3]",
    }  # fmt: skip
    assert ctx.result_messages[5:] == messages[5:]
    assert messages == before


def test_tools_that_are_excluded_keep_their_results() -> None:
    messages = [*chat_pair("a", "read"), *chat_pair("b", "memory"), *chat_pair("c", "read")]
    changes = plan_clear_tool_results(messages, keep=0, exclude=["memory"])
    assert [(change.start_seq, change.end_seq) for change in changes] == [(2, 2), (6, 6)]
    assert plan_clear_tool_results(messages, 0, "read")[0].start_seq == 4


def test_a_repeated_id_names_the_call_that_it_answers() -> None:
    messages = [*chat_pair("same", "first"), *chat_pair("same", "second")]
    changes = plan_clear_tool_results(messages, keep=0)
    assert ["first" in changes[0].messages[0]["content"], "second" in changes[1].messages[0]["content"]] == [True, True]


def test_parallel_and_late_results_and_words_beside_a_result() -> None:
    calls: list[Payload] = [
        {"type": "tool_use", "id": name, "name": f"tool_{name}", "input": {}} for name in ("a", "b")
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": LONG}], "is_error": True},
        {"type": "tool_result", "tool_use_id": "a", "content": "short"},
        {"type": "text", "text": "hurry up"},
    ]
    messages: list[Payload] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "next"},
    ]
    ctx = run(ClearToolResults(keep=0), elements(messages))
    cleared = ctx.result_messages[2]["content"]
    assert cleared[0]["content"].startswith("[Result of tool_b cleared: ")
    assert cleared[0]["is_error"] is True
    assert cleared[1:] == results[1:]
    assert not REFUSED["anthropic"](ctx.result_messages)


def test_the_last_words_of_the_user_are_not_touched() -> None:
    messages = anthropic_pair("a", "look")
    messages[1]["content"].append({"type": "text", "text": "and now?"})
    assert plan_clear_tool_results(messages, keep=0) == []
    assert plan_clear_tool_results(anthropic_pair("a", "look"), keep=0) != []


def test_pins_hold() -> None:
    messages = [*chat_pair("a", "x"), *chat_pair("b", "x")]
    ctx = run(ClearToolResults(keep=0, pin=2), elements(messages))
    assert [a.start_seq for a in attempts_of(ctx)] == [4]


def test_neighbours_are_one_record() -> None:
    calls: list[Payload] = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "abc"
    ]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": n, "content": LONG} for n in "abc"),
    ]
    assert [(c.start_seq, c.end_seq) for c in plan_clear_tool_results(messages, keep=0)] == [(2, 4)]


RESULTS: dict[str, list[Payload]] = {
    "mcp": [
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "query", "server_name": "db", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [{"type": "text", "text": LONG}]},
    ],
    "web_fetch": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {"url": "https://a"}},
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "web_fetch_result", "url": "https://a",
                "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LONG}},
            },
        },
    ],
    "bash_code_execution": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {}},
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "bash_code_execution_result", "stdout": LONG, "stderr": LONG, "return_code": 1, "content": [],
            },
        },
    ],
    "code_execution": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}},
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {"type": "code_execution_result", "stdout": LONG, "stderr": "", "return_code": 0, "content": []},
        },
    ],
    "text_editor_code_execution": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "text_editor_code_execution", "input": {}},
        {
            "type": "text_editor_code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": LONG},
        },
    ],
}  # fmt: skip


@pytest.mark.parametrize("tool", sorted(RESULTS))
def test_results_of_servers_tools_keep_their_form(tool: str) -> None:
    blocks = [*RESULTS[tool], {"type": "text", "text": "so"}]
    messages: list[Payload] = [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": blocks}, {"role": "user", "content": "on"},
    ]  # fmt: skip
    ctx = run(ClearToolResults(keep=0), elements(messages))
    cleared = ctx.result_messages[1]
    assert f"[Result of {'query' if tool == 'mcp' else tool} cleared: " in str(cleared)
    assert LONG not in str(cleared)
    assert not REFUSED["anthropic"](ctx.result_messages)
    TYPES["anthropic"].validate_python(cleared)


def test_what_a_search_found_goes_with_what_points_into_it() -> None:
    found = {"type": "web_search_result", "title": "t", "url": "https://a", "encrypted_content": "e" * 4000}
    cited = {
        "type": "web_search_result_location", "cited_text": "c", "encrypted_index": "i", "title": "t", "url": "https://a",
    }  # fmt: skip
    blocks = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
        {"type": "text", "text": "so", "citations": [cited]},
    ]
    messages: list[Payload] = [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": blocks}, {"role": "user", "content": "on"},
    ]  # fmt: skip
    ctx = run(ClearToolResults(keep=0), elements(messages))
    content = ctx.result_messages[1]["content"]
    assert content[1]["content"] == []
    assert content[2] == {"type": "text", "text": "so"}
    assert not REFUSED["anthropic"](ctx.result_messages)
    until_stable(ClearToolResults(keep=0), committed(ctx))


def test_an_image_in_a_result_goes_too() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    messages = anthropic_pair("a", "screenshot", [image])
    (change,) = plan_clear_tool_results(messages, keep=0)
    assert "screenshot cleared: 1,6" in change.messages[0]["content"][0]["content"]


ITEMS: dict[str, tuple[list[Payload], str]] = {
    "function": (
        [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": LONG},
        ],
        "look",
    ),
    "parts": (
        [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": LONG}]},
        ],
        "look",
    ),
    "custom": (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "select 1"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": LONG},
        ],
        "sql",
    ),
    "shell": (
        [
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [{"stdout": LONG, "stderr": LONG, "outcome": {"type": "exit", "exit_code": 2}}],
            },
        ],
        "shell",
    ),
    "local_shell": (
        [
            {
                "type": "local_shell_call", "id": "lsc", "call_id": "c", "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}},
            },
            {"type": "local_shell_call_output", "id": "c", "output": LONG},
        ],
        "local_shell",
    ),
    "mcp": (
        [{"type": "mcp_call", "id": "m", "server_label": "s", "name": "query", "arguments": "{}", "output": LONG}],
        "query",
    ),
    "code_interpreter": (
        [
            {
                "type": "code_interpreter_call", "id": "i", "status": "completed", "container_id": "c", "code": "1",
                "outputs": [{"type": "logs", "logs": LONG}],
            }
        ],
        "code_interpreter",
    ),
    "file_search": (
        [
            {
                "type": "file_search_call", "id": "f", "status": "completed", "queries": ["q"],
                "results": [{"file_id": "f", "filename": "n", "text": LONG}],
            }
        ],
        "file_search",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ITEMS))
def test_items_of_responses_keep_their_form(name: str) -> None:
    items, tool = ITEMS[name]
    messages: list[Payload] = [{"role": "user", "content": "go"}, *items]
    assert not REFUSED["responses"](messages)
    ctx = run(ClearToolResults(keep=0), elements(messages))
    assert f"[Result of {tool} cleared: " in str(ctx.result_messages[-1])
    assert LONG not in str(ctx.result_messages)
    assert not REFUSED["responses"](ctx.result_messages)
    TYPES["responses"].validate_python(ctx.result_messages[-1])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": LONG}},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"name": LONG}]},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "code_execution_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {"type": "encrypted_code_execution_result", "encrypted_stdout": LONG},
                }
            ],
        },
    ],
)
def test_what_has_no_place_for_a_line_stays(part: Payload) -> None:
    assert plan_clear_tool_results([part], keep=0) == []


def test_what_is_shorter_than_its_line_stays_and_a_line_stays_a_line() -> None:
    assert plan_clear_tool_results(chat_pair("a", "f", "ok"), keep=0) == []
    once = plan_clear_tool_results(chat_pair("a", "f"), keep=0)[0].messages[0]
    again = [chat_pair("a", "f")[0], once]
    assert plan_clear_tool_results(again, keep=0) == []


def test_options_are_judged() -> None:
    with pytest.raises(InvalidInput):
        ClearToolResults(keep=-1)
    assert ClearToolResults(1, ("b", "a")).name == "ClearToolResults(keep=1, exclude=['a', 'b'])"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), keep=st.integers(0, 3))
def test_every_well_formed_thread_stays_well_formed(form: str, data: st.DataObject, keep: int) -> None:
    messages = data.draw(well_formed(form))
    ctx = run(ClearToolResults(keep), elements(messages))
    assert not mistakes(ctx)
    assert not REFUSED[form](ctx.result_messages)
    assert [step.id for step in call_and_result_ids(ctx.result_messages)] == [
        step.id for step in call_and_result_ids(messages)
    ]
    # A second run finds nothing to clear.
    assert not planner_of(run(ClearToolResults(keep), committed(ctx))).applied


@settings(max_examples=150, deadline=None)
@given(malformed(), st.integers(0, 2))
def test_no_thread_makes_it_raise_or_grow(messages: list[Payload], keep: int) -> None:
    if messages:
        until_stable(ClearToolResults(keep), elements(messages))


@pytest.mark.parametrize("size", [1000, 4000])
def test_the_work_grows_with_the_thread(size: int) -> None:
    counted = 0

    def count(message: Payload) -> int:
        nonlocal counted
        counted += 1
        return COUNTER.messages([message])

    messages = [message for n in range(size) for message in chat_pair(f"c{n}", "f", LONG)]
    view = [element._replace(tokens=600) for element in elements(messages[:2]) * size]
    view = [e._replace(seq=n, end_seq=n) for n, e in enumerate(view, 1)]
    run(ClearToolResults(), view, counter=from_callable(count))
    assert counted < 3 * size


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "tool_result", "tool_use_id": "b", "content": LONG}],
        },
        {"role": ["tool"], "type": "tool_result", "tool_use_id": "a", "content": LONG},
        {"role": {"a": 1}, "content": [{"type": "tool_result", "tool_use_id": "b", "role": [], "content": LONG}]},
        {"type": "web_search_tool_result", "content": [{"type": "tool_result", "tool_use_id": "b", "content": LONG}]},
    ],
)
def test_a_result_of_an_odd_shape_makes_nothing_raise(message: Payload) -> None:
    ctx = run(ClearToolResults(keep=0), elements([{"role": "user", "content": "go"}, message]))
    assert not [error for error in ctx.errors if not isinstance(error, CompactionStoreError)]
