"""Reads from events whether a thread is on hold or retained, and where the records of a fork come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from compaction_store.audit.templates import moment
from compaction_store.audit.words import kept_by
from compaction_store.models import Event
from compaction_store.models.vocabulary import EventKind
from compaction_store.store import AsyncReader
from compaction_store.web.lists import Listed, first

#: The most events that are searched on one page.
MOST_EVENTS = 500


class EventsOfThreads(NamedTuple):
    """Events by the names of their threads, newest first. With `more`, earlier events were left out."""

    by_name: defaultdict[str, list[Event]]
    more: bool


async def events_of(reader: AsyncReader, names: Iterable[str] | None, kinds: tuple[EventKind, ...]) -> EventsOfThreads:
    """Returns the newest event of each kind of a thread, or the tenant's newest events for several or all threads.

    Several threads take one query, because a page of a list must not send one for each of its rows.
    """
    found: defaultdict[str, list[Event]] = defaultdict(list)
    wanted = list(dict.fromkeys(names or ()))
    listed = Listed([], more=False)
    if names is None or len(wanted) > 1:
        listed = await first(reader.audit.events(kind=kinds, newest_first=True), MOST_EVENTS)
    elif wanted:
        for kind in kinds:
            listed.rows.extend((await first(reader.audit.events(wanted[0], kind=kind, newest_first=True), 1)).rows)
    for each in sorted(listed.rows, key=lambda each: each.pos, reverse=True):
        found[each.thread_id].append(each)
    return EventsOfThreads(found, listed.more)


def kept_as(events: list[Event]) -> str:
    """Says whether a thread is on hold or retained, from its holds, releases and retentions, newest first."""
    held, until = kept_by(events)
    return ", ".join([*(["held"] if held else []), *([f"retained until {moment(until)}"] if until else [])])


class Copied(NamedTuple):
    """The thread that a fork was made from. The records up to `pos` are copies."""

    pos: int
    name: str | None
    uid: UUID | None


async def copied(reader: AsyncReader, names: Iterable[str] | None) -> tuple[dict[str, Copied], bool]:
    """Returns the origins of the copied records of forks, by the fork's name, and whether a fork may be missing.

    `names` are the threads to look at, or None for all threads of the tenant.
    """
    events = await events_of(reader, names, ("origin",))
    origins = {name: its[-1] for name, its in events.by_name.items() if its[-1].pos == 1}
    uids = {name: uid_of(origin.body.get("parent")) for name, origin in origins.items()}
    known = await reader.audit.names_of({uid for uid in uids.values() if uid is not None})
    found = {
        name: Copied(origin.body["pos"] + 1, None if (uid := uids[name]) is None else known.get(uid), uid)
        for name, origin in origins.items()
        if type(origin.body.get("pos")) is int
    }
    return found, events.more


async def fork_names(reader: AsyncReader, events: Iterable[Event]) -> dict[tuple[str, int], str | None]:
    """Returns the name of the fork or parent that each event names, by the thread_id and pos of the event."""
    named = {
        (event.thread_id, event.pos): uid_of(event.body.get("child", event.body.get("parent")))
        for event in events
        if event.kind in ("fork", "origin")
    }
    names = await reader.audit.names_of({uid for uid in named.values() if uid is not None})
    return {place: None if uid is None else names.get(uid) for place, uid in named.items()}


def uid_of(text: object) -> UUID | None:
    """Reads a thread_uid in an event's body. In an imported event, the value may be anything."""
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
