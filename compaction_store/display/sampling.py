"""Random samples of compaction records, and what verdicts on a sample say about all records. Pure.

A sample is the records with the lowest hashes of the seed and their keys. So anybody can draw it again, whatever the
order of the population.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb

from compaction_store.messages.encoding import canonical
from compaction_store.models import Compaction, Payload, Verdict

#: From how many records a sample is drawn at most, and how many records it has at most.
MOST_POPULATION, MOST_DRAWN = 20_000, 200
# Bounds are exceeded with this probability at most, on each side: 95 % confidence.
_ONE_IN = 40


def rank(seed: int, record: Compaction) -> str:
    """Returns the hash by which a record is drawn: of the seed, the thread's key and the record's number."""
    return hashlib.sha256(f"{seed}/{record.thread_uid}/{record.number}".encode()).hexdigest()


def draw(seed: int, count: int, population: Iterable[Compaction]) -> list[Compaction]:
    """Draws the records with the lowest ranks, in the order of their ranks."""
    return heapq.nsmallest(count, population, key=lambda record: rank(seed, record))


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many records of a sample were judged, and how."""

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
        """How many records of the whole population are bad, at least and at most, with 95 % confidence.

        None before the whole sample was judged: those that were judged first are no random sample. Those that a
        reviewer is unsure of are good for the lower bound, and bad for the upper one.
        """
        if not self.drawn or self.judged != self.drawn:
            return None
        return (
            _least_bad(self.population, self.drawn, self.bad),
            _most_bad(self.population, self.drawn, self.bad + self.unsure),
        )


def coverage(population: int, drawn: int, verdicts: Iterable[Verdict]) -> Coverage:
    """Counts verdicts on a sample; of several on one record the newest counts."""
    newest = {
        (each.thread_id, each.number): each.verdict for each in sorted(verdicts, key=lambda each: each.created_at)
    }
    counts = [sum(given == verdict for given in newest.values()) for verdict in ("good", "bad", "unsure")]
    return Coverage(population, drawn, *counts)


def by_sample(verdicts: Iterable[Verdict]) -> list[tuple[Payload, Coverage]]:
    """Groups verdicts by the sample that they were given for. A sample must say its population and its size."""
    found: dict[str, tuple[Payload, list[Verdict]]] = {}
    for each in verdicts:
        if each.sample is not None and _is_sample(each.sample):
            found.setdefault(canonical(each.sample), (each.sample, []))[1].append(each)
    return [
        (sample, coverage(sample["population"], sample["count"], given)) for sample, given in found.values()
    ]  # fmt: skip


def _is_sample(given: Payload) -> bool:
    count, population = given.get("count"), given.get("population")
    return (
        type(count) is int and type(population) is int and 1 <= count <= min(population, MOST_DRAWN) <= MOST_POPULATION
    )


def _weight(population: int, drawn: int, bad: int, hits: range) -> int:
    """Returns in how many of the possible samples the number of bad records is one of `hits`."""
    return sum(comb(bad, hit) * comb(population - bad, drawn - hit) for hit in hits)


def _least_bad(population: int, drawn: int, seen: int) -> int:
    """Returns the smallest number of bad records with which it is likely enough to see so many of them, or more."""
    low, high = seen, population - drawn + seen
    while low < high:
        middle = (low + high) // 2
        if _weight(population, drawn, middle, range(seen, drawn + 1)) * _ONE_IN > comb(population, drawn):
            high = middle
        else:
            low = middle + 1
    return low


def _most_bad(population: int, drawn: int, seen: int) -> int:
    """Returns the largest number of bad records with which it is likely enough to see so few of them, or fewer."""
    low, high = seen, population - drawn + seen
    while low < high:
        middle = (low + high + 1) // 2
        if _weight(population, drawn, middle, range(seen + 1)) * _ONE_IN > comb(population, drawn):
            low = middle
        else:
            high = middle - 1
    return low
