"""MessagePack as LangGraph's checkpoints use it, read as plain data: nothing that is named in it is imported or called.

An object is stored as the name of its class and its fields; it becomes an `Object`. What JSON has no form for becomes
the nearest: bytes are base64, sets are lists.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_DEPTH = 200
# LangGraph's kinds of extensions: those of objects hold a module, a name, and what the object was made of.
_OBJECTS = range(6)
_MODELS = frozenset({2, 4, 5})
_ARRAY = 6
_MADE_OF = 2


class Undecodable(ValueError):
    """The bytes are not what they should be. Of them nothing is repeated."""


class Object(NamedTuple):
    """An object with fields, by the name of its class."""

    name: str
    fields: dict[str, Any]


def decode(data: bytes) -> Any:
    """The value of all the bytes."""
    value, end = _guarded(data, 0)
    if end != len(data):
        raise Undecodable("there is more than one value")
    return value


def body_of_array(data: bytes) -> int | None:
    """Where an array's first element begins; None where the bytes are no array."""
    form = _FORMS[data[0]] if data else None
    return 1 + form.size if form is not None and form.read is _array else None


def length_of_array(data: bytes) -> int:
    """The number of an array's elements."""
    form = _FORMS[data[0]]
    return 0 if form is None else _length(form, data, 0)[0]


def find(data: bytes, *path: str, known: tuple[bytes, int] = (b"", 0)) -> tuple[int, int] | None:
    """Where the value under some names, one map inside the other, begins and ends; None where it is not there.

    `known` are the bytes and the number of elements that an array is likely to begin with: they are not read again.
    """
    try:
        return _found(data, 0, path, known)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError):
        pass
    raise Undecodable("the bytes are cut off or damaged")


def _found(data: bytes, at: int, path: tuple[str, ...], known: tuple[bytes, int]) -> tuple[int, int] | None:
    if not path:
        return at, _end(data, at, known)
    form = _FORMS[data[at]]
    if form is None or form.read is not _map:
        raise Undecodable("there is no map")
    count, at = _length(form, data, at)
    for _ in range(count):
        name, at = _value(data, at, 0)
        if name == path[0]:
            return _found(data, at, path[1:], known)
        at = _value(data, at, 0)[1]
    return None


def _end(data: bytes, at: int, known: tuple[bytes, int]) -> int:
    form = _FORMS[data[at]]
    if form is not None and form.read is _array:
        count, first = _length(form, data, at)
        if known[1] <= count and data.startswith(known[0], first):
            at = first + len(known[0])
            for _ in range(count - known[1]):
                at = _value(data, at, 1)[1]
            return at
    return _value(data, at, 0)[1]


def each(data: bytes, start: int) -> Iterator[tuple[bytes, Any]]:
    """The values that follow each other from a place on, each with its bytes."""
    while start < len(data):
        value, end = _guarded(data, start)
        yield data[start:end], value
        start = end


def _guarded(data: bytes, start: int) -> tuple[Any, int]:
    try:
        return _value(data, start, 0)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError):
        pass
    raise Undecodable("the bytes are cut off or damaged")


class _Form(NamedTuple):
    """What a first byte says: how many bytes after it say a length, or else the length, and how the rest is read."""

    read: Callable[[bytes, int, int, int], tuple[Any, int]]
    size: int = 0
    length: int = 0


def _value(data: bytes, start: int, depth: int) -> tuple[Any, int]:
    form = _FORMS[data[start]]
    if form is None or depth > _DEPTH:
        raise Undecodable("a byte means nothing" if form is None else "it nests too deep")
    length, at = _length(form, data, start)
    return form.read(data, at, length, depth)


def _length(form: _Form, data: bytes, start: int) -> tuple[int, int]:
    """The length that a value says, and where it goes on after that."""
    length = int.from_bytes(_bytes(data, start + 1, form.size), "big") if form.size else form.length
    return length, start + 1 + form.size


def _bytes(data: bytes, start: int, length: int) -> bytes:
    if start + length > len(data):
        raise Undecodable("the bytes are cut off")
    return data[start : start + length]


def _constant(value: Any) -> _Form:
    return _Form(lambda _data, at, _length, _depth: (value, at))


def _number(form: str) -> _Form:
    return _Form(
        lambda data, at, length, _depth: (struct.unpack_from(form, data, at)[0], at + length), 0, struct.calcsize(form)
    )


def _text(data: bytes, at: int, length: int, _depth: int) -> tuple[Any, int]:
    return _bytes(data, at, length).decode(), at + length


def _binary(data: bytes, at: int, length: int, _depth: int) -> tuple[Any, int]:
    return b64encode(_bytes(data, at, length)).decode(), at + length


def _array(data: bytes, at: int, length: int, depth: int) -> tuple[Any, int]:
    found = []
    for _ in range(length):
        value, at = _value(data, at, depth + 1)
        found.append(value)
    return found, at


def _map(data: bytes, at: int, length: int, depth: int) -> tuple[Any, int]:
    found = {}
    for _ in range(length):
        name, at = _value(data, at, depth + 1)
        value, at = _value(data, at, depth + 1)
        found[name if isinstance(name, str) else str(name)] = value
    return found, at


def _extension(data: bytes, at: int, length: int, depth: int) -> tuple[Any, int]:
    code, end = data[at], at + 1 + length
    value, used = _value(_bytes(data, at + 1, length), 0, depth + 1)
    if used != length or not isinstance(value, list):
        raise Undecodable("an object has another form")
    if code == _ARRAY:
        return value, end
    if code not in _OBJECTS or len(value) <= _MADE_OF:
        raise Undecodable("an object is of an unknown kind")
    name, made_of = value[1], value[_MADE_OF]
    if code in _MODELS and isinstance(name, str) and isinstance(made_of, dict):
        return Object(name, made_of), end
    return made_of, end


def _forms() -> list[_Form | None]:
    forms: list[_Form | None] = [_constant(byte) for byte in range(0x80)]
    forms += [_Form(_map, 0, length) for length in range(16)]
    forms += [_Form(_array, 0, length) for length in range(16)]
    forms += [_Form(_text, 0, length) for length in range(32)]
    forms += [_constant(None), None, _constant(False), _constant(True)]
    forms += [_Form(_binary, size) for size in (1, 2, 4)]
    forms += [_Form(_extension, size) for size in (1, 2, 4)]
    forms += [_number(f">{form}") for form in "fdBHIQbhiq"]
    forms += [_Form(_extension, 0, length) for length in (1, 2, 4, 8, 16)]
    forms += [_Form(_text, size) for size in (1, 2, 4)]
    forms += [_Form(_array, size) for size in (2, 4)]
    forms += [_Form(_map, size) for size in (2, 4)]
    return forms + [_constant(byte - 256) for byte in range(0xE0, 0x100)]


_FORMS = _forms()
