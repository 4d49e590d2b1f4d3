"""Loads Jinja templates, which escape HTML and make every character visible. Needs the extra `web`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from compaction_store.audit.marks import MarkedPiece
from compaction_store.audit.safe_text import CUT, is_plain, json_shown, lines, named, numbered
from compaction_store.audit.words import Kept
from compaction_store.jsonable import plain
from compaction_store.messages.encoding import canonical
from compaction_store.models.compactions import status_in_words

_SHORTEST = 0.001
_LONG = 100
_BRIEF = 300


class Lines(str):
    """A text, such as prose or JSON, that keeps its line breaks and its backslashes on a page."""

    __slots__ = ()


class Whole(Lines):
    """A text of known length that is never cut, such as a command or a part of a message."""

    __slots__ = ()


class _Json(str):
    __slots__ = ()


def environment(folder: Path, *, cut: bool = False) -> Environment:
    """Returns the environment for the templates in a folder, with the filters that all pages need.

    With `cut`, every text in a page is cut, because a reason or a body may have millions of characters.
    """
    made = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined,
        finalize=_visible_beginning if cut else _visible, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.tests["plain"] = is_plain
    made.filters |= {
        "text": Lines,
        "whole": Whole,
        "brief": _brief,
        "number": lambda value: "" if value is None else f"{value:,}",
        "moment": moment,
        "brief_moment": lambda value: moment(value)[:19],
        "json": lambda value: _Json(canonical(plain(value))),
        "pieces": _pieces,
        # For the value of a form's field: a browser reads exactly this text.
        "exact": lambda text: _markup(numbered(text)),
        "seconds": _seconds,
        "status": status_in_words,
        "kept": lambda kept: ", ".join((kept or Kept()).words(lambda at: moment(at)[:19])),
    }
    return made


def _visible(value: object) -> object:
    """Escapes control, direction and invisible characters. Different names look different, unlike `Lines`."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if isinstance(value, Lines):
        return "\n".join(lines(value))
    return json_shown(value) if isinstance(value, _Json) else named(value)


def _visible_beginning(value: object) -> object:
    """Escapes a text and cuts it, unless its length is known."""
    if not isinstance(value, str) or len(value) <= CUT or isinstance(value, Markup | Whole):
        return _visible(value)
    return f"{_visible(type(value)(value[:CUT]))}… (the first {CUT:,} of {len(value):,} characters)"


def _brief(text: str | None) -> str:
    """Returns the beginning of a text, for a cell of a table."""
    text = text or ""
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def _pieces(pieces: Iterable[MarkedPiece]) -> Markup:
    """Returns the pieces of a text, escaped and with their marks. A screen reader says a mark after its piece.

    This is not a template, because a page has thousands of pieces, and a template takes several times as long.
    """
    found: list[str] = []
    for text, mark in pieces:
        seen = escape("\n".join(lines(text)))
        found.append(f'<mark class="{mark}">{seen}<span class="sr"> ({mark})</span></mark>' if mark else seen)
    return _markup("".join(found))


def _markup(made: str) -> Markup:
    return Markup(made)  # noqa: S704 — every text in it is escaped


def _seconds(value: float) -> str:
    """Returns seconds with up to three digits. Shorter times than a millisecond are shown as `< 0.001`."""
    if 0 < value < _SHORTEST:
        return f"< {_SHORTEST}"
    return f"{value:,.0f}" if value >= _LONG else f"{value:.3g}"


def moment(value: datetime | str | None) -> str:
    """Returns a time in UTC, as all pages show times."""
    if value is None:
        return ""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    # Milliseconds, because several entries are often written in one second.
    try:
        return f"{at.astimezone(UTC).isoformat(' ', 'milliseconds').removesuffix('+00:00')} UTC"
    except OverflowError:  # the first and the last day, in some time zones
        return at.isoformat(" ", "milliseconds")
