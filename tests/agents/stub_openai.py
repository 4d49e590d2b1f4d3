"""A stub of OpenAI's Responses API for the Codex CLI, which keeps each body that it received."""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Self


@dataclass
class StubOpenAI:
    """Answers with the planned items in order, and then with a text. `usage` is what each answer says it took."""

    planned: deque[dict[str, Any]] = field(default_factory=deque)
    usage: int = 1000
    #: The path and the body of each request, in order.
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def __enter__(self) -> Self:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._json({"data": [], "models": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
                stub.requests.append((self.path, body))
                self._stream(stub.answer(body))

            def _json(self, found: dict[str, Any]) -> None:
                sent = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def _stream(self, item: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                response = f"resp_{next(stub.numbers):04}"
                used = {
                    "input_tokens": stub.usage, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 50,
                    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": stub.usage + 50,
                }  # fmt: skip
                for kind, event in (
                    ("response.created", {"response": {"id": response}}),
                    ("response.output_item.done", {"output_index": 0, "item": item}),
                    ("response.completed", {"response": {"id": response, "usage": used}}),
                ):
                    data = json.dumps({"type": kind, **event})
                    self.wfile.write(f"event: {kind}\ndata: {data}\n\n".encode())
                self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["input"][-1]["type"] == "compaction_trigger":
            # A provider of the name OpenAI compacts itself, into an item that nobody else can read.
            return {"type": "compaction", "encrypted_content": "b3BhcXVl"}
        if not body.get("tools"):
            # Of any other provider, Codex asks for a summary, without tools.
            return self.text(f"Summary {next(self.numbers)}: A-17 is late.")
        if self.planned:
            return self.planned.popleft()
        return self.text(f"Reply {next(self.numbers)}.")

    def text(self, text: str) -> dict[str, Any]:
        return {
            "type": "message", "id": f"msg_{next(self.numbers)}", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }  # fmt: skip

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return {
            "type": "function_call", "id": f"fc_{next(self.numbers)}", "call_id": f"call_{next(self.numbers)}",
            "name": name, "arguments": json.dumps(arguments), "status": "completed",
        }  # fmt: skip
