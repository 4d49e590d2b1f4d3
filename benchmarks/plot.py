"""Draws the comparison with the peers: for each job, every store's ratio to plain psycopg, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from benchmarks.peers import ENTRIES, RAW
from benchmarks.rows import Result

_WIDTH, _LEFT, _RIGHT, _TOP, _LINE = 800, 180, 20, 92, 34
_COLOURS = ("#c2410c", "#f59e0b", "#2f6f9f", "#15803d", "#7c3aed", "#475569", "#be185d")
_TEXT, _FAINT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_TITLE = "Time of each job, as a multiple of plain psycopg's (less is better)"
_LEGEND_COLUMNS = 4


def svg(found: Mapping[str, Mapping[str, Result]]) -> str:
    names = [entry.name for entry in ENTRIES if entry.name != RAW and any(entry.name in s for s in found.values())]
    colours = dict(zip(names, _COLOURS, strict=False))
    ratios = [line.ratio for stores in found.values() for line in stores.values() if line.ratio]
    axis = _Axis(min(0.5, *ratios), max(10.0, *ratios))
    height = _TOP + _LINE * len(found) + 30
    bottom = _TOP + _LINE * len(found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"',
        '  font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(_TITLE)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="22" font-size="14" fill="{_TEXT}">{escape(_TITLE)}</text>',
    ]
    for i, name in enumerate(names):
        x, y = 20 + i % _LEGEND_COLUMNS * 195, 46 + i // _LEGEND_COLUMNS * 20
        lines.append(_dot(x + 5, y - 4, colours[name]) + f'<text x="{x + 16}" y="{y}" fill="{_TEXT}">{name}</text>')
    for tick in axis.ticks():
        at = f"{axis.at(tick):.1f}"
        stroke = _FAINT if tick == 1 else _GRID
        lines.append(
            f'<line x1="{at}" x2="{at}" y1="{_TOP - 8}" y2="{bottom}" stroke="{stroke}"/>'
            f'<text x="{at}" y="{bottom + 18}" fill="{_FAINT}" text-anchor="middle">{tick:,g}</text>'
        )
    for i, (job, stores) in enumerate(found.items()):
        y = _TOP + _LINE * i + _LINE // 2
        lines.append(f'<text x="{_LEFT - 12}" y="{y + 4}" fill="{_TEXT}" text-anchor="end">{escape(job)}</text>')
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="{_GRID}"/>')
        # Draw the points of this store last, above all others.
        for name in reversed(names):
            line = stores.get(name)
            if line is not None and line.ratio is not None and line.ratios is not None:
                low, high = (axis.at(ratio) for ratio in line.ratios)
                lines.append(
                    f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colours[name]}"'
                    ' stroke-width="2"/>' + _dot(axis.at(line.ratio), y, colours[name])
                )
    return "\n".join([*lines, "</svg>", ""])


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.85"/>'


class _Axis:
    """Converts a ratio to a position on a logarithmic axis."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = math.log10(least) - 0.05, math.log10(most) + 0.05

    def at(self, ratio: float) -> float:
        share = (math.log10(ratio) - self._least) / (self._most - self._least)
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)

    def ticks(self) -> list[float]:
        decades = range(math.floor(self._least), math.ceil(self._most) + 1)
        tens: list[float] = [10.0**decade for decade in decades]
        few = [factor * ten for ten in tens for factor in (1, 2, 5)] if len(tens) <= 3 else tens
        return [tick for tick in few if self._least <= math.log10(tick) <= self._most]
