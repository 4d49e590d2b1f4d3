"""Counts verdicts on a random sample of records, and computes bounds on the number of bad records among all records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb

from compaction_store.jsonable import AsDict
from compaction_store.models import Verdict

#: The largest population that a sample is drawn from, and the largest sample.
MOST_POPULATION, MOST_DRAWN = 20_000, 200
# The true number is below the lower bound with a probability of at most 1 in 40. It is above the upper bound with a
# probability of at most 1 in 40 too. Together, that is 95 % confidence.
_ONE_IN = 40


@dataclass(frozen=True, slots=True)
class Coverage(AsDict):
    """The number of records with each verdict, in a sample of `drawn` records out of `population`."""

    population: int
    drawn: int
    good: int
    bad: int
    unsure: int

    @property
    def judged(self) -> int:
        return self.good + self.bad + self.unsure

    @property
    def bad_in_population(self) -> tuple[int, int] | None:
        """The lower and the upper bound on the number of bad records in the population, with 95 % confidence.

        None until the whole sample was judged, because the records that are judged first are not a random sample.
        Records that a reviewer is unsure of count as good for the lower bound, and as bad for the upper bound.
        """
        if not self.drawn or self.judged != self.drawn:
            return None
        return (
            _least_bad(self.population, self.drawn, self.bad),
            _most_bad(self.population, self.drawn, self.bad + self.unsure),
        )


def coverage(population: int, drawn: int, verdicts: Iterable[Verdict]) -> Coverage:
    """Counts the verdicts on a sample. If a record has several verdicts, only the newest counts."""
    newest = {
        (each.thread_id, each.number): each.verdict for each in sorted(verdicts, key=lambda each: each.created_at)
    }
    counts = [sum(given == verdict for given in newest.values()) for verdict in ("good", "bad", "unsure")]
    return Coverage(population, drawn, *counts)


def _weight(population: int, drawn: int, bad: int, hits: range) -> int:
    """Returns the number of possible samples in which the number of bad records is one of `hits`."""
    return sum(comb(bad, hit) * comb(population - bad, drawn - hit) for hit in hits)


def _least_bad(population: int, drawn: int, seen: int) -> int:
    """Returns the lower bound: the smallest number of bad records for which a sample has `seen` or more bad records
    with a probability above 1 in 40.
    """
    low, high = seen, population - drawn + seen
    while low < high:
        middle = (low + high) // 2
        if _weight(population, drawn, middle, range(seen, drawn + 1)) * _ONE_IN > comb(population, drawn):
            high = middle
        else:
            low = middle + 1
    return low


def _most_bad(population: int, drawn: int, seen: int) -> int:
    """Returns the upper bound: the largest number of bad records for which a sample has `seen` or fewer bad records
    with a probability above 1 in 40.
    """
    low, high = seen, population - drawn + seen
    while low < high:
        middle = (low + high + 1) // 2
        if _weight(population, drawn, middle, range(seen + 1)) * _ONE_IN > comb(population, drawn):
            low = middle
        else:
            high = middle - 1
    return low
