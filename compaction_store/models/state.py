"""A state summary: lines in named parts, which are written as a text and read back from it exactly.

The text is what a record stores, so the parts are stored once. A line is one line of the text, with the seqs of the
messages it comes from at its end: `- Deploys wait for the review [12, 14-16]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, Self, get_args

from compaction_store.jsonable import AsDict
from compaction_store.module_data import ModuleData

PartName = Literal["task", "orders", "decisions", "files", "facts", "errors", "todos", "next"]
PART_NAMES: tuple[PartName, ...] = get_args(PartName)


class PartRow(NamedTuple):
    """A row of the table in state.toml, whose comments explain the fields."""

    title: str
    meaning: str
    share: float


_ROWS: Any = ModuleData(__file__).values
PARTS: dict[PartName, PartRow] = {name: PartRow(**_ROWS[name]) for name in PART_NAMES}
#: The form that a record's coverage names, if its summary is the text of a state.
FORM = "state-1"
#: The line above the lines that `Carry` writes below a summary.
CARRIED = "Carried over from the messages, newest state:"
_PART_OF: dict[str, PartName] = {f"## {row.title}": name for name, row in PARTS.items()}
# A line names only its newest seqs, so no text can make a reader list a range without end.
_MOST_SEQS = 100
_SEQS = re.compile(r" \[((?:\d{1,18}(?:-\d{1,18})?(?:, \d{1,18}(?:-\d{1,18})?)*)?)\]\Z", re.ASCII)
# A line that a check appended, or a line of notes: the seq, who said it, and the text.
_NOTED = re.compile(r"\[(\d{1,18})\] (?:([a-z]{2,20}): )?(?=\S)", re.ASCII)


@dataclass(frozen=True, slots=True)
class StateLine(AsDict):
    """One line of a state. White space in `text` becomes single spaces; `seqs` are sorted, and the newest 100 stay."""

    text: str
    seqs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", " ".join(self.text.split()))
        seqs = sorted({seq for seq in self.seqs if 0 < seq < 10**18})
        object.__setattr__(self, "seqs", tuple(seqs[-_MOST_SEQS:]))

    def __repr__(self) -> str:
        return f"StateLine(…, seqs={self.seqs})"

    def __str__(self) -> str:
        seqs = ", ".join(_ranges(self.seqs))
        # An empty pair of brackets tells a text that ends like a list of seqs from one that has seqs.
        return f"- {self.text} [{seqs}]" if seqs or _SEQS.search(f" {self.text}") else f"- {self.text}"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Reads a line of a state's text, with or without the mark of a list."""
        text = line.removeprefix("- ")
        if (found := _SEQS.search(text)) is not None and (seqs := _listed(found[1])) is not None:
            return cls(text[: found.start()], seqs)
        noted = _NOTED.match(text)
        if noted is not None and line[:2] != "- ":
            return cls(text[noted.end() :], (int(noted[1]),))
        return cls(text)


class State(Mapping[PartName, tuple[StateLine, ...]]):
    """The parts of a state summary that have lines, in the order of the table. Lines without a text are left out."""

    def __init__(self, parts: Mapping[PartName, Iterable[StateLine]]) -> None:
        if unknown := sorted(set(parts) - set(PART_NAMES)):
            raise ValueError(f"a part of a state must be one of {', '.join(PART_NAMES)}, not {unknown[0]!r}")
        lines = {name: tuple(line for line in parts.get(name, ()) if line.text) for name in PART_NAMES}
        self._parts = {name: found for name, found in lines.items() if found}

    def __getitem__(self, name: PartName) -> tuple[StateLine, ...]:
        return self._parts[name]

    def __iter__(self) -> Iterator[PartName]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"<State: {', '.join(f'{count} {name}' for name, count in self.counts.items()) or 'empty'}>"

    @property
    def counts(self) -> dict[str, int]:
        """The number of lines of each part."""
        return {name: len(lines) for name, lines in self._parts.items()}

    @property
    def coverage(self) -> dict[str, Any]:
        """The fields for the coverage of a record: the form, and the number of lines in each part."""
        return {"form": FORM, "lines": self.counts}

    @property
    def text(self) -> str:
        """The state as the text of a summary: a heading for each part, and a line of text for each line."""
        return "\n".join("\n".join([f"## {PARTS[name].title}", *map(str, found)]) for name, found in self.items())

    @classmethod
    def parse(cls, text: str) -> State | None:
        """Reads the text of a state; None for a text without the heading of a part.

        Lines before the first heading are the standing orders, which a frame puts there. A line that is in no list was
        appended by a check: what a user said is an order, and the rest are facts.
        """
        rows = [line for line in without_carried(text).splitlines() if line.strip()]
        if not any(row in _PART_OF for row in rows):
            return None
        found: dict[PartName, list[StateLine]] = {name: [] for name in PART_NAMES}
        name: PartName = "orders"
        for row in rows:
            if row in _PART_OF:
                name = _PART_OF[row]
            elif row[:2] == "- ":
                found[name].append(StateLine.parse(row))
            elif (noted := _NOTED.match(row)) is not None:
                found["orders" if noted[2] == "user" else "facts"].append(StateLine.parse(row))
        return cls(found)


def without_carried(text: str) -> str:
    """Returns the text of a summary without the lines that `Carry` writes below it."""
    return text.partition(f"\n{CARRIED}\n")[0]


def rows_of(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Yields sorted numbers in lists without gaps."""
    for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0]):
        yield [number for _, number in run]


def _ranges(seqs: Iterable[int]) -> Iterator[str]:
    """Yields sorted seqs as texts, with `14-16` for three or more in a row."""
    for row in rows_of(seqs):
        yield from [f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row)  # noqa: PLR2004


def _listed(text: str) -> tuple[int, ...] | None:
    """Returns the seqs in a list; None if a text that only looks like one would have too many."""
    seqs: list[int] = []
    for piece in text.split(", ") if text else ():
        first, _, last = piece.partition("-")
        if not 0 <= int(last or first) - int(first) < _MOST_SEQS - len(seqs):
            return None
        seqs += range(int(first), int(last or first) + 1)
    return tuple(seqs)
