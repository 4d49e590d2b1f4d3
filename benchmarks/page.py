"""Formats a run as the tables of a page, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.against import JOBS, Peers, row, side
from benchmarks.contest import Contest
from benchmarks.peers import ENTRIES, OURS, OURS_ASYNC, RAW
from benchmarks.rows import Result, Rounds, formatted, result

BEGIN = '<!-- Written by `python -m benchmarks --write`, up to the comment "Up to here". -->'
END = "<!-- Up to here. -->"
DASH = "\N{EN DASH}"


class Played(NamedTuple):
    """A contest and the results of its rounds."""

    contest: type[Contest]
    rounds: Rounds


class Run(NamedTuple):
    """A run: the results of its contests, the machine, the time and the versions."""

    about: Mapping[str, str]
    played: Sequence[Played]


def results(played: Played) -> list[Result]:
    return [result(row, played.rounds) for row in played.contest.rows]


def against(rounds: Rounds) -> dict[str, dict[str, Result]]:
    """Returns the results of each job by store."""
    return {
        job: {
            entry.name: result(row(entry.name, job), rounds)
            for entry in ENTRIES
            if all(side(entry.name, job) in found for found in rounds)
        }
        for job in JOBS
    }


def markdown(run: Run) -> str:
    lines = [*(f"- {name}: {value}" for name, value in run.about.items()), ""]
    tables: dict[str, list[Result]] = {}
    for played in run.played:
        if played.contest is not Peers:
            tables.setdefault(played.contest.title, []).extend(results(played))
    for title, found in tables.items():
        lines += [f"### {title}", "", *_table(found), ""]
    for played in run.played:
        if played.contest is Peers:
            lines += [f"### {Peers.title}", "", *_peers(against(played.rounds)), ""]
    return "\n".join(lines)


def _table(found: Sequence[Result]) -> Iterator[str]:
    yield "| | floor | this store | ratio (rounds) | wanted |"
    yield "|---|---|---|---|---|"
    for line in found:
        yield f"| {' | '.join((line.row.name, *cells_of(line), f'{line.row.wanted} {line.verdict}'.strip()))} |"


def cells_of(line: Result) -> tuple[str, str, str]:
    """Returns the cells of a row: the floor, this store, and their ratio, or the spread if there is no floor."""
    unit = line.row.unit
    floor = "" if line.floor is None else formatted(line.floor, unit)
    if line.ratio is None or line.ratios is None:
        # The largest number of seconds per message is the slowest rate.
        least, most = reversed(line.values) if unit == "rate" else line.values
        spread = "" if least == most else f"({formatted(least, unit)}{DASH}{formatted(most, unit)})"
        return floor, formatted(line.value, unit), spread
    return floor, formatted(line.value, unit), f"{line.ratio:.2f} ({line.ratios[0]:.2f}{DASH}{line.ratios[1]:.2f})"


def _peers(found: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    names = [entry.name for entry in ENTRIES if any(entry.name in stores for stores in found.values())]
    yield f"| | {' | '.join(names)} | |"
    yield f"|---|{'---|' * len(names)}---|"
    for job, stores in found.items():
        cells = [_cell(stores[name]) if name in stores else "-" for name in names]
        yield f"| {job} | {' | '.join(cells)} | {standing(stores)} |"


def _cell(line: Result) -> str:
    figure = formatted(line.value, "time")
    if line.row.side.startswith(f"{RAW}:") or line.ratio is None:
        return figure
    return f"{figure}, {line.ratio:.2f}"


def standing(stores: Mapping[str, Result]) -> str:
    """Returns which peers are faster than this store. The plain driver is no peer, because it gives no guarantees."""
    ours = stores[OURS].value
    peers = {name: found.value for name, found in stores.items() if name not in {RAW, OURS, OURS_ASYNC}}
    ahead = [name for name, value in peers.items() if value < ours]
    if not peers:
        return ""
    return f"**behind** {', '.join(ahead)}" if ahead else "ahead of all"


def document(run: Run) -> dict[str, Any]:
    """Returns the whole run as JSON. Figures are in seconds or bytes, and rates in seconds per message."""
    rows = [
        {
            "name": line.row.name, "part": played.contest.title, "figure": line.row.figure, "unit": line.row.unit,
            "value": line.value, "values": line.values, "floor": line.floor, "ratio": line.ratio,
            "ratios": line.ratios, "most": line.row.most, "goal": line.row.goal, "verdict": line.verdict,
            "limit": line.row.limit,
        }
        for played in run.played if played.contest is not Peers for line in results(played)
    ]  # fmt: skip
    peers = [
        {"job": job, "store": name, "value": line.value, "ratio": line.ratio, "ratios": line.ratios}
        for played in run.played if played.contest is Peers
        for job, stores in against(played.rounds).items() for name, line in stores.items()
    ]  # fmt: skip
    return {"about": dict(run.about), "rows": rows, "peers": peers}


def replaced(page: str, written: str) -> str:
    """Returns the page with the new tables between its marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit("the page must have the marks around the generated part")
    return f"{head}{BEGIN}\n\n{written}\n{END}{tail}"
