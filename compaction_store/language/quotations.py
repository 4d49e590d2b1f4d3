"""Finds quotations in a text: words or code in quotation marks, which the text repeats word for word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from compaction_store.language.words import words

# A quotation begins after a space, an opening bracket or a sign such as a colon. So text between two quotations is not
# taken for a quotation.
_BEFORE = r"(?:(?<=^)|(?<=[\s(\[{:=>\u2014*_-]))"
_QUOTED = re.compile(
    rf"{_BEFORE}(?:\"([^\"\n]{{1,300}})\"|`([^`\n]{{1,300}})`)|\u201c([^\u201c\u201d\n]{{1,300}})\u201d"
    r"|\u201e([^\u201e\u201c\u201d\n]{1,300})[\u201c\u201d]|\u00ab([^\u00ab\u00bb\n]{1,300})\u00bb"
    r"|\u300c([^\u300c\u300d\n]{1,300})\u300d",
    re.MULTILINE,
)
_EDGES = re.compile(r"[\w<({\[@#$/.~+*-].*[^\s,:=(\[{]", re.DOTALL)
_LEFT_OUT = re.compile(r"\.{3}|\u2026|\[[^\]\n]{0,40}\]")
# A text without spaces, such as a path, is a name and not a quotation.
_IS_NAME = re.compile(r"[!-~]+").fullmatch
# A shorter quotation is a name or a figure of speech.
_LEAST_WORDS = 3
_MOST_WORDS = 60


def quotations(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each quotation of 3 to 60 words, without its quotation marks.

    Of a quotation with an ellipsis, yields each part that has 3 to 60 words. A text of ASCII characters without spaces
    is a name and is left out.
    """
    for quoted in _QUOTED.finditer(text):
        start, end = quoted.span(quoted.lastindex or 0)
        if text[start - 1] == "\u00ab":
            # French has spaces between the quotation marks and the text.
            start, end = end - len(text[start:end].lstrip()), start + len(text[start:end].rstrip())
        if _EDGES.fullmatch(text, start, end) is None:
            continue
        last = start
        for gap in (*_LEFT_OUT.finditer(text, start, end), None):
            until = end if gap is None else gap.start()
            part = text[last:until]
            if _LEAST_WORDS <= len(words(part)) <= _MOST_WORDS and not _IS_NAME(part):
                yield last, until
            last = end if gap is None else gap.end()
