"""Decides how often a waiting turn polls the database, and makes the error for a turn that waited too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compaction_store import arguments
from compaction_store.errors import InvalidInput, TurnTimeout
from compaction_store.models import Span
from compaction_store.postgres.queries.functions import TakeTurnRow

LONGEST_WAIT = 86_400
LONGEST_LEASE = 3_600
_FIRST_PAUSE = 0.008
# The pause is this fraction of the time since the turn's place in the queue last changed, within limits.
_PART = 0.3
# The longest pauses of the first turn in the queue and of the others. A turn that does not poll for 5 seconds loses its
# place.
_LONGEST_FIRST = 0.25
_LONGEST_PAUSE = 0.5


def check_seconds(value: object, what: str, *, least: int, most: int) -> None:
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise InvalidInput(f"{what} must be a number of seconds from {least} to {most:,}{arguments.other(value)}")


def pause(place: int, since: float) -> float:
    """Returns the seconds until a waiting turn polls again.

    The pause grows with the turn's place in the queue, and with the time for which it has had this place. So a queue
    of short turns moves fast, and a queue of long turns polls rarely.
    """
    longest = _LONGEST_FIRST if place == 1 else _LONGEST_PAUSE
    return min(max(_FIRST_PAUSE * place, _PART * since), longest)


def timeout(found: TakeTurnRow, waited: float, thread_id: str) -> TurnTimeout:
    """Makes the error for a turn that waited too long."""
    ahead = found.place - 1
    who = "another turn" if found.holder is None else f"the turn of {found.holder!r}"
    if found.held_until is None:
        what = "the thread is reserved for turns that were requested earlier"
    else:
        what = f"{who} has the thread, until {found.held_until:%Y-%m-%d %H:%M:%S%z} unless it is renewed"
    behind = f"; turns ahead in the queue: {ahead}" if ahead else ""
    return TurnTimeout(
        f"{what}{behind}; waited {waited:g} seconds{arguments.about(thread_id)}",
        actor=found.holder, login=found.holder_login, until=found.held_until, ahead=ahead,
    )  # fmt: skip


def gaps(own: Iterable[Span], first: int, last: int) -> tuple[Span, ...]:
    """Returns the spans from `first` to `last` that are not in `own`."""
    return tuple(_gaps(own, first, last))


def _gaps(own: Iterable[Span], first: int, last: int) -> Iterator[Span]:
    for span in sorted(own):
        if span.start_seq > first:
            yield Span(first, span.start_seq - 1)
        first = max(first, span.end_seq + 1)
    if first <= last:
        yield Span(first, last)
