"""Objects of the SDKs and pydantic models are stored as the JSON that their APIs accept back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anthropic.types
import pydantic
import pytest
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.responses import Response, ResponseInputItemParam

from compaction_store.errors import InvalidMessage

BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
    {"type": "text", "text": "I'll look."},
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "é", "n": 1.0}},
]
REPLY = anthropic.types.Message.model_validate(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": BLOCKS,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
)
CHAT = ChatCompletion.model_validate(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1.0}'}}
                    ],
                },
            }
        ],
    }
)
ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I'll look.", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"},
]
RESPONSE = Response.model_validate(
    {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "gpt",
        "output": ITEMS,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
)


def forced(value: Any) -> Any:
    """Pydantic checks an Iterable only when it is iterated."""
    if isinstance(value, Mapping):
        return {key: forced(item) for key, item in value.items()}
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return value
    return [forced(item) for item in value]


def accepted(kind: Any, payload: Any) -> None:
    """Checks that the SDK's type for requests accepts it."""
    adapter = pydantic.TypeAdapter(kind)
    forced(adapter.validate_python(payload))


def stored(store: Any, message: Any, *, raw: bool = False) -> dict[str, Any]:
    written = store.append("t", message, raw=raw)
    assert len(written) == 1
    found = store.message("t", written[0].seq)
    assert found == written[0]
    payload: dict[str, Any] = found.payload
    return payload


def test_an_anthropic_reply_is_stored_whole_and_accepted_back(store: Any) -> None:
    payload = stored(store, REPLY)
    assert payload["role"] == store.message("t", 1).role == "assistant"
    assert payload["content"] == BLOCKS
    accepted(MessageParam, payload)


def test_anthropic_content_inside_a_dict_is_stored_as_its_blocks(store: Any) -> None:
    payload = stored(store, {"role": "assistant", "content": REPLY.content})
    assert payload == {"role": "assistant", "content": BLOCKS}
    accepted(MessageParam, payload)


def test_an_anthropic_conversation_is_appended_in_one_call(store: Any) -> None:
    asked = {"role": "user", "content": "What is there?"}
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "A cat."}]}
    written = store.append("t", [asked, REPLY, answered])
    assert [m.role for m in written] == ["user", "assistant", "user"]
    for message in store.view("t").messages:
        accepted(MessageParam, message)


def test_a_block_newer_than_the_sdk_is_stored_as_it_came(store: Any) -> None:
    new = {"type": "hologram", "frames": [1, 2], "label": None}
    reply = anthropic.types.Message.construct(
        id="m", type="message", role="assistant", model="claude", content=[*BLOCKS, new]
    )
    assert stored(store, reply)["content"] == [*BLOCKS, new]
    assert stored(store, {"role": "assistant", "content": reply.content})["content"] == [*BLOCKS, new]


def test_an_openai_message_is_stored_as_the_sdk_writes_it(store: Any) -> None:
    message = CHAT.choices[0].message
    payload = stored(store, message)
    assert payload == message.to_dict(mode="json")
    assert payload == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1.0}'}}],
    }
    accepted(ChatCompletionMessageParam, payload)


def test_a_plain_openai_message_has_no_fields_it_did_not_come_with(store: Any) -> None:
    payload = stored(store, ChatCompletionMessage(role="assistant", content="hi"))
    assert payload == {"role": "assistant", "content": "hi"}
    accepted(ChatCompletionMessageParam, payload)


def test_openai_response_items_are_a_batch_of_messages(store: Any) -> None:
    written = store.append("t", RESPONSE.output)
    assert [m.payload for m in store.replay("t")] == [m.payload for m in written] == ITEMS
    assert [m.role for m in written] == [None, "assistant", None]
    for message in store.view("t").messages:
        accepted(ResponseInputItemParam, message)


def test_dicts_and_sdk_objects_may_be_mixed_and_retried(store: Any) -> None:
    batch = [{"role": "user", "content": "hi"}, CHAT.choices[0].message, *RESPONSE.output, REPLY]
    first = store.append("t", batch, key="k")
    assert store.append("t", batch, key="k") == first
    assert store.append("t", [m.payload for m in first], key="k") == first
    assert not store.audit.verify("t").findings


class Part(pydantic.BaseModel):
    text: str
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


class Own(pydantic.BaseModel):
    role: str = "user"
    content: list[Part]
    sent_by: str = pydantic.Field("me", alias="sentBy")
    note: str | None = None


def test_a_pydantic_model_is_stored_with_its_defaults_under_its_aliases(store: Any) -> None:
    expected = {
        "role": "user",
        "content": [{"text": "é", "at": "2030-01-01T00:00:00Z"}],
        "sentBy": "me",
        "note": None,
    }
    own = Own(content=[Part(text="é")], sentBy="me")
    assert stored(store, own, raw=True) == expected
    assert Own.model_validate(stored(store, own, raw=True)) == own
    assert [m.payload for m in store.append("t", [own, {"inner": own}], raw=True)] == [expected, {"inner": expected}]
    assert store.message("t", 1).role == "user"


def test_a_model_may_be_meta(store: Any) -> None:
    written = store.append("t", {"a": 1}, meta=[Part(text="x")], raw=True)[0]
    assert written.meta == {"text": "x", "at": "2030-01-01T00:00:00Z"}


def test_a_model_that_is_no_object_is_refused(store: Any) -> None:
    with pytest.raises(InvalidMessage):
        store.append("t", pydantic.RootModel[list[int]]([1]))
    assert stored(store, pydantic.RootModel[dict[str, int]]({"a": 1}), raw=True) == {"a": 1}


def test_a_model_that_does_not_hold_what_it_says_is_stored_without_a_word_of_its_content(
    store: Any, recwarn: pytest.WarningsRecorder
) -> None:
    wrong = Own.model_construct(role="user", content="marker-4711", sent_by=7)
    payload = stored(store, wrong)
    assert payload["content"] == "marker-4711"
    assert "marker-4711" not in " ".join(str(w.message) for w in recwarn)


def test_a_model_that_cannot_be_written_is_refused_without_its_content(store: Any) -> None:
    class Odd(pydantic.BaseModel):
        value: Any

    with pytest.raises(InvalidMessage) as caught:
        store.append("t", Odd(value=object()))
    assert "NaN" not in str(caught.value)
    with pytest.raises(InvalidMessage):
        store.append("t", Odd(value=b"\xff marker-4711"))


def test_what_comes_back_is_plain_json(store: Any) -> None:
    payload = stored(store, REPLY)
    assert json.loads(store.message("t", 1).text) == payload
    assert type(payload) is dict
    assert all(type(block) is dict for block in payload["content"])
