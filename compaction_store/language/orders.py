"""Finds standing orders: instructions of a user that apply from then on, such as "never push to main".

Orders are recognized by typical words in ten languages: English, German, French, Spanish, Portuguese, Italian, Russian,
Chinese, Japanese and Korean. A sentence that describes ("it never works"), asks, or says "for now" is not an order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from compaction_store.language.force import FUNCTION_WORDS, describes, has_force, is_for_once, may_have_force
from compaction_store.language.sentences import prose, sentences
from compaction_store.language.words import is_unspaced, words

# A longer sentence is pasted text.
_LONGEST = 400
_SHORTEST = 6
# Users write orders at the beginning or the end of a long text. The middle is mostly pasted.
_LONGEST_TEXT = 6000
_ENDS = 1500

_QUESTION = re.compile(r"[?？]\W{0,3}$")  # noqa: RUF001
# A line of a pasted file with line numbers.
_NUMBERED = re.compile(r"\s*\d+\s?[:|\t]")
_LIST_MARKS = "*_#>-\u2022 \t0123456789.)"
# The alternative that an order rules out. A summary may leave it out and say "only" instead.
_INSTEAD = re.compile(r"(?:, ?(?:and )?(?:not|no)|,? (?:rather than|instead of|over)) [^,;.]{2,60}", re.IGNORECASE)
# The mark or the number of an item in a list. It is not a part of an order, because others of the list may be none.
_ITEM = re.compile(r"\s*(?:(?:[-*\u2022]|\(?\d{1,3}[.)])\s{1,9}){1,9}(?=\S)")
_LEAST_WORDS = 2
_ANY_LETTER = re.compile(r"[^\W\d_]")

# Words are compared by their stems, which are their first characters. So "pushing" is equal to "push".
_STEM = 4


class Order(NamedTuple):
    """A standing order and its place in a text."""

    text: str
    start: int
    end: int


def orders(text: str, *, whole: bool = False) -> Iterator[Order]:
    """Returns the standing orders in a user's text. In a long text, reads only both ends, unless `whole` is true."""
    ends = len(text) if whole or len(text) <= _LONGEST_TEXT else _ENDS
    return (order for order in _orders(text) if order.end <= ends or order.start >= len(text) - ends)


def _orders(text: str) -> Iterator[Order]:
    if not may_have_force(text):
        return
    plain = prose(text)
    for start, end in sentences(plain):
        if _SHORTEST <= end - start <= _LONGEST and is_order(plain[start:end]):
            bare = without_mark(text[start:end])
            yield Order(bare, end - len(bare), end)


def without_mark(sentence: str) -> str:
    """Returns a sentence without the mark or the number of a list in front of it."""
    mark = _ITEM.match(sentence)
    return sentence if mark is None else sentence[mark.end() :]


def is_order(sentence: str) -> bool:
    """Returns whether a sentence is a standing order."""
    sentence = unicodedata.normalize("NFC", sentence).replace("\u2019", "'")
    if _NUMBERED.match(sentence) is not None:
        return False
    sentence = " ".join(sentence.lstrip(_LIST_MARKS).split())
    if not has_force(sentence) or describes(sentence) or is_for_once(sentence) or _QUESTION.search(sentence):
        return False
    # Code and logs have more symbols than letters.
    return len(_ANY_LETTER.findall(sentence)) * 2 >= len(sentence)


def rare_words(text: str) -> frozenset[str]:
    """Returns the stems of words that are not function words; in a script without spaces, pairs of characters."""
    found: set[str] = set()
    last = ""
    for word in words(text):
        if is_unspaced(word):
            if is_unspaced(last):
                found.add(last + word)
        elif word not in FUNCTION_WORDS and (len(word) > 1 or word.isdigit()):
            found.add(stem(word))
        last = word
    return frozenset(found)


def wanted_words(order: str) -> frozenset[str]:
    """Returns the rare words that repeat an order, without alternatives that it rules out if two words are left."""
    shorter = rare_words(_INSTEAD.sub("", order))
    return shorter if len(shorter) >= _LEAST_WORDS else rare_words(order)


def stem(word: str) -> str:
    if word.startswith("ge") and len(word) > _STEM + 2 and word.endswith(("t", "en")):
        # A German participle has the stem of its verb: "gelöscht" is a form of "löschen".
        return word[2 : _STEM + 2]
    # A Korean noun has a particle at its end, so its stem is shorter.
    return word[: 2 if "\uac00" <= word[0] <= "\ud7af" else _STEM]
