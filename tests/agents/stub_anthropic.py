"""A stub of Anthropic's Messages API. It answers by words in the last message of the user, and keeps every request.

`requests` has the body of each request by the id of the reply that it got. It is what the tests compare with.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USAGE = {"output_tokens": 50, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
# What a prompt may ask for: the name of a tool and its input.
_CALLS = {
    "RUN-SLOW": ("Bash", {"command": "echo slow-tool-ran; sleep 3", "description": "waits"}),
    "RUN-TWICE": ("Bash", {"command": "echo second-tool-ran", "description": "echoes"}),
    "RUN-TOOL": ("Bash", {"command": "echo tool-ran", "description": "echoes"}),
    "READ-FILE": ("Read", {"file_path": "notes.txt"}),
    "ASK-AGENT": ("Agent", {
        "description": "look it up", "prompt": "RUN-TOOL and report", "subagent_type": "general-purpose",
        "run_in_background": False,
    }),
}  # fmt: skip
_ASKED = re.compile("|".join(_CALLS))
# Any tool may be asked for with its input as JSON.
_NAMED = re.compile(r"CALL (\w+) (\{.*\})")


class Stub:
    """The server. `url` is its address; `requests` are the bodies by the id of the reply, in order."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        stub = self

        class Handler(_Handler):
            def answer(self, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
                reply = f"msg_stub{next(stub._numbers):06d}"
                stub.requests[reply] = body
                return reply, _content(body, reply)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else " ".join(block.get("text", "") for block in content)


def _content(body: dict[str, Any], reply: str) -> list[dict[str, Any]]:
    """Returns the blocks of a reply: a summary if one is asked for, the calls that the user asked for, or text."""
    messages = body.get("messages") or []
    users = [message for message in messages if message.get("role") == "user"]
    last = json.dumps(users[-1].get("content")) if users else ""
    if "detailed summary" in last:
        text = f"<analysis>all of it</analysis><summary>{reply}: the user asked about orders.</summary>"
        return [{"type": "text", "text": text}]
    has_tools = {tool.get("name") for tool in body.get("tools") or []}
    said = [] if "tool_result" in last else list(dict.fromkeys(_ASKED.findall(last.rpartition("system-reminder>")[2])))
    calls = [_CALLS[name] for name in said]
    if "tool_result" not in last and (named := _NAMED.search(_text(users[-1]) if users else "")):
        calls.append((named[1], json.loads(named[2])))
    blocks: list[dict[str, Any]] = []
    if calls:
        blocks.append({"type": "text", "text": f"{reply}: I look."})
    for number, (name, given) in enumerate(calls):
        if name in has_tools or not has_tools:
            blocks.append({"type": "tool_use", "id": f"toolu_{reply[4:]}{number}", "name": name, "input": given})
    return blocks or [{"type": "text", "text": f"{reply}: done, it is 17 €. " + "More words about the order. " * 12}]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing."""

    def do_GET(self) -> None:
        self._json({"data": []})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if "count_tokens" in self.path:
            self._json({"input_tokens": len(raw) // 4})
        elif "/messages" in self.path:
            self._reply(raw)
        else:
            self._json({})

    def _reply(self, raw: bytes) -> None:
        body = json.loads(raw)
        reply, content = self.answer(body)
        head = {
            "id": reply, "type": "message", "role": "assistant", "model": body.get("model"), "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": len(raw) // 4, **_USAGE},
        }  # fmt: skip
        stop = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
        if not body.get("stream"):
            self._json({**head, "content": content, "stop_reason": stop})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self._event("message_start", message=head)
        for index, block in enumerate(content):
            if block["type"] == "text":
                self._event("content_block_start", index=index, content_block={"type": "text", "text": ""})
                delta = {"type": "text_delta", "text": block["text"]}
            else:
                self._event("content_block_start", index=index, content_block={**block, "input": {}})
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            self._event("content_block_delta", index=index, delta=delta)
            self._event("content_block_stop", index=index)
        self._event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 50})
        self._event("message_stop")
        self.close_connection = True

    def _event(self, name: str, **data: Any) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode())
        self.wfile.flush()

    def _json(self, found: Any) -> None:
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
