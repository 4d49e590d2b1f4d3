"""Reads and checks the query parameters of a page's URL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from starlette.requests import Request

from compaction_store.arguments import written_bounds, written_time
from compaction_store.errors import InvalidInput
from compaction_store.models.record_filters import FILTERS, Filter

#: The filters of a sample, and all parameters of its page.
SAMPLE_FILTERS = tuple(row.name for row in FILTERS.values() if row.is_of_samples)
SAMPLE = ("seed", "count", *SAMPLE_FILTERS)
VERDICT = "/verdict"
#: The query parameters of each page.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "/": ("after", "token"),
    "/thread": ("id", "before", "after", "costs"),
    "/view": ("id", "at", "beside", "from", "all"),
    "/record": ("id", "number", "after", "sample"),
    "/message": ("id", "seq", "part"),
    "/reply": ("id", "seq", "from"),
    "/records": ("id", *FILTERS, "after_id", "after", "costs"),
    "/search": ("q", "id", "after"),
    "/erasures": ("id", "kind", "after_id", "after"),
    "/certificate": ("id", "pos"),
    "/integrity": ("id", "level"),
    "/whole": ("id", "pos", "number", "seq", "part"),
    "/sample": SAMPLE,
    "/chart.svg": ("id",),
    "/style.css": (),
    VERDICT: (),
}
_MOST_DIGITS = 15
_PERCENT = "_percent"


class Parameters:
    """Reads the parameters of an address. Raises InvalidInput, whose text says what a parameter must be."""

    def __init__(self, request: Request, known: Sequence[str]) -> None:
        """Raises InvalidInput for a parameter that the page does not know, and for one that is given twice.

        A mistyped filter would list everything, and of two values of a filter one would be left out.
        """
        self._given = request.query_params
        for name in self._given:
            if len(self._given.getlist(name)) > 1:
                raise InvalidInput(f"{name:.80} must be given once only")
            if name.removesuffix(_PERCENT) not in known:
                its = f"one of {', '.join(known)}" if known else "left out, because this page has none"
                raise InvalidInput(f"a parameter must be {its}; not {name!r:.80}")

    def text(self, name: str) -> str:
        found = self.optional(name)
        if found is None:
            raise InvalidInput(f"{name} must be given")
        return found

    def optional(self, name: str) -> str | None:
        return exact(self._given, name) or None

    def number(self, name: str, least: int = 0) -> int | None:
        text = self.optional(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS) or int(text) < least:
            raise InvalidInput(f"{name} must be an integer >= {least}")
        return int(text)

    def needed(self, name: str) -> int:
        found = self.number(name, 1)
        if found is None:
            raise InvalidInput(f"{name} must be given")
        return found

    def filter(self, row: Filter) -> Any:
        """Returns the value of a filter of records."""
        if row.form == "number":
            return self.number(row.name, 1)
        readers = {"range": self.bounds, "time": self.moment, "uuid": self.uuid, "object": self.json_object}
        return readers.get(row.form, self.optional)(row.name)

    def bounds(self, name: str) -> tuple[int | None, int | None] | None:
        text = self.optional(name)
        try:
            return None if text is None else written_bounds(text)
        except ValueError:
            raise InvalidInput(f"{name} must be a range such as 1000..5000, 1000.. or ..5000") from None

    def moment(self, name: str) -> datetime | None:
        text = self.optional(name)
        return None if text is None else moment(text, name)

    def uuid(self, name: str) -> UUID | None:
        text = self.optional(name)
        try:
            return None if text is None else UUID(text)
        except ValueError:
            raise InvalidInput(f"{name} must be a UUID") from None

    def json_object(self, name: str) -> dict[str, Any] | None:
        text = self.optional(name)
        if text is None:
            return None
        return as_object(text, name)


def moment(text: str, name: str = "the value") -> datetime:
    """Reads a time that is given as an age, such as `7d`, or in ISO 8601. The default time zone is UTC."""
    try:
        found = written_time(text)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name} must be a time such as 2026-05-01T12:30, or 7d for seven days ago") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def exact(given: Mapping[str, str], name: str) -> str:
    """Returns a parameter, or an empty string if it is not given.

    If a text has invisible characters, a form sends it in two ways: as it is, and percent-encoded. The latter is used,
    because browsers change line breaks in forms.
    """
    percent = given.get(name + _PERCENT)
    return given.get(name, "") if percent is None else unquote(percent)


def as_object(text: str, name: str = "the value") -> dict[str, Any]:
    """Parses a JSON object. Raises InvalidInput for any other text, and for values that cannot be written as JSON."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f'{name} must be a JSON object, such as {{"ticket":"X-1"}}')
    return found
