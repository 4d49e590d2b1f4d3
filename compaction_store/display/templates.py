"""Jinja templates that escape HTML and show every character. Needs the extra `web`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from compaction_store.display.marks import Piece
from compaction_store.display.visible import lines, shown
from compaction_store.jsonable import plain
from compaction_store.messages.encoding import canonical


class Lines(str):
    """A text whose line breaks are shown."""

    __slots__ = ()


# A screen reader says the mark after the text.
_MARKED = {
    mark: (Markup(f'<mark class="{mark}">'), Markup(f'<span class="sr"> ({mark})</span></mark>'))  # noqa: S704
    for mark in ("kept", "lost", "new")
}


def environment(folder: Path) -> Environment:
    """Makes the environment of the templates in a folder, with the filters that all pages need."""
    made = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, finalize=_visible,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"text": Lines, "number": _number, "moment": _moment, "json": _json, "pieces": _pieces}
    return made


def _visible(value: object) -> object:
    """Makes control characters, and characters that change the direction of text, visible in all output."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, Lines):
        return "\n".join(lines(value))
    return shown(value) if isinstance(value, str) else value


def _pieces(pieces: Iterable[Piece]) -> Markup:
    """Returns the pieces of a text with their marks: a template takes five times as long for the thousands of them that
    a page has.
    """
    found: list[Markup] = []
    for text, mark in pieces:
        seen = escape("\n".join(lines(text)))
        if mark:
            before, after = _MARKED[mark]
            found += (before, seen, after)
        else:
            found.append(seen)
    return Markup("").join(found)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _moment(value: datetime | str | None) -> str:
    if value is None:
        return ""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    # Milliseconds, because several entries are often written in one second.
    return f"{at.astimezone(UTC).isoformat(' ', 'milliseconds').removesuffix('+00:00')} UTC"


def _json(value: Any) -> Lines:
    return Lines(canonical(plain(value)))
