"""Loads Jinja templates, which escape HTML and make every character visible. Needs the extra `web`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from compaction_store.display.marks import Piece
from compaction_store.display.visible import lines, shown
from compaction_store.jsonable import plain
from compaction_store.messages.encoding import canonical


class Lines(str):
    """A text that keeps its line breaks on a page."""

    __slots__ = ()


def environment(folder: Path) -> Environment:
    """Returns the environment for the templates in a folder, with the filters that all pages need."""
    made = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, finalize=_visible,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"text": Lines, "number": _number, "moment": _moment, "json": _json, "pieces": _pieces}
    return made


def _visible(value: object) -> object:
    """Escapes the control, direction and invisible characters in a text, so that they can be seen."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, Lines):
        return "\n".join(lines(value))
    return shown(value) if isinstance(value, str) else value


def _pieces(pieces: Iterable[Piece]) -> Markup:
    """Returns the pieces of a text, escaped and with their marks. A screen reader says a mark after its piece.

    This is not a template, because a page has thousands of pieces, and a template takes several times as long.
    """
    found: list[str] = []
    for text, mark in pieces:
        seen = escape("\n".join(lines(text)))
        found.append(f'<mark class="{mark}">{seen}<span class="sr"> ({mark})</span></mark>' if mark else seen)
    return Markup("".join(found))  # noqa: S704 — every text in it is escaped


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
