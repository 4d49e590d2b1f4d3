"""Amounts of money are marked in a summary and in its originals, however round or short they are."""

from __future__ import annotations

import pytest

from compaction_store.audit.marks import KnownFacts
from compaction_store.language.amounts import amounts, figures


@pytest.mark.parametrize(("text", "found"), [
    ("a refund of EUR 412.00.", [("EUR", "412", "EUR 412.00")]), ("$19", [("USD", "19", "$19")]),
    ("7,000 euros", [("EUR", "7000", "7,000 euros")]), ("1.234,50 €", [("EUR", "1234.5", "1.234,50 €")]),
    ("12,50 EUR and €1,234.5", [("EUR", "12.5", "12,50 EUR"), ("EUR", "1234.5", "€1,234.5")]),
    ("1.234.567 CHF", [("CHF", "1234567", "1.234.567 CHF")]), ("card 4000, order 7000", []), ("EUROPE 12", []),
    ("12\u202f000 EUR", [("EUR", "12000", "12\u202f000 EUR")]),
    ("CZK 1 234 567,50", [("CZK", "1234567.5", "CZK 1 234 567,50")]),
    ("in 2024 100 EUR", [("EUR", "100", "100 EUR")]), ("EUR 1.500 or EUR 1,500", [
        ("EUR", "1500", "EUR 1.500"), ("EUR", "1500", "EUR 1,500"),
    ]),
    ("TRY 5 or try 5", [("TRY", "5", "TRY 5")]), ("EUR 5%", []),
    ("-5 EUR, -$5, (-€5)", [("EUR", "-5", "-5 EUR"), ("USD", "-5", "-$5"), ("EUR", "-5", "-€5")]),
    ("EUR -5.00 and $\u22125", [("EUR", "-5", "EUR -5.00"), ("USD", "-5", "$\u22125")]),
    ("\u22125 EUR", [("EUR", "-5", "\u22125 EUR")]), ("5-10 EUR", [("EUR", "10", "10 EUR")]),
    ("+5 EUR", [("EUR", "5", "5 EUR")]), ("pre-5 EUR, $5-$10", [
        ("EUR", "5", "5 EUR"), ("USD", "5", "$5"), ("USD", "10", "$10"),
    ]),
])  # fmt: skip
def test_an_amount_has_a_currency(text: str, found: list[tuple[str, str, str]]) -> None:
    assert [(each.currency, each.figure, text[each.start : each.end]) for each in amounts(text)] == found


def test_a_figure_with_a_currency_is_none_without() -> None:
    assert list(figures("EUR 412.00, 19 items, 45.50 and 7,000")) == ["45.5", "7000"]
    assert list(figures("-45.50, \u22127,000, 100-200, a-300")) == ["-45.5", "-7000", "100", "200", "300"]


def _marked(summary: str, original: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    new = KnownFacts([original], only=[summary]).marked(summary, missing="new")
    lost = KnownFacts([summary]).marked(original, missing="lost")
    return tuple([(piece.text, piece.mark) for piece in side if piece.mark] for side in (new, lost))  # type: ignore[return-value]


@pytest.mark.parametrize(("summary", "original", "new", "lost"), [
    ("EUR 412.00 was promised", "it cost EUR 19.00", [("EUR 412.00", "new")], [("EUR 19.00", "lost")]),
    ("€19 was paid", "it cost 19.00 EUR", [("€19", "kept")], [("19.00 EUR", "kept")]),
    ("USD 7000", "EUR 7,000", [("USD 7000", "new")], [("EUR 7,000", "lost")]),
    ("EUR 7000", "the sum of 7000", [("EUR 7000", "kept")], []), ("19 items", "EUR 19", [], [("EUR 19", "lost")]),
    ("-5 EUR", "5 EUR", [("-5 EUR", "new")], [("5 EUR", "lost")]),
    ("$5", "-$5.00", [("$5", "new")], [("-$5.00", "lost")]),
    ("a credit of \u22125 EUR", "EUR -5", [("\u22125 EUR", "kept")], [("EUR -5", "kept")]),
    ("-4512.75 EUR", "the sum of \u22124,512.75", [("-4512.75 EUR", "kept")], [("\u22124,512.75", "kept")]),
    ("balance: 4512", "balance: -4512", [("4512", "new")], [("-4512", "lost")]),
    ("balance: \u22124512.", "balance: -4,512", [("\u22124512", "kept")], [("-4,512", "kept")]),
    ("-4512", "4512 and -4512", [("-4512", "kept")], [("4512", "lost"), ("-4512", "kept")]),
    ("EUR 10", "5-10 EUR", [("EUR 10", "kept")], [("10 EUR", "kept")]),
    ("-4512%", "-4512-A", [("-4512%", "new")], [("4512-A", "lost")]),
])  # fmt: skip
def test_an_amount_is_kept_lost_or_new(
    summary: str, original: str, new: list[tuple[str, str]], lost: list[tuple[str, str]]
) -> None:
    assert _marked(summary, original) == (new, lost)


def test_originals_are_read_until_an_amount_is_found() -> None:
    facts = KnownFacts(only=["EUR 19"])
    facts.add("nothing here")
    assert not facts.is_complete
    facts.add("EUR 19.00")
    assert facts.is_complete
