"""Pairs results with calls, by the rule of `tool_pairs`: the nearest earlier unanswered call of the same id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

NO_RESULT = "(There is no result: the call was not answered.)"


class Pairs(NamedTuple):
    """The positions of results by the positions of their calls, and the positions of results without a call."""

    answers: dict[int, int]
    orphans: list[int]


def paired(steps: Iterable[tuple[int, str, bool]]) -> Pairs:
    """Pairs steps, given in order as a position, an id, and whether the step is a call."""
    waiting: dict[str, list[int]] = defaultdict(list)
    pairs = Pairs({}, [])
    for place, name, is_call in steps:
        if is_call:
            waiting[name].append(place)
        elif calls := waiting[name]:
            pairs.answers[calls.pop()] = place
        else:
            pairs.orphans.append(place)
    return pairs
