"""Recognizes strings that look like credentials: keys, tokens and passwords.

A check must not force a credential into a summary. A credential is recognized by a prefix such as `sk-`, by the words
before it (the name of its field, or `Bearer`), by its place in a URL, or by random letters and digits. The letters and
digits of a hexadecimal hash, of a path, or of the id of a message or a call do not count as random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from compaction_store.module_data import ModuleData

MASK = "(withheld)"

_DATA = ModuleData(__file__)
FIELD = re.compile(_DATA.pattern("field"), re.IGNORECASE)
_ID = re.compile(_DATA.pattern("id"))
_CODE = re.compile(_DATA.pattern("code"), re.IGNORECASE)
_SHORTEST = 6
# The characters that are in no credential. They are those that end the value of a field.
_BETWEEN = re.compile(r"[\s\"'`,;<>(){}\[\]]+")
_DIGIT = re.compile(r"\d")
_LEAST_CHANGES = 0.35
_LEAST_DIGITS = 3


class _Form(NamedTuple):
    group: int
    least: int
    signs: list[str]
    pattern: re.Pattern[str]


_FORMS = {
    name: _Form(**form | {"pattern": re.compile(form["pattern"], re.VERBOSE)})
    for name, form in _DATA.values["forms"].items()
}


def secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each string in a text that looks like a credential."""
    lower = text.lower() if text.isascii() else None
    for name, (group, least, signs, pattern) in _FORMS.items():
        if len(text) < least or (lower is not None and signs and not any(sign in lower for sign in signs)):
            continue
        if name == "mixed" and max(map(len, text.split()), default=0) < least:
            continue
        for found in pattern.finditer(text):
            if name == "mixed" and not is_random(found[0]):
                continue
            if name != "field_with_value" or _CODE.fullmatch(found[group]) is None:
                yield found.span(group)


def has_secret(text: str) -> bool:
    if len(text) < _SHORTEST or not (_DIGIT.search(text) or FIELD.search(text) or "PRIVATE KEY" in text):
        return False
    return next(secrets(text), None) is not None


def secret_words(text: str) -> Iterator[str]:
    """Yields the words of a text that are long enough for a credential, in lower case and without marks around them."""
    for word in _BETWEEN.split(text.casefold()):
        bare = word.strip(".!?:…")
        if len(bare) >= _SHORTEST:
            yield bare


def masked(text: str) -> str:
    """Returns a text in which everything that looks like a credential is masked."""
    kept: list[str] = []
    last = 0
    for start, end in sorted(secrets(text)):
        if end > last:
            kept += [text[last:start], MASK] if start >= last else []
            last = end
    return "".join([*kept, text[last:]])


def is_random(run: str) -> bool:
    """Returns whether characters mix cases and digits as a key does, and not as a path or a service's id does."""
    if _ID.match(run) or run.startswith("0x") or run.count("/") > 1:
        return False
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run if c.isalnum()]
    if not {"d", "u", "l"} <= set(kinds) or kinds.count("d") < _LEAST_DIGITS:
        return False
    return sum(one != other for one, other in pairwise(kinds)) >= _LEAST_CHANGES * len(kinds)
