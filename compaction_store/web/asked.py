"""Reads and checks the query parameters of a page's URL."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request

_AGO = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MOST_DIGITS = 15


class Wrong(Exception):
    """An error for a parameter that cannot be read."""


class Asked:
    """Reads the parameters of an address. Raises `Wrong`, whose text says what a parameter must be."""

    def __init__(self, request: Request) -> None:
        self._given = request.query_params

    def text(self, name: str) -> str:
        found = self.optional(name)
        if found is None:
            raise Wrong(f"{name} must be given")
        return found

    def optional(self, name: str) -> str | None:
        return self._given.get(name) or None

    def number(self, name: str, least: int = 0) -> int | None:
        text = self.optional(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS) or int(text) < least:
            raise Wrong(f"{name} must be an integer >= {least}")
        return int(text)

    def needed(self, name: str) -> int:
        found = self.number(name, 1)
        if found is None:
            raise Wrong(f"{name} must be given")
        return found

    def moment(self, name: str) -> datetime | None:
        """Returns a time that is given as an age, such as `7d`, or in ISO 8601. The default time zone is UTC."""
        text = self.optional(name)
        if text is None:
            return None
        try:
            if ago := _AGO.fullmatch(text):
                return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            found = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            raise Wrong(f"{name} must be a time such as 2026-05-01T12:30, or 7d for seven days ago") from None
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    def uuid(self, name: str) -> UUID | None:
        text = self.optional(name)
        try:
            return None if text is None else UUID(text)
        except ValueError:
            raise Wrong(f"{name} must be a UUID") from None

    def json_object(self, name: str) -> dict[str, Any] | None:
        text = self.optional(name)
        if text is None:
            return None
        return as_object(text, name)


def as_object(text: str, name: str) -> dict[str, Any]:
    """Parses a JSON object. Raises `Wrong` for any other text, and for values that cannot be written as JSON."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Wrong(f'{name} must be a JSON object, such as {{"ticket":"X-1"}}')
    return found
