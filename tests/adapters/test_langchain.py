"""LangChain's messages come back from the store as they were."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from compaction_store import InvalidInput, Store
from compaction_store.adapters.langchain_messages import from_payload, to_payload


class NoteMessage(BaseMessage):  # type: ignore[misc]  # the framework is an extra
    """A class that an application made."""

    type: Literal["note"] = "note"
    colour: str = "yellow"


CALL = {"name": "weather", "args": {"city": "Chur", "days": [1, 2.5, None]}, "id": "t1", "type": "tool_call"}
GIVEN: list[BaseMessage] = [
    SystemMessage("Be brief.", id="s"),
    HumanMessage("Look: \x00 \U0001f600", name="ana", id="h", additional_kwargs={"lang": "pt"}),
    HumanMessage([{"type": "text", "text": "Here"}, {"type": "image", "url": "https://a.example/x.png"}, "and this"]),
    AIMessage(
        [{"type": "thinking", "thinking": "hm", "signature": "abc"}, {"type": "text", "text": "I look."}],
        id="run-1", tool_calls=[CALL], additional_kwargs={"refusal": None}, response_metadata={"model_name": "m"},
        invalid_tool_calls=[
            {"name": "f", "args": "{", "id": "t2", "error": "not JSON", "type": "invalid_tool_call"}
        ],
        usage_metadata={
            "input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1},
        },
    ),
    ToolMessage("rain", tool_call_id="t1", name="weather", artifact={"raw": [1, {"mm": 2.5}]}, status="error", id="r"),
    ToolMessage([{"type": "text", "text": "x"}], tool_call_id="t2"),
    AIMessage(""),
    AIMessage("", tool_calls=[{"name": "g", "args": {}, "id": None, "type": "tool_call"}]),
    ChatMessage("Not so.", role="critic"),
    ChatMessage("From a user.", role="user"),
    FunctionMessage("4", name="add"),
    HumanMessage("with a field of its own", custom_field={"a": 1}),
    HumanMessageChunk("chunk"),
    AIMessageChunk("chunk", tool_call_chunks=[{"name": "f", "args": "{}", "id": "c", "index": 0}]),
    RemoveMessage(id="x"),
]  # fmt: skip


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


def read(store: Store) -> list[BaseMessage]:
    return [from_payload(payload) for payload in store.view("k").messages if payload is not None]


def test_messages_come_back_as_they_were_stored(store: Store) -> None:
    store.append("k", [to_payload(message) for message in GIVEN], raw=True)
    assert read(store) == GIVEN
    assert [type(message) for message in read(store)] == [type(message) for message in GIVEN]
    assert list(store.view("k").messages) == [to_payload(message) for message in read(store)]


def test_calls_are_not_parted_from_their_results(store: Store) -> None:
    given = [HumanMessage("a"), AIMessage("", tool_calls=[CALL]), ToolMessage("r", tool_call_id="t1")]
    store.append("k", [to_payload(message) for message in given])
    store.compact("k", lambda ctx: ctx.compact(1, 2, "They look."))
    assert [record.outcome for record in store.compactions("k")] == ["rejected"]


def test_a_message_of_an_applications_own_class_comes_back_as_the_standard_class_of_its_role(store: Store) -> None:
    store.append("k", to_payload(NoteMessage(content="n", colour="blue", id="1")))
    [found] = read(store)
    assert (found.content, found.id, found.colour) == ("n", "1", "blue")


def test_an_imported_message_is_read(store: Store) -> None:
    store.append("k", [{"role": "developer", "content": "Be brief."}, {"role": "assistant", "content": None}], raw=True)
    assert read(store) == [SystemMessage("Be brief."), AIMessage("")]


@pytest.mark.parametrize("value", [datetime(2026, 5, 1, tzinfo=UTC), (1, 2), {1: 2}, float("nan"), {"a": {1, 2}}])
def test_a_value_that_is_not_json_is_described(value: Any) -> None:
    message = ToolMessage("secret", tool_call_id="t", artifact=value)
    described = to_payload(message)
    assert "python" in str(described["langchain"]["artifact"])
    assert from_payload(described).content == "secret"


def test_only_messages_of_langchain_are_converted() -> None:
    with pytest.raises(InvalidInput, match="a message must be a LangChain message, not dict"):
        to_payload({"role": "user", "content": "hi"})
