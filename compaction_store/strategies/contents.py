"""Finds and replaces the parts of a message that can be shortened, in the format of every supported API.

Such a part is a `Content`: plain text, the JSON of a call's input, a picture or file, or thinking. Everything else is
kept, such as ids, names, encrypted content and the results of a provider's web search. Messages are never altered in
place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from compaction_store.messages.parts import PartType, row_of
from compaction_store.models import Payload

ContentKind = Literal["text", "input", "arguments", "media", "thinking"]

# The text fields of parts that have no type.
_BARE = ("stdout", "stderr", "text")
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


class Content(NamedTuple):
    """A part of a message that can be shortened. `value` is a text, the JSON value of an input, or a whole block."""

    kind: ContentKind
    value: Any


# A function that returns the new value of a content: the same object to keep it, or None to drop a thinking block.
Exchange = Callable[[Content], Any]


def compact(value: Any) -> str:
    return _JSON.encode(value)


def exchanged(message: Payload, exchange: Exchange) -> Payload:
    """Returns the message with the result of `exchange` for each content, or the same object if none changed."""
    kind = message.get("type")
    if "role" not in message and isinstance(kind, str):
        return _block(message, exchange)
    return _fields(
        message, exchange, {"content": _value, "refusal": _value, "tool_calls": _calls, "function_call": _function}
    )


def contents_of(message: Payload) -> list[Content]:
    """Returns all contents that can be exchanged, in order."""
    found: list[Content] = []

    def look(piece: Content) -> Any:
        found.append(piece)
        return piece.value

    exchanged(message, look)
    return found


def _fields(holder: Payload, exchange: Exchange, how: dict[str, Callable[[Any, Exchange], Any]]) -> Payload:
    copy: Payload | None = None
    for field, change in how.items():
        if (value := holder.get(field)) is not None and (new := change(value, exchange)) is not value:
            copy = dict(holder) if copy is None else copy
            copy[field] = new
    return holder if copy is None else copy


def _value(value: Any, exchange: Exchange) -> Any:
    """Exchanges a text, a block, or a list of blocks."""
    if isinstance(value, dict):
        return _block(value, exchange)
    return _each(value, exchange, _block_in_list) if isinstance(value, list) else _text(value, exchange)


def _each(value: Any, exchange: Exchange, change: Callable[[Any, Exchange], Any]) -> Any:
    if not isinstance(value, list):
        return value
    new = [change(item, exchange) if isinstance(item, dict) else item for item in value]
    if all(a is b for a, b in zip(new, value, strict=True)):
        return value
    # Keep the thinking of a message that has nothing else.
    return [item for item in new if item is not None] or value


def _block_in_list(block: Payload, exchange: Exchange) -> Payload | None:
    kind = row_of(block)
    if kind.is_thinking and kind.anthropic is not None:
        return None if exchange(Content("thinking", block)) is None else block
    return _block(block, exchange)


def _block(block: Payload, exchange: Exchange) -> Payload:
    if block.get("type") is None:
        # Parts of a shell's output and of a file search have no type.
        return _fields(block, exchange, dict.fromkeys(_BARE, _text))
    kind = row_of(block)
    if kind.name == "document":
        return _document(block, exchange)
    if kind.media is not None:
        return _media(block, exchange)
    new = _fields(block, exchange, {field: _how(kind, field) for field in kind.cuts})
    if kind.text is not None and new is not block:
        # The positions of the citations of a changed text would be wrong.
        new.pop("citations", None)
        if "annotations" in new:
            new["annotations"] = []
    return new


def _how(kind: PartType, field: str) -> Callable[[Any, Exchange], Any]:
    if field in kind.input:
        return _arguments if field == "arguments" else _input
    return _outputs if field == "outputs" else _value


def _text(value: Any, exchange: Exchange, kind: ContentKind = "text") -> Any:
    return exchange(Content(kind, value)) if isinstance(value, str) and value else value


_arguments = partial(_text, kind="arguments")


def _media(block: Payload, exchange: Exchange) -> Payload:
    new = exchange(Content("media", block))
    if isinstance(new, str):
        prefix = "input_" if str(block.get("type")).startswith("input_") and "input_audio" not in block else ""
        return {"type": f"{prefix}text", "text": new}
    return block


def _output(block: Payload, exchange: Exchange) -> Payload:
    """Exchanges an output of code. Replaces an image with logs, because the API allows only logs and images here."""
    if block.get("type") != "image":
        return _block(block, exchange)
    new = exchange(Content("media", block))
    return {"type": "logs", "logs": new} if isinstance(new, str) else block


_outputs = partial(_each, change=_output)


def _document(block: Payload, exchange: Exchange) -> Payload:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    field = {"text": "data", "content": "content"}.get(kind) if isinstance(kind, str) else None
    if not isinstance(source, dict) or field is None:
        return _media(block, exchange)
    new = _fields(source, exchange, {field: _value})
    return block if new is source else {**block, "source": new}


def _input(value: Any, exchange: Exchange) -> Any:
    """Exchanges the input of a call, which is JSON in Anthropic's API and may be text in those of OpenAI."""
    if isinstance(value, dict):
        return exchange(Content("input", value)) if value else value
    return _text(value, exchange)


def _calls(value: Any, exchange: Exchange) -> Any:
    return _each(value, exchange, partial(_fields, how={"function": _function, "custom": _function}))


def _function(value: Any, exchange: Exchange) -> Any:
    return _fields(value, exchange, {"arguments": _arguments, "input": _text}) if isinstance(value, dict) else value
