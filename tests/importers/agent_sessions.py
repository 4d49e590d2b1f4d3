"""Makes a session file with requests as Claude Code writes them, without the vendor's texts."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

SESSION = "5c0f3a52-6d0e-4b43-9a55-0f6f5a3c9b11"

Line = dict[str, Any]


def hashed(value: Any) -> str:
    """Returns the hash that the program writes. It is written in JavaScript, which writes numbers in another way."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.replace("1e-05", "0.00001").encode()).hexdigest()


def text(role: str, *said: str) -> Line:
    return {"role": role, "content": [{"type": "text", "text": each} for each in said]}


def call(name: str, **given: Any) -> Line:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": given}


def result(name: str, said: str) -> Line:
    return {"type": "tool_result", "tool_use_id": name, "content": said}


SHAPE = {
    "system": [{"type": "text", "text": "You are helpful. 17 €."}],
    "tools": [{"name": "Bash", "input_schema": {}}],
}
FIRST = text("user", "<system-reminder>Sunday</system-reminder>", "Which orders are late?")
CALLED = {
    "role": "assistant",
    "content": [*text("assistant", "I look.")["content"], call("a", least=0.00001), call("b")],
}
RESULTS = {"role": "user", "content": [result("a", "A-17 🙂"), result("b", "B-9")]}
STOP = "<system-reminder>Stop!</system-reminder>"
NOTE = text("user", STOP) | {"role": "system", "output_config": {"effort": "low"}}
DONE = text("assistant", "Two are late.")
SUMMARY = {"role": "user", "content": "This session is continued: A-17 and B-9 are late."}
#: The messages of each request, in the order of the replies' lines.
REQUESTS = [[FIRST], [FIRST, CALLED, RESULTS, NOTE], [SUMMARY, DONE, text("user", "And now?")]]
#: The seqs of the replies in the session's thread, and the number of the request of each.
REPLIES = {2: 0, 3: 0, 5: 0, 8: 1, 11: 2}


def _blob(message: Line) -> Line:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"type": "api-request-blob", "hash": hashed(message | {"content": blocks}), "message": message}


def _request(name: str, tail: list[Line], base: str | None = None, keep: int = 0, source: str = "sdk") -> Line:
    hashes = [_blob(message)["hash"] for message in tail]
    found = {"type": "api-request", "id": name, "querySource": source, "shapeHash": hashed(SHAPE), "tail": hashes}
    return found | ({} if base is None else {"base": base}) | {"keep": keep}


def _reply(block: Line, request: str | None, name: str) -> Line:
    found = {"type": "assistant", "message": {"id": name, "role": "assistant", "content": [block]}}
    return found if request is None else found | {"requestRef": request}


def _said(content: Any, **more: Any) -> Line:
    return {"type": "user", "message": {"role": "user", "content": content}, **more}


def lines() -> list[Line]:
    shape = {"type": "api-request-shape", "shapeHash": hashed(SHAPE), "shape": SHAPE}
    queued = {"type": "queued_command", "prompt": "Stop!"}
    found = [
        _said("Which orders are late?"),
        shape, _blob(FIRST), _request("r1", [FIRST]),
        _reply(CALLED["content"][0], "r1", "m1"), _reply(CALLED["content"][1], "r1", "m1"),
        # A tool may have ended before the reply did.
        _said([result("a", "A-17 🙂")]),
        _reply(CALLED["content"][2], "r1", "m1"), _said([result("b", "B-9")]),
        {"type": "attachment", "attachment": queued, "rendered": [{"content": STOP}]},
        _request("side", [text("user", "A title?")], source="title"),
        _blob(NOTE), _request("r2", [CALLED, RESULTS, NOTE], base="r1", keep=1), _reply(DONE["content"][0], "r2", "m2"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "boundary", "compactMetadata": {"trigger": "manual"}},
        _said(SUMMARY["content"], isCompactSummary=True), _said("And now?"),
        _blob(SUMMARY), _blob(DONE), shape,
        _request("r3", [SUMMARY, DONE, text("user", "And now?")]),
        _reply({"type": "text", "text": "Shipped."}, None, "m3"),
    ]  # fmt: skip
    return [line | {"sessionId": SESSION, "uuid": f"u{number}"} for number, line in enumerate(found)]
