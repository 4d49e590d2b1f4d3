"""Reads streamed answers of OpenAI's APIs as if they had come in one piece.

Some servers only stream, whatever a request asks for, so an answer is recognized as a stream by its first line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from compaction_store.models import Payload
from compaction_store.summarizers.retries import AnsweredError, Interrupted

_STARTS = (b"data:", b"event:", b"id:", b":")
_DONE = "[DONE]"
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def is_stream(body: bytes) -> bool:
    return body.lstrip().startswith(_STARTS)


def completion(body: bytes) -> Payload:
    """Returns the chat completion of a stream.

    Raises AnsweredError if the stream has an error, and Interrupted if it ended before the answer.
    """
    whole: Payload = {}
    texts: list[str] = []
    refusals: list[str] = []
    reason = usage = None
    is_done = False
    for event in _events(body):
        if event == _DONE:
            is_done = True
            continue
        chunk = _object(event)
        if error := _object(chunk.get("error")):
            raise AnsweredError(error)
        whole = whole or {name: chunk.get(name) for name in ("id", "model")}
        usage = chunk.get("usage") or usage
        for choice in map(_object, _list(chunk.get("choices"))):
            if choice.get("index") in (0, None):
                if error := _object(choice.get("error")):
                    raise AnsweredError(error)
                delta = _object(choice.get("delta"))
                texts += _texts(delta.get("content"))
                refusals += _texts(delta.get("refusal"))
                reason = choice.get("finish_reason") or reason
    if reason is None and not is_done:
        raise Interrupted
    message = {"content": "".join(texts), "refusal": "".join(refusals) or None}
    return {**whole, "usage": usage, "choices": [{"message": message, "finish_reason": reason}]}


def response(body: bytes) -> Payload:
    """Returns the response at the end of a stream.

    Raises AnsweredError if the stream has an error, and Interrupted if it ended before the response.
    """
    for event in _events(body):
        given = _object(event)
        if given.get("type") in _ENDS:
            return _object(given.get("response"))
        if given.get("type") == "error":
            raise AnsweredError(_object(given.get("error")) or given)
    raise Interrupted


def _events(body: bytes) -> Iterator[Any]:
    """Yields the data of each event: JSON, or the mark of the end. Ends at data that was cut off."""
    for line in body.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition(":")
        text = value.strip()
        if name != "data" or not text:
            continue
        if text == _DONE:
            yield text
            continue
        try:
            yield json.loads(text)
        except ValueError:
            return


def _texts(given: Any) -> list[str]:
    """Returns a text, or the texts of parts."""
    if isinstance(given, list):
        return [part["text"] for part in map(_object, given) if isinstance(part.get("text"), str)]
    return [given] if isinstance(given, str) else []


def _object(given: Any) -> Payload:
    return given if isinstance(given, dict) else {}


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []
