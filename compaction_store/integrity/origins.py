"""Finds where the entries of a fork were written, from its origin events. Pure.

A fork begins with its origin event, then come copies of its parent's entries, each one pos later. A fork of a fork
begins with its own origin event and a copy of its parent's. So an entry that was copied twice is two pos later than in
the thread where it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from compaction_store.messages import documents


class Source(NamedTuple):
    """The thread where an entry was written, and its pos there."""

    thread_uid: UUID
    pos: int


class Parent(NamedTuple):
    """The thread that a fork was made of, and the pos, seq and entry up to which it was copied."""

    thread_uid: UUID
    pos: int
    seq: int
    entry: bytes


def parent_of(columns: str, body: str | None) -> Parent | None:
    """Reads a thread's first event, given as a verifier reads it; None if it does not name a parent."""
    said: Any = None if body is None else documents.parsed("body", body)[0]
    try:
        if json.loads(columns)[0] != "origin":
            return None
        return Parent(UUID(said["parent"]), int(said["pos"]), int(said["seq"]), bytes.fromhex(said["entry"]))
    except (TypeError, KeyError, ValueError, AttributeError, IndexError):
        return None


def source_of(origins: Iterable[tuple[int, str | None]], pos: int) -> Source | None:
    """Returns where the entry at a pos was written, None if it is no copy, given all origin events: pos and body."""
    found = None
    for times, (at, body) in enumerate(origins):
        origin = _origin(body)
        # In the thread that this origin event was written in, it is at pos 1, and its copies follow.
        place = pos - times
        if at != times + 1 or origin is None or not 1 < place <= origin.pos + 1:
            break
        found = Source(origin.thread_uid, place - 1)
    return found


def _origin(body: str | None) -> Source | None:
    """Reads the body of an origin event: its parent, and the last pos that was copied."""
    said: Any = None if body is None else documents.parsed("body", body)[0]
    try:
        return Source(UUID(said["parent"]), int(said["pos"]))
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
