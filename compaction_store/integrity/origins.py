"""Finds where the entries of a fork were written, from its origin events. Pure.

A fork begins with its origin event, then come copies of its parent's entries, each one pos later. A fork of a fork
begins with its own origin event and a copy of its parent's. So an entry that was copied twice is two pos later than in
the thread where it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

# How the bodies of origins and forks begin. The SQL functions read them by the same text.
_ORIGIN, _FORK = (
    re.compile(
        rf'\{{"{other}":"([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})","pos":([0-9]{{1,18}}),"seq":([0-9]{{1,18}}),'
        rf'"{entry}":"([0-9a-f]{{64}})"[,}}]'
    )
    for other, entry in (("parent", "entry"), ("child", "head"))
)


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
    try:
        is_origin = json.loads(columns)[0] == "origin"
    except (TypeError, KeyError, ValueError, IndexError):
        return None
    return origin(body) if is_origin else None


def origin(body: str | None) -> Parent | None:
    """Reads the body of an origin event; None if it does not begin like one."""
    said = _ORIGIN.match(body or "")
    if said is None:
        return None
    uid, pos, seq, entry = said.groups()
    return Parent(UUID(uid), int(pos), int(seq), bytes.fromhex(entry))


def is_fork(body: str) -> bool:
    """Returns whether a body begins like that of a fork event."""
    return _FORK.match(body) is not None


def source_of(origins: Iterable[tuple[int, str | None]], pos: int) -> Source | None:
    """Returns where the entry at a pos was written, or None if it is not a copy. `origins` has all origin events: pos
    and body.
    """
    found = None
    for times, (at, body) in enumerate(origins):
        parent = origin(body)
        # In the thread that this origin event was written in, it is at pos 1, and its copies follow.
        place = pos - times
        if at != times + 1 or parent is None or not 1 < place <= parent.pos + 1:
            break
        found = Source(parent.thread_uid, place - 1)
    return found
