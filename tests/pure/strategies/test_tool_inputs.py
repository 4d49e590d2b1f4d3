"""With `inputs`, the inputs of old calls become a line with their results, in every format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategy_runs import (
    FORMS,
    REFUSED,
    Payload,
    attempts_of,
    elements,
    malformed,
    mistakes,
    run,
    until_stable,
    well_formed,
)

from compaction_store import InvalidInput
from compaction_store.messages.tool_pairs import call_and_result_ids
from compaction_store.probes.living import living
from compaction_store.strategies import ClearToolResults
from compaction_store.summarizers import StateSummary

LONG = "seen on the page " * 200
GIVEN = {"path": "a.py", "text": "written to the file " * 100}


def pair(form: str, name: str, tool: str, value: Payload) -> list[Payload]:
    if form == "anthropic":
        use = {"type": "tool_use", "id": name, "name": tool, "input": value}
        result = {"type": "tool_result", "tool_use_id": name, "content": LONG}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    written = json.dumps(value)
    if form == "chat":
        call = {"id": name, "type": "function", "function": {"name": tool, "arguments": written}}
        said = {"role": "assistant", "content": "I write.", "tool_calls": [call]}
        return [said, {"role": "tool", "tool_call_id": name, "content": LONG}]
    return [
        {"type": "function_call", "call_id": name, "name": tool, "arguments": written},
        {"type": "function_call_output", "call_id": name, "output": LONG},
    ]


def input_of(form: str, message: Payload) -> Any:
    if form == "anthropic":
        return message["content"][0]["input"]
    return json.loads(message["tool_calls"][0]["function"]["arguments"] if form == "chat" else message["arguments"])


def thread(form: str, tool: str = "write") -> list[Payload]:
    return [
        {"role": "user", "content": "go"},
        *(message for name in "abc" for message in pair(form, f"call_{name}", tool, GIVEN)),
        {"role": "user", "content": "next"},
    ]


@pytest.mark.parametrize("form", ["anthropic", "chat", "responses"])
def test_inputs_go_with_their_results(form: str) -> None:
    messages = thread(form)
    ctx = run(ClearToolResults(keep=1, inputs=True), elements(messages))
    new = ctx.result_messages
    assert [input_of(form, new[i])["input"].startswith("[Input cleared: ") for i in (1, 3)] == [True, True]
    assert input_of(form, new[1])["input"].endswith(" tokens, seq 2; a.py (written)]")
    assert new[5:] == messages[5:], "the call of a result that is kept is kept"
    assert call_and_result_ids(new) == call_and_result_ids(messages)
    assert not REFUSED[form](new)
    assert [(a.start_seq, a.end_seq, a.kind) for a in attempts_of(ctx)] == [(2, 5, "truncation")]
    again = run(ClearToolResults(keep=1, inputs=True, clear_at_least=0), ctx.elements)
    assert attempts_of(again) == [], "a line stays a line"
    plain = run(ClearToolResults(keep=1), elements(messages)).result_messages
    assert [input_of(form, plain[i]) for i in (1, 3)] == [GIVEN, GIVEN]


@pytest.mark.parametrize("form", ["anthropic", "chat", "responses"])
def test_the_newest_plan_is_kept(form: str) -> None:
    ctx = run(ClearToolResults(keep=0, inputs=True), elements(thread(form, "TodoWrite")))
    inputs = [input_of(form, ctx.result_messages[i]) for i in (1, 3, 5)]
    assert [one == GIVEN for one in inputs] == [False, False, True]


def test_the_files_of_a_cleared_input_are_named_and_read_again() -> None:
    patch = f"*** Begin Patch\n*** Update File: src/b.py\n{GIVEN['text']}\n*** Delete File: c.py\n*** End Patch"
    long = {"why": GIVEN["text"]}
    given: list[tuple[str, Payload]] = [
        ("write", GIVEN), ("Read", {"file_path": "d e.py", **long}), ("apply_patch", {"input": patch}),
        ("bash", {"command": f"rm old.txt; echo '{GIVEN['text']}' > new.txt"}), ("look", long),
    ]  # fmt: skip
    for form in ("anthropic", "chat", "responses"):
        pairs = [m for n, (tool, value) in enumerate(given) for m in pair(form, f"call_{n}", tool, value)]
        messages = [{"role": "user", "content": "go"}, *pairs, {"role": "assistant", "content": "."}]
        before = list(living(elements(messages)).files)
        assert before == ["a.py", "d e.py", "src/b.py", "c.py", "old.txt", "new.txt"]
        cleared = run(ClearToolResults(keep=0, inputs=True), elements(messages))
        lines = [input_of(form, cleared.result_messages[i])["input"] for i in range(1, 11, 2)]
        assert [line.partition("; ")[2] for line in lines] == [
            "a.py (written)]", "d e.py (read)]", "src/b.py (written); c.py (deleted)]",
            "old.txt (deleted); new.txt (written)]", "",
        ]  # fmt: skip
        assert living(cleared.elements).files == living(elements(messages)).files
        named = StateSummary()(cleared.elements).text
        assert all(f"- {name} (" in named for name in before), named


@pytest.mark.parametrize("inputs", [False, True])
def test_the_newest_list_of_a_tool_by_name_stays_with_its_result(*, inputs: bool) -> None:
    messages = thread("chat", "get_plan")
    cleared = run(ClearToolResults(keep=0, inputs=inputs, latest="get_plan"), elements(messages)).result_messages
    assert [message["content"] == LONG for message in cleared[2:7:2]] == [False, False, True]
    assert input_of("chat", cleared[5]) == GIVEN
    assert ClearToolResults(latest="get_plan").name == "ClearToolResults(latest=['get_plan'])"
    without = run(ClearToolResults(keep=0, inputs=inputs, latest=()), elements(thread("chat", "TodoWrite")))
    assert without.result_messages[6]["content"] != LONG


def test_short_inputs_pins_and_excluded_tools_are_kept() -> None:
    short = [m for name in "ab" for m in pair("chat", name, "read", {"path": "a.py"})]
    ctx = run(ClearToolResults(keep=0, inputs=True), elements([*short, {"role": "assistant", "content": "."}]))
    assert input_of("chat", ctx.result_messages[0]) == {"path": "a.py"}
    ctx = run(ClearToolResults(keep=0, inputs=True, pin=2, exclude="x"), elements(thread("chat")))
    assert input_of("chat", ctx.result_messages[1]) == GIVEN
    assert input_of("chat", ctx.result_messages[3]) != GIVEN
    assert attempts_of(run(ClearToolResults(keep=0, inputs=True, exclude="write"), elements(thread("chat")))) == []


def test_parallel_calls_and_a_custom_tool() -> None:
    custom: Payload = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": GIVEN["text"]}}
    function = {"id": "f", "type": "function", "function": {"name": "write", "arguments": json.dumps(GIVEN)}}
    messages: list[Payload] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [custom, function]},
        {"role": "tool", "tool_call_id": "f", "content": LONG},
        {"role": "tool", "tool_call_id": "c", "content": LONG},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "next"},
    ]
    first, second = run(ClearToolResults(keep=0, inputs=True), elements(messages)).result_messages[1]["tool_calls"]
    assert first["custom"]["input"].startswith("[Input cleared: ")
    assert json.loads(second["function"]["arguments"])["input"].startswith("[Input cleared: ")
    assert messages[1]["tool_calls"][0] is custom
    assert custom["custom"]["input"] == GIVEN["text"], "messages are never altered in place"


def test_the_option_is_judged() -> None:
    with pytest.raises(InvalidInput, match="inputs must be True or False"):
        ClearToolResults(inputs=1)  # type: ignore[arg-type]
    assert ClearToolResults(inputs=True).name == "ClearToolResults(inputs=True)"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), keep=st.integers(0, 3))
def test_every_well_formed_thread_stays_well_formed(form: str, data: st.DataObject, keep: int) -> None:
    messages = data.draw(well_formed(form))
    ctx = run(ClearToolResults(keep, inputs=True, clear_at_least=0), elements(messages))
    assert not mistakes(ctx)
    assert not REFUSED[form](ctx.result_messages)
    assert call_and_result_ids(ctx.result_messages) == call_and_result_ids(messages)


@settings(max_examples=100, deadline=None)
@given(malformed(), st.integers(0, 2))
def test_no_thread_makes_it_raise_or_grow(messages: list[Payload], keep: int) -> None:
    if messages:
        until_stable(ClearToolResults(keep, inputs=True, clear_at_least=0), elements(messages))
