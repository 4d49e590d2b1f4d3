"""A threshold on the time since the assistant's last message, when a provider's prompt cache is cold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from compaction_store import CompactionContext, InvalidInput, Summary
from compaction_store.models import Element
from compaction_store.strategies import Measure, SlidingWindow, idle, over, sliding_window
from compaction_store.strategies.thresholds import window_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def view(*said: tuple[str, float]) -> list[Element]:
    """Returns messages of these roles, written at these minutes."""
    return [
        Element(seq, seq, seq, ({"role": role, "content": "text"},), 10, None, START + timedelta(minutes=at))
        for seq, (role, at) in enumerate(said, 1)
    ]


@pytest.mark.parametrize(
    ("said", "now", "seconds"),
    [
        ([("user", 0), ("assistant", 1)], 6, 300),
        ([("user", 0), ("assistant", 1)], 5.5, 270),
        # The user's new message does not warm the cache.
        ([("user", 0), ("assistant", 1), ("user", 60)], 60, 3540),
        # The clock of the process is behind.
        ([("user", 0), ("assistant", 1), ("user", 60)], 0, 3540),
        ([("user", 0), ("assistant", 1), ("tool", 9)], 10, 540),
        ([("user", 0)], 1000, 0),
        ([], 1000, 0),
    ],
)
def test_the_time_since_the_assistants_last_message(said: Any, now: float, seconds: float) -> None:
    elements, time = view(*said), START + timedelta(minutes=now)
    assert window_of(elements, None, time).idle == seconds
    assert idle(minutes=5).is_reached(elements, None, time) is (seconds >= 300)


def test_it_can_be_joined_with_a_size() -> None:
    elements, later = view(("user", 0), ("assistant", 1)), START + timedelta(minutes=9)
    assert (over(fraction=0.5) & idle(minutes=5)).is_reached(elements, 40, later)
    assert not (over(fraction=0.6) & idle(minutes=5)).is_reached(elements, 40, later)
    assert (over(fraction=0.6) | idle()).is_reached(elements, 40, later)
    assert idle(minutes=2).fired(Measure(idle=120)) == ("idle",)
    assert repr(over(tokens=9) | idle(minutes=7.5)) == "(over(tokens=9) | idle(minutes=7.5))"


@pytest.mark.parametrize("minutes", [-1, True, "5", float("nan"), float("inf"), None])
def test_a_wrong_time_is_refused(minutes: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a number >= 0"):
        idle(minutes=minutes)


def test_a_window_of_a_scan_has_no_time() -> None:
    for threshold in (idle(), over(tokens=9) | idle(), over(tokens=9) & idle()):
        with pytest.raises(InvalidInput, match=r"idle\(…\), which belongs in when="):
            SlidingWindow(Summary("-"), threshold=threshold)
        with pytest.raises(InvalidInput, match=r"idle\(…\), which belongs in when="):
            sliding_window([], summarize=lambda _: "-", threshold=threshold)


def test_a_new_thread_is_not_idle() -> None:
    ctx = CompactionContext.from_messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert not idle(minutes=5).is_reached(ctx.elements)
