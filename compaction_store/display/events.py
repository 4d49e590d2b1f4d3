"""Describes events in words, for pages and reports."""

from __future__ import annotations

from typing import Any

from compaction_store.models import Event, Verdict


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
        return f"until {_text(body, 'until')}"
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
