"""Finds values that a conversation replaces with newer values: "the deadline is May 3", and later "… is May 10".

This module finds sentences that replace a value ("rename A to B", "B instead of A"), sentences that state one ("the
budget cap is $500"), and the fields of a call's result. `facts` compares them with the earlier values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from compaction_store.language.names import names_in_run
from compaction_store.language.orders import rare_words, stem
from compaction_store.language.sentences import prose, sentences
from compaction_store.language.words import words
from compaction_store.module_data import ModuleData

_LONGEST_SENTENCE = 400
_DATA = ModuleData(__file__)
_CHANGES = re.compile(_DATA.pattern("changes"), re.IGNORECASE)
_CHANGES_BACK = re.compile(_DATA.pattern("changes_back"), re.IGNORECASE)
_IS = re.compile(_DATA.pattern("is"))
_TO = re.compile(_DATA.pattern("to"), re.IGNORECASE)
# A sentence that states a value has one of these words. Most sentences have none and need not be searched.
_MAY_STATE = re.compile(r" (?:is|are|be|to|with|by|of|than|became|becomes|ist|sind|beträgt|liegt|est|es|son|é|è|será) ")
_AGE = frozenset(map(stem, _DATA.words("age")))
_MANY = frozenset(map(stem, _DATA.words("many")))
_MOST_KEY_WORDS = 2
_LONGEST_VALUE = 60
_LONGEST_JSON = 200_000


class Statement(NamedTuple):
    """A thing, its value, and the place of the value. `old` is the value that the same sentence replaces, if any."""

    about: str
    value: str
    start: int
    end: int
    old: str | None = None


def statements(text: str) -> Iterator[Statement]:
    """Yields the values that a text states, sentence by sentence."""
    plain = prose(text)
    for start, end in sentences(plain):
        sentence = plain[start:end]
        if end - start <= _LONGEST_SENTENCE and _MAY_STATE.search(sentence) is not None:
            for said in (*_changes(sentence), *_assignments(sentence)):
                yield said._replace(start=said.start + start, end=said.end + start)


def _changes(sentence: str) -> Iterator[Statement]:
    for pattern, is_back in ((_CHANGES, False), (_CHANGES_BACK, True)):
        for found in pattern.finditer(sentence):
            first = found.lastindex or 2
            old, new = first - 1, first
            if is_back:
                old, new = new, old
            before, after = plain_value(found[old]), plain_value(found[new])
            if before and after and before != after and _is_value(before) and _is_value(after):
                yield Statement("", after, *found.span(new), before)


def _assignments(sentence: str) -> Iterator[Statement]:
    for found in _IS.finditer(sentence):
        if about := _about(sentence[max(0, found.start() - 60) : found.start()]):
            value = plain_value(found[1])
            if value and _is_value(value):
                yield Statement(about, value, *found.span(1))
    for found in _TO.finditer(sentence):
        value = plain_value(found[2])
        if (about := _about(found[1])) and value and _is_value(value):
            yield Statement(about, value, *found.span(2))


def _about(before: str) -> str:
    """Returns the stems of the last rare words before a value, if they name the thing that has it, or else ""."""
    clause = re.split(r"[,;:.!?()\"`*]|\b(?:and|but|because|that|which|if|when|so)\b", before)[-1]
    found = [stem(word) for word in words(clause) if word]
    kept = [word for word in found if word in rare_words(clause) and word not in _AGE][-_MOST_KEY_WORDS:]
    if not kept or kept[-1] in _MANY or any(any(c.isdigit() for c in word) for word in kept):
        return ""
    return " ".join(kept)


def plain_value(text: str) -> str:
    """Returns the words of a value in lower case, so that differently written values can be compared."""
    return " ".join(words(text.strip("`\"'.,:;!?*()")))


def _is_value(value: str) -> bool:
    """Returns whether a text can be a value that a summary repeats: a number, a name, a date, or a few words."""
    if len(value) > _LONGEST_VALUE:
        return False
    return any(c.isdigit() for c in value) or "_" in value or " " in value or bool(names_in_run(value))


def fields(text: str) -> dict[str, str]:
    """Returns the short texts and the numbers of a result by their paths, without those in arrays.

    Returns nothing if the result is not a JSON object, or is too long.
    """
    if len(text) > _LONGEST_JSON or text.lstrip()[:1] != "{":
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend((f"{path}.{name}" if path else str(name), item) for name, item in one.items())
        elif isinstance(one, str | int | float) and not isinstance(one, bool) and 0 < len(str(one)) <= _LONGEST_VALUE:
            found[path] = plain_value(str(one))
    return found
