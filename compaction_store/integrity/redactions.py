"""Compares the erased entries of a chain with the redactions that ordered the erasures, in one pass. Pure.

An erased entry claims a redaction: it states the pos of the redaction that erased it. A redaction names exactly the
entries that it erased, and it comes after all of them. An erased entry that its redaction does not name is a finding. A
named entry that still has its content is a finding too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable

from compaction_store.integrity import erasure
from compaction_store.integrity.entry import ORDINALS
from compaction_store.integrity.erasure import Range

NEVER = -(2**63) - 1


class _Runs:
    """Ascending ordinals, stored as ranges. Each range has the pos of its first entry.

    The ranges are stored in arrays to save memory, because half of a long thread may be erased.
    """

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
        """Returns the pos of the first entry in the range that contains an ordinal."""
        return self._at[bisect_right(self._starts, ordinal) - 1]


class Redactions:
    """The erased entries that a walk has passed, grouped by the pos of the redaction that they claim."""

    def __init__(self, find: Callable[[int | None, str], None]) -> None:
        self._find = find
        self._claims: dict[int, dict[str, _Runs]] = {}
        self.count = 0
        self.rows = 0
        # The pos of the redaction that erased the whole thread.
        self.erasure: int | None = None

    @property
    def latest(self) -> int:
        """The largest claimed pos that the walk has not reached yet, or `NEVER`."""
        return max(self._claims, default=NEVER)

    def claim(self, kind: str, ordinal: int, pos: int, redacted_pos: int) -> None:
        self.rows += 1
        runs = self._claims.setdefault(redacted_pos, {name: _Runs() for name in ORDINALS})
        runs[kind].add(ordinal, pos)

    def reached(self, pos: int, body: str | None, *, is_known: bool) -> dict[str, list[Range]]:
        """Compares the entries that claim a redaction with the entries that the redaction names.

        Returns the ranges of the entries that the redaction names but that do not claim it. If `is_known` is false, the
        body was not read, and nothing is compared.
        """
        self.count += 1
        claims = self._claims.pop(pos, {name: _Runs() for name in ORDINALS})
        if not is_known:
            return {}
        named = None if body is None else erasure.named(body)
        if named is None:
            self._find(pos, "the redaction names no rows")
            return {}
        if named.is_whole:
            self.erasure = pos
        by_kind = {"message": named.seqs, "compaction": named.records}
        for kind, runs in claims.items():
            for extra in erasure.missing(runs.ranges(), by_kind[kind]):
                self._find(
                    runs.pos(extra[0]), f"{_erased(kind, extra)}, which the redaction at pos {pos} does not name"
                )
        return {kind: erasure.missing(ranges, claims[kind].ranges()) for kind, ranges in by_kind.items()}

    def unordered(self, *, beyond: int) -> None:
        """Adds a finding for each range of erased entries that claim a redaction after `beyond`.

        `beyond` is the last pos of the thread, after which no redaction exists. At the end of the walk it is `NEVER`:
        then every claim that is left becomes a finding.
        """
        for pos in [pos for pos in self._claims if pos > beyond]:
            for kind, runs in self._claims.pop(pos).items():
                for found in runs.ranges():
                    self._find(runs.pos(found[0]), f"{_erased(kind, found)}, and there is no redaction at pos {pos}")


def _erased(kind: str, found: Range) -> str:
    start, end = found
    name = ORDINALS[kind]
    return f"{name} {start} is erased" if start == end else f"{name}s {start} to {end} are erased"
