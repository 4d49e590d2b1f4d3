"""A model's prompt cache: bills the requests of a local server by the prefixes that it has seen."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from support.messages_server import Payload, answers, message

# Anthropic looks for an earlier breakpoint in the last 20 blocks before each breakpoint.
_LOOKS_BACK = 20


def _without_mark(block: Payload) -> str:
    return json.dumps({name: value for name, value in block.items() if name != "cache_control"})


def _blocks(body: Payload) -> Iterator[tuple[str, bool]]:
    """Yields each block of a request in the order of the cache, and whether it has a breakpoint."""
    system = body.get("system", [])
    yield from ((_without_mark(tool), "cache_control" in tool) for tool in body.get("tools", []))
    for role, content in [("system", system), *((one["role"], one["content"]) for one in body["messages"])]:
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield role + _without_mark(block), "cache_control" in block


class MarkedPrefixes:
    """Answers like Anthropic's API: it reads from the cache what an earlier request wrote at a breakpoint."""

    def __init__(self, text: str) -> None:
        self.usages: list[Payload] = []
        self._written: set[str] = set()
        self._text = text

    def __call__(self, handler: Any, body: Payload) -> None:
        blocks = list(_blocks(body))
        prefixes = list(accumulate(text for text, _ in blocks))
        marks = [place for place, (_, marked) in enumerate(blocks) if marked]
        found = {at for mark in marks for at in range(max(0, mark - _LOOKS_BACK), mark + 1)}
        read = max((len(prefixes[at]) for at in found if prefixes[at] in self._written), default=0)
        written = max((len(prefixes[mark]) for mark in marks), default=read)
        self._written.update(prefixes[mark] for mark in marks)
        usage = {
            "cache_read_input_tokens": read // 4, "cache_creation_input_tokens": max(0, written - read) // 4,
            "input_tokens": (len(prefixes[-1]) - max(read, written)) // 4, "output_tokens": 9,
        }  # fmt: skip
        self.usages.append(usage)
        answers(message({"type": "text", "text": self._text}, usage=usage))(handler, body)


class CommonPrefixes:
    """Answers like OpenAI's API: it reads from the cache what begins like an earlier request."""

    def __init__(self, text: str) -> None:
        self._seen: list[str] = []
        self._text = text

    def __call__(self, handler: Any, body: Payload) -> None:
        items = body.get("messages") or [{"system": body.get("instructions")}, *body["input"]]
        whole = json.dumps(body.get("tools", [])) + "".join(map(json.dumps, items))
        common = max((_common(whole, one) for one in self._seen), default=0) // 512 * 128
        self._seen.append(whole)
        counts = {"cached_tokens": common if common >= 1024 else 0}
        size, said = len(whole) // 4, self._text
        if "messages" in body:
            usage = {"prompt_tokens": size, "prompt_tokens_details": counts, "completion_tokens": 9}
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            answer: Payload = {"id": "c1", "model": "gpt-real-1", "choices": [choice], "usage": usage}
        else:
            usage = {"input_tokens": size, "input_tokens_details": counts, "output_tokens": 9}
            output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}]
            answer = {"id": "r1", "model": "gpt-real-1", "status": "completed", "output": output, "usage": usage}
        handler.send(200, json.dumps(answer).encode())


def _common(one: str, other: str) -> int:
    sizes = range(1, min(len(one), len(other)) + 1)
    return bisect_left(sizes, True, key=lambda size: one[:size] != other[:size])
