"""Makes the page of a report from the report's data alone. The page is one HTML file without scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from compaction_store.audit import charts
from compaction_store.audit.marks import Compared, ShownMessage, Sources, compare, lost, original, replacements
from compaction_store.audit.safe_text import named
from compaction_store.audit.words import described, without_text
from compaction_store.errors import MissingExtra
from compaction_store.language.names import NameReader
from compaction_store.models import Compaction, Event, TokenStep
from compaction_store.reporting import envelope
from compaction_store.reporting.document import Contents, Period, Reply, ReportDocument, contents_of

try:
    from markupsafe import Markup

    from compaction_store.audit.templates import environment
except ImportError as error:
    raise MissingExtra("the page of a report", "web") from error

#: The maximum number of original messages that are shown for a record. The bundle in the file has all of them.
MOST_ORIGINALS = 200
_TEMPLATES = Path(__file__).parent / "templates"
_environment = cache(partial(environment, _TEMPLATES))


@dataclass(frozen=True)
class RecordSection:
    """A record, the messages of its span, and the names that its summary kept, lost and invented."""

    record: Compaction
    undone: list[tuple[str, Compaction]]
    marked: Compared
    more: int
    lost: list[str]


@dataclass(frozen=True)
class Section:
    """The part of the page about one thread."""

    number: int
    contents: Contents
    chart: Any
    records: list[RecordSection]
    events: list[Event]
    replies: list[Reply]
    messages: list[ShownMessage]
    metadata: dict[str, Any]


def render(document: ReportDocument, data: str | None = None) -> bytes:
    """Returns the page; `data` is the packed document, if known. Raises ValueError, without content, for a bad one."""
    sections = [_section(document, number, contents_of(thread)) for number, thread in enumerate(document.threads, 1)]
    page = _environment().get_template("report.html").render(
        described=partial(described, content=document.content), without_text=without_text,
        document=document, sections=sections, carried=envelope.packed(document) if data is None else data,
        findings=document.finding_count(), checkpoints=_checkpoints(sections),
        css=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 — a file of the package
    )  # fmt: skip
    return envelope.ended(page.lstrip().encode() + b"\n")


def _section(document: ReportDocument, number: int, found: Contents) -> Section:
    period = document.period
    is_whole = period.since is None and period.until is None
    messages = found.messages if is_whole else [m for m in found.messages if period.has(m.created_at)]
    return Section(
        number, found, _chart(found),
        [_shown(found, record, document.content) for record in found.records if period.has(record.created_at)],
        [event for event in found.events if period.has(event.created_at)],
        _replies(found, period),
        [original(message, None, content=document.content, whole=True) for message in messages],
        json.loads(found.manifest["metadata"]),
    )  # fmt: skip


def _replies(found: Contents, period: Period) -> list[Reply]:
    known = {message.seq: message for message in found.messages}
    return [reply for reply in found.thread.replies if reply.seq in known and period.has(known[reply.seq].created_at)]


def _shown(found: Contents, record: Compaction, content: bool) -> RecordSection:
    span = found.span(record)
    replaced = replacements(record) if content else []
    names = NameReader()
    sources = Sources(record, replaced, names)
    sources.add_all(span)
    marked = compare(span[:MOST_ORIGINALS], replaced, sources if content else None, names)
    return RecordSection(
        record, _undone(found, record), marked, max(0, len(span) - MOST_ORIGINALS),
        lost(span, replaced, names) if replaced else [],
    )  # fmt: skip


def _undone(found: Contents, record: Compaction) -> list[tuple[str, Compaction]]:
    """Returns the later records that undid a record, each with the word "revoked" or "superseded" before it."""
    later = (("revoked", record.revoked_by), ("superseded", record.superseded_by))
    return [(how, found.by_number[by]) for how, by in later if by in found.by_number]


def _chart(found: Contents) -> Any:
    steps = [TokenStep(step.pos, step.change, None) for step in found.thread.steps]
    last_pos = found.manifest["last_pos"]
    if not steps or last_pos < 2:  # noqa: PLR2004 — a chart needs two positions
        return None
    erased = max((event.pos for event in found.events if event.kind == "redaction"), default=last_pos)
    entries: list[Any] = [*found.messages, *found.records, *found.events]
    times = {each.pos: each.created_at for each in entries}
    tokens = found.thread.view_tokens
    line = charts.course(steps, tokens=tokens, last_pos=last_pos, erased_pos=erased, times=times)
    title = named(f"Tokens of the view of thread {found.manifest['thread_id']}")
    return Markup(charts.svg(line, title))  # noqa: S704 — the chart escapes its title


def _checkpoints(sections: list[Section]) -> list[dict[str, str]]:
    carried = [found for section in sections if (found := section.contents.checkpoint) is not None]
    return list({found["note"]: {"note": found["note"], "key": found["key"]} for found in carried}.values())
