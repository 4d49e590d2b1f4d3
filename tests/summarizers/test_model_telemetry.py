"""Spans of a compaction's model calls: each try, its usage, and its content only on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from support.faces import Face, Faces
from support.messages_server import BLOCK, USAGE, Server, answers, compacts, fails, message, says, serving, talk
from support.recorded_telemetry import RecordedTelemetry

from compaction_store.summarizers import AnthropicSummarizer
from compaction_store.telemetry import conventions

MARKER = "xyzzy-7f3a"
NOTES = f"{MARKER}: they will meet on Tuesday."
TALK = [
    {"role": "user" if i % 2 else "assistant", "content": f"{MARKER} said number {i} of many. " * 30}
    for i in range(1, 9)
]


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        found.does(says(NOTES))
        yield found


class Agent:
    """A store with telemetry, a thread, and a summarizer for its kind of client."""

    def __init__(self, faces: Faces, url: str, api: Server, told: RecordedTelemetry) -> None:
        self.told = told
        self._faces = faces
        self._api = api
        self.store: Face = faces.open(url, telemetry=told.telemetry)
        self.store.append("t-1", TALK)

    def compact(self, **options: Any) -> Any:
        settings: dict[str, Any] = {"api_key": "sk-ant-of-a-test", "base_url": self._api.url, "max_retries": 1}
        options = {"model": "claude-x", "deadline": 20, "max_tokens": 500, **options}
        if self._faces.runner is None:
            with anthropic.Anthropic(**settings) as client:
                summarize = AnthropicSummarizer(client, **options)
                return self.store.compact("t-1", lambda ctx: ctx.compact(1, 6, summarize))
        asynchronous = anthropic.AsyncAnthropic(**settings)
        summarize = AnthropicSummarizer(asynchronous, **options)
        run = self.store.compact("t-1", lambda ctx: ctx.compact(1, 6, summarize))
        self._faces.runner.run(asynchronous.close())
        return run


@pytest.fixture
def agent(faces: Faces, url: str, api: Server) -> Agent:
    return Agent(faces, url, api, RecordedTelemetry())


def test_a_call_of_a_model_is_reported_as_the_conventions_say(agent: Agent, api: Server) -> None:
    assert agent.compact().applied
    span = agent.told.one("chat claude-x")
    assert (span.kind, span.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert span.name in agent.told.under(agent.told.one("compaction_store.compact"))
    taken = USAGE["input_tokens"] + USAGE["cache_creation_input_tokens"] + USAGE["cache_read_input_tokens"]
    assert span.attributes is not None
    assert {**span.attributes} == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude-x",
        "gen_ai.request.max_tokens": 500, "gen_ai.conversation.id": "t-1",
        "gen_ai.response.model": "claude-real-1", "gen_ai.response.id": "msg_1",
        "gen_ai.response.finish_reasons": ("end_turn",), "gen_ai.usage.input_tokens": taken,
        "gen_ai.usage.output_tokens": 9, "server.address": "127.0.0.1", "server.port": api.server_address[1],
    }  # fmt: skip
    usage = {labels["gen_ai.token.type"]: count for labels, count in agent.told.points("gen_ai.client.token.usage")}
    assert usage == {"input": taken, "output": 9}
    [(labels, seconds)] = agent.told.points("gen_ai.client.operation.duration")
    assert labels == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude-x",
        "gen_ai.response.model": "claude-real-1", "server.address": "127.0.0.1",
        "server.port": api.server_address[1],
    }  # fmt: skip
    assert 0 < seconds < 20


def test_every_try_is_a_span_of_its_own(agent: Agent, api: Server) -> None:
    api.does(fails(529, "overloaded_error", MARKER, retry_after="0.01"), says(NOTES))
    assert agent.compact().applied
    first, second = agent.told.named("chat claude-x")
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, None)
    assert first.attributes is not None
    assert first.attributes["error.type"] == "529"
    assert second.status.status_code is StatusCode.UNSET
    errors = [labels.get("error.type") for labels, _ in agent.told.points("gen_ai.client.operation.duration")]
    assert errors == ["529", None]


def test_the_apis_own_compaction_tells_what_all_its_passes_took(agent: Agent, api: Server) -> None:
    api.does(compacts())
    assert agent.compact(mode="native").applied
    span = agent.told.one("chat claude-x")
    assert span.attributes is not None
    assert (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"]) == (800, 20)
    assert span.attributes["gen_ai.response.finish_reasons"] == ("compaction",)
    assert BLOCK["content"] not in agent.told.everything()


def test_no_content_is_reported_unless_asked_for(agent: Agent) -> None:
    assert agent.compact(instructions=f"Mind {MARKER}.").applied
    assert MARKER not in agent.told.everything()


def test_content_that_is_asked_for_is_where_the_conventions_put_it(faces: Faces, url: str, api: Server) -> None:
    agent = Agent(faces, url, api, RecordedTelemetry(content=True))
    assert agent.compact(instructions=f"Mind {MARKER}.").applied
    attributes = agent.told.one("chat claude-x").attributes
    assert attributes is not None
    [system] = json.loads(str(attributes["gen_ai.system_instructions"]))
    assert system["type"] == "text"
    assert system["content"].startswith(f"Mind {MARKER}.")
    [sent] = json.loads(str(attributes["gen_ai.input.messages"]))
    assert sent["role"] == "user"
    assert f"{MARKER} said number 1" in sent["parts"][0]["content"]
    assert json.loads(str(attributes["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": NOTES}], "finish_reason": "end_turn"}
    ]
    holding = [span.name for span in agent.told.spans if MARKER in span.to_json()]
    assert holding == ["chat claude-x"]


def test_blocks_are_reported_in_the_conventions_own_words() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": "b", "signature": "s"},
        {"type": "tool_use", "id": "1", "name": "find", "input": {"q": 1}},
        {"type": "tool_result", "tool_use_id": "1", "content": "found"},
        {"type": "image", "source": {}},
    ]
    told = conventions.request_content({"messages": [{"role": "assistant", "content": blocks}]})
    [sent] = json.loads(str(told["gen_ai.input.messages"]))
    assert sent["parts"] == [
        {"type": "text", "content": "a"},
        {"type": "reasoning", "content": "b"},
        {"type": "tool_call", "id": "1", "name": "find", "arguments": {"q": 1}},
        {"type": "tool_call_response", "id": "1", "response": "found"},
        {"type": "image", "source": {}},
    ]


def test_an_answer_that_makes_no_sense_is_no_error_of_telemetry(agent: Agent, api: Server) -> None:
    odd = message({"type": "text", "text": NOTES}, usage={"input_tokens": "many", "output_tokens": None})
    api.does(answers({**odd, "id": 7, "model": None}))
    agent.compact(stream=False)
    span = agent.told.one("chat claude-x")
    assert span.attributes is not None
    assert "gen_ai.response.model" not in span.attributes


@pytest.mark.parametrize(
    ("client", "provider"),
    [("AnthropicBedrock", "aws.bedrock"), ("AsyncAnthropicVertex", "gcp.vertex_ai"), ("AsyncAnthropic", "anthropic")],
)
def test_the_provider_is_known_by_its_client(client: str, provider: str) -> None:
    asked = conventions.request_attributes(type(client, (), {})(), {"model": "m"})
    assert asked == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": "m"
    }  # fmt: skip


def test_parameters_of_an_answer_are_reported_as_numbers() -> None:
    told = conventions.request_settings({"max_tokens": 500, "temperature": 1, "top_k": "odd", "system": MARKER})
    assert told == {"gen_ai.request.max_tokens": 500, "gen_ai.request.temperature": 1.0}


def test_outside_a_store_nothing_is_reported(api: Server) -> None:
    told = RecordedTelemetry()
    with anthropic.Anthropic(api_key="k", base_url=api.url) as client:
        AnthropicSummarizer(client, model="claude-x")(talk())
    assert told.spans == ()
