"""The texts, calls and results of messages in every API's format, each with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thread_patterns import calm

from compaction_store.messages.framing import frame
from compaction_store.probes.speech import MessageReading

Payload = dict[str, Any]


def said(payload: Payload) -> list[tuple[str, str, str]]:
    return [(one.kind, one.field, one.text) for one in MessageReading(payload).said if one.kind != "label"]


ARGUMENTS = json.dumps({"path": "a.py", "limit": 20, "more": ["b"]})
CALLS: dict[str, Payload] = {
    "chat": {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "read", "arguments": ARGUMENTS}}]},
    "function": {"role": "assistant", "function_call": {"name": "read", "arguments": ARGUMENTS}},
    "responses": {"type": "function_call", "call_id": "c", "name": "read", "arguments": ARGUMENTS},
    "anthropic": {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "read", "input": json.loads(ARGUMENTS)}],
    },
}


@pytest.mark.parametrize("form", CALLS)
def test_a_call_is_read_in_every_form(form: str) -> None:
    reading = MessageReading(CALLS[form])
    [call] = reading.calls
    assert call.name == "read"
    assert call.given == json.loads(ARGUMENTS)
    assert [text for kind, _, text in said(CALLS[form]) if kind == "call"] == ["a.py", "b"]
    # How much to read is in no need, but a summary may repeat it.
    assert "20" in [one.text for one in reading.said if one.kind == "label"]


RESULTS: dict[str, Payload] = {
    "chat": {"role": "tool", "tool_call_id": "c", "content": "seen"},
    "responses": {"type": "function_call_output", "call_id": "c", "output": "seen"},
    "anthropic": {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "seen"}]}],
    },
    "server": {
        "role": "assistant",
        "content": [
            {
                "type": "web_search_tool_result",
                "tool_use_id": "c",
                "content": [{"type": "web_search_result", "title": "seen", "encrypted_content": "zzz"}],
            }
        ],
    },
}


@pytest.mark.parametrize("form", RESULTS)
def test_a_result_is_read_in_every_form(form: str) -> None:
    reading = MessageReading(RESULTS[form])
    assert [result.id for result in reading.results] == ["c"]
    assert [text for kind, _, text in said(RESULTS[form]) if kind == "result"] == ["seen"]
    assert not reading.results[0].failed


def test_a_failed_result_says_so() -> None:
    part = {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}
    assert MessageReading({"role": "user", "content": [part]}).results[0].failed


def test_speech_is_by_who_says_it_and_has_its_place() -> None:
    payload = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}, {"type": "text", "text": "u"}],
    }
    assert said(payload) == [("result", "content[0].content", "r"), ("user", "content[1].text", "u")]
    assert said({"role": "developer", "content": "s"}) == [("system", "content", "s")]
    thinking = {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "x"}]}
    assert said(thinking) == [("thinking", "content[0].thinking", "t")]
    assert said({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}) == [
        ("assistant", "content[0].text", "a")
    ]


def test_the_text_of_a_framed_summary_is_read_without_its_frame() -> None:
    [one] = MessageReading(frame("They met.", 1, 4), is_summary=True).said
    assert (one.kind, one.text) == ("notes", "They met.")


def test_data_is_left_out() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 900}}
    assert said({"role": "user", "content": [image, {"type": "text", "text": "look"}]}) == [
        ("user", "content[1].text", "look")
    ]


_JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8) | st.sampled_from(["tool_use", "user", "{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "id", "input", "tool_calls", "function", "arguments", "output"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@calm
@given(_JUNK)
def test_it_reads_anything_without_an_error(junk: Any) -> None:
    reading = MessageReading(junk)
    assert all(isinstance(one.text, str) for one in reading.said)
    assert MessageReading({"role": "assistant", "content": junk, "tool_calls": junk}).results is not None
