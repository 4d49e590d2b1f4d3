"""A local server with the parts of the Messages API that a summarizer needs. Each test chooses its answers."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from compaction_store.models import Element
from compaction_store.models.messages import shown

Payload = dict[str, Any]
Behaviour = Callable[["Handler", Payload], None]
USAGE = {"input_tokens": 90, "output_tokens": 9, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 1}
SPENT = {
    "type": "compaction", "input_tokens": 800, "output_tokens": 20, "cache_creation": None,
    "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
}  # fmt: skip
BLOCK: dict[str, Any] = {
    "type": "compaction", "content": "They agreed on Tuesday.", "encrypted_content": None, "signature": "c2lnbmVk",
    "tool_changes": [], "of_a_later_version": 1,
}  # fmt: skip
SOURCE = "We should meet. Would Tuesday at 14:30 do, in room B-17, as it did last time? " * 12


def elements(*payloads: Payload | None) -> tuple[Element, ...]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return tuple(Element(i, i, i, (shown(p),), len(str(p)) // 4, None, now) for i, p in enumerate(payloads, 1))


def talk(count: int = 4, said: str = SOURCE) -> tuple[Element, ...]:
    return elements(*[{"role": "user" if i % 2 else "assistant", "content": said} for i in range(1, count + 1)])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # With Nagle's algorithm, the body would wait 40 ms until the client has acknowledged the headers.
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection, 1)

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.server.opened(self.connection, -1)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the name in the base class
        """Logs nothing."""

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(sent)
        if self.path.partition("?")[0].endswith("/count_tokens"):
            self.server.counted.append(body)
            self.server.counting(self, body)
            return
        self.server.bodies.append(sent)
        self.server.requests.append(body)
        self.server.headers.append(dict(self.headers))
        self.server.paths.append(self.path)
        self.server.next()(self, body)

    def send(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("request-id", "req_test1")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin(self, kind: str) -> None:
        """Begins a response whose body has an unknown length and is written in pieces."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    """Runs the given behaviours in order, and repeats the last one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Payload] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.behaviours: list[Behaviour] = [says("They will meet on Tuesday.")]
        self.counted: list[Payload] = []
        self.counting: Behaviour = counts()
        self.stopped = threading.Event()
        self._connections: set[int] = set()
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def does(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)

    def next(self) -> Behaviour:
        return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]

    def opened(self, connection: socket.socket, change: int) -> None:
        with self._changed:
            (self._connections.add if change > 0 else self._connections.discard)(id(connection))
            self._changed.notify_all()

    def all_closed(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._connections, timeout=10)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of clients that have gone."""


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


def message(*content: Payload, reason: str | None = "end_turn", usage: Payload | None = None) -> Payload:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-real-1", "content": list(content),
        "stop_reason": reason, "stop_sequence": None, "usage": usage or USAGE,
    }  # fmt: skip


def events(whole: Payload) -> list[Payload]:
    told: list[Payload] = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for index, block in enumerate(whole["content"]):
        told.append({"type": "content_block_start", "index": index, "content_block": {**block, "text": ""}})
        for start in range(0, len(block["text"]), 7):
            delta = {"type": "text_delta", "text": block["text"][start : start + 7]}
            told.append({"type": "content_block_delta", "index": index, "delta": delta})
        told.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    told.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": whole["usage"]["output_tokens"]}})
    told.append({"type": "message_stop"})
    return told


def sse(event: Payload) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def answers(whole: Payload) -> Behaviour:
    def behave(handler: Handler, body: Payload) -> None:
        if body.get("stream"):
            handler.send(200, b"".join(map(sse, events(whole))), "text/event-stream")
        else:
            handler.send(200, json.dumps(whole).encode())

    return behave


def says(text: str, reason: str | None = "end_turn") -> Behaviour:
    return answers(message({"type": "text", "text": text}, reason=reason))


def taken(body: Payload) -> int:
    """Counts the tokens of a request: one token for every three characters."""
    return len(json.dumps([body.get(part) for part in ("system", "messages", "tools")])) // 3


def counts(answer: Callable[[Payload], Any] = taken) -> Behaviour:
    """Answers with the number of tokens of a request."""
    return lambda handler, body: handler.send(200, json.dumps({"input_tokens": answer(body)}).encode())


def fails(status: int, kind: str, said: str = "no", **headers: str) -> Behaviour:
    error = {"type": "error", "error": {"type": kind, "message": said}}
    return lambda handler, _body: handler.send(status, json.dumps(error).encode(), **headers)


def cuts(handler: Handler, body: Payload) -> None:
    """Closes the connection in the middle of an answer."""
    whole = message({"type": "text", "text": "They will"})
    if body.get("stream"):
        handler.begin("text/event-stream")
        handler.wfile.write(b"".join(map(sse, events(whole)[:3])) + b"event: content_bl")
    else:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"id": "ms')
    handler.wfile.flush()
    handler.cut()


def ends_early(handler: Handler, _body: Payload) -> None:
    """Ends the stream correctly, but before the answer is complete."""
    handler.send(200, b"".join(map(sse, events(message({"type": "text", "text": "Th"}))[:3])), "text/event-stream")


def errs_in_stream(handler: Handler, _body: Payload) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "secret"}}
    begun = events(message({"type": "text", "text": "They"}))[:3]
    handler.send(200, b"".join(map(sse, [*begun, error])), "text/event-stream")


def drips(handler: Handler, body: Payload) -> None:
    """Sends small pieces of an answer that never ends."""
    streams = bool(body.get("stream"))
    handler.begin("text/event-stream" if streams else "application/json")
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "and "}}
    with suppress(OSError):
        if streams:
            handler.wfile.write(b"".join(map(sse, events(message({"type": "text", "text": "x"}))[:2])))
        while not handler.server.stopped.is_set():
            handler.wfile.write(sse(delta) if streams else b" ")
            time.sleep(0.02)


def hangs(handler: Handler, _body: Payload) -> None:
    """Sends nothing until the client has closed the connection."""
    handler.close_connection = True
    with suppress(OSError):
        while not handler.server.stopped.is_set() and not select.select([handler.connection], [], [], 0.02)[0]:
            pass


def holds_up_to(characters: int, text: str = "Notes.") -> Behaviour:
    """Behaves like a model with a window of `characters`."""

    def behave(handler: Handler, body: Payload) -> None:
        content = body["messages"][0]["content"]
        if len(content) > characters:
            fails(400, "invalid_request_error", f"prompt is too long: {len(content)} tokens > {characters} maximum")(
                handler, body
            )
        else:
            says(text)(handler, body)

    return behave


def compacts(block: Payload = BLOCK, reason: str = "compaction") -> Behaviour:
    usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [SPENT]}
    return answers(message(block, reason=reason, usage=usage))
