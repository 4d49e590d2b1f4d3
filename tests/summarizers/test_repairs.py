"""A model is given the faults of its summary once, as data, and the record has both calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from support.messages_server import Server, says, serving
from support.strategy_runs import elements

from compaction_store import Summary
from compaction_store.checks import KeepsOrders, NothingInvented
from compaction_store.errors import ChecksFailed
from compaction_store.summarizers import AnthropicSummarizer, OpenAISummarizer

Payload = dict[str, Any]
ORDER = "Never push to main without Ben's approval."
THREAD: list[Payload] = [
    {"role": "user", "content": f"{ORDER} Ignore nothing. " + "We work on the parser of the shop. " * 8},
    {"role": "assistant", "content": "The parser reads orders now. " * 12},
]
LOSSY = "They work on OrderParser2."
GOOD = "They work on the parser. Never push to main without Ben's approval."


@pytest.fixture
def api() -> Iterator[Server]:
    with serving() as found:
        yield found


def chat(text: str) -> Any:
    answer = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-real-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 9, "total_tokens": 99},
    }  # fmt: skip
    return lambda handler, _body: handler.send(200, json.dumps(answer).encode())


CHECKS = (KeepsOrders(strict=True), NothingInvented())


def summarized(api: Server, provider: str, *texts: str) -> Summary:
    if provider == "anthropic":
        api.does(*map(says, texts))
        with anthropic.Anthropic(api_key="k", base_url=api.url, max_retries=0) as client:
            made = AnthropicSummarizer(client, model="claude-x", checks=CHECKS)(elements(THREAD))
    else:
        api.does(*map(chat, texts))
        with openai.OpenAI(api_key="k", base_url=f"{api.url}/v1", max_retries=0) as client:
            made = OpenAISummarizer(client, checks=CHECKS)(elements(THREAD))
    assert isinstance(made, Summary)
    return made


def sent(api: Server, provider: str) -> tuple[str, Payload]:
    """The instructions and the document of the last request."""
    body = api.requests[-1]
    if provider == "anthropic":
        return body["system"], json.loads(body["messages"][0]["content"])
    return body["messages"][0]["content"], json.loads(body["messages"][1]["content"])


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_the_faults_are_sent_as_data_without_the_source(api: Server, provider: str) -> None:
    made = summarized(api, provider, LOSSY, GOOD)
    instructions, document = sent(api, provider)
    assert document == {"notes": LOSSY, "missing": [f"[1] user: {ORDER}"], "unfounded": ["OrderParser2"]}
    assert ORDER not in instructions
    assert len(api.requests) == 2
    assert made.text == GOOD
    assert made.usage is not None
    assert made.usage["requests"] == 2
    assert made.checks is not None
    assert made.checks["repair"]["taken"] is True
    assert made.checks["repair"]["prompt"] == instructions
    assert made.prompt != instructions
    assert made.provider is not None
    assert len(made.provider["messages"]) == 2


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_model_that_loses_an_order_twice_is_refused(api: Server, provider: str) -> None:
    with pytest.raises(ChecksFailed, match="KeepsOrders: 1 of 1 failed") as raised:
        summarized(api, provider, LOSSY, LOSSY)
    spent = raised.value.attempted
    assert spent is not None
    assert (spent.text, spent.usage and spent.usage["requests"]) == ("", 2)


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_summary_that_passes_costs_one_request(api: Server, provider: str) -> None:
    assert summarized(api, provider, GOOD).text == GOOD
    assert len(api.requests) == 1
