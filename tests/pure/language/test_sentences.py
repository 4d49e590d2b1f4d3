"""The places of sentences: the number of a list's item is no sentence of its own."""

from __future__ import annotations

import pytest

from compaction_store.language.sentences import sentences


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Take one:\n1. Flight one.\n 12. Hotel two. It is far.\n(3. Walk.", [
            "Take one:", "1. Flight one.", "12. Hotel two.", "It is far.", "(3. Walk.",
        ]),
        ("It costs 7. Then go.", ["It costs 7.", "Then go."]),
        ("In 1984. 2001. Odd.", ["In 1984.", "2001.", "Odd."]),
        ("1.\nOne\n2.", ["1.", "One", "2."]),
        ("4. ", ["4."]),
        ("1. 2. 3. Go.", ["1. 2. 3. Go."]),
    ],
)  # fmt: skip
def test_the_number_of_an_item_stays_with_its_sentence(text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == found
