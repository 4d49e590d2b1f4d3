"""Pairs results with calls by the rule of `tool_pairs`: the nearest earlier unanswered call with the same id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

NO_RESULT = "(There is no result: the call was not answered.)"


class Pairs(NamedTuple):
    """The result of pairing. `answers` maps the position of a call to the position of its result.

    `orphans` has the positions of results without a call.
    """

    answers: dict[int, int]
    orphans: list[int]


def paired(steps: Iterable[tuple[int, Hashable, bool]]) -> Pairs:
    """Pairs steps. Each step is a position, an id, and whether the step is a call. The steps must be in order."""
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    pairs = Pairs({}, [])
    for place, name, is_call in steps:
        if is_call:
            waiting[name].append(place)
        elif calls := waiting[name]:
            pairs.answers[calls.pop()] = place
        else:
            pairs.orphans.append(place)
    return pairs
