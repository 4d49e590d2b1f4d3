"""Recognizes words of lasting force ("never", "always", "must") in ten languages.

Also recognizes sentences that only describe something, or that apply only once. Repetitions inside a repetition have a
limit, and each search is in a single sentence, so no text makes a search slow.
"""

from __future__ import annotations

import re
from functools import cache

from compaction_store.language.words import UNSPACED
from compaction_store.module_data import ModuleData

_DATA = ModuleData(__file__)
_ENGLISH = _DATA.pattern("english")
_LETTERS = re.compile(r"[a-z]+")
_IN_ENGLISH = _DATA.words("in_english")
_IN_LATIN = _DATA.words("in_latin")
_NOT_FROM_LATIN = re.compile(f"[\\u0400-\\u04ff\\uac00-\\ud7af{UNSPACED}]")
_LATIN = _DATA.pattern("latin")
_OTHER = _DATA.pattern("other")
_DECIDED = _DATA.pattern("decided")
_DECIDED_ANYWHERE = _DATA.pattern("decided_anywhere")
_REPORTS = _DATA.pattern("reports")
_DESCRIBES = _DATA.pattern("describes")
_ONCE = _DATA.pattern("once")
FUNCTION_WORDS = _DATA.words("function_words")


@cache
def _compiled(pattern: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Compiles a pattern on its first use. That takes 10 ms, and most programs do not use these patterns."""
    return re.compile(pattern, flags)


def may_have_force(text: str) -> bool:
    """Returns False if no sentence of a text can have a word of lasting force. This is a quick test for long texts."""
    if not text.isascii():
        return True
    letters = _LETTERS.findall(text.lower())
    return not (_IN_ENGLISH.isdisjoint(letters) and _IN_LATIN.isdisjoint(letters))


def has_force(sentence: str) -> bool:
    """Returns whether a sentence has a word of lasting force in any of the languages."""
    letters = set(_LETTERS.findall(sentence.lower()))
    if not _IN_ENGLISH.isdisjoint(letters) and _compiled(_ENGLISH).search(sentence) is not None:
        return True
    if (not sentence.isascii() or not _IN_LATIN.isdisjoint(letters)) and _compiled(_LATIN).search(sentence) is not None:
        return True
    return _NOT_FROM_LATIN.search(sentence) is not None and _compiled(_OTHER).search(sentence) is not None


def mentions_force(sentence: str) -> bool:
    """Returns whether a sentence may report an order: it has a word of lasting force, a negation or a wish."""
    return _compiled(_REPORTS, re.NOFLAG).search(sentence.lower()) is not None or has_force(sentence)


def describes(sentence: str) -> bool:
    """Returns whether a sentence describes how something is, such as "it never works"."""
    return _compiled(_DESCRIBES).match(sentence) is not None


def is_for_once(sentence: str) -> bool:
    return _compiled(_ONCE).search(sentence) is not None


def decides(sentence: str) -> bool:
    """Returns whether a sentence says what was decided, done or found. A ranking by names would leave it out."""
    # A search in lower case is several times as fast as one that ignores the case.
    lowered = sentence.replace("\u2019", "'").lower()
    return _compiled(_DECIDED if lowered.isascii() else _DECIDED_ANYWHERE, re.NOFLAG).search(lowered) is not None
