"""Decides what an append accepts: a message that a request to at least one of the APIs can have.

The log is append-only. So a message that no renderer can express is refused before it is stored, unless the caller
asks for it with `raw`. An API's reply may have parts that are newer than this release, so their types are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, NoReturn

from compaction_store.api_rules.openai import MAY_BE_NULL
from compaction_store.arguments import other, other_choice
from compaction_store.errors import BatchTooLarge, InvalidMessage
from compaction_store.messages import answers, encoding
from compaction_store.messages.parts import PartType, row, row_of
from compaction_store.models import Payload

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# A message of the assistant may have any of these fields instead of content.
_INSTEAD = ("tool_calls", "function_call", "refusal", "audio", "reasoning", "reasoning_content", "thinking")
_PLAIN = frozenset({"role", "content"})
_SPEAKERS = frozenset({"system", "developer", "user", "assistant"})
# Fields of pictures, files and recordings that are objects, in Anthropic's API and in Chat Completions.
_OBJECTS = ("image_url", "input_audio", "file", "source")
# The endings of types of items. A reply may have items with new types.
_NEWER = ("_call", "_output", "_request", "_response")
_RAW = "; raw=True (--raw) stores the message as it is"
_Steps = tuple[str | int, ...]


class Given(NamedTuple):
    """The encoded messages of an append, the callers' objects of replies, and the first indexes of whole answers."""

    encoded: list[encoding.Encoded]
    replies: list[Any]
    answers: set[int]

    def usage(self, index: int) -> Payload | None:
        """Returns the usage to store with a message. The first message of a whole answer has the answer's usage."""
        before = index and self.replies[index - 1] is self.replies[index] and index not in self.answers
        return None if before else answers.usage_of(self.replies[index], is_whole=index in self.answers)


def given(messages: Any, *, raw: bool = False) -> Given:
    """Checks and encodes the messages of an append. Whole answers of APIs are taken apart, unless `raw` is true."""
    found = Given([], [], set())
    size = 0
    for index, message in enumerate([messages] if encoding.is_one(messages) else messages):
        parts = None if raw else encoding.at(index, answers.unwrapped, message)
        if parts is not None:
            found.answers.add(len(found.encoded))
        for part in [message] if parts is None else parts:
            if len(found.encoded) == encoding.MAX_BATCH:
                raise BatchTooLarge(f"one append must have at most {encoding.MAX_BATCH:,} messages, not more")
            encoded = encoding.at(index, encoding.encode if raw else accepted, part)
            found.encoded.append(encoded)
            found.replies.append(message)
            size += encoded.size
            if size > encoding.MAX_BATCH_BYTES:
                most = encoding.MAX_BATCH_BYTES
                raise BatchTooLarge(f"one append must have at most {most:,} bytes, not {size:,} or more")
    if not found.encoded:
        raise InvalidMessage("an append must have at least one message, but it is empty")
    return found


def accepted(message: Any) -> encoding.Encoded:
    """Encodes a message. Raises InvalidMessage if no API's request can have the message."""
    encoded = encoding.encode(message)
    payload = encoded.payload
    content = payload.get("content")
    # Most messages have only a role and a text.
    if not (type(content) is str and content and payload.keys() == _PLAIN and payload["role"] in _SPEAKERS):
        _Check(is_reply=not isinstance(message, Mapping)).message(payload)
    return encoded


def has_content(payload: Payload) -> bool:
    """Returns whether the content of a message is more than empty text."""
    content = payload.get("content")
    if not isinstance(content, list):
        return bool(content)
    return any((text := row_of(part).text) is None or part.get(text) for part in content)


@cache
def _requests(found: PartType) -> frozenset[str]:
    """Returns the APIs whose requests can have a part; Anthropic's have many parts of OpenAI's, converted."""
    is_seen = found.media in ("image", "file") and (found.chat or found.in_message) is not None
    apis = {
        "anthropic": found.anthropic or found.text or found.is_thinking or is_seen,
        "chat": found.chat is not None,
        "responses": found.in_message is not None,
    }
    return frozenset(api for api, has_part in apis.items() if has_part)


class _Check:
    """Checks one message. The types of a reply's parts and items may be newer than this release."""

    def __init__(self, *, is_reply: bool) -> None:
        self._is_reply = is_reply
        self._calls: set[str] = set()

    def message(self, payload: Payload) -> None:
        role, kind = payload.get("role"), payload.get("type")
        found = row_of(payload)
        # Only a reply can be another item: in a message of somebody else, the type is nothing that a model sees.
        if found.item is not None and found.name != "message" and payload.get("role", "assistant") == "assistant":
            self._item(payload, found, found.item)
        elif role is None and self._is_reply and isinstance(kind, str) and kind.endswith(_NEWER):
            return
        elif not isinstance(role, str) or role not in _ROLES:
            given = ", but is missing" if role is None else other_choice(role)
            _refuse(f"must be one of {', '.join(_ROLES)}{given}", "role")
        elif role == "assistant":
            self._reply(payload)
        else:
            if is_result := role in ("tool", "function"):
                _text(payload, "tool_call_id" if role == "tool" else "name")
            if "content" not in payload:
                _refuse("is missing", "content")
            if payload["content"] is None and not is_result:
                _refuse("must be text or a list of parts, not None", "content")
            self._content(payload["content"], role)
            if role == "user" and not has_content(payload):
                _refuse("must not be empty", "content")

    def _item(self, item: Payload, found: PartType, needed: tuple[str, ...]) -> None:
        for name in () if self._is_reply else needed:
            if item.get(name) is None and name not in MAY_BE_NULL:
                _refuse("is missing", name)
        if found.step in ("call", "result"):
            _text(item, next((field for field in found.id if isinstance(item.get(field), str)), found.id[0]))

    def _reply(self, payload: Payload) -> None:
        if "content" not in payload and not any(payload.get(name) for name in _INSTEAD):
            _refuse("is missing, and so are calls", "content")
        self._content(payload.get("content"), "assistant")
        calls = payload.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            _refuse(f"must be a list of calls{other(calls)}", "tool_calls")
        for place, call in enumerate(calls or ()):
            self._call(call, ("tool_calls", place))

    def _call(self, call: Any, at: _Steps) -> None:
        if not isinstance(call, dict):
            _refuse(f"must be an object{other(call)}", *at)
        _text(call, "id", *at)
        self._new_call(call["id"], "id", *at)
        kind = "custom" if isinstance(call.get("custom"), dict) else "function"
        if not isinstance(inner := call.get(kind), dict):
            _refuse(f"must be an object{other(inner)}", *at, kind)
        _text(inner, "name", *at, kind)
        if kind == "function":
            # OpenAI's APIs take JSON text only, and refuse every request with an object here.
            _text(inner, "arguments", *at, kind, may_be_empty=True)

    def _call_or_result(self, part: Payload, found: PartType, *at: str | int) -> None:
        name = found.id[0]
        _text(part, name, *at)
        if found.step == "call":
            self._new_call(part[name], name, *at)
            if found.anthropic and found.is_clients:
                _object(part, found.input[0], *at)
        else:
            self._content(part.get(found.returns), "tool", *at, found.returns)

    def _new_call(self, call_id: str, *at: str | int) -> None:
        if call_id in self._calls:
            _refuse("must be another id than that of a call before it", *at[1:], at[0])
        self._calls.add(call_id)

    def _content(self, content: Any, role: str, *at: str | int) -> None:
        at = at or ("content",)
        if content is None or isinstance(content, str):
            return
        if not isinstance(content, list):
            _refuse(f"must be text or a list of parts{other(content)}", *at)
        kinds: dict[str, int] = {}
        for place, part in enumerate(content):
            kinds.setdefault(self._part(part, role, *at, place), place)
        requests = [] if role == "assistant" else [_requests(row(kind)) for kind in kinds]
        if requests and not frozenset.intersection(*requests):
            strange = next((kind for kind, apis in zip(kinds, requests, strict=True) if not apis), None)
            place = kinds[next(reversed(kinds)) if strange is None else strange]
            why = "has a type that no API knows" if strange else "must be of the same API as the parts before it"
            _refuse(why, *at, place)

    def _part(self, part: Any, role: str, *at: str | int) -> str:
        if not isinstance(part, dict):
            _refuse(f"must be an object with a type{other(part)}", *at)
        kind = part.get("type")
        if not isinstance(kind, str):
            _refuse(f"must be text{other(kind)}", *at, "type")
        found = row(kind)
        if found.text is not None:
            if part.get(found.text) is not None or role != "assistant":
                _text(part, found.text, *at, may_be_empty=True)
        elif found.step == "call" or (found.step == "result" and found.role != "assistant"):
            self._call_or_result(part, found, *at)
        # A reply's parts may be newer than this release, but pictures and files have the form that requests have.
        elif found.role != "assistant" and (role != "assistant" or found.media is not None):
            for name in found.anthropic.needed if found.anthropic else found.chat or found.in_message or ():
                if part.get(name) is None:
                    _refuse("is missing", *at, name)
                if name in _OBJECTS:
                    _object(part, name, *at)
        return kind


def _text(part: Payload, name: str, *at: str | int, may_be_empty: bool = False) -> None:
    value = part.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        _refuse("is missing" if name not in part else f"must be text{other_choice(value)}", *at, name)


def _object(part: Payload, name: str, *at: str | int) -> None:
    if not isinstance(value := part.get(name), dict):
        _refuse("is missing" if name not in part else f"must be an object{other(value)}", *at, name)


def _refuse(why: str, *at: str | int) -> NoReturn:
    raise encoding.invalid(f"{why}{_RAW}", encoding.path_of(at))
