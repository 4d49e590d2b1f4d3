"""Summaries by a server that speaks OpenAI's Chat Completions: over HTTP, sync and async, with good and bad answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from support.messages_server import Behaviour, Server, drips, hangs, serving, talk

from compaction_store import InvalidInput, Summary
from compaction_store.cli import choices
from compaction_store.errors import (
    InvalidCallback,
    SourceTooLong,
    SummarizerError,
    SummarizerRejected,
    SummarizerUnavailable,
    SummaryCutShort,
    SummaryRefused,
    SummaryTooLong,
    SummaryUseless,
)
from compaction_store.strategies import compress_context, compress_context_async
from compaction_store.summarizers import FallbackSummarizer, OpenAISummarizer, Request

Payload = dict[str, Any]
USAGE = {
    "prompt_tokens": 90, "completion_tokens": 9, "total_tokens": 99, "prompt_tokens_details": {"cached_tokens": 40},
}  # fmt: skip
SECRET = "secret-word"


def completion(text: str | None, reason: str | None = "stop", **message: Any) -> Payload:
    said = {"role": "assistant", "content": text, **message}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-real-1",
        "choices": [{"index": 0, "message": said, "finish_reason": reason, "logprobs": None}], "usage": USAGE,
    }  # fmt: skip


def says(text: str | None, reason: str | None = "stop", **message: Any) -> Behaviour:
    return lambda handler, _body: handler.send(200, json.dumps(completion(text, reason, **message)).encode())


def response(*content: Payload, status: str = "completed", reason: str | None = None, **fields: Any) -> Payload:
    output = [
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": list(content)},
    ]
    usage = {
        "input_tokens": 90, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 99,
    }  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-real-1", "status": status,
        "incomplete_details": None if reason is None else {"reason": reason}, "error": None,
        "output": output if content else [], "usage": usage, **fields,
    }  # fmt: skip


def responds(text: str, status: str = "completed", reason: str | None = None, **fields: Any) -> Behaviour:
    part = {"type": "output_text", "text": text, "annotations": []}
    whole = response(part, status=status, reason=reason, **fields)
    return lambda handler, _body: handler.send(200, json.dumps(whole).encode())


def fails(status: int, code: str | None = None, said: str = SECRET, **headers: str) -> Behaviour:
    error = {"error": {"message": said, "type": "invalid_request_error", "code": code, "param": None}}
    return lambda handler, _body: handler.send(status, json.dumps(error).encode(), **headers)


def holds_up_to(characters: int) -> Behaviour:
    def behave(handler: Any, body: Payload) -> None:
        size = len(body["messages"][1]["content"])
        answer = fails(400, "context_length_exceeded") if size > characters else says("Notes.")
        answer(handler, body)

    return behave


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        found.does(says("They will meet on Tuesday."))
        yield found


Ask = Callable[..., Summary]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, server: Server) -> Ask:
    """Asks for a summary through the client of one face."""

    def summary(elements: Any = None, *, retries: int = 2, **options: Any) -> Summary:
        given = talk() if elements is None else elements
        base: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "k", "max_retries": retries}
        options = {"model": "gpt-test", "deadline": 20, **options}
        if request.param == "sync":
            with openai.OpenAI(**base) as client:
                found: Any = OpenAISummarizer(client, **options)(given)
                assert isinstance(found, Summary)
                return found

        async def later() -> Summary:
            async with openai.AsyncOpenAI(**base) as client:
                summarizer = OpenAISummarizer(client, **options)
                assert summarizer.needs_async
                made: Any = await summarizer(given)  # type: ignore[misc]
                assert isinstance(made, Summary)
                return made

        return asyncio.run(later())

    return summary


def test_the_messages_go_as_one_document_and_the_answer_comes_back(ask: Ask, server: Server) -> None:
    summary = ask(parameters={"temperature": 0.1})
    assert summary.text == "They will meet on Tuesday."
    [sent] = server.requests
    assert sent["model"] == "gpt-test"
    assert sent["max_completion_tokens"] == 4096
    assert sent["temperature"] == 0.1
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    document = json.loads(sent["messages"][1]["content"])
    assert [entry["seq"] for entry in document["messages"]] == [1, 2, 3, 4]
    assert summary.model == "gpt-real-1"
    assert summary.prompt == sent["messages"][0]["content"]
    assert summary.usage == {
        "input_tokens": 50, "cache_read_input_tokens": 40, "output_tokens": 9, "cache_creation_input_tokens": 0,
        "requests": 1,
    }  # fmt: skip
    assert summary.settings == {"max_completion_tokens": 4096, "temperature": 0.1}
    assert summary.provider == {"messages": [{"id": "chatcmpl-1", "model": "gpt-real-1", "stop_reason": "stop"}]}
    assert summary.coverage == {"messages": 4}
    assert summary.duration is not None
    assert summary.summarizer == "OpenAISummarizer"


def test_the_model_gets_its_room_and_an_older_server_its_limit(ask: Ask, server: Server) -> None:
    ask(Request(talk(), budget=200), max_tokens=1000, limit_name="max_tokens", instructions="Be brief.")
    [sent] = server.requests
    assert sent["max_tokens"] == 1000
    assert "max_completion_tokens" not in sent
    assert sent["messages"][0]["content"].startswith("Be brief.")
    assert "Write at most 100 tokens" in sent["messages"][0]["content"]


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (says(None, refusal="I cannot."), SummaryRefused),
        (says("Part of", "content_filter"), SummaryRefused),
        (says("I'm sorry, but I can't assist with that."), SummaryRefused),
        (says("Part of", "length"), SummaryCutShort),
        (says(None, "tool_calls"), SummaryCutShort),
        (says("Half", None), SummaryCutShort),
        (says("  "), SummaryUseless),
        (says("Summary:"), SummaryUseless),
        (says("word " * 5000), SummaryTooLong),
        (fails(401, "invalid_api_key"), SummarizerRejected),
        (fails(400, "invalid_value"), SummarizerRejected),
        (fails(429, "insufficient_quota"), SummarizerRejected),
        (lambda handler, _body: handler.send(200, b"<html>"), SummarizerError),
        (lambda handler, _body: handler.send(200, b'{"choices": [7]}'), SummaryCutShort),
        (lambda handler, _body: handler.send(200, b"[]"), SummaryCutShort),
    ],
)
def test_what_is_no_summary_is_a_typed_error_without_a_word_of_it(
    ask: Ask, server: Server, behaviour: Behaviour, error: type[Exception]
) -> None:
    server.does(behaviour)
    with pytest.raises(error) as caught:
        ask()
    assert SECRET not in str(caught.value)
    assert len(server.requests) == 1
    attempted = caught.value.attempted  # type: ignore[attr-defined]
    assert attempted.summarizer == "OpenAISummarizer"
    assert attempted.model in {"gpt-test", "gpt-real-1"}


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_may_pass_is_tried_again(ask: Ask, server: Server, status: int) -> None:
    server.does(fails(status, None, retry_after_ms="10"), fails(status, None, retry_after_ms="10"), says("Notes."))
    assert ask().text == "Notes."
    assert len(server.requests) == 3


def test_what_stays_broken_is_given_up(ask: Ask, server: Server) -> None:
    server.does(fails(500, None, retry_after_ms="1"))
    with pytest.raises(SummarizerUnavailable) as caught:
        ask(retries=1)
    assert (caught.value.status, len(server.requests)) == (500, 2)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("behaviour", [drips, hangs])
def test_an_answer_that_never_ends_is_given_up_at_the_deadline(ask: Ask, server: Server, behaviour: Behaviour) -> None:
    server.does(behaviour)
    with pytest.raises(SummarizerUnavailable):
        ask(deadline=0.4)


# ---- the other API


def test_responses_are_asked_for_with_instructions_and_store_nothing(ask: Ask, server: Server) -> None:
    server.does(responds("They will meet on Tuesday."))
    summary = ask(api="responses", max_tokens=900, parameters={"reasoning": {"effort": "low"}})
    assert summary.text == "They will meet on Tuesday."
    [sent] = server.requests
    assert server.paths == ["/v1/responses"]
    assert (sent["model"], sent["max_output_tokens"], sent["store"]) == ("gpt-test", 900, False)
    assert sent["reasoning"] == {"effort": "low"}
    assert sent["instructions"] == summary.prompt
    assert [entry["seq"] for entry in json.loads(sent["input"])["messages"]] == [1, 2, 3, 4]
    assert summary.usage == {
        "input_tokens": 50, "cache_read_input_tokens": 40, "output_tokens": 9, "cache_creation_input_tokens": 0,
        "requests": 1,
    }  # fmt: skip
    assert summary.settings == {"max_output_tokens": 900, "reasoning": {"effort": "low"}}
    assert summary.provider == {"messages": [{"id": "resp_1", "model": "gpt-real-1", "stop_reason": "completed"}]}


def refuses(handler: Any, _body: Payload) -> None:
    handler.send(200, json.dumps(response({"type": "refusal", "refusal": SECRET})).encode())


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (refuses, SummaryRefused),
        (responds("Part of", "incomplete", "content_filter"), SummaryRefused),
        (responds("Part of", "incomplete", "max_output_tokens"), SummaryCutShort),
        (responds("Part of", "failed", error={"code": "invalid_prompt", "message": SECRET}), SummaryCutShort),
        (responds("Half", "in_progress"), SummaryCutShort),
        (lambda handler, _body: handler.send(200, json.dumps(response()).encode()), SummaryCutShort),
        (responds(" "), SummaryUseless),
        (responds("word " * 5000), SummaryTooLong),
        (responds("I'm sorry, but I can't help with that."), SummaryRefused),
        (fails(404, "model_not_found"), SummarizerRejected),
        (fails(400, "context_length_exceeded"), SourceTooLong),
        (lambda handler, _body: handler.send(200, b"[7]"), SummaryCutShort),
        (
            lambda handler, _body: handler.send(200, b'{"output": [3, {"type": "message", "content": 7}]}'),
            SummaryCutShort,
        ),
    ],
)
def test_what_is_no_summary_of_a_response_is_a_typed_error(
    ask: Ask, server: Server, behaviour: Behaviour, error: type[Exception]
) -> None:
    server.does(behaviour)
    with pytest.raises(error) as caught:
        ask(talk(1, "We meet on Tuesday. "), api="responses")
    assert SECRET not in str(caught.value)


def test_a_response_that_failed_for_a_moment_is_asked_for_again(ask: Ask, server: Server) -> None:
    broken = responds("", "failed", error={"code": "server_error", "message": SECRET})
    server.does(broken, fails(429, None, retry_after_ms="1"), fails(503, None, retry_after_ms="1"), responds("Notes."))
    assert ask(api="responses").text == "Notes."
    assert len(server.requests) == 4


def test_the_limit_of_a_response_has_one_name(server: Server) -> None:
    with openai.OpenAI(api_key="k") as client:
        for options, text in (
            ({"api": "completions"}, "api must be 'chat' or 'responses'"),
            ({"api": "responses", "limit_name": "max_tokens"}, "limit_name must not be given"),
            ({"api": "responses", "parameters": {"input": "x"}}, "parameters must not have input"),
        ):
            with pytest.raises(InvalidInput, match=text):
                OpenAISummarizer(client, **options)
    server.does(responds("Notes."))
    made = choices.summarize([f"openai:model=m,base_url={server.url}/v1,api=responses"])
    assert repr(made) == "OpenAISummarizer(model='m', api='responses')"
    assert made(talk()).text == "Notes."


# ---- more than one request


def test_what_is_too_long_is_summarized_in_parts(ask: Ask, server: Server) -> None:
    server.does(holds_up_to(3000))
    summary = ask(talk(8))
    assert summary.text == "Notes."
    assert summary.coverage is not None
    assert len(summary.coverage["parts"]) > 1
    assert summary.usage is not None
    assert summary.usage["requests"] > 2
    server.does(fails(400, "context_length_exceeded"))
    with pytest.raises(SourceTooLong):
        ask()


def test_a_fallback_covers_for_it(server: Server) -> None:
    server.does(fails(401))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        found = FallbackSummarizer(OpenAISummarizer(client, model="m"), lambda _elements: "Notes.")(talk())
    assert isinstance(found, Summary)
    assert found.coverage is not None
    assert found.coverage["failed_before"][0]["type"] == "SummarizerRejected"


def test_a_plain_list_is_compressed_with_a_client(server: Server) -> None:
    messages = [{"role": "user", "content": f"{n} " + "and so on " * 100} for n in range(40)]
    base: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "k"}
    with openai.OpenAI(**base) as client:
        result = compress_context(messages, 2500, reserve=0, client=client)
        assert "Tuesday" in str(result.messages)
        assert result.token_count <= 2500
        named = compress_context(messages, 2500, reserve=0, client=client, model="gpt-other", role="assistant")
        assert [m["role"] for m in named.messages if "Tuesday" in str(m)] == ["assistant"]

    async def later() -> None:
        async with openai.AsyncOpenAI(**base) as client:
            found = await compress_context_async(messages, 2500, reserve=0, client=client)
            assert found.messages == result.messages
            with pytest.raises(InvalidCallback):
                compress_context(messages, 2500, reserve=0, client=client)

    asyncio.run(later())
    assert [sent["model"] for sent in server.requests] == ["gpt-4o-mini", "gpt-other", "gpt-4o-mini"]


def test_the_command_line_makes_one_for_a_users_own_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    summarizer = choices.summarize(
        [f"openai:model=llama,base_url={server.url}/v1,max_tokens=512,limit_name=max_tokens"]
    )
    assert summarizer(talk()).text == "They will meet on Tuesday."
    assert (server.requests[0]["model"], server.requests[0]["max_tokens"]) == ("llama", 512)
    for spec in ("openai", "openai:model=m", "openai:model=m,base_url=7", "openai:model=m,base_url=http://a,nothing=1"):
        with pytest.raises(Exception, match=r"openai|OpenAI|base_url"):
            choices.summarize([spec])


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""}, {"model": 7}, {"max_tokens": 0}, {"deadline": 0}, {"limit_name": "limit"},
        {"parameters": {"model": "x"}}, {"parameters": {"n": 2}}, {"parameters": {"stream": True}},
    ],
)  # fmt: skip
def test_options_are_judged_when_they_are_given(options: Payload) -> None:
    with openai.OpenAI(api_key="k") as client, pytest.raises(InvalidInput):
        OpenAISummarizer(client, **options)
    with pytest.raises(InvalidInput, match="client must be an OpenAI or AsyncOpenAI client"):
        OpenAISummarizer(object())
