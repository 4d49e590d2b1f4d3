"""An agent of 300 turns, compacted in both ways: every request was valid, and is the one that the store proves."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from support.messages_server import Handler, Payload, Server, answers, serving
from support.paths import ROOT

from compaction_store import Store
from compaction_store.api_rules import refused_by_anthropic
from compaction_store.rendering.view import rerender

sys.path.insert(0, str(ROOT / "examples"))
import local_model
import recalling_agent

TURNS = 300
TOOLS = {"find_order", "recall_search", "recall_expand", "recall_describe"}


class Exchange(NamedTuple):
    body: Payload
    sent: bytes
    answer: Payload
    betas: str

    @property
    def messages(self) -> list[Payload]:
        found: list[Payload] = self.body["messages"]
        return found

    @property
    def kind(self) -> str:
        if "compaction" in self.body:
            return "native"
        return "turn" if "tools" in self.body else "prompt"


@pytest.fixture
def api() -> Iterator[tuple[Server, list[Payload]]]:
    """A server that answers like the examples' stand-in, and what it answered."""
    told: list[Payload] = []

    def behave(handler: Handler, body: Payload) -> None:
        told.append(local_model.message(body))
        answers(told[-1])(handler, body)

    with serving() as server:
        server.does(behave)
        yield server, told


def _bytes(messages: Any) -> bytes:
    """The messages as the SDK sends them."""
    return b'"messages":' + json.dumps(messages, ensure_ascii=False, separators=(",", ":")).encode()


def test_300_turns_with_tools_and_compactions_of_both_kinds_are_proved_byte_for_byte(
    url: str,
    api: tuple[Server, list[Payload]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, told = api
    # In this process: a new one would spend two seconds on imports.
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("COMPACTION_STORE_URL", url)
    monkeypatch.setattr(sys, "argv", ["recalling_agent.py", str(TURNS)])
    recalling_agent.main()
    printed = capsys.readouterr().out
    assert "{'proved': " in printed
    assert printed.endswith("findings: []\n")

    betas = [headers.get("anthropic-beta", "") for headers in server.headers]
    exchanges = [Exchange(*one) for one in zip(server.requests, server.bodies, told, betas, strict=True)]
    turns = [one for one in exchanges if one.kind == "turn"]
    _the_protocol_is_kept(exchanges)
    _blocks_are_placed_as_the_api_demands([one for one in exchanges if one.kind != "prompt"])
    called = [block["name"] for one in turns for block in one.answer["content"] if block["type"] == "tool_use"]
    assert len(called) >= TURNS
    assert set(called) == TOOLS

    with Store.open(url) as store:
        [thread] = [thread.thread_id for thread in store.threads()]
        records = list(store.compactions(thread))
        # The API's own compaction leaves a block in the view, a prompt leaves framed notes.
        modes = [(record.replacement or [{}])[0].get("role") for record in records]
        assert {record.outcome for record in records} == {"applied"}
        assert min(modes.count("assistant"), modes.count("user")) >= 4
        assert modes == [{"prompt": "user", "native": "assistant"}[one.kind] for one in exchanges if one.kind != "turn"]
        replies = [message for message in store.replay(thread) if message.role == "assistant"]
        for reply, one in zip(replies, turns, strict=True):
            assert (reply.payload or {})["content"] == one.answer["content"]
            seen = store.seen_by(thread, reply.seq)
            assert seen.evidence == "proved"
            assert seen.receipt is not None
            rendered = rerender(seen.view, seen.receipt["renderer"], seen.receipt["options"])
            assert _bytes(rendered["messages"]) in one.sent, reply
            assert rendered["system"] == one.body["system"]


def _the_protocol_is_kept(exchanges: list[Exchange]) -> None:
    for one in exchanges:
        assert refused_by_anthropic(one.messages, system=one.body.get("system")) == []


def _blocks_are_placed_as_the_api_demands(exchanges: list[Exchange]) -> None:
    """A block goes back as it came, first and alone, before the messages that followed its span."""
    block: Payload | None = None
    for before, one in pairwise(exchanges):
        found = [
            (place, number, part)
            for place, message in enumerate(one.messages)
            for number, part in enumerate(message["content"] if isinstance(message["content"], list) else [])
            if part["type"] == "compaction"
        ]
        if before.kind == "native":
            [block] = before.answer["content"]
            assert found == [(0, 0, block)]
        # Once framed notes replace the block, it does not come back.
        block = block if found else None
        assert found == ([] if block is None else [(0, 0, block)])
        assert ("compact-2026-09-04" in one.betas) == (bool(found) or one.kind == "native")
        if one.kind == "native":
            assert not one.body.keys() & {"context_management", "stop_sequences", "tool_choice", "stream"}
            assert one.body["tools"] == before.body["tools"]
            _only_what_the_model_has_seen_is_compacted(before, one)
        if before.kind == "native":
            kept = one.messages[1:]
            assert kept[0]["role"] == "user" != before.messages[-1]["role"]


def _only_what_the_model_has_seen_is_compacted(before: Exchange, one: Exchange) -> None:
    """The messages to be compacted are the beginning of the last request, unchanged, and no call in it is open."""
    assert before.kind == "turn"
    assert before.messages[: len(one.messages)] == one.messages
    assert one.messages[-1]["role"] == "assistant"
