"""Implements `as_dict()`: converts the package's values to plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID


class AsDict:
    """A mixin that adds `as_dict()` to a frozen dataclass."""

    __slots__ = ()
    # The names of properties that `as_dict()` returns in addition to the fields.
    _derived: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for `json.dumps`: times as ISO 8601 in UTC, bytes in hexadecimal."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in (*names, *self._derived)}


def named(value: Any) -> dict[str, Any]:
    """Returns the fields of a NamedTuple, ready for `json.dumps`."""
    return {name: plain(item) for name, item in value._asdict().items()}


def time_text(at: datetime) -> str:
    """Returns a time as ISO 8601 in UTC. All have the same length, so they can be sorted as text."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def plain(value: Any) -> Any:
    """Converts a value, and everything inside it, to types that `json.dumps` accepts."""
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    return _text(value)


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Exception):
        # The errors of this package have an as_dict(). The text of any other error may quote a message.
        return {"type": type(value).__name__, "text": None}
    raise TypeError(f"the value must be convertible to JSON, not {type(value).__name__}")


def encoded(value: Any) -> str:
    """Returns a value as compact JSON. If a text contains a lone surrogate, everything outside ASCII is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)
    return text if text.isascii() or _encodes(text) else json.dumps(value, separators=(",", ":"), default=plain)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
