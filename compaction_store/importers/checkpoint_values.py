"""Decodes the values of LangGraph's checkpoints (MessagePack) to plain data. Never imports the classes that they name.

An object is stored with its fields and the name of its class, and becomes an `Object`. Types that JSON lacks become the
nearest JSON type: bytes become base64, and sets become lists.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from compaction_store.errors import MissingExtra

try:
    import msgpack
except ImportError:
    msgpack = None

_MAX_DEPTH = 200
# The extension types of LangGraph. Those of objects hold a module, a name, and the value from which the object is made.
_OBJECTS = range(6)
_WITH_FIELDS = frozenset({2, 4, 5})
_ARRAY = 6
_MADE_OF = 2


class Undecodable(ValueError):
    """The bytes cannot be decoded. The text of the error gives the reason, and quotes none of the bytes."""


class Object(NamedTuple):
    """An object: the name of its class, and its fields."""

    name: str
    fields: dict[str, Any]


class _Pairs(list[tuple[Any, Any]]):
    """A map as a list of pairs, because its keys may be of any type, even unhashable."""


def check_installed() -> None:
    if msgpack is None:
        raise MissingExtra("an import of LangGraph's checkpoints", "importers")


def decode(data: bytes, depth: int = 0) -> Any:
    """Decodes the bytes of exactly one value.

    They are checked first, because msgpack would allocate memory for each element that the header of an array claims.
    """
    unpacker = _unpacker(data)
    with _translated():
        unpacker.skip()
    if unpacker.tell() != len(data):
        raise Undecodable("there is more than one value")
    with _translated():
        value = _unpacker(data).unpack()
    return _plain(value, depth)


def array_header(data: bytes, at: int = 0) -> tuple[int, int] | None:
    """Returns the number of elements of an array and the offset of the first; None if there is no array."""
    unpacker = _unpacker(data, at)
    try:
        return unpacker.read_array_header(), at + unpacker.tell()
    except (ValueError, msgpack.UnpackException):
        return None


def split(data: bytes, at: int) -> Iterator[bytes]:
    """Yields the bytes of each value, from an offset on."""
    unpacker = _unpacker(data, at)
    begin = end = at
    while end < len(data):
        with _translated():
            unpacker.skip()
        begin, end = end, at + unpacker.tell()
        yield data[begin:end]


def find(data: bytes, *path: str, known: bytes = b"", known_count: int = 0) -> bytes | None:
    """Returns the bytes of the value at a path of names in nested maps; None if there is none.

    `known` are the bytes of the `known_count` elements of an earlier array. If the value is an array that begins with
    them, they are not scanned again. The states of a thread mostly grow at their end, so scanning each state in full
    would take quadratic time.
    """
    at = 0
    for wanted in path:
        found = _value_of(data, at, wanted)
        if found is None:
            return None
        at = found
    header = array_header(data, at)
    start, count = at, 1
    if header is not None and known_count <= header[0] and data.startswith(known, header[1]):
        start, count = header[1] + len(known), header[0] - known_count
    unpacker = _unpacker(data, start)
    with _translated():
        for _ in range(count):
            unpacker.skip()
    return data[at : start + unpacker.tell()]


def _value_of(data: bytes, at: int, wanted: str) -> int | None:
    """Returns the offset of a name's value in the map that begins at `at`."""
    unpacker = _unpacker(data, at)
    with _translated("there is no map"):
        count: int = unpacker.read_map_header()
    with _translated():
        for _ in range(count):
            start = at + unpacker.tell()
            unpacker.skip()
            value: int = at + unpacker.tell()
            if decode(data[start:value]) == wanted:
                return value
            unpacker.skip()
    return None


def _unpacker(data: bytes, at: int = 0) -> Any:
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(1, len(data)), strict_map_key=False, object_pairs_hook=_Pairs, ext_hook=msgpack.ExtType
    )
    unpacker.feed(memoryview(data)[at:])
    return unpacker


def _plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Undecodable("the value is nested too deeply")
    if isinstance(value, _Pairs):
        return {str(_plain(name, depth + 1)): _plain(found, depth + 1) for name, found in value}
    if isinstance(value, list):
        return [_plain(found, depth + 1) for found in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, msgpack.ExtType):
        return _extension(value.code, decode(value.data, depth + 1))
    if isinstance(value, msgpack.Timestamp):
        raise Undecodable("an object is of an unknown kind")
    return value


def _extension(code: int, value: Any) -> Any:
    if not isinstance(value, list):
        raise Undecodable("an object has an unknown form")
    if code == _ARRAY:
        return value
    if code not in _OBJECTS or len(value) <= _MADE_OF:
        raise Undecodable("an object is of an unknown kind")
    name, made_of = value[1], value[_MADE_OF]
    if code in _WITH_FIELDS and isinstance(name, str) and isinstance(made_of, dict):
        return Object(name, made_of)
    return made_of


@contextmanager
def _translated(failure: str = "the bytes are damaged") -> Iterator[None]:
    """Replaces the errors of msgpack, some of which quote data, with `Undecodable`, which quotes none."""
    try:
        yield
    except msgpack.OutOfData:
        failure = "the bytes are cut off"
    except msgpack.StackError:
        failure = "the value is nested too deeply"
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        pass
    else:
        return
    raise Undecodable(failure)
