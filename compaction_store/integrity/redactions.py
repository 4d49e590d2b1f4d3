"""Holding erased rows to the redactions that ordered them: pure, in one pass along a chain.

An event names exactly the rows it erased, and stands after all of them. A row that is erased in nobody's name is a
finding, and so is one that is named and has its content back.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable

from compaction_store.integrity import erasure
from compaction_store.integrity.erasure import Range

NEVER = -(2**63) - 1
_ORDINALS = {"message": "seq", "compaction": "number"}


class _Runs:
    """Ordinals in order, as ranges; each with the pos of its first row. Flat: half of a long thread may be erased."""

    def __init__(self) -> None:
        self._starts, self._ends, self._at = array("q"), array("q"), array("q")

    def add(self, ordinal: int, pos: int) -> None:
        if self._ends and self._ends[-1] == ordinal - 1:
            self._ends[-1] = ordinal
        else:
            self._starts.append(ordinal)
            self._ends.append(ordinal)
            self._at.append(pos)

    def ranges(self) -> list[Range]:
        return list(zip(self._starts, self._ends, strict=True))

    def pos(self, ordinal: int) -> int:
        """Where the run stands that an ordinal is in."""
        return self._at[bisect_right(self._starts, ordinal) - 1]


class Redactions:
    """The erased rows of a walk, by the pos of the redaction each of them claims."""

    def __init__(self, content: bool, find: Callable[[int | None, str], None]) -> None:
        self._content = content
        self._find = find
        self._claims: dict[int, dict[str, _Runs]] = {}
        self.count = 0
        self.rows = 0
        # The pos of the event that erased the whole thread, and the genesis it keeps.
        self.erasure: tuple[int, bytes] | None = None

    @property
    def latest(self) -> int:
        """The last pos that is claimed by rows and was not reached yet; below every pos where there is none."""
        return max(self._claims, default=NEVER)

    def claim(self, kind: str, ordinal: int, pos: int, redacted_pos: int) -> None:
        self.rows += 1
        runs = self._claims.setdefault(redacted_pos, {name: _Runs() for name in _ORDINALS})
        runs[kind].add(ordinal, pos)

    def reached(self, pos: int, body: str | None) -> dict[str, list[Range]]:
        """Holds the rows that claim a redaction against what it says; returns what it names and nobody claimed."""
        self.count += 1
        claims = self._claims.pop(pos, {name: _Runs() for name in _ORDINALS})
        if not self._content:
            return {}
        named = None if body is None else erasure.named(body)
        if named is None:
            self._find(pos, "the redaction names no rows")
            return {}
        if named.genesis is not None:
            self.erasure = (pos, named.genesis)
        told = {"message": named.seqs, "compaction": named.records}
        for kind, runs in claims.items():
            for extra in erasure.missing(runs.ranges(), told[kind]):
                self._find(
                    runs.pos(extra[0]), f"{_erased(kind, extra)}, which the redaction at pos {pos} does not name"
                )
        return {kind: erasure.missing(ranges, claims[kind].ranges()) for kind, ranges in told.items()}

    def unordered(self, *, beyond: int) -> None:
        """Reports the rows that claim a pos beyond one at which no redaction can stand any more."""
        for pos in [pos for pos in self._claims if pos > beyond]:
            for kind, runs in self._claims.pop(pos).items():
                for found in runs.ranges():
                    self._find(runs.pos(found[0]), f"{_erased(kind, found)}, and no redaction stands at pos {pos}")


def _erased(kind: str, found: Range) -> str:
    start, end = found
    name = _ORDINALS[kind]
    return f"{name} {start} is erased" if start == end else f"{name}s {start} to {end} are erased"
