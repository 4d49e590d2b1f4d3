"""The summarizer for OpenAI's APIs with servers that differ: streams, other texts of errors, errors as answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from support.messages_server import Behaviour, Payload, Server, hangs, serving, talk

from compaction_store.errors import (
    InvalidInput,
    SourceTooLong,
    SummarizerRejected,
    SummarizerUnavailable,
    SummaryCutShort,
    SummaryRefused,
    SummaryUseless,
)
from compaction_store.models import Summary
from compaction_store.summarizers import OpenAISummarizer

SECRET = "secret-word"
USAGE = {"prompt_tokens": 90, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


Ask = Callable[..., Summary]


@pytest.fixture
def ask(server: Server) -> Iterator[Ask]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=1) as client:

        def summary(elements: Any = None, **options: Any) -> Summary:
            summarize = OpenAISummarizer(client, **{"model": "m", "deadline": 20, **options})
            found = summarize(
                talk(1, "We meet on Tuesday at the station, as last time.") if elements is None else elements
            )
            assert isinstance(found, Summary)
            return found

        yield summary


def whole(content: Any, reason: str | None = "stop", **choice: Any) -> Payload:
    made = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason, **choice}
    return {"id": "c1", "model": "real", "choices": [made], "usage": USAGE}


def sends(body: Any, status: int = 200, **headers: str) -> Behaviour:
    return lambda handler, _body: handler.send(status, json.dumps(body).encode(), **headers)


def chunks(*deltas: Payload, reason: str | None = "stop", done: bool = True, more: tuple[Any, ...] = ()) -> Behaviour:
    about = {"id": "c1", "model": "real", "object": "chat.completion.chunk"}
    parts: list[Any] = [{**about, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if reason is not None:
        parts.append({**about, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        parts.append({**about, "choices": [], "usage": USAGE})
    return stream(*parts, *more, done=done)


def stream(*events: Any, done: bool = False) -> Behaviour:
    text = ": keep-alive\n\n" + "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in events)
    text += "data: [DONE]\n\n" if done else ""
    return lambda handler, _body: handler.send(200, text.encode(), "text/event-stream")


def test_a_stream_is_read_whether_or_not_it_was_requested(ask: Ask, server: Server) -> None:
    server.does(chunks({"role": "assistant", "content": ""}, {"content": "On\u2028Tues"}, {"content": "day."}))
    for given in (True, False):
        found = ask(stream=given)
        assert found.text == "On\u2028Tuesday."
        assert found.usage is not None
        assert (found.usage["input_tokens"], found.usage["cache_read_input_tokens"]) == (50, 40)
        assert found.provider == {"messages": [{"id": "c1", "model": "real", "stop_reason": "stop"}]}
    asked, plain = server.requests
    assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})
    assert "stream" not in plain


def test_a_streamed_response_is_read_from_its_last_event(ask: Ask, server: Server) -> None:
    part = {"type": "output_text", "text": "On Tuesday."}
    found = {"id": "r1", "model": "real", "status": "completed", "output": [{"type": "message", "content": [part]}]}
    begun = [{"type": "response.created", "response": {"id": "r1"}}, {"type": "response.output_text.delta"}]
    server.does(stream(*begun, {"type": "response.completed", "response": found}))
    assert ask(api="responses", stream=True).text == "On Tuesday."
    assert server.requests[0]["stream"] is True
    assert "stream_options" not in server.requests[0]
    failed = {"id": "r1", "status": "failed", "error": {"code": "context_length_exceeded", "message": SECRET}}
    server.does(stream(*begun, {"type": "response.failed", "response": failed}))
    with pytest.raises(SourceTooLong):
        ask(api="responses", stream=True)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (chunks({"content": "Half"}, reason=None, done=False), SummarizerUnavailable),
        (chunks({"content": "Half"}, reason=None), SummaryCutShort),
        (chunks({"content": "Half"}, reason="length"), SummaryCutShort),
        (chunks({"content": " "}), SummaryUseless),
        (chunks({"reasoning_content": SECRET}), SummaryUseless),
        (chunks({"refusal": SECRET}), SummaryRefused),
        (
            chunks({"content": "Ha"}, reason=None, more=({"error": {"code": 400, "message": SECRET}},)),
            SummarizerRejected,
        ),
        (
            chunks({"content": "Ha"}, reason=None, more=({"error": {"code": 502, "message": SECRET}},)),
            SummarizerUnavailable,
        ),
    ],
)
def test_a_stream_without_a_whole_answer_is_a_typed_error(
    ask: Ask, server: Server, behaviour: Behaviour, error: type[Exception]
) -> None:
    server.does(behaviour)
    with pytest.raises(error) as caught:
        ask()
    assert SECRET not in str(caught.value)


def test_a_streamed_response_that_is_cut_off_or_an_error_is_typed(ask: Ask, server: Server) -> None:
    server.does(stream({"type": "response.created", "response": {"id": "r1"}}))
    with pytest.raises(SummarizerUnavailable):
        ask(api="responses")
    server.does(stream({"type": "error", "code": "invalid_prompt", "message": SECRET}))
    with pytest.raises(SummarizerRejected):
        ask(api="responses")


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "the request exceeds the available context size, try increasing it",
        "Trying to keep the first 6012 tokens when context the overflows. However, the context length is only 4096",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
        "The input token count (1300000) exceeds the maximum number of tokens allowed (1048576).",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Please reduce the length of the messages or completion.",
        "Invalid request: Your request exceeded model token limit: 131072",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081",
        "Prompt exceeds max length",
        "Range of input length should be [1, 30720]",
        "Input is too long for requested model.",
    ],
)
@pytest.mark.parametrize("as_answer", [False, True])
def test_the_words_of_many_servers_for_a_prompt_that_is_too_long(
    ask: Ask, server: Server, said: str, as_answer: bool
) -> None:
    body = {"error": {"message": said, "type": "BadRequestError", "code": 400}}
    server.does(sends(body, 200 if as_answer else 400))
    with pytest.raises(SourceTooLong):
        ask()
    assert len(server.requests) == 1


def test_a_request_over_the_tokens_of_a_minute_is_split_and_not_repeated(ask: Ask, server: Server) -> None:
    said = "Request too large for gpt-x in organization o on tokens per min (TPM): Limit 30000, Requested 40000."
    error = {"error": {"message": said, "type": "tokens", "code": "rate_limit_exceeded"}}

    def behave(handler: Any, body: Payload) -> None:
        sends(error, 429)(handler, body) if len(str(body["messages"])) > 6000 else sends(whole("Notes."))(handler, body)

    server.does(behave)
    found = ask(talk(8))
    assert found.coverage is not None
    assert len(found.coverage["parts"]) > 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"code": 401, "message": SECRET}}, SummarizerRejected),
        ({"error": {"code": 502, "message": SECRET}}, SummarizerUnavailable),
        ({"error": {"code": "server_overloaded", "message": SECRET}}, SummarizerRejected),
        (whole("Ha", "error", error={"code": 503, "message": SECRET}), SummarizerUnavailable),
        (whole("Part", "model_length"), SourceTooLong),
    ],
)
def test_an_error_in_an_answer_is_that_error(ask: Ask, server: Server, body: Payload, error: type[Exception]) -> None:
    server.does(sends(body))
    with pytest.raises(error) as caught:
        ask()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>They said no.\n</think>\n\nOn Tuesday.", "On Tuesday."),
        ("They said no.\n</think>\n\nOn Tuesday.", "On Tuesday."),
        ("On Tuesday they wrote </think> in a file.", "On Tuesday they wrote </think> in a file."),
        ("On Tuesday. The tag <think> is not closed.", "On Tuesday. The tag <think> is not closed."),
        ([{"type": "thinking", "thinking": [{"text": "x"}]}, {"type": "text", "text": "On Tuesday."}], "On Tuesday."),
    ],
)
def test_the_reasoning_of_a_model_is_not_in_its_summary(ask: Ask, server: Server, content: Any, text: str) -> None:
    server.does(sends(whole(content)))
    assert ask().text == text


@pytest.mark.parametrize("content", [None, "<think>They said", "<think>They said no.</think>", []])
def test_an_answer_of_reasoning_alone_is_empty(ask: Ask, server: Server, content: Any) -> None:
    server.does(sends(whole(content)))
    with pytest.raises(SummaryUseless):
        ask()


@pytest.mark.parametrize("after", ["0", "-3", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_busy_server_without_a_time_is_not_asked_without_pause(ask: Ask, server: Server, after: str) -> None:
    server.does(sends({"error": {"message": "busy"}}, 429, retry_after=after))
    with pytest.raises(SummarizerUnavailable):
        ask(deadline=0.7)
    assert len(server.requests) <= 2


def test_stream_is_judged_when_it_is_given() -> None:
    with openai.OpenAI(api_key="k") as client:
        wrong: list[Payload] = [{"stream": 1}, {"parameters": {"stream_options": {}}}]
        for options in wrong:
            with pytest.raises(InvalidInput, match="stream"):
                OpenAISummarizer(client, **options)


def test_a_cancelled_summary_closes_its_connection(server: Server) -> None:
    async def cancelled() -> None:
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def behave(handler: Any, body: Payload) -> None:
            loop.call_soon_threadsafe(arrived.set)
            hangs(handler, body)

        server.does(behave)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
            task = asyncio.ensure_future(OpenAISummarizer(client, model="m")(talk()))  # type: ignore[arg-type]
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert server.all_closed()


def test_a_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("NO_PROXY", "")
    server.does(sends(whole("On Tuesday.")), sends({"error": SECRET}, 502))
    with openai.OpenAI(base_url="http://models.invalid/v1", api_key="k", max_retries=0) as client:
        summarize = OpenAISummarizer(client, model="m")
        assert summarize(talk()).text == "On Tuesday."  # type: ignore[union-attr]
        with pytest.raises(SummarizerUnavailable):
            summarize(talk())
    assert server.paths[0] == "http://models.invalid/v1/chat/completions"
