"""Phrases are found where they are, in one pass, whatever case, spaces and punctuation they are written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thread_patterns import calm

from compaction_store.language.words import Phrases, word_places, words

_FEW = st.lists(st.sampled_from(["a", "b", "c"]), max_size=14)


@calm
@given(_FEW, st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4), max_size=6))
def test_it_finds_the_phrases_that_a_search_of_each_finds(text: list[str], phrases: list[list[str]]) -> None:
    found = dict(Phrases((tuple(phrase), phrase) for phrase in phrases).found(text))
    for phrase in phrases:
        size = len(phrase)
        ends = [end for end in range(size - 1, len(text)) if text[end - size + 1 : end + 1] == phrase]
        assert found.get(tuple(phrase)) == (ends[0] if ends else None)


@calm
@given(st.text(max_size=60))
def test_every_word_has_its_place(text: str) -> None:
    found, places = words(text), word_places(text)
    assert len(found) == len(places)
    for word, (start, end) in zip(found, places, strict=True):
        assert text[start:end].casefold().replace(",", "") in {word, word.casefold()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Don't push!", "don't  PUSH"),
        ("1,200 rows", "1200 rows"),
        ("**use** `tabs`", "use tabs"),
        ("请不要 推送", "请不要推送"),
        ("Straße", "STRASSE"),
    ],
)
def test_texts_that_differ_in_case_spaces_and_marks_have_the_same_words(one: str, other: str) -> None:
    assert words(one) == words(other)


def test_a_phrase_that_is_the_end_of_another_is_found_too() -> None:
    phrases = Phrases([("long", ["a", "b", "c"]), ("end", ["b", "c"]), ("last", ["c"])])
    assert dict(phrases.found(["a", "b", "c"])) == {"long": 2, "end": 2, "last": 2}


def test_no_phrases_find_nothing() -> None:
    assert not list(Phrases[str]([]).found(["a"]))
    assert not Phrases([("empty", [])])
