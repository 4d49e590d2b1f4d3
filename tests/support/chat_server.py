"""Answers of a local server with OpenAI's APIs: chat completions, streamed or whole, and responses."""

from __future__ import annotations

import json
from typing import Any

from support.messages_server import Behaviour, Handler, Payload

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


def answers(message: Payload, reason: str = "stop", *more: Payload) -> Behaviour:
    """Answers a chat completion with a message, and with `more` messages as further choices.

    If the request asks for a stream, the content of the first message is streamed word by word.
    """

    def behave(handler: Handler, body: Payload) -> None:
        about = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": body["model"]}
        if not body.get("stream"):
            choices = [
                {"index": place, "message": {"role": "assistant", **each}, "finish_reason": reason}
                for place, each in enumerate((message, *more))
            ]
            whole = {**about, "object": "chat.completion", "choices": choices, "usage": USAGE}
            handler.send(200, json.dumps(whole).encode())
            return
        words = message["content"].split(" ")
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": word if n == 0 else f" {word}"} for n, word in enumerate(words)]
        parts: list[Payload] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        parts.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        parts.append({"choices": [], "usage": USAGE})
        chunks = [{**about, "object": "chat.completion.chunk", **part} for part in parts]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        handler.send(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    return behave


def says(text: str, *more: str) -> Behaviour:
    return answers({"content": text}, "stop", *({"content": each} for each in more))


def breaks_off(text: str) -> Behaviour:
    """Sends a text, and then closes the connection in the middle of the stream."""

    def behave(handler: Handler, body: Payload) -> None:
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        about = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": body["model"]}
        chunk = {**about, "object": "chat.completion.chunk", "choices": [choice]}
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", "5000")
        handler.end_headers()
        handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        handler.close_connection = True

    return behave


def calls(name: str, **given: Any) -> Behaviour:
    """Answers with a tool call."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
    return answers({"content": None, "tool_calls": [call]}, "tool_calls")


def responds(text: str) -> Behaviour:
    """Answers a request of the Responses API."""

    def behave(handler: Handler, body: Payload) -> None:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        usage = {
            "input_tokens": 12, "output_tokens": 3, "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
        whole = {
            "id": "resp_1", "object": "response", "created_at": 1_790_000_000, "model": body["model"],
            "status": "completed", "output": [item], "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto",
            "tools": [], "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "temperature": 1.0, "top_p": 1.0, "max_output_tokens": None, "previous_response_id": None,
            "reasoning": None, "text": None, "truncation": "disabled", "user": None,
        }  # fmt: skip
        handler.send(200, json.dumps(whole).encode())

    return behave


def fails(status: int) -> Behaviour:
    error = {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}
    return lambda handler, _body: handler.send(status, json.dumps(error).encode())
