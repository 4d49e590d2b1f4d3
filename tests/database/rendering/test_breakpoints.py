"""Cache breakpoints of a request to Anthropic's API: at most four, in the tools, the system prompt and the messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from support.faces import Face

from compaction_store import InvalidInput
from compaction_store.api_rules import refused_by_anthropic
from compaction_store.messages.framing import frame
from compaction_store.models import Element
from compaction_store.rendering.view import View

Payload = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = [{"name": "f", "input_schema": {}}, {"name": "g", "input_schema": {}}]
MARKS: dict[str, Payload] = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}


def view(*messages: Payload | Element) -> View:
    elements = [
        m if isinstance(m, Element) else Element(n, n, n, (m,), 1, None, NOW) for n, m in enumerate(messages, 1)
    ]
    return View("t", 99, tuple(elements))


def summary(seq: int, text: str) -> Element:
    return Element(seq, seq, 50 + seq, (frame(text, seq, seq),), 1, 1, NOW, "summary", "f")


def user(text: str) -> Payload:
    return {"role": "user", "content": text}


def reply(*blocks: Payload) -> Payload:
    return {"role": "assistant", "content": list(blocks)}


def marks(value: Any) -> list[Payload]:
    """Returns all breakpoints in a request."""
    if isinstance(value, list):
        return [mark for item in value for mark in marks(item)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if "cache_control" in value else []
    return own + [mark for item in value.values() for mark in marks(item)]


def accepted(request: Payload) -> None:
    problems = refused_by_anthropic(request["messages"], system=request.get("system"), tools=request.get("tools"))
    assert problems == []


@pytest.mark.parametrize("cache", ["5m", "1h"])
def test_they_are_after_tools_system_the_last_summary_and_the_last_message(cache: Any) -> None:
    seen = view(
        {"role": "system", "content": "S"}, summary(2, "a"), user("b"), summary(4, "c"), user("d"),
        reply({"type": "text", "text": "e"}), user("f"),
    )  # fmt: skip
    assert marks(dict(seen.for_anthropic(tools=TOOLS, system="P"))) == []
    request = seen.for_anthropic(tools=TOOLS, system="P", cache=cache)
    mark = MARKS[cache]
    assert marks(dict(request)) == [mark] * 4
    accepted(request)
    assert request["tools"] == [TOOLS[0], {**TOOLS[1], "cache_control": mark}]
    assert [block.get("cache_control") for block in request["system"]] == [None, mark]
    first, _, last = request["messages"]
    assert [block.get("cache_control") for block in first["content"]] == [None, None, mark, None]
    assert last["content"] == [{"type": "text", "text": "f", "cache_control": mark}]


def test_without_a_summary_tools_or_a_prompt_the_last_message_has_one() -> None:
    request = view(user("a")).for_anthropic(cache="5m")
    assert request["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": MARKS["5m"]}]}
    ]
    request = view({"role": "system", "content": "S"}, user("a")).for_anthropic(cache="5m")
    assert request["system"] == [{"type": "text", "text": "S", "cache_control": MARKS["5m"]}]
    block = {"type": "compaction", "content": "They met.", "encrypted_content": None, "signature": "sig"}
    native = Element(1, 2, 9, (reply(block),), 1, 1, NOW, "summary", "f")
    first = view(native, user("b")).for_anthropic(cache="5m")["messages"][0]["content"][0]
    assert first == {**block, "cache_control": MARKS["5m"]}


def test_a_block_or_a_tool_that_cannot_have_one_has_none() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    seen = view(
        user("a"),
        reply({"type": "text", "text": "b"}, thinking, {"type": "tool_use", "id": "c", "name": "f", "input": {}}),
    )
    later = {"name": "h", "input_schema": {}, "defer_loading": True}
    request = seen.for_anthropic(cache="5m", tools=[*TOOLS, later])
    accepted(request)
    assert request["tools"][1:] == [{**TOOLS[1], "cache_control": MARKS["5m"]}, later]
    assert request["messages"][-1]["content"][-1]["cache_control"] == MARKS["5m"]
    only = view(user("a"), reply(thinking)).for_anthropic(cache="5m", thinking="keep", tools=[later])
    accepted(only)
    assert len(marks(dict(only))) == 1


def test_a_callers_own_breakpoints_take_the_place_of_others() -> None:
    own = [{**TOOLS[0], "cache_control": MARKS["1h"]}, TOOLS[1]]
    request = view(summary(1, "a"), user("b")).for_anthropic(tools=own, system="P", cache="5m")
    accepted(request)
    assert request["tools"] == own
    assert len(marks(dict(request))) == 4
    three = [{**tool, "cache_control": MARKS["5m"]} for tool in [*TOOLS, TOOLS[0]]]
    with pytest.raises(InvalidInput, match="at most 2 cache breakpoints, not 3"):
        view(user("a")).for_anthropic(tools=three, cache="5m")
    with pytest.raises(InvalidInput, match="must have the ttl '1h'"):
        view(user("a")).for_anthropic(tools=three[:1], cache="1h")


def test_stored_breakpoints_never_make_more_than_four() -> None:
    marked = [
        {"role": "user", "content": [{"type": "text", "text": str(n), "cache_control": MARKS["5m"]}]} for n in range(9)
    ]
    inside = {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": [{"type": "text", "text": "r", "cache_control": MARKS["5m"]}],
    }
    call = reply({"type": "tool_use", "id": "c", "name": "f", "input": {}})
    seen = view(*marked, call, {"role": "user", "content": [inside]})
    plain = seen.for_anthropic(tools=TOOLS)
    assert len(marks(dict(plain))) == 2
    assert marks(plain["messages"][-1]) == [MARKS["5m"]]
    for cache in ("5m", "1h"):
        request = seen.for_anthropic(tools=TOOLS, system="P", cache=cache)
        accepted(request)
        assert marks(dict(request)) == [MARKS[cache]] * 3


@pytest.mark.parametrize("system", [None, "P", [{"type": "text", "text": "P"}]])
@pytest.mark.parametrize("own", [[], [{"role": "system", "content": "S"}]])
def test_a_receipt_has_the_hashes_of_the_tools_and_the_prompt_without_breakpoints(
    store: Face, system: Any, own: list[Payload]
) -> None:
    store.append("t", [*own, user("a")])
    request = store.view("t").for_anthropic(tools=TOOLS, system=system, cache="5m")
    [sent] = store.append("t", {"role": "assistant", "content": "b"}, view=request)
    found = store.audit.explain("t", sent.seq, tools=TOOLS, system=system)
    assert store.seen_by("t", sent.seq).evidence == "proved"
    assert found.same_tools
    assert found.same_system is (None if system is None else True)
    # A request that was changed afterwards is another request.
    request = store.view("t").for_anthropic(tools=TOOLS, system=system, cache="5m")
    request["tools"] = [{"name": "other", "input_schema": {}}]
    request["system"] = "another"
    [sent] = store.append("t", {"role": "assistant", "content": "c"}, view=request)
    found = store.audit.explain("t", sent.seq, tools=TOOLS, system="P")
    assert (found.same_tools, found.same_system) == (False, None if own else False)
