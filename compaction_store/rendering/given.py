"""Handles the parts of a request that the caller adds to the view: the tools and the system prompt.

These parts are not stored. The receipt of a reply has a hash of each, which is the SHA-256 of its canonical JSON.
`docs/compaction.md` defines the canonical JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.errors import InvalidInput
from compaction_store.messages import encoding
from compaction_store.models import Payload

System = str | Sequence[Mapping[str, Any]]


def digest(value: Any) -> str:
    """Returns the hash of a part of a request, such as the tools, in the form that a receipt has."""
    return sha256(encoding.canonical(value).encode()).hexdigest()


def tools_of(tools: object) -> list[Any] | None:
    """Checks the tools of a request and returns them as plain JSON. Objects of SDKs are converted."""
    return None if tools is None else _objects(tools, "tools", "a list of JSON objects")


def system_of(system: object) -> str | list[Any] | None:
    """Checks the system prompt of a request and returns it as plain JSON."""
    if system is None or isinstance(system, str):
        return system
    return _objects(system, "system", "text or a list of JSON objects")


def _objects(value: object, name: str, kind: str) -> list[Any]:
    found: list[Any] | None = encoding.plain(list(value)) if isinstance(value, list | tuple) else None
    if found is None or not all(type(item) is dict for item in found):
        given = "" if isinstance(value, list | tuple) else f", not {type(value).__name__}"
        raise InvalidInput(f"{name} must be {kind}{given}")
    return found


class Place(NamedTuple):
    """Functions that add a system prompt to a request to an API, and that remove it again.

    `take` returns the request without the prompt, or None if the caller has changed or removed the prompt.
    """

    put: Callable[[Payload, Any], Payload]
    take: Callable[[Payload, Any], Payload | None]


def _put_first(request: Payload, system: Any) -> Payload:
    """Adds a prompt before the system messages of the view."""
    own = request.get("system")
    return {**request, "system": system if own is None else [*_blocks(system), *_blocks(own)]}


def _take_first(request: Payload, system: Any) -> Payload | None:
    found, blocks = _blocks(request.get("system", [])), _blocks(system)
    if found[: len(blocks)] != blocks:
        return None
    own = found[len(blocks) :]
    is_text = len(own) == 1 and own[0].keys() == {"type", "text"}
    return _without(request, "system") | ({"system": own[0]["text"] if is_text else own} if own else {})


def _blocks(system: Any) -> list[Any]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}]
    return list(system) if isinstance(system, list) else [system]


def _put_message(request: Payload, system: Any) -> Payload:
    return {**request, "messages": [{"role": "system", "content": system}, *request["messages"]]}


def _take_message(request: Payload, system: Any) -> Payload | None:
    messages = request.get("messages")
    if not isinstance(messages, list) or messages[:1] != [{"role": "system", "content": system}]:
        return None
    return {**request, "messages": messages[1:]}


def _put_instructions(request: Payload, system: Any) -> Payload:
    if not isinstance(system, str):
        raise InvalidInput(f"system must be text for Responses, not {type(system).__name__}")
    return {**request, "instructions": system}


def _take_instructions(request: Payload, system: Any) -> Payload | None:
    return _without(request, "instructions") if request.get("instructions") == system else None


def _without(request: Payload, removed: str) -> Payload:
    return {name: value for name, value in request.items() if name != removed}


ANTHROPIC = Place(_put_first, _take_first)
OPENAI_CHAT = Place(_put_message, _take_message)
OPENAI_RESPONSES = Place(_put_instructions, _take_instructions)
