"""Summaries by a real model, on a server with OpenAI's API. `scripts/local_model` starts the server."""

from __future__ import annotations

import os
from typing import Any

import openai
import pytest
from support.faces import Face

from compaction_store.cli import choices
from compaction_store.summarizers import OpenAISummarizer

URL = os.environ.get("LOCAL_MODEL_URL", "")
pytestmark = pytest.mark.skipif(not URL, reason="scripts/local_model starts the model's server")
SAID = [
    "I want to go from Zurich to Chur on Friday, with two children and one bicycle.",
    "The train at 10:07 takes a bicycle, and children below six travel free of charge.",
    "Please book the train at 10:07, and send the tickets to our address in Zurich.",
    "The tickets are booked, and the number of the booking is K-4711.",
]


def _talk(store: Face) -> None:
    for number in range(40):
        store.append("trip", {"role": "assistant" if number % 2 else "user", "content": SAID[number % 4]})


def test_a_local_model_summarizes(store: Face) -> None:
    _talk(store)
    spec = f"openai:model=smollm2,base_url={URL},limit_name=max_tokens,max_tokens=300"
    # So small a model does not always come to an end, and is then asked again.
    summarize = choices.summarize([spec] * 4)
    [record] = store.compact("trip", lambda ctx: ctx.compact(1, 36, summarize))
    assert (record.outcome, record.summarizer) == ("applied", "OpenAISummarizer")
    assert record.summary_text
    assert record.body["usage"]["input_tokens"] > 0
    assert not store.audit.verify("trip").findings


def test_a_local_model_continues_the_conversation_with_notes(store: Face) -> None:
    _talk(store)
    with openai.OpenAI(base_url=URL, api_key="none") as client:
        # The first sentence is enough: so small a model does not always come to an end.
        options: Any = {"limit_name": "max_tokens", "parameters": {"temperature": 0, "stop": ["."]}}
        summarize = OpenAISummarizer(client, model="smollm2", max_tokens=300, mode="inline", context=0, **options)
        [record] = store.compact("trip", lambda ctx: ctx.compact(1, 36, summarize))
    assert record.outcome == "applied"
    assert record.body["settings"]["mode"] == "inline"
