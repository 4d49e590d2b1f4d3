"""Sentences of ten languages that were written before they were tried: how many are recognized, and which are not."""

from __future__ import annotations

from support.order_sentences import FIRST_BINDING, FIRST_OTHERS, SECOND_BINDING, SECOND_OTHERS

from compaction_store.language import force
from compaction_store.language.orders import is_order

MISSED = {
    "Amounts are always shown in cents in this project, so store them that way.",
    "Eu só aceito código com tipos.",
    "Only senior engineers may approve a release, so ask one each time.",
    "Rechnungen über 1000 Euro müssen von mir bestätigt werden.",
    "Verändere keine Dateien außerhalb von src.",
    "On n'utilise que PostgreSQL ici.",
    "Fale comigo antes de mudar o banco.",
    "Non si tocca il modulo dei pagamenti.",
    "回复请控制在五行以内。",
}


def _of(*sets: dict[str, tuple[str, ...]]) -> list[str]:
    return [sentence for one in sets for sentences in one.values() for sentence in sentences]


def test_sentences_that_bind_are_recognized_except_those_that_are_known_to_be_missed() -> None:
    binding = _of(FIRST_BINDING, SECOND_BINDING)
    assert len(binding) == 113
    assert {sentence for sentence in binding if not is_order(sentence)} == MISSED


def test_sentences_that_do_not_bind_are_left_out() -> None:
    others = _of(FIRST_OTHERS, SECOND_OTHERS)
    assert len(others) == 113
    assert [sentence for sentence in others if is_order(sentence)] == []


def test_the_quick_test_for_words_misses_no_sentence() -> None:
    """Most sentences are not searched, because they have none of the words that every match has."""
    for sentence in _of(FIRST_BINDING, SECOND_BINDING, FIRST_OTHERS, SECOND_OTHERS):
        plain = sentence.replace("\u2019", "'")
        searched = [force._ENGLISH, force._LATIN, force._OTHER]
        found = any(force._compiled(pattern).search(plain) is not None for pattern in searched)
        assert force.has_force(plain) == found, sentence
        assert force.may_have_force(plain) or not found, sentence
