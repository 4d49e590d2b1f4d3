"""Finds names in a text: paths, identifiers and numbers, which an agent needs exactly in order to use them again.

A text is split once into runs of characters without spaces, quotes or brackets. Then each run is classified by its
form, so the time is linear in the length of the text. A very long run is data and not a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from compaction_store.language.words import UNSPACED, is_simple
from compaction_store.module_data import ModuleData

NameKind = Literal["path", "identifier", "number"]

# The maximum number of runs that a reader remembers. They take about 20 MB.
_MOST_KNOWN = 200_000
# A longer run is data, such as base64 or minified code, and not a name.
_LONGEST = 160
_DATA = ModuleData(__file__)
_EXTENSIONS = _DATA.words("extensions")
_COMMON = _DATA.words("common")
_MARKED_DATE = re.compile(_DATA.pattern("marked_date"))
_RUN = re.compile(_MARKED_DATE.pattern + "|[^" + _DATA.pattern("between_runs") + UNSPACED + "]+")
# A run in a text of only ASCII and `SIGNS`. It can have no other characters than these.
_SIMPLE_RUN = re.compile("[#$%&+,\\-./0-9:=?@A-Z\\\\_a-z~\x7f]+")
# In JSON inside a text, an escape such as an escaped newline is not part of the name that follows it.
_ESCAPES = re.compile(r'\\[nrt"]')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BETWEEN = re.compile(_DATA.pattern("between_names"))
_EDGE_LEFT, _EDGE_RIGHT = ".,:@$~+-/\\%=&?", ".,:@$~+-=&?"

_NUMBER = re.compile(r"[$€£¥₹]?[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?%?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?|\d{1,2}[/.]\d{1,2}[/.]\d{4}")
_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?")
_VERSION = re.compile(r"v?\d+(?:\.\d+){1,3}(?:(?:-|\+|a|b|rc)[\w.]{1,20})?", re.IGNORECASE)
_MEASURE = re.compile(_DATA.pattern("measure"), re.IGNORECASE)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
_CAMEL = re.compile(r"[a-z0-9][A-Z]")
_PLAIN = re.compile(r"[A-Za-z]+")
_DOTTED = re.compile(r"\w[\w-]*\.[a-z]\w{0,7}")
_SEGMENT = re.compile(r"[/\\]+")
# In Korean, a particle or a verb follows a name without a space.
_KOREAN_ENDING = re.compile("(?<=[0-9A-Za-z_])[\uac00-\ud7a3]+$")


class Name(NamedTuple):
    """A path, an identifier or a number. Names with one key are one name. A weak one may be used again by chance."""

    text: str
    kind: NameKind
    key: str
    is_strong: bool = True


class NameReader:
    """Finds the names in texts. It remembers the runs that it has read, because most runs of a thread occur again."""

    def __init__(self) -> None:
        self._known = _KnownRuns()

    def names(self, text: str) -> list[Name]:
        """Returns the names in a text in order, each name once."""
        found: dict[str, Name] = {}
        for run in dict.fromkeys(_runs(text).findall(readable(text))):
            for name in self._known[run]:
                found.setdefault(name.key, name)
        return list(found.values())

    def each(self, text: str) -> Iterator[Name]:
        """Yields the names in a text, once for each occurrence."""
        for run in _runs(text).findall(readable(text)):
            yield from self._known[run]

    def at(self, text: str) -> Iterator[tuple[Name, int, int]]:
        """Yields each occurrence of a name in a text, with its start and its end."""
        for found in _runs(text).finditer(readable(text)):
            start, last = found.start(), 0
            for name in self._known[found[0]]:
                last = max(found[0].find(name.text, last), last)
                yield name, start + last, start + last + len(name.text)


class _KnownRuns(dict[str, tuple[Name, ...]]):
    """The names in each run that was read."""

    def __missing__(self, run: str) -> tuple[Name, ...]:
        found = tuple(names_in_run(run))
        if len(self) > _MOST_KNOWN:
            self.clear()
        if len(run) <= _LONGEST:
            self[run] = found
        return found


def _runs(text: str) -> re.Pattern[str]:
    return _SIMPLE_RUN if is_simple(text) else _RUN


def readable(text: str) -> str:
    """Replaces colour codes of terminals and escapes of JSON in a text with spaces. The length stays the same."""
    if "\x1b" in text:
        text = _COLOUR.sub(lambda found: " " * len(found[0]), text)
    if "\\" in text and text.lstrip()[:1] in ("{", "["):
        text = _ESCAPES.sub("  ", text)
    return text


def keys(name: Name) -> list[str]:
    """Returns the key of a name and the keys of the names inside it, such as the name of the file in a path."""
    if name.kind == "path":
        segments = name.key.split("/")
        # The last segment alone is a name only if it has a dot.
        last = len(segments) if "." in segments[-1] else len(segments) - 1
        return [name.key, *("/".join(segments[cut:]) for cut in range(1, last))]
    if name.kind == "identifier" and "." in name.key and "@" not in name.key:
        return [name.key, *(part for part in name.text.casefold().split(".") if len(part) > _SHORTEST)]
    return [name.key]


def is_claim(name: Name) -> bool:
    """Returns whether the sources of a summary must have this name. Acronyms, years and round numbers need not."""
    if name.is_strong:
        return True
    return name.kind == "number" and name.key.isdigit() and len(name.key) == 3 and name.key[1:] != "00"  # noqa: PLR2004


_SHORTEST = 3


def names_in_run(run: str) -> list[Name]:
    """Returns the names in a run of characters without spaces."""
    if len(run) < _SHORTEST or _MARKED_DATE.fullmatch(run):
        return [Name(run, "number", run)] if len(run) >= _SHORTEST else []
    if "://" in run:
        return _link(run)
    if run[1:3] in (":\\", ":/") and run[0].isalpha():
        return _each(run)
    if _NOTHING.fullmatch(run) is not None:
        return []
    if _BETWEEN.search(run) is None:
        return _each(run)
    return [name for piece in _BETWEEN.split(run) for name in _each(piece)]


# Most runs are plain words and no names: letters, of which only the first may be a capital, and then punctuation.
_NOTHING = re.compile(r"[^\W\d_]?[^\W\dA-Z_]*[.,:?-]*")


def _link(run: str) -> list[Name]:
    before, _, after = run.partition("://")
    scheme = _PLAIN.findall(before)
    text = f"{scheme[-1]}://{after}".rstrip(_EDGE_RIGHT) if scheme else after
    return [Name(text, "path", text.casefold().rstrip("/"))] if after and len(text) <= _LONGEST * 2 else []


def _each(piece: str) -> list[Name]:
    if len(piece) > _LONGEST + 20:
        return []
    text = piece.rstrip(_EDGE_RIGHT)
    if not text.isascii():
        text = _KOREAN_ENDING.sub("", text)
    if "/" in text or "\\" in text:
        found = _path(text.lstrip(":,=@+&?"))
    else:
        found = _single(text.lstrip(_EDGE_LEFT) if text[:1] != "$" else text)
    return [found] if found is not None and _SHORTEST <= len(found.text) <= _LONGEST else []


def _path(text: str) -> Name | None:
    if (date := _DATE.fullmatch(text)) is not None:
        return Name(date[0], "number", date[0])
    parts = [part for part in _SEGMENT.split(text) if part]
    real = [part for part in parts if part not in (".", "..", "~")]
    if not any(any(map(str.isalpha, part)) for part in real):
        return None
    is_file = _extension(real[-1]) or _DOTTED.fullmatch(real[-1]) is not None
    is_relative = text.startswith(("~/", "./", "../"))
    is_rooted = (text[0] == "/" or text[1:2] == ":") and len(real) > 1
    # `and/or` and `client/server` may be two words and not a path. `src/v2` and `feature/fix-12` cannot be two words.
    has_sign = len(text) >= _LEAST_PATH and any(c.isdigit() or c in "_-" for c in text)
    is_strong = is_file or is_relative or is_rooted or len(real) >= _LEAST_SEGMENTS
    if not is_strong and (len(real) == 1 or not all(len(part) > 1 for part in real)):
        return None
    return Name(text, "path", "/".join(real).casefold(), is_strong or has_sign)


_LEAST_SEGMENTS = 3
_LEAST_PATH = 6


def _extension(text: str) -> bool:
    stem, dot, end = text.rpartition(".")
    return bool(dot) and end.casefold() in _EXTENSIONS and (not stem or any(c.isalnum() for c in stem))


def _single(text: str) -> Name | None:
    if not text or len(text) > _LONGEST:
        return None
    has_digit = any(map(str.isdigit, text))
    if has_digit and (number := _number(text)) is not None:
        return number
    if has_digit and text.strip("-+.,:#%$").isdigit() and not text.startswith("#"):
        return None
    if "." in text[1:] and _extension(text) and not text[-1].isdigit():
        return Name(text, "path", text.casefold())
    if "@" in text:
        return Name(text, "identifier", text.casefold()) if _EMAIL.fullmatch(text) else None
    return _identifier(text.lstrip("."), has_digit=has_digit)


def _number(text: str) -> Name | None:
    if _NUMBER.fullmatch(text) is not None:
        return _figure(text, text)
    if _DATE.fullmatch(text) is not None:
        return Name(text, "number", text)
    if _TIME.fullmatch(text) is not None:
        return Name(text, "number", text, is_strong=False)
    if _VERSION.fullmatch(text) is not None:
        return Name(text, "number", text.casefold().removeprefix("v"), is_strong=text.count(".") > 1)
    if (measure := _MEASURE.fullmatch(text)) is not None:
        return _figure(text, measure[1].rstrip(".,"))
    return None


def _figure(text: str, figure: str) -> Name | None:
    """Returns a number as a name, without sign, separators and zeros at its end, or None if it is too short."""
    value = figure.lstrip("$€£¥₹+-").rstrip("%").replace(",", "")
    if "." in value:
        value = value.rstrip("0").rstrip(".")
    digits = value.replace(".", "")
    if not digits.isdigit():
        return None
    is_amount = figure[0] in "$€£¥₹"
    is_round = not digits.strip("0")[1:]
    is_year = len(digits) == 4 and digits[:2] in ("19", "20") and "." not in value  # noqa: PLR2004
    strong = (is_amount and len(digits) > 1) or (len(digits) > 3 and not is_round and not is_year)  # noqa: PLR2004
    if not strong and len(digits) < _LEAST_DIGITS and "." not in value and not is_amount and "%" not in figure:
        return None
    return Name(text, "number", value, strong)


_LEAST_DIGITS = 3


def _identifier(text: str, *, has_digit: bool) -> Name | None:
    if text.startswith("#"):
        # This is the number of an issue or a colour.
        bare = text.lstrip("#")
        is_name = has_digit and bare.isalnum()
        return Name("#" + bare, "identifier", "#" + bare.casefold(), len(bare) > 1) if is_name else None
    text = text.strip("#%$~+")
    key = text.casefold()
    if not any(map(str.isalpha, text)) or key in _COMMON:
        return None
    if "." in text:
        return _qualified(text)
    inner = text.strip("_")
    is_snake = "_" in inner or (text.startswith("__") and text.endswith("__"))
    if has_digit and len(inner) >= _SHORTEST:
        return Name(text, "identifier", key, len(inner) > _LEAST_MIXED or "-" in inner or is_snake)
    if not has_digit and (is_snake or _CAMEL.search(text) is not None):
        return Name(text, "identifier", key, len(inner) > _LEAST_MIXED)
    is_acronym = text.isupper() and text.isalpha() and text.isascii()
    return Name(text, "identifier", key, is_strong=False) if is_acronym else None


_LEAST_MIXED = 4


def _qualified(text: str) -> Name | None:
    """Returns a dotted name or None: a part must be a name, and a strong one if some part has a single character."""
    parts = [part for part in text.split(".") if part]
    found = [_identifier(part, has_digit=any(map(str.isdigit, part))) for part in parts]
    is_strong = any(one is not None and one.is_strong for one in found)
    is_weak = any(found) and all(len(part) > 1 for part in parts)
    return Name(text, "identifier", text.casefold(), is_strong) if is_strong or is_weak else None
