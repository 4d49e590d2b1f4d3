"""Finds the thread in which an entry of a fork was first written, from the fork's origin events. Pure.

A fork begins with its own origin event. Copies of the parent's entries follow, each at a pos one higher than in the
parent. So a fork of a fork begins with two origin events, and the pos of an entry that was copied twice is two higher.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from compaction_store.module_data import ModuleData

# The beginning of the bodies of origin and fork events. The SQL functions match the same text.
_DATA = ModuleData(__file__)
_ORIGIN, _FORK = re.compile(_DATA.pattern("origin")), re.compile(_DATA.pattern("fork"))


class OriginSource(NamedTuple):
    """The thread in which an entry was written, and the pos of the entry there."""

    thread_uid: UUID
    pos: int


class Parent(NamedTuple):
    """The parent of a fork, and the pos, the seq and the hash of the last entry that was copied."""

    thread_uid: UUID
    pos: int
    seq: int
    entry: bytes


def parent_of(columns: str, body: str | None) -> Parent | None:
    """Returns the parent that a thread's first event names, or None. `columns` are the event's as JSON."""
    try:
        is_origin = json.loads(columns)[0] == "origin"
    except (TypeError, KeyError, ValueError, IndexError):
        return None
    return origin(body) if is_origin else None


def origin(body: str | None) -> Parent | None:
    """Parses the body of an origin event. Returns None if it is not valid."""
    said = _ORIGIN.match(body or "")
    if said is None:
        return None
    uid, pos, seq, entry = said.groups()
    return Parent(UUID(uid), int(pos), int(seq), bytes.fromhex(entry))


def is_fork(body: str) -> bool:
    """Returns whether a body begins like the body of a fork event."""
    return _FORK.match(body) is not None


def source_of(origins: Iterable[tuple[int, str | None]], pos: int) -> OriginSource | None:
    """Returns where the entry at `pos` was written, or None if it is no copy. `origins` has each one's pos and body."""
    found = None
    for times, (at, body) in enumerate(origins):
        parent = origin(body)
        # An origin event has pos 1 in the thread in which it was written, and the copied entries follow it.
        place = pos - times
        if at != times + 1 or parent is None or not 1 < place <= parent.pos + 1:
            break
        found = OriginSource(parent.thread_uid, place - 1)
    return found
