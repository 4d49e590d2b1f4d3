"""Hypothesis strategies that make threads.

`scripts` makes abstract threads with calls and results in any order: parallel, late, repeated, orphaned and pending.
`payloads` writes a script in one of the formats. `anthropic`, `chat` and `responses` make complete threads that their
APIs accept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

Format = Literal["chat", "function", "responses", "responses_message", "anthropic", "server", "mcp"]
FORMATS: tuple[Format, ...] = (
    "chat", "function", "responses", "responses_message", "anthropic", "server", "mcp",
)  # fmt: skip
Payload = dict[str, Any]


class Word(NamedTuple):
    """One part of a message. Only calls and results have an id."""

    kind: Literal["call", "result", "text", "reasoning"]
    id: str = ""


Script = list[list[Word]]
_IDS = st.sampled_from(["a", "b", "c"])
_WORDS = st.one_of(
    st.builds(Word, st.just("call"), _IDS),
    st.builds(Word, st.just("result"), _IDS),
    st.just(Word("text")),
)


def scripts(*, longest: int = 9) -> st.SearchStrategy[Script]:
    """Makes messages of up to three words in any order, most of which no API would accept."""
    message = st.lists(_WORDS, min_size=1, max_size=3)
    return st.lists(st.one_of(message, st.just([Word("reasoning")])), max_size=longest)


def _item(word: Word) -> Payload:
    items: dict[str, Payload] = {
        "call": {"type": "function_call", "call_id": word.id, "name": "look", "arguments": "{}"},
        "result": {"type": "function_call_output", "call_id": word.id, "output": "seen"},
        "text": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
        "reasoning": {"type": "reasoning", "id": "rs", "summary": []},
    }
    return items[word.kind]


_ANTHROPIC = {
    "anthropic": ("tool_use", "tool_result"),
    "server": ("server_tool_use", "web_search_tool_result"),
    "mcp": ("mcp_tool_use", "mcp_tool_result"),
}


def _block(word: Word, form: Format) -> Payload:
    call, result = _ANTHROPIC[form]
    blocks: dict[str, Payload] = {
        "call": {"type": call, "id": word.id, "name": "look", "input": {}},
        "result": {"type": result, "tool_use_id": word.id, "content": []},
        "text": {"type": "text", "text": "hm"},
        "reasoning": {"type": "thinking", "thinking": "hm", "signature": "s"},
    }
    return blocks[word.kind]


def _chat(words: list[Word], *, by_name: bool) -> list[Payload]:
    """Writes words as chat messages. This may take several, because a chat message has either calls or one result."""
    found: list[Payload] = []
    calling: Payload | None = None
    for word in words:
        if word.kind == "result":
            key = "name" if by_name else "tool_call_id"
            found.append({"role": "function" if by_name else "tool", key: word.id, "content": "seen"})
            calling = None
        elif word.kind != "call":
            found.append({"role": "assistant", "content": "hm"})
            calling = None
        elif by_name:
            found.append({"role": "assistant", "function_call": {"name": word.id, "arguments": "{}"}})
        else:
            if calling is None:
                calling = {"role": "assistant", "content": None, "tool_calls": []}
                found.append(calling)
            function = {"name": "look", "arguments": "{}"}
            calling["tool_calls"].append({"id": word.id, "type": "function", "function": function})
    return found


def written(words: list[Word], form: Format) -> list[Payload]:
    """Writes one message of a script as payloads. Only the Responses API has reasoning."""
    if form in {"chat", "function"}:
        return _chat(words, by_name=form == "function")
    if form == "responses":
        return [_item(word) for word in words]
    if form == "responses_message":
        return [{"type": "message", "content": [_item(word) for word in words]}]
    return [{"role": "assistant", "content": [_block(word, form) for word in words]}]


# ---- threads that the APIs accept


def _text(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(["hi", "look there", "what then?", "é"]))


class _Ids:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"


def _anthropic_reply(draw: st.DrawFn, ids: _Ids) -> tuple[list[Payload], list[str]]:
    """Makes the blocks of one reply, and the ids of its calls whose results the caller must send."""
    blocks: list[Payload] = []
    if draw(st.booleans()):
        blocks.append({"type": "thinking", "thinking": "hm", "signature": "sig"})
    if draw(st.booleans()):
        blocks.append({"type": "redacted_thinking", "data": "x"})
    blocks.append({"type": "text", "text": _text(draw)})
    if draw(st.booleans()):
        name = ids.next().replace("toolu", "srvtoolu")
        blocks += [
            {"type": "server_tool_use", "id": name, "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": name, "content": []},
            {"type": "text", "text": _text(draw)},
        ]
    calls = [ids.next() for _ in range(draw(st.integers(0, 3)))]
    blocks += [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in calls]
    return blocks, calls


@st.composite
def anthropic(draw: st.DrawFn, *, turns: int = 4) -> list[Payload]:
    """Makes a thread that ends with a user's message. Results may be in several messages, which the API joins."""
    ids = _Ids("toolu_")
    thread: list[Payload] = [{"role": "user", "content": _text(draw)}]
    for _ in range(draw(st.integers(0, turns))):
        blocks, calls = _anthropic_reply(draw, ids)
        thread.append({"role": "assistant", "content": blocks})
        results: list[Payload] = [
            {"type": "tool_result", "tool_use_id": name, "content": "seen"} for name in draw(st.permutations(calls))
        ]
        if len(results) > 1 and draw(st.booleans()):
            thread.append({"role": "user", "content": [results.pop(0)]})
        if not results or draw(st.booleans()):
            results.append({"type": "text", "text": _text(draw)})
        thread.append({"role": "user", "content": results})
        if draw(st.booleans()):
            thread += [{"role": "system", "content": "Mind the gap."}, {"role": "assistant", "content": _text(draw)}]
            thread.append({"role": "user", "content": _text(draw)})
    return thread


@st.composite
def chat(draw: st.DrawFn, *, turns: int = 4) -> list[Payload]:
    ids = _Ids("call_")
    thread: list[Payload] = []
    if draw(st.booleans()):
        thread.append({"role": draw(st.sampled_from(["system", "developer"])), "content": "Be brief."})
    thread.append({"role": "user", "content": _text(draw)})
    for _ in range(draw(st.integers(0, turns))):
        calls = [ids.next() for _ in range(draw(st.integers(0, 3)))]
        if not calls:
            thread += [{"role": "assistant", "content": _text(draw)}, {"role": "user", "content": _text(draw)}]
            continue
        told = [{"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in calls]
        thread.append({"role": "assistant", "content": draw(st.sampled_from([None, "hm"])), "tool_calls": told})
        thread += [{"role": "tool", "tool_call_id": name, "content": "seen"} for name in draw(st.permutations(calls))]
    return thread


@st.composite
def responses(draw: st.DrawFn, *, turns: int = 4) -> list[Payload]:
    ids, thoughts = _Ids("call_"), _Ids("rs_")
    thread: list[Payload] = [{"role": "user", "content": _text(draw)}]
    for _ in range(draw(st.integers(0, turns))):
        if draw(st.booleans()):
            thread.append({"type": "reasoning", "id": thoughts.next(), "summary": []})
        calls = [ids.next() for _ in range(draw(st.integers(0, 3)))]
        if not calls:
            thread.append({"role": "assistant", "content": _text(draw)})
        custom = draw(st.booleans())
        said = {"type": "custom_tool_call", "input": ""} if custom else {"type": "function_call", "arguments": "{}"}
        thread += [{**said, "call_id": name, "name": "look"} for name in calls]
        if draw(st.booleans()):
            thread.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hurry"}]})
        kind = "custom_tool_call_output" if custom else "function_call_output"
        thread += [{"type": kind, "call_id": name, "output": "seen"} for name in draw(st.permutations(calls))]
    return thread


WELL_FORMED: dict[str, Callable[[], st.SearchStrategy[list[Payload]]]] = {
    "anthropic": anthropic,
    "chat": chat,
    "responses": responses,
}
