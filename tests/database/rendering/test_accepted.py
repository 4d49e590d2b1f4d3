"""An append refuses what no API's request can have, and takes whole answers of the SDKs apart."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from anthropic.types import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ParsedChatCompletion
from openai.types.responses import ParsedResponse, Response
from support.faces import Face

from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.errors import InvalidInput, InvalidMessage, NotRenderable
from compaction_store.models import Element, ToLoad
from compaction_store.rendering.acceptance import accepted
from compaction_store.rendering.view import View

Payload = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OK = {"role": "user", "content": "ok"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def _calls(function: Payload) -> Payload:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def _part(kind: str, **fields: Any) -> Payload:
    return {"role": "assistant" if kind == "tool_use" else "user", "content": [{"type": kind, **fields}]}


REFUSED: list[tuple[Any, str | None, str]] = [
    ({"role": "user", "contents": "secret"}, "content", "is missing"),
    ({"role": "user", "content": None}, "content", "must be text or a list of parts, not None"),
    ({"role": "user", "content": ""}, "content", "must not be empty"),
    ({"role": "user", "content": []}, "content", "must not be empty"),
    ({"role": "user", "content": [{"type": "text", "text": ""}]}, "content", "must not be empty"),
    ({"role": "assistant", "content": "a", "type": "function_call"}, "arguments", "is missing"),
    ({"role": "user", "content": 5}, "content", "must be text or a list of parts, not 5"),
    ({"role": "user", "content": {"type": "text", "text": "secret"}}, "content", "not dict"),
    ({"role": "user", "content": ["secret"]}, "content[0]", "must be an object with a type, not str"),
    ({"role": "user", "content": [{"text": "secret"}]}, "content[0].type", "must be text"),
    ({"role": "user", "content": [{"type": "text", "txt": "secret"}]}, "content[0].text", "is missing"),
    ({"role": "user", "content": [{"type": "secret"}]}, "content[0]", "has a type that no API knows"),
    ({"role": "user", "content": [PICTURE, {"type": "image_url"}]}, "content[1].image_url", "is missing"),
    ({"role": "user", "content": [{"type": "image"}]}, "content[0].source", "is missing"),
    ({"role": "user", "content": [{"type": "tool_result"}]}, "content[0].tool_use_id", "is missing"),
    (
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": ["secret"]}]},
        "content[0].content[0]",
        "must be an object with a type, not str",
    ),
    (
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, {"type": "image", "source": {}}]},
        "content[1]",
        "must be of the same API as the parts before it",
    ),
    ({"role": "system"}, "content", "is missing"),
    ({"role": "developer", "content": None}, "content", "not None"),
    ({"role": "asistant", "content": "secret"}, "role", "must be one of system, developer, user, assistant, tool"),
    ({"role": "secret", "content": "secret"}, "role", "not another text"),
    ({"role": 7, "content": "secret"}, "role", "not 7"),
    ({"text": "secret"}, "role", "but is missing"),
    ({}, "role", "but is missing"),
    ({"type": "human", "content": "secret"}, "role", "but is missing"),
    ({"type": "message", "content": "secret"}, "role", "but is missing"),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id", "is missing"),
    ({"type": "function_call_output", "output": "secret"}, "call_id", "is missing"),
    ({"role": "assistant", "contents": "secret"}, "content", "is missing, and so are calls"),
    ({"role": "assistant", "content": 1.5}, "content", "not 1.5"),
    ({"role": "assistant", "tool_calls": "secret"}, "tool_calls", "must be a list of calls, not str"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, "tool_calls[0].id", "is missing"),
    ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "tool_calls[0].function", "must be an object, not NoneType"),
    ({"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}, "content[0].id", "is missing"),
    ({"role": "tool", "content": "secret"}, "tool_call_id", "is missing"),
    ({"role": "tool", "tool_call_id": "c", "contents": "secret"}, "content", "is missing"),
    ({"role": "function", "content": "secret"}, "name", "is missing"),
    (OK | {"when": {"at": [1, NOW]}}, "when.at[1]", "not a datetime; isoformat() converts it"),
    (OK | {"who": {"no name of a field, secret": UUID(int=1)}}, "who[…]", "not a UUID"),
    (OK | {"n": float("nan")}, "n", "must be a finite number"),
    (OK | {"n": [{1: 2}]}, "n[0]", "must have only text as keys, not int"),
    ("secret", None, "must be a JSON object, not str"),
    (None, None, "must be a JSON object, not NoneType"),
    ({"choices": []}, None, "with one choice, not with 0"),
    ({"choices": [{"message": OK}, {"message": OK}]}, None, "answer.choices[0].message"),
    ({"choices": [{"delta": {}}]}, None, "not a piece of a stream"),
    ({"object": "response", "output": []}, None, "at least one item"),
    (_calls({"name": "f", "arguments": {"a": "secret"}}), "tool_calls[0].function.arguments", "must be text, not dict"),
    (_calls({"name": "f"}), "tool_calls[0].function.arguments", "is missing"),
    (_part("tool_use", id="c", name="f", input="secret"), "content[0].input", "must be an object, not str"),
    (_part("image_url", image_url="https://secret"), "content[0].image_url", "must be an object, not str"),
    (_part("image", source="secret"), "content[0].source", "must be an object, not str"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_an_append_names_the_message_and_the_path_of_a_bad_value(store: Face, number: int) -> None:
    message, path, why = REFUSED[number]
    if number % 4 == 0:
        store.append("t", OK)
    with pytest.raises(InvalidMessage) as caught:
        store.append("t", [OK, OK, message])
    text = str(caught.value)
    assert text.startswith("message 3" + (": " if path is None else f", {path}: "))
    assert why in text
    assert "secret" not in text
    assert (caught.value.index, caught.value.path) == (2, path)
    if number % 4 == 0:
        assert store.thread("t").last_seq == 1


def test_a_turns_append_has_the_same_rule(store: Face) -> None:
    turn = Face(store.store.turn("t"), store.runner)
    [enter, leave] = ["__enter__", "__exit__"] if store.runner is None else ["__aenter__", "__aexit__"]
    getattr(turn, enter)()
    with pytest.raises(InvalidMessage, match="message 1, content: is missing"):
        turn.append({"role": "user"})
    assert len(turn.append({"role": "user"}, raw=True)) == 1
    getattr(turn, leave)(None, None, None)


@pytest.mark.parametrize("message", [message for message, _, why in REFUSED if isinstance(message, dict)][:36])
def test_with_raw_any_json_object_is_stored_as_it_is(store: Face, message: Payload) -> None:
    [stored] = store.append("t", message, raw=True)
    assert stored.payload == message
    assert store.load.messages("u", [message, ToLoad(message)], raw=True).count == 2
    [loaded] = store.load.threads([("v", [message])], raw=True)
    assert loaded.loaded.count == 1


def test_a_load_refuses_what_an_append_refuses(store: Face) -> None:
    bad = {"role": "user", "content": [{"type": "text", "text": "a"}, "secret"]}
    for messages in ([OK, OK, bad], [OK, OK, ToLoad(bad)]):
        for call in (
            lambda found: store.load.messages("t", found),
            lambda found: store.load.messages("t", iter(found)),
            lambda found: list(store.load.threads([("t", found)])),
        ):
            with pytest.raises(InvalidMessage, match=r"message 3 of the load.*: content\[1\]: must be") as caught:
                call(messages)
            assert (caught.value.index, caught.value.path) == (2, "content[1]")
    with pytest.raises(InvalidInput, match="raw must be a bool"):
        store.append("t", OK, raw="yes")


# ---- whole answers

CHAT: Payload = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "gpt",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}  # fmt: skip
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"},
]  # fmt: skip
RESPONSE = {
    "id": "r", "object": "response", "created_at": 1, "model": "gpt", "output": ITEMS, "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [],
    "usage": {
        "input_tokens": 7, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 9,
    },
}  # fmt: skip
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude",
    "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 2},
}  # fmt: skip


class Duck:
    """An answer of another library, with the same fields."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields

    def model_dump(self, **_options: Any) -> Payload:
        return {name: value for name, value in self.__dict__.items() if not isinstance(value, Duck)}


def forms(kinds: list[Any], plain: Payload) -> list[Any]:
    objects = [kind.model_validate(plain) for kind in kinds]
    return [plain, *objects, *(each.model_dump() for each in objects)]


COMPLETIONS = [
    *forms([ChatCompletion, ParsedChatCompletion], CHAT),
    Duck(
        choices=[Duck(message=Duck(role="assistant", content="hello"))],
        usage=Duck(prompt_tokens=7, completion_tokens=2),
    ),
]
RESPONSES = forms([Response, ParsedResponse], RESPONSE)


@pytest.mark.parametrize("number", range(len(COMPLETIONS)))
def test_a_chat_completion_is_stored_as_its_message_with_its_usage(store: Face, number: int) -> None:
    store.append("t", OK)
    request = store.view("t").for_openai()
    [reply] = store.append("t", COMPLETIONS[number], view=request)
    assert (reply.role, reply.payload["content"]) == ("assistant", "hello")
    assert reply.meta == {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    assert store.seen_by("t", reply.seq).evidence == "proved"
    assert store.view("t").for_openai()["messages"][-1] == {"role": "assistant", "content": "hello"}
    assert store.load.messages("u", [OK, COMPLETIONS[number]]).count == 2
    assert [m.role for m in store.replay("u")] == ["user", "assistant"]


@pytest.mark.parametrize("number", range(len(RESPONSES)))
def test_a_response_is_stored_as_all_its_items_with_its_usage_once(store: Face, number: int) -> None:
    store.append("t", OK)
    request = store.view("t").for_openai(api="responses")
    written = store.append("t", [RESPONSES[number]], view=request)
    assert [message.payload["type"] for message in written] == ["reasoning", "message", "function_call"]
    assert [message.meta for message in written] == [{"usage": {"input_tokens": 7, "output_tokens": 2}}, None, None]
    assert all(store.seen_by("t", message.seq).evidence == "proved" for message in written)
    rendered = store.view("t").for_openai(api="responses")["input"]
    assert refused_by_openai_responses(rendered) == []
    assert "parsed" not in json.dumps(rendered)
    for count, messages in ((4, [OK, RESPONSES[number]]), (3, iter([RESPONSES[number]]))):
        assert store.load.messages("u", messages).count == count
    [loaded] = store.load.threads([("v", [OK, RESPONSES[number], OK])])
    assert loaded.loaded.count == 5


@pytest.mark.parametrize("answer", forms([Message], MESSAGE), ids=["plain", "object", "dump"])
def test_an_anthropic_message_is_stored_with_its_usage(store: Face, answer: Any) -> None:
    store.append("t", OK)
    [reply] = store.append("t", answer, view=store.view("t").for_anthropic())
    usage = reply.payload.get("usage") or reply.meta["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (7, 2)
    assert store.view("t").for_anthropic()["messages"][-1] == {"role": "assistant", "content": "hello"}


def test_a_callers_meta_and_tokens_are_for_the_parts_of_an_answer(store: Face) -> None:
    written = store.append("t", RESPONSE, meta={"n": 1}, tokens=[1, 2, 3], key="k")
    assert [(m.meta, m.tokens) for m in written] == [({"n": 1}, 1), ({"n": 1}, 2), ({"n": 1}, 3)]
    assert store.append("t", RESPONSE, key="k", meta={"n": 1}, tokens=[1, 2, 3]) == written
    with pytest.raises(InvalidInput, match="one for each of the 3 messages"):
        store.append("t", RESPONSE, meta=[None])


def test_an_answers_choices_may_be_appended_one_by_one(store: Face) -> None:
    two = ChatCompletion.model_validate(CHAT | {"choices": [CHAT["choices"][0], CHAT["choices"][0] | {"index": 1}]})
    with pytest.raises(InvalidMessage, match=r"one choice, not with 2; append one.*answer.choices\[0\].message"):
        store.append("t", two)
    assert store.append("t", two.choices[1].message)[0].payload["content"] == "hello"


# ---- what is accepted can be sent

_TEXT = st.sampled_from(["", " ", "hi"])
_PARTS = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, _TEXT),
    st.builds(lambda t: {"type": "input_text", "text": t}, _TEXT),
    st.builds(lambda t: {"type": "output_text", "text": t}, _TEXT),
    st.builds(lambda t: {"type": "refusal", "refusal": t}, _TEXT),
    st.just(PICTURE),
    st.just({"type": "image", "source": {"type": "url", "url": "http://h/i.png"}}),
    st.just({"type": "tool_use", "id": "c", "name": "f", "input": {}}),
    st.just({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}),
    st.just({"type": "tool_result", "tool_use_id": "c", "content": "r"}),
    st.just({"type": "thinking", "thinking": "hm", "signature": "s"}),
    st.just({"type": "redacted_thinking", "data": "s"}),
    st.just({"type": "reasoning", "summary": []}),
    st.just({"type": "compaction", "content": "c"}),
    st.just({"type": "compaction", "content": None}),
    st.sampled_from(["hi", 5, None, {}, {"type": "hologram"}, {"text": "hi"}, {"type": 5}, {"type": "image"}]),
)
_CALLS = st.sampled_from([
    None, [], "c", [5], [{"id": "c"}],
    [{"id": "c", "type": "function", "function": {"name": "rm", "arguments": "{}"}}],
])  # fmt: skip
ODD = st.fixed_dictionaries({}, optional={
    "role": st.sampled_from(["user", "assistant", "system", "tool", "function", "asistant", None, 5, "developer"]),
    "content": st.one_of(_TEXT, st.none(), st.integers(), st.lists(_PARTS, max_size=3), st.just({"text": "hi"})),
    "type": st.sampled_from(["message", "human", "function_call", "reasoning", "item_reference"]),
    "tool_calls": _CALLS,
    "function_call": st.sampled_from([None, {"name": "f", "arguments": "{}"}]),
    "tool_call_id": st.sampled_from(["c", None]),
    "name": st.sampled_from(["f", None]),
    "call_id": st.just("c"),
    "arguments": st.just("{}"),
    "summary": st.just([]),
    "refusal": st.just("no"),
    "id": st.just("i"),
})  # fmt: skip


def view(*messages: Payload) -> View:
    return View("t", 9, tuple(Element(n, n, n, (m,), 5, None, NOW) for n, m in enumerate(messages, 1)))


def requests(seen: View) -> list[tuple[Any, list[Payload], list[Any]]]:
    """Renders a view for each API. Each result is an error or None, the messages, and the problems that they have."""
    found: list[tuple[Any, list[Payload], list[Any]]] = []
    for render in (
        lambda: (seen.for_anthropic()["messages"], refused_by_anthropic),
        lambda: (seen.for_openai(join=False)["messages"], refused_by_openai),
        lambda: (seen.for_openai(api="responses", join=False)["input"], refused_by_openai_responses),
    ):
        try:
            messages, rule = render()
        except NotRenderable as error:
            found.append((error, [], []))
        else:
            found.append((None, messages, rule(messages)))
    return found


@settings(max_examples=1500, deadline=None)
@given(ODD)
@example({"role": "assistant", "content": [{"type": "image"}]})
def test_what_is_accepted_has_a_request_that_an_api_takes(message: Payload) -> None:
    try:
        accepted(message)
    except InvalidMessage:
        return
    # A reference may be to anything, and a reply may have parts that are newer than this release.
    if message.get("type") == "item_reference" or (message.get("role") == "assistant" and "hologram" in str(message)):
        return
    # A reply may have only reasoning, which another part must follow.
    results = requests(view({"role": "user", "content": "begin"}, message, {"role": "assistant", "content": "end"}))
    assert any(error is None and not problems for error, _, problems in results), results


@settings(max_examples=1500, deadline=None)
@given(st.lists(ODD, min_size=1, max_size=3))
def test_no_users_message_is_left_out_in_silence(messages: list[Payload]) -> None:
    messages = [message | {"role": "user"} for message in messages]
    for message in messages:
        message.pop("type", None)
    seen = view({"role": "assistant", "content": "begin"}, *messages)
    for error, rendered, _ in requests(seen):
        if error is not None:
            assert f"message {error.seq}, " in str(error)
            assert f"ctx.remove({error.seq}, {error.seq}" in str(error)
            continue
        said = [each for each in rendered if each.get("role") != "assistant" or "begin" not in str(each)]
        parts = sum(len(m["content"]) if isinstance(m.get("content"), list) else 1 for m in said)
        assert parts >= len(messages), rendered
        assert "rm" not in json.dumps(rendered)
        assert not any(block in json.dumps(rendered) for block in ('"tool_use"', '"thinking"', "srvtoolu_1", '"hm"'))
