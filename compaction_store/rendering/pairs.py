"""Which result answers which call, as `spans` has it: the nearest earlier call of its id that is not answered yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

NO_RESULT = "(There is no result: the call was not answered.)"


class Pairs(NamedTuple):
    """By the places of the calls, the places of their results; and the places of results that answer none."""

    answers: dict[int, int]
    orphans: list[int]


def paired(steps: Iterable[tuple[int, str, bool]]) -> Pairs:
    """Pairs steps in order: a place, an id, and whether it is a call."""
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
