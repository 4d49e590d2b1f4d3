"""How long a turn waits before it asks again, and what lies between the spans of a turn."""

from __future__ import annotations

import pytest

from compaction_store.models import Span
from compaction_store.store._async.turns import gaps, pause


def test_a_turn_asks_more_seldom_at_a_higher_place_and_the_longer_it_is_there() -> None:
    assert [pause(place, 0) for place in (1, 2, 3)] == [0.008, 0.016, 0.024]
    assert pause(1, 0) < pause(1, 0.1) < pause(1, 0.5) < pause(1, 10) == 0.25
    # Places expire after 5 seconds and are renewed when half of that is over.
    assert max(pause(place, since) for place in range(1, 2000) for since in (0, 1, 3600)) == 0.5


@pytest.mark.parametrize(
    ("own", "last", "found"),
    [
        ([], 4, []),
        ([], 6, [(5, 6)]),
        ([(5, 6)], 6, []),
        ([(6, 6), (9, 10)], 12, [(5, 5), (7, 8), (11, 12)]),
        ([(9, 10), (6, 6)], 10, [(5, 5), (7, 8)]),
    ],
)
def test_what_is_not_of_a_turn_is_found_between_its_spans(
    own: list[tuple[int, int]], last: int, found: list[tuple[int, int]]
) -> None:
    assert gaps([Span(*span) for span in own], 5, last) == tuple(Span(*span) for span in found)
