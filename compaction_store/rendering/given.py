"""Handles the tools and the system prompt of a request, which the caller adds to the view.

They are not stored. The receipt of a reply has the SHA-256 of the canonical JSON (`docs/compaction.md`) of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from compaction_store.api_rules.anthropic import marks_in
from compaction_store.errors import InvalidInput
from compaction_store.messages import encoding
from compaction_store.messages.parts import row_of
from compaction_store.models import Payload
from compaction_store.rendering import blocks

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


class Parts(NamedTuple):
    """The parts of a request: the arguments that come from the view, and the tools and the system prompt."""

    rendered: Payload
    tools: Any
    system: Any


class PromptPlace(NamedTuple):
    """The argument that a system prompt is added to, and the function that adds it."""

    name: str
    put: Callable[[Payload, Any], Any]


def _with_own(request: Payload, system: Any) -> Any:
    """Adds a prompt before the system messages of the view."""
    own = request.get("system")
    return system if own is None else [*_blocks(system), *_blocks(own)]


def _blocks(system: Any) -> list[Any]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}]
    return list(system) if isinstance(system, list) else [system]


def _as_message(request: Payload, system: Any) -> Any:
    return [{"role": "system", "content": system}, *request["messages"]]


def _in_first(request: Payload, system: Any) -> Any:
    """Adds a prompt to the first message if that is a system message, because a template may allow only one."""
    first, *rest = _as_message(request, system)
    if rest and rest[0]["role"] == "system":
        return [blocks.both(first, rest[0], "text"), *rest[1:]]
    return [first, *rest]


def _as_instructions(_request: Payload, system: Any) -> Any:
    if not isinstance(system, str):
        raise InvalidInput(f"system must be text for Responses, not {type(system).__name__}")
    return system


ANTHROPIC = PromptPlace("system", _with_own)
OPENAI_CHAT = PromptPlace("messages", _as_message)
OPENAI_CHAT_JOINED = PromptPlace("messages", _in_first)
OPENAI_RESPONSES = PromptPlace("instructions", _as_instructions)


def whole(parts: Parts, place: PromptPlace, cache: str | None) -> Payload:
    """Returns the arguments of a request, with cache breakpoints at the end of the tools and of the system prompt."""
    request = dict(parts.rendered)
    if parts.system:
        request[place.name] = place.put(parts.rendered, parts.system)
    if parts.tools:
        request["tools"] = parts.tools
    if cache is None:
        return request
    if parts.tools and not marks_in(parts.tools):
        request["tools"] = marked(parts.tools, cache)
    if (system := request.get("system")) and not marks_in(system):
        request["system"] = marked(_blocks(system), cache)
    return request


def taken_apart(request: Payload, known: Parts, place: PromptPlace, cache: str | None) -> Parts:
    """Returns the current parts of a request. The caller may have changed them since they were `known`."""
    sent = whole(known, place, cache)
    left = {**request}
    tools = left.pop("tools", None)
    if tools == sent.get("tools"):
        # Of no tools, it may be known that they are an empty list, which is not sent.
        tools = known.tools
    is_sent = _restore(left, known, sent, place)
    rendered = {name: left.pop(name) for name in known.rendered if name in left}
    system = left.get("system", left.get("instructions", known.system if is_sent else None))
    return Parts(rendered, _checked(tools_of, tools), _checked(system_of, system))


def _restore(request: Payload, known: Parts, sent: Payload, place: PromptPlace) -> bool:
    """Takes the prompt out of a request. Returns false if the caller has changed or removed the prompt."""
    name = place.name
    now = request.get(name)
    if name != "messages":
        is_same = now == sent.get(name)
        if is_same and name in sent:
            del request[name]
            request |= {name: known.rendered[name]} if name in known.rendered else {}
        return is_same or not known.system
    if not known.system:
        return True
    if not isinstance(now, list) or now[:1] != sent[name][:1]:
        return False
    # The prompt is a message of its own, or it was added to the first message.
    own = known.rendered[name]
    request[name] = [*own[: len(own) + 1 - len(sent[name])], *now[1:]]
    return True


def _checked(check: Callable[[object], Any], value: object) -> Any:
    """Returns a part of a request, or None if it is invalid, because the reply must be stored even then."""
    with suppress(InvalidInput):
        return check(value)
    return None


# ---- cache breakpoints, of which Anthropic's Messages API allows four in a request
# Two are at the end of the tools and of the system prompt, unless the caller has some there. Two are in the messages.

_MARK = "cache_control"
_IN_MESSAGES = 2
_PLAIN_TEXT = {"type", "text"}


def marked(parts: Sequence[Payload], cache: str) -> list[Payload]:
    """Returns the parts with a breakpoint at the last part that can have one."""
    found = list(parts)
    for place in range(len(found) - 1, -1, -1):
        if _can_be_marked(found[place]):
            found[place] = with_mark(found[place], cache)
            break
    return found


def with_mark(part: Payload, cache: str) -> Payload:
    return {**part, _MARK: {"type": "ephemeral"} if cache == "5m" else {"type": "ephemeral", "ttl": cache}}


def without_mark(block: Payload) -> Payload:
    """Returns a block without its own breakpoint and those of the blocks in it."""
    if not marks_in([block]):
        return block
    block = {name: value for name, value in block.items() if name != _MARK}
    if isinstance(inner := block.get("content"), list):
        block["content"] = [without_mark(part) if isinstance(part, dict) else part for part in inner]
    return block


def _can_be_marked(part: Payload) -> bool:
    shape = row_of(part).anthropic
    # A tool has no type of a block. A tool that is loaded later cannot have a breakpoint.
    return not part.get("defer_loading") and (shape is None or _MARK in shape.known)


def set_in_messages(
    contents: Sequence[list[Payload]], after_summary: tuple[int, int] | None, cache: str | None
) -> None:
    """Sets the breakpoints in the blocks of the messages. Without `cache`, keeps the last two that the messages have.

    `after_summary` has the indexes of the message and of the block.
    """
    places = [
        (m, b)
        for m, blocks in enumerate(contents)
        for b, block in enumerate(blocks)
        # Without `cache`, only the blocks that may have a breakpoint are of interest.
        if cache is not None or block.keys() != _PLAIN_TEXT
    ]
    if cache is None:
        kept = 0
        for message, block in reversed(places):
            kept += len(marks_in([contents[message][block]]))
            if kept > _IN_MESSAGES:
                contents[message][block] = without_mark(contents[message][block])
        return
    for message, number in places:
        contents[message][number] = without_mark(contents[message][number])
    last = next((place for place in reversed(places) if _can_be_marked(contents[place[0]][place[1]])), None)
    for place in {after_summary, last} - {None}:
        if place is not None and _can_be_marked(contents[place[0]][place[1]]):
            contents[place[0]][place[1]] = with_mark(contents[place[0]][place[1]], cache)


def check(tools: Any, system: Any, cache: str) -> None:
    """Checks that a caller's own breakpoints can be sent together with those that are set."""
    own = [*marks_in(tools), *marks_in(system)]
    if len(own) > _IN_MESSAGES:
        raise InvalidInput(f"with cache, tools and system must have at most 2 cache breakpoints, not {len(own)}")
    if cache == "1h" and any(not isinstance(mark, dict) or mark.get("ttl") != "1h" for mark in own):
        raise InvalidInput("a breakpoint in tools or system must have the ttl '1h' with cache='1h', not a shorter one")
