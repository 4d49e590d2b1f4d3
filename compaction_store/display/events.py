"""Describes events in words, for pages and reports."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from compaction_store.models import Event, Verdict
from compaction_store.models.vocabulary import EventKind

#: The kinds of events that say whether a thread is on hold or retained.
KEEPING: tuple[EventKind, ...] = ("hold", "release", "retention")


class Kept(NamedTuple):
    """Whether a thread is on hold, and until when it is retained, if that time is still to come."""

    held: bool = False
    until: datetime | None = None


def kept_by(newest_first: Iterable[Event]) -> Kept:
    """Returns what the holds, releases and retentions of a thread say. They must be newest first."""
    events = list(newest_first)
    hold = next((each for each in events if each.kind != "retention"), None)
    until = next((_until(each) for each in events if each.kind == "retention"), None)
    is_retained = until is not None and until > datetime.now(UTC)
    return Kept(hold is not None and hold.kind == "hold", until if is_retained else None)


def _until(event: Event) -> datetime | None:
    text = event.body.get("until")
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def described(event: Event) -> str:
    """Describes an event in words. Leaves out values of the wrong type, because a bundle's body may be any JSON."""
    body = event.body
    if event.kind == "redaction":
        what = "the whole thread: " if body.get("whole") is True else ""
        parts = [_ranges(body.get("seqs"), "message", "messages"), _ranges(body.get("records"), "record", "records")]
        despite = _listed(body.get("overrides"))
        return (
            what
            + " and ".join(filter(None, parts))
            + (f", despite what was recorded at pos {despite}" if despite else "")
        )
    if event.kind == "refusal":
        seqs = _ranges(body.get("seqs"), "message", "messages")
        return f"refused to {_text(body, 'refused')}{f' {seqs}' if seqs else ''}: {_text(body, 'because')}"
    if event.kind == "retention":
        until = _until(event)
        return "until an unknown time" if until is None else f"until {until:%Y-%m-%d %H:%M:%S} UTC"
    if event.kind == "verdict" and (verdict := Verdict.of(event)) is not None:
        return f"{verdict.verdict}: record {verdict.number:,}"
    if event.kind in ("fork", "origin"):
        return f"at pos {body['pos']:,}" if type(body.get("pos")) is int else ""
    return ""


def _text(body: dict[str, Any], name: str) -> str:
    found = body.get(name)
    return found if isinstance(found, str) else ""


def _listed(given: Any) -> str:
    return ", ".join(f"{pos:,}" for pos in given if type(pos) is int) if isinstance(given, list) else ""


def _ranges(given: Any, one: str, many: str) -> str:
    if not isinstance(given, list):
        return ""
    spans = [pair for pair in given if isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)]  # noqa: PLR2004
    count = sum(end - start + 1 for start, end in spans)
    named = ", ".join(f"{start:,}" if start == end else f"{start:,}-{end:,}" for start, end in spans)
    return f"{one if count == 1 else many} {named}" if spans else ""
