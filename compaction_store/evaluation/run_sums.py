"""The figures of one replay that a report adds up. They take little memory, so a report can cover many threads."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compaction_store.evaluation.judging import Verdict
from compaction_store.evaluation.replaying import Replayed
from compaction_store.probes import ProbeType


@dataclass(frozen=True, slots=True)
class RunSums:
    """The sums of a replay. `probes` has the numbers of asked and of kept probes of each round, by type."""

    thread_id: str
    probes: Mapping[ProbeType, array[int]]
    calls: int
    call_tokens: int
    over_window: int
    outcomes: Counter[str]
    errors: Counter[str]
    summarizer_tokens: int
    has_folds: bool
    unreadable: int
    verdicts: Mapping[int, Verdict]
    seconds: float

    def counts(self) -> Iterator[tuple[ProbeType, int, int, int]]:
        """Yields a type, a round, and the numbers of its asked and kept probes. Rounds without probes are left out."""
        for kind, pairs in self.probes.items():
            for place in range(0, len(pairs), 2):
                if pairs[place]:
                    yield kind, place // 2, pairs[place], pairs[place + 1]


def sums_of(run: Replayed) -> RunSums:
    probes: dict[ProbeType, array[int]] = {}
    for probe in run.probes:
        pairs = probes.setdefault(probe.type, array("L"))
        place = 2 * run.rounds.get(probe.record, 0)
        pairs.extend([0] * (place + 2 - len(pairs)))
        pairs[place] += 1
        pairs[place + 1] += probe.kept
    return RunSums(
        run.thread_id, probes, len(run.calls), sum(call.tokens for call in run.calls), run.over_window, run.outcomes,
        run.errors, sum(use.tokens for use in run.summarizers.values()), bool(run.folds), len(run.unreadable),
        run.verdicts, run.seconds,
    )  # fmt: skip
