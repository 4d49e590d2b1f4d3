"""The rows of a run. Each has a name, a bound, a note on its bottleneck, and its figures.

Every sample is in seconds per message or in bytes, so less is better. The figure of a row is a median or a percentile
over all rounds. Its ratio compares the figure with the floor in the same round; the spread reaches from the smallest of
these ratios to the largest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Unit = Literal["time", "rate", "bytes", "blocks", "memory"]
Figure = Literal["p50", "p95", "p99", "worst"]
# For each round, the samples of each side of a contest.
Rounds = Sequence[Mapping[str, Sequence[float]]]


class Row(NamedTuple):
    """One row of the table: a side of a contest, its floor if it has one, and its bound.

    `most` is the bound for the ratio, or for the figure if there is no floor. `goal` is a stricter bound to aim for.
    """

    name: str
    side: str
    limit: str
    over: str | None = None
    most: float | None = None
    goal: float | None = None
    unit: Unit = "time"
    figure: Figure = "p50"

    @property
    def wanted(self) -> str:
        if self.most is None:
            return ""
        if self.over is not None:
            return f"≤ {self.most:.3g}" + (f", goal {self.goal:.3g}" if self.goal else "")
        sign = "≥" if self.unit == "rate" else "≤"
        return f"{sign} {formatted(self.most, self.unit, whole=True)}"


class Result(NamedTuple):
    """The figures of a row, each with the smallest and the largest value of all rounds."""

    row: Row
    value: float
    values: tuple[float, float]
    floor: float | None
    ratio: float | None
    ratios: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Returns the text on the page that says whether the bound is kept."""
        row = self.row
        if row.most is None:
            return ""
        reached = self.value if self.ratio is None else self.ratio
        if reached > row.most:
            return "**missed**"
        return "goal missed" if row.goal and reached > row.goal else "kept"


def result(row: Row, rounds: Rounds) -> Result:
    mine = [_figure(row.figure, samples) for found in rounds if (samples := found.get(row.side))]
    value = _figure(row.figure, [sample for found in rounds for sample in found.get(row.side, ())])
    if row.over is None:
        return Result(row, value, (min(mine), max(mine)), None, None, None)
    floors = [_figure(row.figure, found[row.over]) for found in rounds]
    ratios = [ours / floor for ours, floor in zip(mine, floors, strict=True)]
    floor = _figure(row.figure, [sample for found in rounds for sample in found[row.over]])
    return Result(
        row, value, (min(mine), max(mine)), floor, statistics.median(ratios), (min(ratios), max(ratios))
    )  # fmt: skip


def _figure(figure: Figure, samples: Sequence[float]) -> float:
    if figure == "p50" or len(samples) == 1:
        return statistics.median(samples)
    if figure == "worst":
        return max(samples)
    return statistics.quantiles(samples, n=100, method="inclusive")[94 if figure == "p95" else 98]


def formatted(value: float, unit: Unit, *, whole: bool = False) -> str:
    """Returns a figure with its unit. Rates are shown as messages per second."""
    if unit == "rate":
        return f"{1 / value:,.0f}/s"
    if unit in {"bytes", "blocks"}:
        return f"{value:,.{2 if unit == 'blocks' else 0}f} {unit}"
    if unit == "memory":
        return f"{value / 1e6:,.0f} MB"
    if value >= 1:
        return f"{value:.3g} s"
    if value < 1e-4:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if whole or value >= 0.1 else f"{value * 1e3:.2f} ms"
