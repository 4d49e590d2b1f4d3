"""Holding a thread to its chain: pure, so that both faces, and one day an export, are judged by the same code.

Structure needs no content: seq, number and pos are dense, each entry follows from the one before, the head is the last.
Content holds every body against its commitment. Neither says that nobody rewrote the whole chain: for that, keep a
head somewhere else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from compaction_store import chain
from compaction_store.models import Finding, Report, Thread
from compaction_store.payload import decode

Level = Literal["structure", "content"]
LEVELS: tuple[Level, ...] = ("structure", "content")

FIRST_PAGE = 16
LONGEST_PAGE = 500
PAGE_BYTES = 1024 * 1024
_LARGEST = 2**63 - 1
MOST_FINDINGS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Page(NamedTuple):
    """What the verifier wants to read next: entries of one kind from an ordinal on (for events, from a pos on).

    The kind "head" asks where the thread stands by now.
    """

    kind: str
    start: int
    limit: int


class Row(NamedTuple):
    pos: int
    ordinal: int
    tenant: str
    microseconds: int | None
    redacted_pos: int | None
    salt: bytes | None
    commitment: bytes
    entry: bytes
    body: str | None
    meta: str | None
    meta_commitment: bytes | None
    columns: str


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


class _Findings(list[Finding]):
    def add(self, pos: int | None, what: str) -> None:
        if len(self) < MOST_FINDINGS:
            self.append(Finding(pos, what))
        elif len(self) == MOST_FINDINGS:
            self.append(Finding(None, f"more than {MOST_FINDINGS} findings; the rest is not listed"))


class _Chain:
    """The state of a walk along one chain, from genesis on."""

    def __init__(self, tenant: str, thread: Thread, content: bool) -> None:
        self.tenant = tenant
        self.content = content
        self.previous = chain.genesis(tenant, thread.thread_id)
        self.pos = 0
        self.count = 0
        self.ordinals = {"message": 0, "compaction": 0, "event": 0}
        self.last_at: int | None = None
        self.redacted = 0
        self.findings = _Findings()

    def check(self, kind: str, row: Row) -> None:
        self.count += 1
        self.pos += 1
        if row.pos != self.pos:
            self.findings.add(row.pos, f"pos {self.pos} was expected")
            self.pos = row.pos
        if kind != "event":
            self.ordinals[kind] += 1
            if row.ordinal != self.ordinals[kind]:
                what = "seq" if kind == "message" else "number"
                self.findings.add(row.pos, f"{what} {self.ordinals[kind]} was expected, {row.ordinal} is there")
                self.ordinals[kind] = row.ordinal
        if row.tenant != self.tenant:
            self.findings.add(row.pos, "the row names another tenant")
        if row.microseconds is not None:
            if self.last_at is not None and row.microseconds < self.last_at:
                self.findings.add(row.pos, "created_at is earlier than the entry before")
            self.last_at = row.microseconds
        self._link(kind, row)
        if row.redacted_pos is not None:
            self.redacted += 1
            self._redacted(row)
        elif self.content:
            self._body(kind, row)
        elif row.salt is None:
            self.findings.add(row.pos, "the salt is gone without a redaction")

    def _link(self, kind: str, row: Row) -> None:
        try:
            header = _header(kind, row)
            leaf = chain.leaf(header, row.commitment)
            if row.microseconds is None:
                raise ValueError
            expected = chain.entry(self.previous, row.pos, row.ordinal, row.microseconds, leaf)
        except (ValueError, TypeError, OverflowError, struct.error):
            self.findings.add(row.pos, "the row cannot be read as format version 1")
        else:
            if expected != row.entry:
                self.findings.add(row.pos, "the entry does not follow from the row and the entry before")
        # Going on from the stored entry tells one changed row from all that come after it.
        self.previous = row.entry

    def _redacted(self, row: Row) -> None:
        if row.salt is not None or row.body is not None or row.meta is not None:
            self.findings.add(row.pos, "a redacted row still has content")

    def _body(self, kind: str, row: Row) -> None:
        if row.salt is None or row.body is None:
            self.findings.add(row.pos, "the content is gone without a redaction")
            return
        if chain.commitment(row.salt, row.body.encode()) != row.commitment:
            self.findings.add(row.pos, "the content is not what was committed to")
        elif kind == "message" and not _role_agrees(row):
            self.findings.add(row.pos, "the role is not the message's")
        meta = None if row.meta is None else chain.meta_commitment(row.salt, row.meta.encode())
        if meta != row.meta_commitment:
            self.findings.add(row.pos, "the meta is not what was committed to")


def _role_agrees(row: Row) -> bool:
    role = json.loads(row.columns)[0]
    try:
        payload = decode(row.body or "")
    except (ValueError, RecursionError):
        return False
    return isinstance(payload, dict) and (role is None or payload.get("role") == role)


def _header(kind: str, row: Row) -> bytes:
    values: list[Any] = json.loads(row.columns)
    if kind == "message":
        role, tokens, counter, key, call_size, receipt = values
        return chain.message_header(
            role=role, tokens=tokens, counter=counter, key=key, call_size=call_size, receipt=receipt,
            meta_commitment=row.meta_commitment,
        )  # fmt: skip
    if kind == "event":
        return chain.event_header(kind=values[0], actor=values[1])
    names = (
        "kind", "outcome", "start_seq", "end_seq", "tokens_before", "tokens_after", "source_count", "source_before",
        "source_end", "inputs", "run_id", "callback", "trigger", "actor", "model", "counter", "revokes",
    )  # fmt: skip
    columns = dict(zip(names, values, strict=True))
    for name in ("source_before", "source_end"):
        columns[name] = None if columns[name] is None else bytes.fromhex(columns[name])
    columns["run_id"] = UUID(columns["run_id"])
    return chain.compaction_header(**columns)


def verify(tenant: str, thread: Thread, level: Level) -> Generator[Page, list[tuple[Any, ...]], Report]:
    """Yields the pages it needs and is sent their rows; returns the report. Holds a page of each kind at most."""
    walk = _Chain(tenant, thread, level == "content")
    pages: dict[str, list[Row]] = {"message": [], "compaction": [], "event": []}
    # Before every number there is, not before the first one we would give: a forged row may have any.
    start = dict.fromkeys(pages, -_LARGEST - 1)
    limits = dict.fromkeys(pages, FIRST_PAGE)
    done = dict.fromkeys(pages, False)
    while True:
        for kind, rows in pages.items():
            if not rows and not done[kind]:
                fresh = [Row._make(values) for values in (yield Page(kind, start[kind], limits[kind]))]
                done[kind] = len(fresh) < limits[kind]
                if fresh:
                    last = fresh[-1].pos if kind == "event" else fresh[-1].ordinal
                    done[kind] = done[kind] or last == _LARGEST
                    start[kind] = min(last + 1, _LARGEST)
                    limits[kind] = _next_limit(fresh, limits[kind])
                rows.extend(reversed(fresh))
        waiting = [(rows[-1].pos, kind) for kind, rows in pages.items() if rows]
        if not waiting:
            break
        pos, kind = min(waiting)
        if pos > thread.last_pos:
            # Appended since the head was read, or never appended at all: the head of now tells which.
            last_pos, last_head = thread.last_pos, thread.head
            thread = _moved(thread, (yield Page("head", 0, 1))[0])
            if thread.last_pos > last_pos or thread.head != last_head:
                # The other kinds may have rows before this one by now.
                done = dict.fromkeys(pages, False)
            else:
                walk.findings.add(pos, f"a {kind} stands past the head")
                pages[kind].pop()
            continue
        walk.check(kind, pages[kind].pop())
    _head(walk, thread)
    return Report(thread.thread_id, level, walk.count, walk.redacted, tuple(walk.findings), thread.head)


def _next_limit(rows: list[Row], limit: int) -> int:
    """A page of about a megabyte, however large the bodies are."""
    size = sum(len(row.body or "") for row in rows) // len(rows) + 1
    return max(1, min(LONGEST_PAGE, limit * 8, PAGE_BYTES // size))


def _moved(thread: Thread, row: tuple[Any, ...]) -> Thread:
    _, _, _, last_seq, last_number, last_pos, view_tokens, last_at, head = row
    return replace(
        thread, last_seq=last_seq, last_number=last_number, last_pos=last_pos, view_tokens=view_tokens,
        last_at=last_at, head=head,
    )  # fmt: skip


def _head(walk: _Chain, thread: Thread) -> None:
    if walk.pos != thread.last_pos:
        walk.findings.add(None, f"the head is at pos {thread.last_pos}, the last entry at {walk.pos}")
    elif walk.previous != thread.head:
        walk.findings.add(None, "the head is not the last entry")
    if walk.ordinals["message"] != thread.last_seq:
        walk.findings.add(None, f"the head counts {thread.last_seq} messages, {walk.ordinals['message']} are there")
    if walk.ordinals["compaction"] != thread.last_number:
        walk.findings.add(
            None, f"the head counts {thread.last_number} records, {walk.ordinals['compaction']} are there"
        )
