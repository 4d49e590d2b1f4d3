"""Finds amounts of money in a text, such as `EUR 412.00`, `$19` or `7,000 euros`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from compaction_store.module_data import ModuleData

_DATA = ModuleData(__file__)
_SIGNS: dict[str, str] = _DATA.values["signs"]
_WORDS: dict[str, str] = _DATA.values["words"]
_CODES = "|".join(_DATA.text("codes").split())
_FIGURE = r"\d(?:[\d.,]*\d)?"
# With a currency, spaces may separate the thousands too.
_SPACED = rf"\d{{1,3}}(?:[ \u00a0\u202f]\d{{3}})+(?:[.,]\d+)?(?!\d)|{_FIGURE}"
_AMOUNT = re.compile(
    rf"(?P<before>\b(?:{_CODES})|[$€£¥₹])[ \u00a0\u202f]?(?P<minus>[-+]?)(?P<after_it>{_SPACED})(?![\w%])"
    rf"|(?<![\w.,])(?P<before_it>{_SPACED})[ \u00a0\u202f]?(?P<after>(?:{_CODES}|{'|'.join(_WORDS)})\b|[€£¥₹])"
)
_SPACES = re.compile("[ \u00a0\u202f]")
_NUMBER = re.compile(rf"(?<![\w.,]){_FIGURE}(?![\w%])")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|\d{1,3}(?:\.\d{3})+,\d+")
# With a currency, three digits after the only separator are thousands: no amount in these currencies has three
# decimals.
_ONE_THOUSANDS = re.compile(r"\d{1,3}[.,]\d{3}")
_LEAST_DIGITS = 3
_MINUS = "\u2212"
# A hyphen before a figure is a minus sign after these characters, after white space, and at the start of a text.
_BEFORE_MINUS = frozenset("([{\"'`=:,;|*\u2018\u201c\u201e\u00ab")


def with_hyphens(text: str) -> str:
    """Returns a text of the same length with hyphens in place of minus signs."""
    return text.replace(_MINUS, "-")


def is_negative(text: str, start: int) -> bool:
    """Returns whether a minus sign, and not a hyphen in a range, a date or a word, stands before `start`."""
    if start == 0 or text[start - 1] != "-":
        return False
    return start == 1 or text[start - 2].isspace() or text[start - 2] in _BEFORE_MINUS


class Amount(NamedTuple):
    """A figure with its currency and its place, without separators of thousands and trailing zeros."""

    currency: str
    figure: str
    start: int
    end: int


def amounts(text: str) -> Iterator[Amount]:
    """Yields the amounts in a text that have a currency."""
    text = with_hyphens(text)
    for found in _AMOUNT.finditer(text):
        sign = found["before"] or found["after"]
        figure = _SPACES.sub("", found["after_it"] or found["before_it"])
        if _ONE_THOUSANDS.fullmatch(figure) is not None:
            figure = figure.replace(",", "").replace(".", "")
        start, end = found.span()
        has_minus = is_negative(text, start)
        minus = "-" if has_minus or found["minus"] == "-" else ""
        yield Amount(_SIGNS.get(sign) or _WORDS.get(sign) or sign, minus + _plain(figure), start - has_minus, end)


def figures(text: str) -> Iterator[str]:
    """Yields the numbers of at least three digits without a currency. A negative one begins with a hyphen."""
    text = with_hyphens(text)
    with_currency = {
        start for found in _AMOUNT.finditer(text) for start in (found.start("after_it"), found.start("before_it"))
    }
    for found in _NUMBER.finditer(text):
        if found.start() not in with_currency and sum(map(str.isdigit, found[0])) >= _LEAST_DIGITS:
            yield f"-{_plain(found[0])}" if is_negative(text, found.start()) else _plain(found[0])


def _plain(figure: str) -> str:
    """Returns a figure without separators of thousands and trailing zeros, with a point before its decimals."""
    if _THOUSANDS.fullmatch(figure) is not None:
        last = max(figure.rfind(","), figure.rfind("."))
        has_decimals = "," in figure and "." in figure and figure.count(figure[last]) == 1
        whole, decimals = (figure[:last], figure[last + 1 :]) if has_decimals else (figure, "")
        figure = f"{whole.replace(',', '').replace('.', '')}.{decimals}"
    else:
        figure = figure.replace(",", ".")
    return figure.rstrip("0").rstrip(".") if "." in figure else figure
