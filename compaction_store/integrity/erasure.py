"""Writes and parses the bodies of redactions, holds, retentions and forks, and the names of erased threads. Pure.

A redaction names every row that it erased, so that `verify` can tell an erasure that was ordered from a manipulation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, cast
from uuid import UUID

from compaction_store import arguments
from compaction_store.errors import Held, InvalidInput
from compaction_store.integrity import chain
from compaction_store.jsonable import time_text
from compaction_store.messages import documents, encoding
from compaction_store.models import Event, Payload, RedactedFork, Redaction

# In byte order, exactly the names that begin with "erased:" are between these two.
STUB, AFTER_STUBS = "erased:", "erased;"
_STUB = re.compile(r"erased:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_LARGEST = 2**53
_COLUMNS = tuple(field.name for field in fields(Event) if field.name != "fault")

Range = tuple[int, int]


def stub_name(thread_uid: UUID) -> str:
    """Returns the name that a thread has after its erasure. The store gives no other thread this name."""
    return f"erased:{thread_uid}"


def stub_uid(thread_id: str) -> UUID | None:
    """Returns the thread_uid in the name of an erased thread, or None for any other name."""
    found = _STUB.fullmatch(thread_id) if thread_id.startswith("erased:") else None
    return UUID(found[1]) if found else None


def ranges(numbers: Iterable[int]) -> list[Range]:
    """Converts integers to ascending ranges that are inclusive at both ends and do not touch each other."""
    found: list[Range] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def seq_ranges(seqs: int | Iterable[int]) -> list[Range]:
    """Checks an argument of one or several seqs, and returns them as ranges."""
    given = [seqs] if isinstance(seqs, int) else seqs
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(f"seqs must be an integer >= 1 or an iterable of such integers, not {type(seqs).__name__}")
    listed = list(given)
    if not listed:
        raise InvalidInput("seqs must have at least one seq, but it is empty")
    for seq in listed:
        arguments.number(seq, "every seq in seqs", least=1)
    return ranges(listed)


def missing(wanted: Iterable[Range], there: Iterable[Range]) -> list[Range]:
    """Returns the parts of `wanted` that `there` does not cover. The ranges of both must ascend and not touch."""
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
    """Checks a reason or another text that is stored in an event."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not value.strip():
        given = "blank" if isinstance(value, str) else type(value).__name__
        raise InvalidInput(f"{what} must be a non-empty string, not {given}")
    arguments.reason(value, what)


def body(**parts: str | float | Payload | None) -> str:
    """Makes the JSON of an event's body from the parts that are not None, in their order."""
    return documents.body_text({name: part for name, part in parts.items() if part is not None})


def until_text(until: object) -> str:
    """Checks the end of a retention and returns it as text of a fixed form, so that SQL can find it in a body."""
    arguments.moment(until, "until")
    try:
        moment = cast("datetime", until).astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"until must be in the years 1 to 9999 in UTC, not {until}") from None
    return time_text(moment)


class Named(NamedTuple):
    """The rows that a redaction names, as ranges of seqs and of record numbers.

    `is_whole` is true if it erased a whole thread. `before` is the time before which the thread's last message had to
    be, in microseconds since 1970, if a retention policy erased the thread.
    """

    seqs: list[Range]
    records: list[Range]
    is_whole: bool
    before: int | None = None


def named(text: str) -> Named | None:
    """Parses the body of a redaction. Returns None if it is not valid."""
    try:
        said = encoding.decode(text)
        before = chain.microseconds(datetime.fromisoformat(said["before"])) if "before" in said else None
        found = Named(_checked(said["seqs"]), _checked(said["records"]), "whole" in said, before)
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


def said_ranges(event: Event, part: str) -> list[Range]:
    """Returns the ranges in the body of a redaction, or none if it has no valid ones."""
    try:
        return _checked(event.body.get(part, ()))
    except (ValueError, TypeError):
        return []


def names(event: Event, seq: int) -> bool:
    """Returns whether a redaction names the message with this seq."""
    return any(start <= seq <= end for start, end in said_ranges(event, "seqs"))


def event(row: Mapping[str, Any]) -> Event:
    """Returns an event from its columns by name."""
    body, fault = (None, None) if row["body"] is None else documents.parsed("body", row["body"])
    return Event(**{name: row[name] for name in _COLUMNS} | {"body": body or {}}, fault=fault)


def redaction(thread_id: str, row: Any) -> Redaction:
    """Makes a Redaction from a row of the SQL functions `redact` and `erase`.

    If a hold or a retention forbade the erasure, raises `Held`. The database returns such a refusal as a row and does
    not raise an error, because an error would roll back the event that records the refusal. The ranges of the thread
    exclude their upper bounds, and the ranges of forks include them.
    """
    if row.refused_by is not None:
        raise Held(f"{row.refusal}{arguments.about(thread_id)}", pos=row.refused_by or None)
    copies = tuple(
        RedactedFork(
            fork["thread_id"], UUID(fork["thread_uid"]), fork["pos"], _listed(fork["seqs"]), _listed(fork["records"])
        )
        for fork in row.forks or ()
    )
    return Redaction(thread_id, row.event_pos, _numbers(row.seqs), _numbers(row.numbers), copies)


def _listed(found: Iterable[Range]) -> tuple[int, ...]:
    return tuple(number for start, end in found for number in range(start, end + 1))


def _numbers(found: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(number for part in found or () for number in range(part.lower, part.upper))
