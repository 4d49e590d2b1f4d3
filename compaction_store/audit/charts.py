"""Draws the course of a thread as text or SVG: the tokens of its view at every pos, with its compactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from compaction_store.jsonable import AsDict
from compaction_store.models import Compaction, Element, Event, Thread, TokenStep
from compaction_store.module_data import ModuleData

if TYPE_CHECKING:
    from compaction_store.checkpoints import Checkpoint

_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Point(NamedTuple):
    """The tokens of the view at a pos. `fell` is True if a step, such as a compaction, reduced them."""

    pos: int
    tokens: int
    fell: bool = False


@dataclass(frozen=True)
class Course:
    """The tokens of a thread's view over its life, and the times of some entries by their pos."""

    points: tuple[Point, ...]
    times: Mapping[int, datetime] = field(default_factory=dict)

    @property
    def top(self) -> int:
        return max((point.tokens for point in self.points), default=0)


def course(
    steps: Iterable[TokenStep],
    *,
    tokens: int | None,
    last_pos: int,
    erased_pos: int,
    times: Mapping[int, datetime] = MappingProxyType({}),
) -> Course:
    """Computes the course of a thread whose view now has `tokens` tokens; None means that the number is unknown.

    The steps do not include the tokens that erasures removed, so these are subtracted at `erased_pos`. The course ends
    at `last_pos`; if `tokens` is None, it ends with the last step.
    """
    changes = [(step.pos, step.change or 0) for step in steps]
    if tokens is not None:
        difference = tokens - sum(change for _, change in changes)
        changes += [*([(erased_pos, difference)] if difference else []), (last_pos, 0)]
    points: list[Point] = []
    total = 0
    for pos, change in sorted(changes):
        total += change
        points.append(Point(pos, total, change < 0))
    return Course(tuple(points), times)


@dataclass(frozen=True)
class ChartMark(AsDict):
    """A mark below a chart, for a compaction record, an event or a checkpoint."""

    x: float
    label: str
    kind: str
    number: int | None
    pos: int


def known_pos(found: Thread) -> int:
    """Returns the last pos at which the view is known."""
    return found.last_pos if found.unknown_pos is None else found.unknown_pos - 1


def marks(found: Thread, runs: Iterable[list[Compaction]], events: Iterable[Event]) -> list[ChartMark]:
    """Returns the marks of a thread's records and events, by their pos. The records of one run have one mark."""
    last = known_pos(found)
    made = []
    for run in runs:
        for r in [each for each in run if each.outcome == "applied"][-1:]:
            label = f"{r.kind} {r.number}, {r.outcome}"
            label += f", the last of {len(run)} records of a run" if len(run) > 1 else ""
            made.append(ChartMark(x(r.pos, last), label, r.kind, r.number, r.pos))
    made += [ChartMark(x(e.pos, last), e.kind, e.kind, None, e.pos) for e in events]
    return sorted((mark for mark in made if mark.pos <= last), key=lambda mark: mark.pos)


def checkpoint_mark(found: Thread, checkpoint: Checkpoint, signed_pos: int) -> ChartMark | None:
    """Returns the mark of the last pos that a checkpoint covers; None if it covers nothing that the chart shows."""
    last = known_pos(found)
    if not 0 < signed_pos <= last:
        return None
    label = f"newest checkpoint, of {checkpoint.time:%Y-%m-%d %H:%M:%S} UTC,"
    return ChartMark(x(signed_pos, last), label, "checkpoint", None, signed_pos)


def _columns(line: Course, width: int) -> list[int]:
    """Reduces the course to columns. Each column but the last shows its highest point, so that peaks stay visible."""
    last = line.points[-1].pos
    columns = [0] * min(width, last)
    filled = [False] * len(columns)
    for point in line.points:
        at = (point.pos - 1) * len(columns) // last
        columns[at] = max(columns[at], point.tokens)
        filled[at] = True
    for at in range(1, len(columns)):
        if not filled[at]:
            columns[at] = columns[at - 1]
    # The last column shows the current value, not the highest.
    columns[-1] = line.points[-1].tokens
    return columns


def drawn(line: Course, *, width: int, height: int) -> list[str]:
    """Draws the course as text, with the tokens on the left."""
    if not line.points:
        return []
    top = max(1, line.top)
    label = len(f"{top:,}")
    columns = _columns(line, max(1, width - label - 2))
    rows = []
    for row in range(height, 0, -1):
        cells = (_EIGHTHS[max(0, min(8, round(8 * (tokens / top * height - (row - 1)))))] for tokens in columns)
        name = f"{top:,}" if row == height else ("0" if row == 1 else "")
        rows.append(f"{name:>{label}} │{''.join(cells)}".rstrip())
    rows.append(f"{'':>{label}} └{'─' * len(columns)}")
    rows.append(f"{'':>{label}}  pos 1{f'pos {line.points[-1].pos:,}':>{max(0, len(columns) - 5)}}")
    return rows


def strip(elements: Sequence[Element], *, width: int) -> str:
    """Draws a view as one line over its seqs: `·` for messages, `█` for folded messages, `▒` for both."""
    last = elements[-1].end_seq
    count = min(width, last)
    cells: list[set[str]] = [set() for _ in range(count)]
    for element in elements:
        first, end = (element.seq - 1) * count // last, (element.end_seq - 1) * count // last
        for at in range(first, end + 1):
            cells[at].add("·" if element.kind is None else "█")
    return "".join("▒" if len(cell) > 1 else next(iter(cell)) for cell in cells)


def ticks(top: float, least: float = 1) -> list[float]:
    """Returns round numbers from 0 to `top`, or to just above it, for an axis. `least` is the smallest step."""
    rough = max(top / _LINES, least)
    power = 10.0 ** floor(log10(rough))
    step = next(each for each in (power, 2 * power, 5 * power, 10 * power) if each >= rough)
    return [round(step * each, 9) for each in range(max(1, ceil(top / step)) + 1)]


# The SVG file, as a template.
_SVG = ModuleData(__file__).text("svg")
WIDTH, HEIGHT = 800, 320
LEFT, RIGHT, _TOP, _BOTTOM = 70, 780, 40, 280
_MOST_POINTS, _MOST_FALLS = 1000, 500
_LINES = 5


def x(pos: int, last_pos: int) -> float:
    """Returns the x coordinate of a pos in the chart."""
    return round(LEFT + (RIGHT - LEFT) * (pos - 1) / max(1, last_pos - 1), 1)


def places(last_pos: int) -> list[int]:
    """Returns the pos of each label below the chart: the first, round ones that have room, and the last."""
    rounded = [int(each) for each in ticks(last_pos) if 0.25 * last_pos < each < 0.8 * last_pos]
    return list(dict.fromkeys([1, *rounded, last_pos]))


def _labels(line: Course, last_pos: int) -> Iterator[str]:
    """Yields the labels below the chart: the pos, and its day or, if that is the day of the one before, its time."""
    before = ""
    for pos in places(last_pos):
        label = f"pos {pos:,}" if pos in (1, last_pos) else f"{pos:,}"
        if (at := line.times.get(pos)) is not None:
            day = f"{at.astimezone(UTC):%Y-%m-%d}"
            label += f" · {at.astimezone(UTC):%H:%M}" if day == before else f" · {day}"
            before = day
        anchor = "start" if pos == 1 else "end" if pos == last_pos else "middle"
        yield f'<text x="{x(pos, last_pos)}" y="{_BOTTOM + 20}" class="label" text-anchor="{anchor}">{label}</text>'


def svg(line: Course, title: str) -> str:
    """Draws the course as an SVG file, with dots where the tokens fell, at most about 500 of them."""
    last = line.points[-1].pos if line.points else 1
    marks = ticks(line.top)

    def y(tokens: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * tokens / marks[-1]

    # Format each number once, because a chart has thousands of points.
    places = [(f"{x(p.pos, last):.1f}", f"{y(p.tokens):.1f}", p.fell) for p in _thinned(line.points)]
    steps: list[str] = []
    before = f"{y(0):.1f}"
    for at, to, fell in places:
        if fell:
            steps.append(f"{at} {before}")
        steps.append(f"{at} {to}")
        before = to
    path = "M" + " L".join(steps) if steps else ""
    area = f"{path} L{places[-1][0]} {_BOTTOM} L{places[0][0]} {_BOTTOM} Z" if steps else ""
    grid = "\n".join(
        f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" class="grid"/>'
        f'<text x="{LEFT - 8}" y="{y(mark) + 4:.1f}" class="label" text-anchor="end">{round(mark):,}</text>'
        for mark in marks
    )
    falls = "\n".join(f'<circle cx="{at}" cy="{to}" r="3" class="fall"/>' for at, to, fell in places if fell)
    return _SVG.format(
        width=WIDTH, height=HEIGHT, left=LEFT, title=escape(title), grid=grid, area=area, path=path, falls=falls,
        labels="\n".join(_labels(line, last)),
    )  # fmt: skip


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Thins out the points. Keeps the falls, or an even selection if there are many, each with the point before it."""
    wanted = {*range(0, len(points), max(1, -(-len(points) // _MOST_POINTS))), len(points) - 1}
    falls = [at for at, point in enumerate(points) if point.fell]
    for at in falls[:: max(1, -(-len(falls) // _MOST_FALLS))]:
        wanted |= {max(0, at - 1), at}
    return [points[at] for at in sorted(wanted) if points]
