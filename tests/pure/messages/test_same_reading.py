"""How messages of every kind are read: their pairs, texts, tokens, probes, cuts and requests are the same as ever.

`parts-1.jsonl` has messages with nearly every type of part, and threads, each with the hashes of what is read. They may
change only if a renderer gets a new name, or if a change of what is counted or probed is meant. To write them anew, run
this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from compaction_store.errors import NotRenderable
from compaction_store.messages import tool_pairs
from compaction_store.messages.parts import PARTS
from compaction_store.models import Payload
from compaction_store.probes.speech import MessageReading
from compaction_store.rendering import View, for_anthropic, for_openai
from compaction_store.strategies.contents import contents_of
from compaction_store.strategies.outline import elements_of, speaker
from compaction_store.tokens.message_text import read

FILE = Path(__file__).parents[2] / "golden" / "parts-1.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def probes(message: Payload) -> Any:
    reading = MessageReading(message)
    return reading.said, reading.calls, reading.results


OF_MESSAGE: dict[str, Callable[[Payload], Any]] = {
    "pairs": tool_pairs.tools, "texts": read, "speaker": speaker, "probes": probes, "contents": contents_of,
}  # fmt: skip


def links(seen: View) -> Any:
    found = tool_pairs.Links(tool_pairs.items_of(seen.elements))
    return found.borders(), sorted(found.pending), sorted(found.orphans)


OF_THREAD: dict[str, Callable[[View], Any]] = {
    "links": links,
    "anthropic": lambda seen: dict(for_anthropic(seen, cache="5m")),
    "chat": lambda seen: dict(for_openai(seen, api="chat")),
    "responses": lambda seen: dict(for_openai(seen, api="responses")),
}


def hashed(make: Callable[[Any], Any], value: Any) -> str:
    try:
        found = json.dumps(make(value))
    except NotRenderable as error:
        found = str(error)
    return sha256(found.encode()).hexdigest()[:12]


def read_anew(case: dict[str, Any]) -> dict[str, str]:
    if "message" in case:
        return {name: hashed(make, case["message"]) for name, make in OF_MESSAGE.items()}
    elements = tuple(elements_of(case["messages"]))
    return {name: hashed(make, View("t", len(elements), elements)) for name, make in OF_THREAD.items()}


def types_in(value: Any) -> set[str]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    kind = value.get("type") if isinstance(value, dict) else None
    return {kind if isinstance(kind, str) else ""}.union(*map(types_in, inside))


@pytest.mark.parametrize("index", range(len(CASES)))
def test_messages_are_read_as_ever(index: int) -> None:
    assert read_anew(CASES[index]) == CASES[index]["read"]


def test_nearly_all_types_of_parts_are_in_the_golden_file() -> None:
    assert len(types_in(CASES) & PARTS.keys()) > 0.9 * len(PARTS)


if __name__ == "__main__":
    lines = [json.dumps(case | {"read": read_anew(case)}, separators=(",", ":")) for case in CASES]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
