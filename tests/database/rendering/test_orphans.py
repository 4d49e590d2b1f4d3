"""Tool results without a call do not keep a thread from being sent: a note replaces them, in every format."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support.faces import Face

from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.models import Element
from compaction_store.rendering.view import View
from compaction_store.strategies import compress_context

Payload = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view(messages: Sequence[Payload]) -> View:
    return View("t", 9, tuple(Element(n, n, n, (m,), 5, None, NOW) for n, m in enumerate(messages, 1)))


def user(text: str) -> Payload:
    return {"role": "user", "content": text}


class Chat:
    @staticmethod
    def call(*names: str) -> list[Payload]:
        calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in names]
        return [{"role": "assistant", "content": None, "tool_calls": calls}]

    @staticmethod
    def results(*names: str) -> list[Payload]:
        return [{"role": "tool", "tool_call_id": name, "content": f"secret {name}"} for name in names]


class Anthropic:
    @staticmethod
    def call(*names: str) -> list[Payload]:
        blocks = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in names]
        return [{"role": "assistant", "content": blocks}]

    @staticmethod
    def results(*names: str) -> list[Payload]:
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": f"secret {name}"} for name in names]
        return [{"role": "user", "content": blocks}]


class Responses:
    @staticmethod
    def call(*names: str) -> list[Payload]:
        return [{"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in names]

    @staticmethod
    def results(*names: str) -> list[Payload]:
        return [{"type": "function_call_output", "call_id": name, "output": f"secret {name}"} for name in names]


FORMS: dict[str, tuple[Any, Any]] = {
    "chat": (Chat, refused_by_openai), "anthropic": (Anthropic, refused_by_anthropic),
    "responses": (Responses, refused_by_openai_responses),
}  # fmt: skip


def threads(form: Any) -> dict[str, list[Payload]]:
    said = {"role": "assistant", "content": "Well."}
    return {
        "in the midst": [user("go"), said, *form.results("x"), said, user("on")],
        "first in the view": [*form.results("x"), said, user("on")],
        "last in the view": [user("go"), said, *form.results("x")],
        "several": [user("go"), said, *form.results("x", "y", "x"), said, user("on")],
        "among good ones": [user("go"), *form.call("a", "b"), *form.results("x", "a", "y", "b"), said, user("on")],
        "answered twice": [user("go"), *form.call("a"), *form.results("a", "a"), said, user("on")],
        "before its call": [user("go"), *form.results("a"), *form.call("a"), *form.results("a"), said, user("on")],
        "alone": [*form.results("x")],
    }


CASES = [(form, name) for form in FORMS for name in threads(Chat)]


@pytest.mark.parametrize(("form", "name"), CASES)
def test_every_request_can_be_sent_and_says_what_is_left_out(form: str, name: str) -> None:
    shown = view(threads(FORMS[form][0])[name])
    for request, refused in (
        (shown.for_anthropic()["messages"], refused_by_anthropic),
        (shown.for_openai()["messages"], refused_by_openai),
        (shown.for_openai(api="responses")["input"], refused_by_openai_responses),
    ):
        assert refused(request) == []
        assert "(A result is left out: the call that it answers is not there.)" in str(request)
        assert "secret x" not in str(request)


@pytest.mark.parametrize(("form", "name"), CASES)
def test_a_plain_list_is_put_right_in_the_same_way(form: str, name: str) -> None:
    made, refused = FORMS[form]
    messages = threads(made)[name]
    whole = [dict(message) for message in messages]
    for target in (100_000, 60):
        result = compress_context(messages, target, reserve=0)
        assert result.results_left_out in {1, 2, 3}
        assert refused(result.messages) == []
        assert messages == whole
    assert "is left out" in str(compress_context(messages, 100_000, reserve=0).messages)


@pytest.mark.parametrize("form", FORMS)
def test_what_needs_nothing_stays_as_it_is(form: str) -> None:
    made, _ = FORMS[form]
    messages = [user("go"), *made.call("a", "b"), *made.results("b", "a"), user("on")]
    result = compress_context(messages)
    assert result.results_left_out == 0
    assert result.messages == messages


def test_a_result_of_a_servers_tool_without_its_call() -> None:
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    shown = view([user("go"), {"role": "assistant", "content": [found, {"type": "text", "text": "So."}]}])
    messages = shown.for_anthropic()["messages"]
    assert refused_by_anthropic(messages) == []
    assert "is left out" in str(messages)


def test_beside_an_item_named_by_reference_an_output_stays() -> None:
    items = [user("go"), {"type": "item_reference", "id": "fc_1"}, *Responses.results("x")]
    assert view(items).for_openai(api="responses")["input"] == items


def test_a_search_of_tools_may_be_answered_by_a_functions_output() -> None:
    items = [
        user("go"),
        {"type": "tool_search_call", "call_id": "s", "arguments": {"q": "mail"}, "execution": "client"},
        {"type": "function_call_output", "call_id": "s", "output": "found"},
        *Responses.call("s2"), *Responses.results("s2"),
    ]  # fmt: skip
    made = view(items).for_openai(api="responses")["input"]
    assert made == items
    assert refused_by_openai_responses(made) == []


@pytest.mark.parametrize("signature", [None, "", "absent"])
def test_thinking_that_is_not_signed_is_not_sent(signature: str | None) -> None:
    thought: Payload = {"type": "thinking", "thinking": "hm", "signature": signature}
    if signature == "absent":
        del thought["signature"]
    shown = view([user("go"), {"role": "assistant", "content": [thought, {"type": "text", "text": "So."}]}, user("on")])
    for thinking in ("drop_after_compaction", "keep"):
        messages = shown.for_anthropic(thinking=thinking)["messages"]
        assert "hm" not in str(messages)
        assert refused_by_anthropic(messages) == []
    signed = {**thought, "signature": "c2lnbmVk"}
    kept = view([user("go"), {"role": "assistant", "content": [signed, {"type": "text", "text": "So."}]}, user("on")])
    assert signed in kept.for_anthropic(thinking="keep")["messages"][1]["content"]


def test_it_is_so_in_a_store(store: Face) -> None:
    store.append("t", [user("go"), *Chat.results("x"), {"role": "assistant", "content": "Well."}, user("on")])
    shown = store.view("t")
    assert refused_by_openai(shown.for_openai()["messages"]) == []
    assert refused_by_anthropic(shown.for_anthropic()["messages"]) == []
    [reply] = store.append("t", {"role": "assistant", "content": "So."}, view=shown.for_openai())
    assert store.seen_by("t", reply.seq).evidence == "proved"


_CALL = {"id": "c1", "type": "function", "function": {"name": "rm", "arguments": "{}"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hello", "tool_calls": [_CALL]},
        {"role": "user", "content": [{"type": "text", "text": "hello"},
                                     {"type": "tool_use", "id": "c1", "name": "rm", "input": {}}]},
        {"role": "user", "content": [{"type": "text", "text": "hello"},
                                     {"type": "thinking", "thinking": "t", "signature": "s"}]},
    ],
)  # fmt: skip
def test_a_users_message_does_not_gain_the_assistants_voice(message: Payload) -> None:
    for sent in (view([message]).for_anthropic()["messages"], view([message]).for_openai()["messages"]):
        assert [said["role"] for said in sent] == ["user"]
        assert "hello" in str(sent)
        assert "only the assistant can write it" in str(sent)
        assert not any(name in str(sent) for name in ("tool_calls", "tool_use", "signature"))
