"""The bodies of redactions, holds, retentions and forks, and the name of an erased thread. Pure.

A redaction names every row it erased, as ranges, so that `verify` can tell an erasure that was ordered from one that
was not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, cast
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import Held, InvalidInput
from compaction_store.messages import documents, encoding
from compaction_store.models import Event, Payload, RedactedFork, Redaction

MOST_REASON_BYTES = 8 * 1024
# In the order of bytes, exactly the names of stubs are between these two.
STUB, AFTER_STUBS = "erased:", "erased;"
_STUB = re.compile(r"erased:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_LARGEST = 2**53

Range = tuple[int, int]


def stub_name(thread_uid: UUID) -> str:
    """Returns the name of an erased thread. No other thread can have it."""
    return f"erased:{thread_uid}"


def stub_uid(thread_id: str) -> UUID | None:
    """Returns the thread_uid in the name of an erased thread; None for any other name."""
    found = _STUB.fullmatch(thread_id) if thread_id.startswith("erased:") else None
    return UUID(found[1]) if found else None


def ranges(numbers: Iterable[int]) -> list[Range]:
    """Returns integers as ranges, inclusive at both ends, in order and never touching."""
    found: list[Range] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def seq_ranges(seqs: int | Iterable[int]) -> list[Range]:
    """Checks the seqs that a caller gives, one or several, and returns them as ranges."""
    given = [seqs] if isinstance(seqs, int) else seqs
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(f"seqs must be an integer >= 1 or several of them, not {type(seqs).__name__}")
    listed = list(given)
    if not listed:
        raise InvalidInput("seqs must hold at least one seq, not none")
    for seq in listed:
        arguments.number(seq, "every seq in seqs", least=1)
    return ranges(listed)


def missing(wanted: Iterable[Range], there: Iterable[Range]) -> list[Range]:
    """Returns the parts of `wanted` that `there` does not cover. In both, ranges are in order and never touch."""
    found = []
    others = iter(there)
    other = next(others, None)
    for start, end in wanted:
        at = start
        while other is not None and other[0] <= end:
            if other[0] > at:
                found.append((at, other[0] - 1))
            at = max(at, other[1] + 1)
            if other[1] > end:
                break
            other = next(others, None)
        if at <= end:
            found.append((at, end))
    return found


def check_text(value: object, what: str, *, optional: bool = False) -> None:
    """Checks a reason, or another text for people, that is stored in an event."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not value.strip():
        given = "blank" if isinstance(value, str) else type(value).__name__
        raise InvalidInput(f"{what} must be a non-empty string, not {given}")
    if (size := len(value.encode(errors="surrogatepass"))) > MOST_REASON_BYTES:
        raise InvalidInput(f"{what} must be at most {MOST_REASON_BYTES:,} bytes, not {size:,}")


def body(**parts: str | int | Payload | None) -> str:
    """Makes an event's body of the parts that are not None, in their order."""
    # ASCII with escapes, because UTF-8 cannot carry a lone surrogate.
    return json.dumps({name: part for name, part in parts.items() if part is not None}, separators=(",", ":"))


def until_text(until: object) -> str:
    """Checks the end of a retention and returns it in the form of its event, which SQL can find without parsing the
    body.
    """
    arguments.moment(until, "until")
    try:
        moment = cast("datetime", until).astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"until must be within the years 1 to 9999 in UTC, not {until}") from None
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


class Named(NamedTuple):
    """The rows that a redaction names: ranges of seqs and of record numbers, and whether it erased a whole thread."""

    seqs: list[Range]
    records: list[Range]
    is_whole: bool


def named(text: str) -> Named | None:
    """Parses the body of a redaction; None if it is not one that a redaction writes."""
    try:
        said = encoding.decode(text)
        found = Named(_checked(said["seqs"]), _checked(said["records"]), "whole" in said)
        if said.get("whole", True) is not True:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return found


def _checked(given: Any) -> list[Range]:
    found = [(start, end) for start, end in given]
    if any(type(number) is not int for pair in found for number in pair):
        raise TypeError
    if any(start > end for start, end in found) or any(a[1] + 1 >= b[0] for a, b in pairwise(found)):
        raise ValueError
    return found


def names(event: Event, seq: int) -> bool:
    """Returns whether a redaction names a message."""
    try:
        ranges = _checked(event.body.get("seqs", ()))
    except (ValueError, TypeError):
        return False
    return any(start <= seq <= end for start, end in ranges)


def event(thread_id: str, row: tuple[Any, ...]) -> Event:
    pos, kind, critical, actor, login, created_at, text, _ = row
    body, fault = (None, None) if text is None else documents.parsed("body", text)
    return Event(thread_id, pos, kind, critical, actor, login, created_at, body or {}, fault)


def redaction(thread_id: str, row: tuple[Any, ...]) -> Redaction:
    """Makes a Redaction of a row. Ranges come from Postgres without their upper bound, those of forks with it.

    If a hold or a retention forbade it, raises the error in the row. The database returns a refusal as a row because it
    also records it.
    """
    pos, seqs, numbers, forks, refused_by, refusal = row
    if refused_by is not None:
        raise Held(f"{refusal}{arguments.about(thread_id)}", pos=refused_by)
    copies = tuple(
        RedactedFork(
            fork["thread_id"], UUID(fork["thread_uid"]), fork["pos"], _listed(fork["seqs"]), _listed(fork["records"])
        )
        for fork in forks or ()
    )
    return Redaction(thread_id, pos, _numbers(seqs), _numbers(numbers), copies)


def _listed(found: Iterable[Range]) -> tuple[int, ...]:
    return tuple(number for start, end in found for number in range(start, end + 1))


def _numbers(found: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(number for part in found or () for number in range(part.lower, part.upper))
