"""Random samples, and what verdicts on them say about all records."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from compaction_store.audit.facts import Coverage


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
