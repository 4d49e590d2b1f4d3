"""Finds the texts of a message that a model reads, and estimates the tokens of everything that is not text.

A message takes three tokens for its role and its structure, and one more for a name. The module reads contents, names,
arguments, inputs, outputs, results, reasoning, titles, URLs, and the ids of calls inside the content. It skips fields
around the content, such as the role, id, status, usage and `tool_call_id`, and also cache breakpoints, citations and
annotations. JSON inputs and values of unknown shape are counted as compact JSON. In values of unknown shape, `media`
counts base64. Thinking and reasoning are counted by their text. If their encrypted form is longer, the difference is
added.
"""

from __future__ import annotations

import json
from typing import Any

from compaction_store.messages.parts import row_of
from compaction_store.models import Payload
from compaction_store.tokens import media

MESSAGE = 3
NAME = 1

# The input of a call is arbitrary JSON, so a "type" inside it has no meaning here.
_JSON_FIELDS = frozenset({"input", "arguments", "tools"})
_SEALED_FIELDS = ("encrypted_content", "encrypted_stdout", "signature")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MESSAGE = ("content", "refusal", "audio", "tool_calls", "function_call", *_REASONING)
_MEDIA_TYPES = ("media_type", "mime_type", "mediaType", "mimeType")
_DATA = ("data", "image", "image_url", "file_data", "url", "file_url", "video_url", "bytes", "blob")

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def read(message: Payload) -> tuple[list[str], int]:
    """Returns the texts to count, and the tokens to add to their sum."""
    content = message.get("content")
    if type(content) is str and len(message) == 2 and "role" in message:  # noqa: PLR2004 — role and content
        return [content], MESSAGE
    reading = _Reading()
    reading.message(message)
    return reading.texts, reading.tokens


class _Reading:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = MESSAGE

    def message(self, message: Payload) -> None:
        if message.keys() <= {"role"}:
            return
        if message.keys().isdisjoint(_MESSAGE) or ("role" not in message and _kind(message) not in {"", "message"}):
            self._block(message)
        else:
            self._value(message.get("content"))
            self._value(message.get("refusal"))
            if isinstance(audio := message.get("audio"), dict):
                self._file({**audio, "type": "audio"})
            # Read only the first of these fields, because the same reasoning often occurs under two names.
            self._value(next((message[field] for field in _REASONING if message.get(field)), None))
            if "name" in message:
                self.tokens += NAME
                self._value(message["name"])
            calls = message.get("tool_calls")
            for call in calls if isinstance(calls, list) else [calls]:
                self._call(call)
            self._function(message.get("function_call"))

    def _value(self, value: Any) -> None:
        """Reads a content, which may be a text, a block, a list of these, or None."""
        if isinstance(value, str):
            self.texts.append(value)
        elif isinstance(value, dict):
            self._block(value)
        elif isinstance(value, list):
            for item in value:
                self._value(item)
        elif value is not None:
            self._json(value)

    def _json(self, value: Any) -> None:
        if isinstance(value, str):
            self.texts.append(value)
        elif value is not None:
            self.texts.append(_JSON.encode(value))

    def _call(self, call: Any) -> None:
        """Reads a call of OpenAI's chat API. Its name and arguments are in a field that is named like its type."""
        function = call.get(_kind(call) or "function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            self._value(call.get("id"))
            self._value(call.get("type"))
            self._function(function)
        else:
            self._value(call)

    def _function(self, function: Any) -> None:
        if isinstance(function, dict):
            self._value(function.get("name"))
            self._json(function.get("arguments"))
            self._json(function.get("input"))

    def _block(self, block: dict[str, Any]) -> None:
        kind = row_of(block)
        if kind.reads is not None:
            self._known(block, kind.reads)
        elif kind.name == "document":
            self._document(block)
        elif kind.media == "image":
            self._image(block)
        elif kind.media is not None:
            self._file(block)
        elif kind.name == "redacted_thinking":
            self.tokens += media.sealed(str(block.get("data")))
        elif kind.name == "image_generation_call":
            self.tokens += media.image(block.get("result"))
        else:
            self.texts.append(_JSON.encode(self._bare(block)))

    def _known(self, block: dict[str, Any], fields: tuple[str, ...]) -> None:
        before = len(self.texts)
        for field in fields:
            add = self._json if field in _JSON_FIELDS else self._value
            add(block.get(field))
        for field in _SEALED_FIELDS:
            if isinstance(block.get(field), str):
                shown = sum(len(text) for text in self.texts[before:])
                self.tokens += media.sealed(block[field], shown)

    def _image(self, block: dict[str, Any]) -> None:
        data = _data(block)
        detail = data.get("detail") if isinstance(data, dict) else block.get("detail")
        self.tokens += media.image(_data(data) if isinstance(data, dict) else data, detail)

    def _file(self, block: dict[str, Any]) -> None:
        """Counts a file, audio or video. OpenAI's formats have the content in a field named after the block's type."""
        inner = block.get(_kind(block))
        held = inner if isinstance(inner, dict) else block
        self._value(held.get("filename"))
        if isinstance(held.get("transcript"), str):
            self._value(held["transcript"])
            return
        kind = _media_type(held) or ("audio/*" if "audio" in _kind(block) else None)
        self.tokens += media.file(_data(held), kind)

    def _document(self, block: dict[str, Any]) -> None:
        self._value(block.get("title"))
        self._value(block.get("context"))
        source = block.get("source")
        if not isinstance(source, dict):
            self.tokens += media.UNSEEN
        elif source.get("type") == "content":
            self._value(source.get("content"))
        elif source.get("type") == "text":
            self._value(source.get("data"))
        else:
            self.tokens += media.file(source.get("data"), _media_type(source))

    def _bare(self, value: Any) -> Any:
        """Returns a value with null in place of base64, and adds the tokens of the base64."""
        if isinstance(value, str):
            found = media.found_in(value)
            self.tokens += found or 0
            return value if found is None else None
        if isinstance(value, list):
            return [self._bare(item) for item in value]
        if not isinstance(value, dict):
            return value
        if row_of(value).media == "image" and _data(value) is not None:
            self._image(value)
            return None
        bare = {}
        for field, item in value.items():
            if isinstance(item, str) and field in _SEALED_FIELDS:
                self.tokens += media.sealed(item)
            elif isinstance(item, str) and field in _DATA and (kind := _media_type(value)):
                self.tokens += media.file(item, kind)
            else:
                bare[field] = self._bare(item)
        return bare


def _kind(block: dict[str, Any]) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _data(block: dict[str, Any]) -> Any:
    """Returns the base64, data URL, URL or id of an image or a file. It may be in an inner object."""
    source = block.get("source")
    if isinstance(source, dict):
        return _data(source)
    return next((block[field] for field in _DATA if block.get(field) is not None), None)


def _media_type(block: dict[str, Any]) -> str | None:
    return next((block[field] for field in _MEDIA_TYPES if isinstance(block.get(field), str)), None)
