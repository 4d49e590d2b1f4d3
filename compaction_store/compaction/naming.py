"""The names of callbacks, strategies and summarizers in records."""

from __future__ import annotations

from functools import partial

_LONGEST = 255


def name_of(given: object, default: str) -> str:
    """Returns an object's attribute `name`, or else the module and name of its definition."""
    name = getattr(given, "name", None)
    while isinstance(given, partial):
        given = given.func
    if not isinstance(name, str):
        named = given if hasattr(given, "__qualname__") else type(given)
        name = f"{getattr(named, '__module__', '?')}.{named.__qualname__}"
    return storable(name) or default


def storable(name: str) -> str:
    """Returns a name that fits a record's column: without NUL and lone surrogates, and with at most 255 bytes."""
    return name.replace("\0", "").encode(errors="replace")[:_LONGEST].decode(errors="ignore")
