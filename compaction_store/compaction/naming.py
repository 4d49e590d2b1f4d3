"""The names of callbacks, strategies and summarizers in records."""

from __future__ import annotations

from functools import partial

_LONGEST = 255


def name_of(given: object, default: str) -> str:
    """Returns an object's own `name`, else the module and name under which it is defined."""
    name = getattr(given, "name", None)
    while isinstance(given, partial):
        given = given.func
    if not isinstance(name, str):
        named = given if hasattr(given, "__qualname__") else type(given)
        name = f"{getattr(named, '__module__', '?')}.{named.__qualname__}"
    return storable(name) or default


def storable(name: str) -> str:
    """Returns a name as a record's column can hold it: without NUL and lone surrogates, of 255 bytes at most."""
    return name.replace("\0", "").encode(errors="replace")[:_LONGEST].decode(errors="ignore")
