"""A fake of the models' APIs, so that the examples run without a key and without a network.

It implements the parts of Anthropic's Messages API and OpenAI's Chat Completions that the examples use. Given tools and
a question, it calls the tool that the question names, or else the first one, with each number in the question in turn;
then it repeats the last result. If a search has found a record, it expands that first. It understands nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

Json = dict[str, Any]

_ids = count(1)
_NOTES = "- The customer asked where orders are.\n- Each was looked up, and the customer was told."
_USAGE = {"input_tokens": 100, "output_tokens": 20}
_LONGEST = 400


def start() -> str:
    """Starts a server that runs until the process ends. Returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def serving() -> Iterator[str]:
    """Runs a server until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; the second would wait 40 ms for the client to acknowledge the first.
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.partition("?")[0] == "/v1/messages/count_tokens":
            return self._send(json.dumps({"input_tokens": len(json.dumps(request["messages"])) // 4}).encode())
        if self.path.startswith("/v1/messages"):
            answer = message(request)
            if request.get("stream"):
                return self._send(_events(answer), "text/event-stream")
            return self._send(json.dumps(answer).encode())
        if self.path.endswith("/chat/completions"):
            return self._send(json.dumps(_completion(request)).encode())
        return self.send_error(404)

    def _send(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the base class's name
        """Logs nothing."""


def message(request: Json) -> Json:
    """Returns an answer of the Messages API."""
    if "compaction" in request:
        return _compaction(request)
    asked, results = _since_the_question(request["messages"])
    numbers = re.findall(r"\d+", asked) or [""]
    content: list[Json]
    if not request.get("tools"):
        content = [{"type": "text", "text": _NOTES}]
    elif results and (found := re.search(r'"folded_into_record":(\d+)', results[-1])):
        content = [_call("recall_expand", {"record": int(found[1]), "max_tokens": 500})]
    elif len(results) >= len(numbers):
        content = [{"type": "text", "text": f"I looked it up. {results[-1]}"[:_LONGEST]}]
    else:
        tool = next((tool for tool in request["tools"] if tool["name"] in asked), request["tools"][0])
        content = [_call(tool["name"], _arguments(tool["input_schema"], numbers[len(results)] or asked))]
    reason = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
    return {
        "id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": request["model"],
        "content": content, "stop_reason": reason, "stop_sequence": None, "usage": _USAGE,
    }  # fmt: skip


def _since_the_question(messages: list[Json]) -> tuple[str, list[str]]:
    """Returns the user's last question, and the tool results since."""
    results: list[str] = []
    for turn in reversed(messages):
        content = turn["content"]
        blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results[:0] = [_text(block["content"]) for block in blocks if block["type"] == "tool_result"]
        said: list[str] = [block["text"] for block in blocks if block["type"] == "text"]
        if said and turn["role"] == "user":
            return said[-1], results
    return "", results


def _call(name: str, given: Json) -> Json:
    return {"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": name, "input": given}


def _compaction(request: Json) -> Json:
    """Returns an answer of the API's own compaction: one signed block, with its usage listed separately."""
    block: Json = {
        "type": "compaction", "content": _NOTES, "encrypted_content": None, "signature": f"c2lnbmVk{next(_ids)}",
        "tool_changes": [],
    }  # fmt: skip
    usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [{"type": "compaction", **_USAGE}]}
    return {
        "id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": request["model"],
        "content": [block], "stop_reason": "compaction", "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def _completion(request: Json) -> Json:
    """Returns an answer of Chat Completions."""
    last = request["messages"][-1]
    message: Json = {"role": "assistant", "content": None}
    if not request.get("tools"):
        message["content"] = _NOTES
    elif last["role"] == "tool":
        message["content"] = f"I looked it up. {_text(last['content'])}"
    else:
        function = request["tools"][0]["function"]
        given = json.dumps(_arguments(function["parameters"], _text(last["content"])))
        call = {"name": function["name"], "arguments": given}
        message["tool_calls"] = [{"id": f"call_{next(_ids)}", "type": "function", "function": call}]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl_{next(_ids)}", "object": "chat.completion", "created": 0, "model": request["model"],
        "choices": [{"index": 0, "finish_reason": reason, "message": message}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }  # fmt: skip


def _arguments(schema: Json, asked: str) -> Json:
    number = re.search(r"\d+", asked)
    found: dict[str, Any] = {"integer": int(number[0]) if number else 0, "string": number[0] if number else asked}
    return {name: found.get(schema["properties"][name]["type"]) for name in schema["required"]}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _events(whole: Json) -> bytes:
    """Returns the same answer as a stream of events."""
    begun = whole | {"content": [], "stop_reason": None}
    events: list[Json] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(whole["content"]):
        # The examples stream only summaries, which are text.
        events += [
            {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": block["text"]}},
            {"type": "content_block_stop", "index": index},
        ]
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)
