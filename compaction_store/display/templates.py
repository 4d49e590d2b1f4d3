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
from compaction_store.display.visible import is_plain, json_shown, lines, named, numbered
from compaction_store.jsonable import plain
from compaction_store.messages.encoding import canonical
from compaction_store.models.compactions import status_in_words

_SHORTEST = 0.001
_LONG = 100


class Lines(str):
    """A text, such as prose, JSON or a command, that keeps its line breaks and its backslashes on a page."""

    __slots__ = ()


def environment(folder: Path) -> Environment:
    """Returns the environment for the templates in a folder, with the filters that all pages need."""
    made = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, finalize=_visible,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.tests["plain"] = is_plain
    made.filters |= {
        "text": Lines,
        "number": _number,
        "moment": _moment,
        "json": _json,
        "pieces": _pieces,
        "exact": _exact,
        "seconds": _seconds,
        "status": status_in_words,
    }
    return made


def _visible(value: object) -> object:
    """Escapes the control, direction and invisible characters in a text, so that they can be seen.

    A text that is not `Lines` is a name or another value, so different texts must look different.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, Lines):
        return "\n".join(lines(value))
    return named(value) if isinstance(value, str) else value


def _pieces(pieces: Iterable[Piece]) -> Markup:
    """Returns the pieces of a text, escaped and with their marks. A screen reader says a mark after its piece.

    This is not a template, because a page has thousands of pieces, and a template takes several times as long.
    """
    found: list[str] = []
    for text, mark in pieces:
        seen = escape("\n".join(lines(text)))
        found.append(f'<mark class="{mark}">{seen}<span class="sr"> ({mark})</span></mark>' if mark else seen)
    return _markup("".join(found))


def _exact(text: str) -> Markup:
    """Returns a text for the value of a form's field. A browser reads exactly this text."""
    return _markup(numbered(text))


def _markup(made: str) -> Markup:
    return Markup(made)  # noqa: S704 — every text in it is escaped


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _seconds(value: float) -> str:
    """Returns seconds with up to three digits. Shorter times than a millisecond are shown as `< 0.001`."""
    if 0 < value < _SHORTEST:
        return f"< {_SHORTEST}"
    return f"{value:,.0f}" if value >= _LONG else f"{value:.3g}"


def _moment(value: datetime | str | None) -> str:
    if value is None:
        return ""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    # Milliseconds, because several entries are often written in one second.
    return f"{at.astimezone(UTC).isoformat(' ', 'milliseconds').removesuffix('+00:00')} UTC"


def _json(value: Any) -> Lines:
    return Lines(json_shown(canonical(plain(value))))
