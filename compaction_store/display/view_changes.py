"""Compares two views by their parts, without their messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from compaction_store.models import Part


class Change(NamedTuple):
    """A part of the first view, of the second view, or of both."""

    part: Part
    is_left: bool
    is_right: bool


def compared(left: Sequence[Part], right: Sequence[Part]) -> list[Change]:
    """Returns the parts of two views in order. A run of messages is split where only a part of it is in both views."""
    before, after = ({part for part in parts if part.number is not None} for parts in (left, right))
    found = [Change(part, part in before, part in after) for part in before | after]
    found += _messages([p for p in left if p.number is None], [p for p in right if p.number is None])
    return sorted(found, key=lambda change: (change.part.seq, -change.part.end_seq, change.part.number or 0))


def _messages(left: Sequence[Part], right: Sequence[Part]) -> Iterable[Change]:
    """Yields runs of messages that are in the same views."""
    steps: dict[int, list[int]] = {}
    for side, parts in enumerate((left, right)):
        for part in parts:
            steps.setdefault(part.seq, [0, 0])[side] += 1
            steps.setdefault(part.end_seq + 1, [0, 0])[side] -= 1
    sides = [0, 0]
    edges = sorted(steps)
    for edge, following in itertools.pairwise(edges):
        sides = [sides[side] + steps[edge][side] for side in (0, 1)]
        if any(sides):
            yield Change(Part(edge, following - 1, None), bool(sides[0]), bool(sides[1]))
