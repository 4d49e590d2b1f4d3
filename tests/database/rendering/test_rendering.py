"""A rendered view validates against the SDKs' types and against the known rules of the APIs."""

from __future__ import annotations

import copy
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as AnthropicArguments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatArguments
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as ResponsesArguments
from pydantic import TypeAdapter
from support.faces import Face
from support.random_threads import FORMATS, WELL_FORMED, scripts, written

from compaction_store import InvalidInput, Summary
from compaction_store.api_rules import refused_by_anthropic, refused_by_openai, refused_by_openai_responses
from compaction_store.errors import NotRenderable
from compaction_store.messages.framing import frame
from compaction_store.models import Element
from compaction_store.models.messages import shown
from compaction_store.rendering.view import Rendered, View, for_anthropic, for_openai

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Payload = dict[str, Any]
_ANTHROPIC: Any = TypeAdapter(AnthropicArguments)
_CHAT: Any = TypeAdapter(ChatArguments)
_RESPONSES: Any = TypeAdapter(ResponsesArguments)


def message(seq: int, payload: Payload | None, pos: int | None = None) -> Element:
    return Element(seq, seq, pos or seq, (shown(payload),), 1, None, NOW)


def folded(seq: int, end: int, pos: int, *payloads: Payload, kind: str = "summary") -> Element:
    return Element(seq, end, pos, payloads, 1, pos, NOW, kind, "f")


def view(*found: Payload | Element | None) -> View:
    elements: list[Element] = []
    for one in found:
        seq = elements[-1].end_seq + 1 if elements else 1
        elements.append(one if isinstance(one, Element) else message(seq, one))
    return View("t", max(e.pos or 0 for e in elements), tuple(elements))


def anthropic(seen: View, **options: Any) -> Payload:
    """Renders a view and checks the result in every way."""
    before = copy.deepcopy(seen)
    rendered = for_anthropic(seen, **options)
    assert seen == before
    _ANTHROPIC.validate_python({"model": "m", "max_tokens": 1, **rendered})
    assert not refused_by_anthropic(rendered["messages"], system=rendered.get("system"))
    if options.get("system_messages") != "in_place":
        roles = [m["role"] for m in rendered["messages"] if m["role"] != "system"]
        assert all(a != b for a, b in itertools.pairwise(roles))
    json.dumps(rendered)
    return dict(rendered)


def chat(seen: View) -> list[Payload]:
    before = copy.deepcopy(seen)
    rendered = for_openai(seen)
    assert seen == before
    _CHAT.validate_python({"model": "m", **rendered})
    assert not refused_by_openai(rendered["messages"])
    found: list[Payload] = rendered["messages"]
    return found


def responses(seen: View) -> list[Payload]:
    before = copy.deepcopy(seen)
    rendered = for_openai(seen, api="responses")
    assert seen == before
    _RESPONSES.validate_python({"model": "m", **rendered})
    assert not refused_by_openai_responses(rendered["input"])
    found: list[Payload] = rendered["input"]
    return found


def user(text: str) -> Payload:
    return {"role": "user", "content": text}


def reply(*blocks: Payload) -> Payload:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str) -> Payload:
    return {"type": "text", "text": said}


def use(name: str, **more: Any) -> Payload:
    return {"type": "tool_use", "id": name, "name": "look", "input": {"at": 1}, **more}


def seen(name: str, content: Any = "seen") -> Payload:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def thinking(said: str = "hm") -> Payload:
    return {"type": "thinking", "thinking": said, "signature": "sig"}


def called(*names: str) -> Payload:
    function = {"name": "look", "arguments": '{"at":1}'}
    return {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function} for name in names],
    }  # fmt: skip


def told(name: str, content: Any = "seen") -> Payload:
    return {"role": "tool", "tool_call_id": name, "content": content}


BLOCK = {"type": "compaction", "content": "They met.", "encrypted_content": None, "signature": "sig"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
THRESHOLD = {"type": "compaction", "content": "They met.", "encrypted_content": "c2Vh"}


# ---- Anthropic


def test_system_text_stands_apart_and_turns_alternate() -> None:
    found = anthropic(
        view({"role": "system", "content": "Be brief."}, user("a"), user("b"), reply(text("c")), user("d"))
    )
    assert found == {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [text("a"), text("b")]}, {"role": "assistant", "content": "c"}, user("d"),
        ],
    }  # fmt: skip


def test_several_system_messages_are_one_list_of_blocks() -> None:
    found = anthropic(
        view({"role": "developer", "content": "A"}, user("a"), {"role": "system", "content": [text("B")]})
    )
    assert found["system"] == [text("A"), text("B")]
    assert found["messages"] == [user("a")]


def test_system_messages_may_stay_where_they_are() -> None:
    late = {"role": "system", "content": "Now in French."}
    thread = view({"role": "system", "content": "A"}, user("a"), late, reply(text("oui")), user("b"), late)
    found = anthropic(thread, system_messages="in_place")
    assert found["system"] == "A"
    assert [m["role"] for m in found["messages"]] == ["user", "system", "assistant", "user", "system"]
    # A system message in a place that the API refuses is moved to one that it accepts.
    early = anthropic(view(late, late, user("a"), reply(text("b"))), system_messages="in_place")
    assert [m["role"] for m in early["messages"]] == ["user", "assistant"]
    between = anthropic(view(user("a"), late, user("b"), reply(text("c")), late), system_messages="in_place")
    assert [m["role"] for m in between["messages"]] == ["user", "system", "assistant"]
    assert between["system"] == "Now in French."


def test_results_stand_first_in_the_turn_after_their_calls() -> None:
    thread = view(
        user("a"), reply(text("b"), use("x"), use("y")), user("wait"),
        {"role": "user", "content": [text("c"), seen("y")]}, {"role": "user", "content": [seen("x")]},
    )  # fmt: skip
    messages = anthropic(thread)["messages"]
    assert messages[2]["content"] == [seen("x"), seen("y"), text("wait"), text("c")]


def test_a_late_result_is_moved_to_its_call() -> None:
    thread = view(
        user("a"), reply(use("x")), user("b"), reply(text("c")), {"role": "user", "content": [seen("x"), text("d")]}
    )
    assert anthropic(thread)["messages"] == [
        user("a"), reply(use("x")), {"role": "user", "content": [seen("x"), text("b")]},
        {"role": "assistant", "content": "c"}, user("d"),
    ]  # fmt: skip


def test_a_call_that_nobody_answered_gets_a_result_that_says_so() -> None:
    messages = anthropic(view(user("a"), reply(use("x")), user("never mind")))["messages"]
    result = messages[2]["content"][0]
    assert (result["tool_use_id"], result["is_error"]) == ("x", True)
    assert messages[2]["content"][1] == text("never mind")


def test_ids_that_are_shared_or_odd_become_others() -> None:
    thread = view(
        user("a"), reply(use("x")), {"role": "user", "content": [seen("x", "1")]}, reply(use("x")),
        {"role": "user", "content": [seen("x", "2")]}, called("functions.look:0"), told("functions.look:0", "3"),
    )  # fmt: skip
    messages = anthropic(thread)["messages"]
    results = [block for m in messages[2::2] for block in m["content"]]
    assert [(r["tool_use_id"], r["content"]) for r in results] == [("x", "1"), ("x-2", "2"), ("functions_look_0", "3")]


def test_a_result_that_names_no_call_is_an_error_that_names_it() -> None:
    thread = view(user("secret"), {"role": "tool", "content": "secret"})
    with pytest.raises(NotRenderable) as caught:
        for_anthropic(thread)
    assert (caught.value.seq, caught.value.part) == (2, "tool_call_id")
    assert "secret" not in str(caught.value)


def test_what_was_erased_is_said_and_its_results_are_left_out() -> None:
    thread = view(user("a"), None, {"role": "user", "content": [seen("x", "secret")]}, reply(use("y")), None)
    assert "secret" not in json.dumps(anthropic(thread))
    chat(view(user("a"), None, told("x"), called("y"), None))
    responses(view(user("a"), None, {"type": "function_call_output", "call_id": "c", "output": "o"}))


def test_a_thread_that_begins_with_a_reply_gets_a_beginning() -> None:
    messages = anthropic(view(reply(text("a")), user("b")))["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]


def test_blank_text_and_fields_of_responses_are_left_out() -> None:
    said = {
        "id": "msg_1", "type": "message", "model": "m", "role": "assistant", "usage": {}, "stop_reason": "end_turn",
        "content": [text(""), {"type": "text", "text": "a", "citations": None, "parsed_output": None}],
    }  # fmt: skip
    assert anthropic(view(user("q"), said, user(" \n"), user("b")))["messages"][1:] == [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [text("(A message without content.)"), text("b")]},
    ]  # fmt: skip


def test_what_the_api_would_go_on_from_does_not_end_in_whitespace() -> None:
    assert anthropic(view(user("a"), reply(text("b \n"))))["messages"][-1]["content"] == "b"


def test_a_turn_does_not_end_in_thinking() -> None:
    messages = anthropic(view(user("a"), reply(thinking()), user("b"), reply(text("c"), thinking()), user("d")))[
        "messages"
    ]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert "thinking" not in json.dumps(messages)


def test_a_broken_off_call_of_a_servers_tool_is_left_out() -> None:
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    messages = anthropic(view(user("a"), reply(text("b"), call), user("c")))["messages"]
    assert messages[1] == {"role": "assistant", "content": "b"}
    # A call that the next reply continues stays.
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    messages = anthropic(view(user("a"), reply(text("b"), call), reply(result, text("c"))))["messages"]
    assert messages[1]["content"] == [text("b"), call, result, text("c")]


# ---- thinking


def test_thinking_from_before_a_summary_is_left_out_after_it_and_later_thinking_stays() -> None:
    old, new = message(3, reply(thinking("old"), text("b")), 3), message(5, reply(thinking("new"), text("d")), 7)
    thread = view(folded(1, 2, 6, frame("notes", 1, 2)), old, message(4, user("c")), new, message(6, user("e"), 8))
    kept = json.dumps(anthropic(thread))
    assert "old" not in kept
    assert "new" in kept
    assert "old" in json.dumps(anthropic(thread, thinking="keep"))
    assert "new" not in json.dumps(anthropic(thread, thinking="drop"))


def test_thinking_before_every_compaction_stays() -> None:
    thread = view(user("a"), message(2, reply(thinking("old"), text("b"))), folded(3, 9, 12, frame("notes", 3, 9)))
    assert "old" in json.dumps(anthropic(thread))


def test_thinking_in_turns_kept_after_the_apis_own_block_stays() -> None:
    thread = view(
        folded(1, 2, 6, reply(BLOCK)), message(3, user("a"), 3), message(4, reply(thinking("old"), text("b")), 4)
    )
    assert "old" in json.dumps(anthropic(thread))


def test_thinking_in_stand_ins_follows_what_was_folded_before_it() -> None:
    stand_in = folded(3, 3, 9, reply(thinking("old"), text("b")), kind="truncation")
    thread = view(folded(1, 2, 6, frame("notes", 1, 2)), stand_in, message(4, user("c")))
    assert "old" not in json.dumps(anthropic(thread))
    assert "old" in json.dumps(anthropic(view(user("a"), user("b"), stand_in, message(4, user("c")))))


# ---- compaction blocks


def test_the_apis_own_block_comes_first_verbatim_with_the_beta_that_it_needs() -> None:
    found = anthropic(view({"role": "system", "content": "S"}, folded(2, 4, 9, reply(BLOCK)), user("a")))
    assert found == {
        "system": "S", "messages": [reply(BLOCK), user("a")], "betas": ["compact-2026-09-04"],
    }  # fmt: skip


def test_the_apis_own_block_is_notes_where_it_is_not_first() -> None:
    found = anthropic(view(user("before"), folded(2, 4, 9, reply(BLOCK)), reply(text("a")), user("b")))
    assert "betas" not in found
    assert found["messages"][0]["content"][1]["text"] == frame("They met.", 2, 4)["content"]


def test_what_came_before_a_replys_block_is_not_sent() -> None:
    thread = view(
        {"role": "system", "content": "S"}, user("a"), reply(use("x")), {"role": "user", "content": [seen("x")]},
        reply(text("dropped"), THRESHOLD, text("b")), user("c"),
    )  # fmt: skip
    assert anthropic(thread) == {
        "system": "S", "messages": [reply(THRESHOLD, text("b")), user("c")], "betas": ["compact-2026-01-12"],
    }  # fmt: skip


def test_of_several_blocks_the_last_is_sent_and_one_without_content_is_none() -> None:
    failed = {"type": "compaction", "content": None}
    thread = view(
        user("a"), reply(THRESHOLD, text("b")), user("c"), reply(BLOCK, text("d")), user("e"), reply(failed, text("f"))
    )
    assert anthropic(thread)["messages"][0] == reply(BLOCK, text("d"))
    thread = view(folded(1, 3, 9, reply(BLOCK)), user("c"), reply(THRESHOLD, text("d")))
    assert anthropic(thread)["messages"] == [reply(THRESHOLD, text("d"))]


def test_for_openai_a_block_is_notes() -> None:
    thread = view(folded(1, 3, 9, reply(BLOCK)), reply(text("b")), user("c"))
    assert chat(thread)[0] == responses(thread)[0] == frame("They met.", 1, 3)
    with pytest.raises(NotRenderable):
        for_openai(view({"type": "compaction", "encrypted_content": "x"}))


# ---- from one format to another


def test_chat_becomes_messages() -> None:
    thread = view(
        {"role": "developer", "content": "S"},
        {"role": "user", "content": [text("a"), PICTURE]},
        called("x", "y"), told("y", "2"), told("x", [text("1")]),
        {"role": "assistant", "content": "done", "refusal": None},
    )  # fmt: skip
    assert anthropic(thread) == {
        "system": "S",
        "messages": [
            {
                "role": "user",
                "content": [
                    text("a"),
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                ],
            },
            reply(use("x"), use("y")),
            {"role": "user", "content": [seen("x", [text("1")]), seen("y", "2")]},
            {"role": "assistant", "content": "done"},
        ],
    }


def test_messages_become_chat() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    thread = view(
        {"role": "system", "content": "S"}, {"role": "user", "content": [text("a"), image]},
        reply(thinking(), text("b"), use("x"), use("y")),
        {"role": "user", "content": [seen("y", [text("2"), text("3")]), seen("x", "1"), text("c")]},
    )  # fmt: skip
    calls = called("x", "y")
    assert chat(thread) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [text("a"), PICTURE]},
        {**calls, "content": "b"}, told("x", "1"), told("y", "2\n\n3"), user("c"),
    ]  # fmt: skip


def test_there_and_back_again() -> None:
    thread = [user("a"), called("x"), told("x", "1"), {"role": "assistant", "content": "b"}, user("c")]
    there = anthropic(view(*thread))["messages"]
    assert chat(view(*there)) == thread


def test_items_become_messages_and_chat() -> None:
    thread = view(
        user("a"), {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "function_call", "call_id": "x", "name": "look", "arguments": '{"at":1}'},
        {"type": "function_call", "call_id": "y", "name": "look", "arguments": '{"at":1}'},
        {"type": "function_call_output", "call_id": "x", "output": "1"},
        {"type": "function_call_output", "call_id": "y", "output": [{"type": "input_text", "text": "2"}]},
        {
            "type": "message", "id": "m", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
    )  # fmt: skip
    assert anthropic(thread)["messages"] == [
        user("a"), reply(use("x"), use("y")), {"role": "user", "content": [seen("x", "1"), seen("y", [text("2")])]},
        {"role": "assistant", "content": "b"},
    ]  # fmt: skip
    assert chat(thread) == [
        user("a"), called("x", "y"), told("x", "1"), told("y", "2"), {"role": "assistant", "content": "b"},
    ]  # fmt: skip
    assert responses(thread) == thread.messages


def test_messages_and_chat_become_items() -> None:
    thread = view(
        {"role": "system", "content": "S"}, {"role": "user", "content": [text("a")]}, reply(text("b"), use("x")),
        {"role": "user", "content": [seen("x", "1")]}, called("y"), told("y", "2"), called("z"),
    )  # fmt: skip
    found = responses(thread)
    call = {"type": "function_call", "name": "look", "arguments": '{"at":1}'}
    assert found[:7] == [
        {"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": "b"}, {**call, "call_id": "x"},
        {"type": "function_call_output", "call_id": "x", "output": "1"}, {**call, "call_id": "y"},
        {"type": "function_call_output", "call_id": "y", "output": "2"},
    ]  # fmt: skip
    assert [item.get("type") for item in found[7:]] == ["function_call", "function_call_output"]


def test_arguments_that_are_no_object_are_passed_on_as_text() -> None:
    broken = called("x")
    broken["tool_calls"][0]["function"] = {"name": "look", "arguments": '{"at": '}
    messages = anthropic(view(user("a"), broken, told("x")))["messages"]
    assert messages[1]["content"][0]["input"] == {"INVALID_JSON": '{"at": '}


def test_deprecated_functions_and_custom_tools() -> None:
    thread = view(
        user("a"), {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "1"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
        told("c", "2"),
    )  # fmt: skip
    messages = anthropic(thread)["messages"]
    assert messages[1]["content"][0] == {"type": "tool_use", "id": "look", "name": "look", "input": {}}
    assert messages[3]["content"][0]["input"] == {"input": "ls"}
    chat(thread)


def test_long_and_repeated_ids_in_chat() -> None:
    name = "x" * 60
    messages = chat(view(user("a"), reply(use(name), use(name)), {"role": "user", "content": [seen(name), seen(name)]}))
    names = [call["id"] for call in messages[1]["tool_calls"]]
    assert len(set(names)) == 2
    assert [m["tool_call_id"] for m in messages[2:]] == names


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        (
            {
                "role": "user",
                "content": [text("a"), {"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}}],
            },
            1,
        ),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, 0),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, 0),
        ({"role": "user", "content": [5]}, 0),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "judge", "content": "a"}, "role"),
        ({"type": "web_search_call", "id": "w", "action": {}}, "type"),
        ({"role": "tool", "content": "a"}, "tool_call_id"),
        ({"content": "no role"}, "type"),
    ],
)
def test_what_has_no_counterpart_is_an_error_that_names_message_and_part(payload: Payload, part: int | str) -> None:
    with pytest.raises(NotRenderable) as caught:
        for_anthropic(view(user("a"), payload))
    assert (caught.value.seq, caught.value.part) == (2, part)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}},
        {"type": "container_upload", "file_id": "f"},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
    ],
)
def test_blocks_that_openai_has_no_counterpart_for(block: Payload) -> None:
    thread = view({"role": "user" if block["type"] == "image" else "assistant", "content": [block]})
    apis: tuple[Any, ...] = ("chat", "responses")
    for api in apis:
        with pytest.raises(NotRenderable):
            for_openai(thread, api=api)


@pytest.mark.parametrize("option", [{"system_messages": "top"}, {"thinking": "some"}, {"cache": "2h"}])
def test_options_that_there_are_not(option: Any) -> None:
    with pytest.raises(InvalidInput):
        for_anthropic(view(user("a")), **option)
    with pytest.raises(InvalidInput):
        for_openai(view(user("a")), api="images")  # type: ignore[arg-type]


# ---- any thread at all


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_every_well_formed_thread_renders_in_every_format(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(WELL_FORMED)))
    thread = view(*data.draw(WELL_FORMED[kind]()))
    server_tools = "server_tool_use" in json.dumps(thread.messages)
    anthropic(thread)
    anthropic(thread, system_messages="in_place", cache="5m")
    if not server_tools:
        chat(thread)
        responses(thread)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_well_formed_thread_in_its_own_format_is_what_it_was(data: st.DataObject) -> None:
    thread = data.draw(WELL_FORMED["responses"]())
    assert responses(view(*thread)) == thread


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(scripts(), st.sampled_from(FORMATS))
def test_whatever_a_thread_is_it_renders_or_says_what_cannot(script: Any, form: Any) -> None:
    payloads = [payload for words in script for payload in written(words, form)]
    thread = view(user("a"), *payloads)
    for render in (for_anthropic, for_openai, lambda seen: for_openai(seen, api="responses")):
        try:
            rendered: Any = render(thread)
        except NotRenderable as error:
            rendered = next(e.seq for e in thread.elements if e.seq == error.seq)
        json.dumps(rendered)
    if form in {"chat", "responses", "anthropic"}:
        try:
            anthropic(thread)
            chat(thread)
        except NotRenderable:
            pass


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_appended_leaves_the_beginning_as_it_was(data: st.DataObject) -> None:
    """Caches and signed thinking need this: all but the last turn is a prefix of the longer thread."""
    thread = data.draw(WELL_FORMED["chat"]())
    ends = [i for i, m in enumerate(thread) if m["role"] == "user"]
    cut = data.draw(st.sampled_from(ends)) + 1
    before, after = (anthropic(view(*part))["messages"] for part in (thread[:cut], thread))
    assert after[: len(before) - 1] == before[:-1]


# ---- receipts


def test_the_receipt_names_the_renderer_and_its_options(store: Face) -> None:
    store.append("t", [user("a"), reply(thinking(), text("b")), user("c")])
    store.compact("t", lambda ctx: ctx.compact(1, 2, Summary("s")) if ctx.count([user("s")]) else None)
    seen_view = store.view("t")
    rendered = seen_view.for_anthropic(thinking="keep")
    assert isinstance(rendered, Rendered)
    assert "thinking" not in repr(rendered)
    assert rendered["messages"][0]["content"]
    [said] = store.append("t", reply(text("d")), view=rendered)
    found = store.seen_by("t", said.seq)
    assert found.evidence == "proved"
    assert found.receipt["renderer"] == "anthropic/1"
    assert found.receipt["options"] == {"system_messages": "apart", "thinking": "keep", "cache": None}
    for other in (seen_view, seen_view.for_openai(), seen_view.for_openai(api="responses")):
        [said] = store.append("t", user("e"), view=other)
        assert store.seen_by("t", said.seq).evidence == "proved"
    with pytest.raises(InvalidInput):
        store.append("u", user("a"), view=rendered)
    assert not store.audit.verify("t").findings


def test_a_receipt_of_another_rendering_differs() -> None:
    from compaction_store.rendering import receipts  # noqa: PLC0415

    seen_view = view(user("a"), reply(text("b")))
    receipt = json.loads(receipts.receipt(for_anthropic(seen_view)))
    assert receipts.matches(seen_view, receipt)
    for change in (
        {"renderer": "anthropic/0"},
        {"renderer": 5},
        {"options": {"top": 1}},
        {"options": 5},
        {"sha256": "x"},
    ):
        assert not receipts.matches(seen_view, receipt | change)
    assert not receipts.matches(view(user("a"), {"role": "judge"}), receipt)
