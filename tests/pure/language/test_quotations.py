"""Quotations in the marks of several languages."""

from __future__ import annotations

import pytest

from compaction_store.language.words import quotations


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('He wrote "call me on Monday" and left.', "call me on Monday"),
        ("Der Titel ist \u201eKosten im ersten Quartal\u201c, bitte.", "Kosten im ersten Quartal"),
        ("Le titre est \u00ab\u00a0Solde du compte\u00a0\u00bb, merci.", "Solde du compte"),
        ("Le titre est \u00ab Solde du compte \u00bb, merci.", "Solde du compte"),
        ("\u898b\u51fa\u3057\u306f\u300c\u6708\u6b21\u5831\u544a\u300d", "\u6708\u6b21\u5831\u544a"),
    ],
)
def test_a_quotation_has_no_marks_and_no_spaces_around_it(text: str, found: str) -> None:
    assert [text[start:end] for start, end in quotations(text)] == [found]


@pytest.mark.parametrize("text", ["\u00ab\u00a0\u00bb", "\u00ab  \u00bb", '"', '""', "\u00ab"])
def test_empty_marks_are_no_quotation(text: str) -> None:
    assert not list(quotations(text))
