"""Encodes messages as JSON text for storage, and decodes this text. A message is either stored without loss or refused.

The text is compact JSON in UTF-8. A message with a lone surrogate, which UTF-8 cannot encode, is written in ASCII with
escapes. Pydantic's encoder and parser are several times faster than Python's. Python's `json` module handles the values
that pydantic refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time
from typing import Any, NamedTuple, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from compaction_store import errors
from compaction_store.arguments import other
from compaction_store.messages import documents
from compaction_store.models import Payload
from compaction_store.models.vocabulary import MOST_BYTES

MAX_MESSAGE_BYTES = MOST_BYTES["payload"]
MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_BATCH = 1000
_SIMPLE_SIZE = 64 * 1024
MAX_DEPTH = documents.LEVELS
MAX_META_BYTES = MOST_BYTES["meta"]
_T = TypeVar("_T")
_FIELD = re.compile(r"[a-z][a-z_]{0,29}")
_LONGEST_PATH = 16
# Python parses integers of at most 4,300 digits. The largest of them has this many bits.
_MAX_INTEGER_BITS = 14_285
_MAX_INTEGER = 10**4300


class Encoded(NamedTuple):
    text: str
    size: int
    role: str | None
    payload: Payload


class _Refused(Exception):
    """Raised for a value that has no lossless JSON form. `steps` are the keys and indexes to it, the last one first."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.steps: list[str | int] = []


class _TooDeep(_Refused):
    """Raised for a value that is nested too deeply. Only this module sees it."""


def _plain(value: Any) -> Any:
    """Converts an object of an SDK to the JSON that the API accepts, with the object's own `to_param` or `to_dict`.

    Other pydantic models are converted with `model_dump`. Pydantic's warnings are off, because they quote the value.
    """
    kind = type(value)
    try:
        if not isinstance(value, type):
            if callable(to_param := getattr(value, "to_param", None)):
                return to_param()
            maker = kind.__module__.partition(".")[0]
            if maker in {"anthropic", "openai"} and callable(to_dict := getattr(value, "to_dict", None)):
                # The SDKs' classes for tools that are made from functions have a to_dict() that takes no options.
                return to_dict() if ".lib.tools" in kind.__module__ else to_dict(mode="json", warnings=False)
            if callable(model_dump := getattr(value, "model_dump", None)):
                return model_dump(mode="json", by_alias=True, warnings=False)
    except (PydanticSerializationError, ValueError, RecursionError):
        # The text of these errors may quote the value.
        pass
    hint = "; isoformat() converts it" if isinstance(value, date | time) else ""
    raise _Refused(f"must be convertible to JSON, not a {kind.__name__}{hint}")


def of_sdk(value: object) -> Any:
    """Returns the JSON of an SDK's object, or None for any other object."""
    try:
        return _plain(value)
    except _Refused:
        return None


def plain(value: object) -> Any:
    """Returns a value as plain JSON, with objects of SDKs converted, or None if it has no lossless JSON form."""
    try:
        return _checked(value)
    except _Refused:
        return None


def _checked(value: Any, depth: int = 1) -> Any:  # noqa: PLR0911 — one kind of value after another
    """Returns a value as plain JSON, itself if nothing changes. Raises _Refused without a lossless JSON form."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is float:
        if value - value != 0:
            raise _Refused("must be a finite number, not NaN or infinite")
        return value
    if kind is int:
        if value.bit_length() > _MAX_INTEGER_BITS or not -_MAX_INTEGER < value < _MAX_INTEGER:
            raise _Refused("must be an integer of at most 4,300 digits")
        return value
    if depth > MAX_DEPTH:
        raise _TooDeep
    if isinstance(value, Mapping):
        return _checked_object(value, depth)
    if isinstance(value, list | tuple):
        return _checked_list(value, depth)
    if isinstance(value, str | int | float):
        # Subclasses, such as enumerations, are stored as their base type.
        base = next(b for b in (str, int, float) if isinstance(value, b))
        return _checked(base.__str__(value) if base is str else base(value), depth)
    return _checked(_plain(value), depth)


def _checked_object(value: Mapping[Any, Any], depth: int) -> Any:
    changed = type(value) is not dict
    copy = {}
    step: Any = None
    try:
        for step, item in value.items():
            if type(step) is not str:
                break
            copy[step] = new = item if type(item) is str else _checked(item, depth + 1)
            changed = changed or new is not item
        else:
            return copy if changed else value
    except _Refused as refusal:
        refusal.steps.append(step)
        raise
    raise _Refused(f"must have only text as keys, not {type(step).__name__}")


def _checked_list(value: Iterable[Any], depth: int) -> list[Any]:
    items: list[Any] = []
    try:
        # If an item is refused, the list has all items before it.
        items.extend(item if type(item) is str else _checked(item, depth + 1) for item in value)
    except _Refused as refusal:
        refusal.steps.append(len(items))
        raise
    return items


_ASCII_JSON = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False)


def _dump(value: Any) -> tuple[str, int]:
    try:
        data = to_json(value)
        return data.decode(), len(data)
    except PydanticSerializationError:
        text = _ASCII_JSON.encode(value)
    # A JSON parser reads a pair of surrogates as one character, so the text would not be decoded without loss.
    if json.loads(text) != value:
        raise _Refused("must have every surrogate pair as one character, not as two characters")
    return text, len(text)


def encode(message: Any) -> Encoded:
    """Encodes one message as the text that is stored."""
    path = None
    try:
        payload = _checked(message)
        if type(payload) is not dict:
            raise _Refused(f"must be a JSON object, not {type(message).__name__}")
        text, size = _dump(payload)
    except _TooDeep:
        raise errors.MessageTooDeep(f"a message must nest at most {MAX_DEPTH} levels deep, not more") from None
    except _Refused as refusal:
        why, path = str(refusal), path_of(reversed(refusal.steps))
    else:
        if size > MAX_MESSAGE_BYTES:
            raise errors.MessageTooLarge(f"a message must be at most {MAX_MESSAGE_BYTES:,} bytes, not {size:,}")
        return Encoded(text, size, documents.role_of(payload), payload)
    raise invalid(why, path)


def invalid(why: str, path: str | None) -> errors.InvalidMessage:
    """Returns the error for a value in a message, with its path, or for the message itself."""
    text = f"a message {why}" if path is None else f"{path}: {why}"
    return errors.InvalidMessage(text, path=path)


def path_of(steps: Iterable[str | int]) -> str | None:
    """Returns the path to a value, such as `content[0].text`, without keys that may be content, or None."""
    found = [
        f"[{step}]" if isinstance(step, int) else f".{step}" if _FIELD.fullmatch(step) else "[…]" for step in steps
    ]
    if len(found) > _LONGEST_PATH:
        found[_LONGEST_PATH // 2 : -_LONGEST_PATH // 2] = ["…"]
    return "".join(found).removeprefix(".") or None


def is_simple(value: Any) -> bool:
    """Returns whether a value is quick to encode: small plain JSON, without objects of other classes."""
    room = _SIMPLE_SIZE
    values = [value]
    while values and room >= 0:
        one = values.pop()
        kind = type(one)
        if kind is dict:
            for key, item in one.items():
                if type(key) is not str:
                    return False
                room -= len(key) + 1
                if type(item) is str:
                    room -= len(item)
                else:
                    values.append(item)
        elif kind is list or kind is tuple:
            room -= len(one)
            values.extend(one)
        elif kind is str:
            room -= len(one)
        elif kind is int:
            room -= one.bit_length()
        elif kind is not float and kind is not bool and one is not None:
            return False
    return room >= 0


def is_one(messages: Any) -> bool:
    """Returns whether an argument is one message and not an iterable of messages."""
    if isinstance(messages, Mapping) or hasattr(messages, "model_dump") or hasattr(messages, "to_param"):
        return True
    if isinstance(messages, str | bytes | type) or not isinstance(messages, Iterable):
        raise errors.InvalidMessage(f"a message must be a JSON object, not {type(messages).__name__}")
    return False


def encode_many(messages: Iterable[Any]) -> list[Encoded]:
    encoded: list[Encoded] = []
    size = 0
    for index, message in enumerate(messages):
        if len(encoded) == MAX_BATCH:
            raise errors.BatchTooLarge(f"one append must have at most {MAX_BATCH:,} messages, not more")
        encoded.append(at(index, encode, message))
        size += encoded[-1].size
        if size > MAX_BATCH_BYTES:
            raise errors.BatchTooLarge(f"one append must have at most {MAX_BATCH_BYTES:,} bytes, not {size:,} or more")
    if not encoded:
        raise errors.InvalidMessage("an append must have at least one message, but it is empty")
    return encoded


def at(index: int, check: Callable[[Any], _T], message: Any) -> _T:
    """Calls a check with the message at an index of a list. An error then names the place of the message."""
    try:
        return check(message)
    except errors.InvalidMessage as refusal:
        text = str(refusal).removeprefix("a message ")
        joint = ":" if refusal.path is None else ","
        refused = type(refusal)(f"message {index + 1}{joint} {text}", index=index, path=refusal.path)
    raise refused


def encode_meta(meta: Mapping[str, Any] | None) -> str | None:
    return None if meta is None else _encode_object(meta, "meta", errors.InvalidMeta)


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    return _encode_object(metadata, "metadata", errors.InvalidMeta)


def authority(given: object) -> Payload | None:
    """Checks the argument `authority`, and returns a copy as plain JSON."""
    return json_object(given, "authority")


def json_object(given: object, what: str) -> Payload | None:
    """Checks an argument that must be a JSON object or None, and returns a copy as plain JSON."""
    return None if given is None else decode_object(_encode_object(given, what, errors.InvalidInput))


def object_of(given: object, what: str) -> Payload:
    """Checks an argument that must be a JSON object, and returns a copy as plain JSON."""
    return decode_object(_encode_object(given, what, errors.InvalidInput))


def _encode_object(given: object, what: str, error: type[errors.InvalidInput]) -> str:
    try:
        value = _checked(given)
        text, size = _dump(value)
    except (_Refused, ValueError, RecursionError):
        raise error(f"{what} must be one JSON object with text keys and finite numbers") from None
    if type(value) is not dict:
        raise error(f"{what} must be one JSON object{other(given)}")
    if size > MAX_META_BYTES:
        raise error(f"{what} must be at most {MAX_META_BYTES:,} bytes, not {size:,}")
    return text


def canonical(value: Any) -> str:
    """Returns the canonical JSON of a value: ASCII, without spaces, with the names in each object sorted."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)


def decode(text: str) -> Any:
    """Parses JSON. Python's parser can read lone surrogates and deep nesting, which the fast parser refuses."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return json.loads(text)


def decode_object(text: str) -> Payload:
    return cast("Payload", decode(text))
