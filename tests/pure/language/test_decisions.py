"""Sentences that say what was decided, done and why, in ten languages."""

from __future__ import annotations

import pytest

from compaction_store.language.force import decides

DECISIONS = (
    "We decided to keep the old index.",
    "I\u2019ll use the second key instead.",
    "The cause is a missing lock.",
    "Wir haben entschieden, den alten Index zu behalten.",
    "On a décidé de garder l'ancien index.",
    "Se decidió usar la segunda clave.",
    "Decidimos manter o índice antigo.",
    "Abbiamo deciso di tenere il vecchio indice.",
    "Мы решили оставить старый индекс.",
    "我们决定保留旧的索引。",
    "古い索引を残すことにしました。",
    "이전 색인을 유지하기로 결정했습니다.",
)
OTHERS = (
    "The list has four rows.",
    "Die Liste hat vier Zeilen.",
    "La liste a quatre lignes.",
    "Список из четырёх строк.",
    "列表有四行。",
    "一覧は四行です。",
)


@pytest.mark.parametrize("sentence", DECISIONS)
def test_a_decision_is_recognized(sentence: str) -> None:
    assert decides(sentence)


@pytest.mark.parametrize("sentence", OTHERS)
def test_a_description_is_none(sentence: str) -> None:
    assert not decides(sentence)
