"""What a model is shown around the span, and the conversation itself sent as the summarizer's request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from support.faces import Face
from support.messages_server import Payload, Server, answers, elements, fails, message, says, serving
from support.prefix_cache import CommonPrefixes, MarkedPrefixes

from compaction_store import InvalidInput, Summary
from compaction_store.rendering.view import View
from compaction_store.summarizers import AnthropicSummarizer, OpenAISummarizer, Request

LONG = "The trains to Chur leave at 10:07 and at 11:07, and the last one back leaves at 18:32. " * 8
SYSTEM = "You plan journeys by train. " * 30
TOOLS = [{"name": "timetable", "description": "Looks up trains. " * 20, "input_schema": {"type": "object"}}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "timetable", "parameters": {"type": "object"}}}]


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        yield found
        assert found.all_closed()


def said(count: int) -> list[Payload]:
    return [{"role": "user" if i % 2 else "assistant", "content": f"{i}: {LONG}"} for i in range(1, count + 1)]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, api: Server) -> Callable[..., Summary]:
    """Summarizes with either client of either SDK."""

    def call(sdk: Any, given: Any, **options: Any) -> Summary:
        name, kind = ("Anthropic", AnthropicSummarizer) if sdk is anthropic else ("OpenAI", OpenAISummarizer)
        settings = {"api_key": "k", "base_url": api.url, "max_retries": 0}
        if request.param == "sync":
            with getattr(sdk, name)(**settings) as client:
                found: Any = kind(client, model="m", deadline=20, **options)(given)
                assert isinstance(found, Summary)
                return found

        async def wait() -> Summary:
            async with getattr(sdk, f"Async{name}")(**settings) as client:
                waiting: Any = kind(client, model="m", deadline=20, **options)(given)
                summary: Summary = await waiting
                return summary

        return asyncio.run(wait())

    return call


def test_what_stays_is_shown_and_marked(ask: Any, api: Server) -> None:
    view = elements({"role": "system", "content": "Be brief."}, *said(9))
    summary = ask(anthropic, Request.within(view[3:7], view))
    [sent] = api.requests
    shown = json.loads(sent["messages"][0]["content"])
    assert [one["seq"] for one in shown["messages"]] == [4, 5, 6, 7]
    assert [one["seq"] for one in shown["stays_in_view_before"]] == [1, 2, 3]
    assert [one["seq"] for one in shown["stays_in_view_after"]] == [8, 9, 10]
    assert "stays_in_view_before" in sent["system"]
    assert summary.coverage == {"messages": 4, "around": [1, 2, 3, 8, 9, 10]}


def test_what_is_shown_has_a_limit(ask: Any, api: Server) -> None:
    view = elements({"role": "system", "content": "Be brief."}, *said(60))
    ask(anthropic, Request.within(view[30:34], view), context=400)
    shown = json.loads(api.requests[0]["messages"][0]["content"])
    around = [*shown["stays_in_view_before"], *shown["stays_in_view_after"]]
    # The system message and the task come first, and the next messages have their share.
    assert [one["seq"] for one in around][:2] == [1, 2]
    assert shown["stays_in_view_after"][0]["seq"] == 35
    assert Request(()).count(json.dumps(around)) < 600
    assert any("part_of_its_json" in one for one in around)


def test_nothing_else_is_shown_without_context(ask: Any, api: Server) -> None:
    view = elements(*said(9))
    summary = ask(anthropic, Request.within(view[3:7], view), context=0)
    assert json.loads(api.requests[0]["messages"][0]["content"]).keys() == {"messages"}
    assert "stays_in_view" not in api.requests[0]["system"]
    assert summary.coverage == {"messages": 4}


def test_a_model_with_a_small_window_is_shown_less(ask: Any, api: Server) -> None:
    def holds(handler: Any, body: Payload) -> None:
        is_long = len(body["messages"][0]["content"]) > 4000
        (fails(400, "invalid_request_error", "prompt is too long") if is_long else says("Notes."))(handler, body)

    api.does(holds)
    view = elements(*said(20))
    assert ask(anthropic, Request.within(view[8:12], view)).text == "Notes."
    # A span that cannot be split is summarized without what stays in view.
    one = elements(*said(8), {"role": "user", "content": "One ticket. " * 20}, *said(8))
    assert ask(anthropic, Request.within(one[8:9], one)).text == "Notes."


def _anthropic(view: View) -> Any:
    return view.for_anthropic(system=SYSTEM, tools=TOOLS, cache="5m")


def _chat(view: View) -> Any:
    return view.for_openai(system=SYSTEM, tools=CHAT_TOOLS)


def _responses(view: View) -> Any:
    return view.for_openai(api="responses", system=SYSTEM, tools=CHAT_TOOLS)


def cached_share(usage: Any) -> float:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    total: int = sum(usage[name] for name in names)
    return float(usage["cache_read_input_tokens"]) / total


def billed(url: str, sdk: Any, mode: Any, store: Face, thread: str) -> float:
    """Lets an agent talk for eighty messages, folds the older ones, and returns the cached share of that request."""
    summarize: Any
    create: Any
    render: Any
    if sdk == "anthropic":
        client: Any = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)
        render, create = _anthropic, partial(client.messages.create, max_tokens=9)
        summarize = AnthropicSummarizer(client, model="m", mode=mode, render=render)
    else:
        client = openai.OpenAI(api_key="k", base_url=url, max_retries=0)
        render = _chat if sdk == "chat" else _responses
        create = client.chat.completions.create if sdk == "chat" else client.responses.create
        summarize = OpenAISummarizer(client, model="m", api=sdk, mode=mode, render=render)
    with client:
        for payload in said(80):
            store.append(thread, payload)
            if payload["role"] == "user":
                create(model="m", **render(store.view(thread)))
        [record] = store.compact(thread, lambda ctx: ctx.compact(2, 72, summarize))
    assert record.outcome == "applied"
    assert record.inputs == (0,)
    return cached_share(record.body["usage"])


@pytest.mark.parametrize("sdk", ["anthropic", "chat", "responses"])
def test_the_conversation_itself_is_read_from_the_cache(store: Face, api: Server, sdk: str) -> None:
    api.does(MarkedPrefixes("They go to Chur.") if sdk == "anthropic" else CommonPrefixes("They go to Chur."))
    assert billed(api.url, sdk, "inline", store, "inline") >= 0.8
    assert billed(api.url, sdk, "prompt", store, "prompt") < 0.2


@pytest.mark.parametrize("sdk", [anthropic, openai])
def test_the_instruction_comes_last_and_says_where_the_span_begins(ask: Any, api: Server, sdk: Any) -> None:
    api.does(says("Notes.") if sdk is anthropic else CommonPrefixes("Notes."))
    view = elements(*said(9))
    render = _anthropic if sdk is anthropic else _chat
    summary = ask(sdk, Request.within(view[2:6], view), mode="inline", render=render)
    [sent] = api.requests
    agents = json.loads(json.dumps(render(View("", 0, view))))["messages"]
    ours = sent["messages"]
    assert sent["tools"] == json.loads(json.dumps(render(View("", 0, view))))["tools"]
    assert [one["role"] for one in ours] == [one["role"] for one in agents[: len(ours)]]
    last = ours[-1]["content"][-1]["text"] if sdk is anthropic else ours[-1]["content"]
    assert last == summary.prompt
    assert '"3: The trains' in last
    # What follows is shown in the instruction, and stays in view.
    assert '"stays_in_view_after"' not in last
    assert '{"messages":[{"seq":7,' in last
    assert summary.settings["mode"] == "inline"


def test_a_span_that_begins_with_a_call_is_told_by_its_input_and_not_by_its_id(ask: Any, api: Server) -> None:
    used = {"type": "tool_use", "id": "toolu_1", "name": "timetable", "input": {"line": "S5 to Strausberg"}}
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Every ten minutes."}
    call = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [found]}]
    view = elements({"role": "user", "content": "When does it go?"}, *call, *said(9))
    summary = ask(anthropic, Request.within(view[1:5], view), mode="inline", render=_anthropic)
    [sent] = api.requests
    last = sent["messages"][-1]["content"][-1]["text"]
    assert "S5 to Strausberg" in last
    assert "toolu_1" not in last
    assert summary.coverage["around"][0] == 6


@pytest.mark.parametrize(
    "first",
    [
        answers(message({"type": "text", "text": ""}, reason="tool_use")),
        fails(400, "invalid_request_error", "prompt is too long"),
        says("Notes", "max_tokens"),
    ],
)
def test_without_an_answer_the_messages_are_sent_as_a_document(ask: Any, api: Server, first: Any) -> None:
    api.does(first, says("Notes."))
    summary = ask(anthropic, elements(*said(4)), mode="inline", render=_anthropic)
    assert summary.text == "Notes."
    inline, prompted = api.requests
    assert "tools" in inline
    assert "tools" not in prompted
    assert (prompted["system"], len(prompted["messages"])) == (summary.prompt, 1)


@pytest.mark.parametrize(
    ("sdk", "options", "name"),
    [
        (anthropic, {"mode": "inline", "render": _responses}, "messages"),
        (anthropic, {"mode": "native", "render": _responses}, "messages"),
        (openai, {"mode": "inline", "render": _responses}, "messages"),
        (openai, {"mode": "inline", "render": _anthropic, "api": "responses"}, "input"),
        (openai, {"mode": "inline", "render": lambda _: None}, "messages"),
        (openai, {"mode": "inline", "render": lambda view: view.for_openai()["messages"]}, "messages"),
        (openai, {"mode": "inline", "render": lambda _: {"messages": "Hello"}}, "messages"),
    ],
    ids=["responses", "native", "chat", "anthropic", "nothing", "messages alone", "text"],
)
def test_a_request_of_another_api_is_refused(ask: Any, api: Server, sdk: Any, options: Any, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"render must return a request .* a list '{name}'"):
        ask(sdk, elements(*said(4)), **options)
    assert not api.requests


def test_a_conversation_of_which_nothing_is_rendered_is_still_asked_about(ask: Any, api: Server) -> None:
    api.does(CommonPrefixes("Notes."))
    given = elements({"role": "assistant", "content": " " * 40})
    assert ask(openai, given, mode="inline", render=lambda _: {"messages": []}).text == "Notes."


@pytest.mark.parametrize("sdk", [anthropic, openai])
def test_the_options_are_checked(ask: Any, api: Server, sdk: Any) -> None:
    for options in ({"mode": "online"}, {"mode": ["inline"]}, {"context": -1}, {"context": 0.5}, {"render": 5}):
        with pytest.raises(InvalidInput, match=next(iter(options))):
            ask(sdk, elements(*said(4)), **options)
    assert not api.requests
