"""Random samples, and what verdicts on them say about all records."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from compaction_store.display.sampling import Coverage
from compaction_store.display.view_changes import Change, compared
from compaction_store.models import Part
from compaction_store.models.outlines import outlined, window


@pytest.mark.parametrize(("population", "drawn"), [(9, 4), (12, 5), (6, 6)])
def test_the_bounds_miss_the_truth_in_at_most_one_of_twenty_samples(population: int, drawn: int) -> None:
    for bad in range(population + 1):
        missed = 0
        for chosen in combinations(range(population), drawn):
            seen = sum(each < bad for each in chosen)
            bounds = Coverage(population, drawn, drawn - seen, seen, 0).bad_in_population
            assert bounds is not None
            missed += not bounds[0] <= bad <= bounds[1]
        assert missed * 20 <= comb(population, drawn)


def test_a_census_is_exact_and_an_unfinished_sample_says_nothing() -> None:
    assert Coverage(5, 5, 3, 2, 0).bad_in_population == (2, 2)
    assert Coverage(5, 5, 2, 1, 2).bad_in_population == (1, 3)
    assert Coverage(100, 10, 5, 1, 0).bad_in_population is None
    assert Coverage(0, 0, 0, 0, 0).bad_in_population is None
    # The rule of three: none of sixty is at most one in twenty.
    low, high = Coverage(20_000, 60, 60, 0, 0).bad_in_population or (-1, -1)
    assert low == 0
    assert 1000 < high < 1250


def test_an_outline_has_every_message_once_and_windows_cut_it() -> None:
    parts = outlined(20, [Part(3, 6, 1), Part(7, 10, 4)])
    assert parts == (Part(1, 2, None), Part(3, 6, 1), Part(7, 10, 4), Part(11, 20, None))
    whole = [tuple(piece) for start in range(14) for piece in window(parts, start, 1)]
    assert whole == [(1, 1, None), (2, 2, None), (3, 6, 1), (7, 10, 4), *((seq, seq, None) for seq in range(11, 21))]
    assert list(window(parts, 1, 4)) == [Part(2, 2, None), Part(3, 6, 1), Part(7, 10, 4), Part(11, 11, None)]
    assert list(window(parts, 14, 4)) == []


def test_two_views_are_compared_part_by_part() -> None:
    left = outlined(6, [Part(1, 2, 1)])
    right = outlined(8, [Part(1, 4, 2)])
    assert compared(left, right) == [
        Change(Part(1, 4, 2), False, True), Change(Part(1, 2, 1), True, False), Change(Part(3, 4, None), True, False),
        Change(Part(5, 6, None), True, True), Change(Part(7, 8, None), False, True),
    ]  # fmt: skip
    assert compared(left, left) == [Change(part, True, True) for part in left]
