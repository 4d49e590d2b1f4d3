"""What a run says: rows that are named beforehand, each with its bound and with what limits it, and their figures.

Every sample is seconds a message, bytes, or whatever else is better where it is less. A row's figure is a median or a
percentile over all rounds; its ratio is that of the floor's samples in the same round, and its spread goes from the
least of these ratios to the greatest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Unit = Literal["time", "rate", "bytes", "memory"]
Figure = Literal["p50", "p95", "p99", "worst"]
# Of one contest: what each side took, round by round.
Rounds = Sequence[Mapping[str, Sequence[float]]]


class Row(NamedTuple):
    """One line of the table: a side of a contest, over another where there is one, and the bound that it must keep.

    `most` bounds the ratio where there is a floor, else the figure. `goal` is what we aim at beyond it.
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
        return f"{sign} {told(self.most, self.unit, whole=True)}"


class Result(NamedTuple):
    """A row's figures, each with the least and the greatest of its rounds."""

    row: Row
    value: float
    values: tuple[float, float]
    floor: float | None
    ratio: float | None
    ratios: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Whether the bound is kept, said plainly."""
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


def told(value: float, unit: Unit, *, whole: bool = False) -> str:
    """A figure with its unit. Rates are told as what they are, messages a second."""
    if unit == "rate":
        return f"{1 / value:,.0f}/s"
    if unit == "bytes":
        return f"{value:,.0f} bytes"
    if unit == "memory":
        return f"{value / 1e6:,.0f} MB"
    if value >= 1:
        return f"{value:.3g} s"
    if value < 1e-4:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if whole or value >= 0.1 else f"{value * 1e3:.2f} ms"
