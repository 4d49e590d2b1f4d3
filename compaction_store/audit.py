"""Holding a thread to its chain: pure, so that both faces, and one day an export, are judged by the same code.

Structure needs no content: seq, number and pos are dense, each entry follows from the one before, the head is the last.
Content holds every body against its commitment, and every erased row against the redaction that names it. Neither says
that nobody rewrote the whole chain: for that, keep a head somewhere else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from compaction_store import chain, erasure
from compaction_store.models import Finding, Report, Thread
from compaction_store.payload import decode
from compaction_store.redactions import NEVER, Redactions

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
    """The state of a walk along one chain, from genesis on; without a name, from the first entry on."""

    def __init__(self, tenant: str, name: str, content: bool) -> None:
        self.tenant = tenant
        self.content = content
        self.previous = chain.genesis(tenant, name) if erasure.stub_uid(name) is None else None
        self.genesis = self.previous
        self.first: tuple[str, Row] | None = None
        self.pos = 0
        self.count = 0
        self.ordinals = {"message": 0, "compaction": 0, "event": 0}
        self.last_at: int | None = None
        self.last_kind = ""
        self.findings = _Findings()
        self.redactions = Redactions(content, self.findings.add)

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
        self.last_kind = json.loads(row.columns)[0] if kind == "event" else kind
        self._link(kind, row)
        if row.redacted_pos is not None:
            self.redactions.claim(kind, row.ordinal, row.pos, row.redacted_pos)
            self.erased(row)
        elif self.content:
            self._body(kind, row)
        elif row.salt is None:
            self.findings.add(row.pos, "the salt is gone without a redaction")

    def _link(self, kind: str, row: Row) -> None:
        if self.previous is None:
            self.first = (kind, row)
        else:
            self._follows(kind, row, self.previous)
        # Going on from the stored entry tells one changed row from all that come after it.
        self.previous = row.entry

    def _follows(self, kind: str, row: Row, previous: bytes) -> None:
        try:
            header = _header(kind, row)
            leaf = chain.leaf(header, row.commitment)
            if row.microseconds is None:
                raise ValueError
            expected = chain.entry(previous, row.pos, row.ordinal, row.microseconds, leaf)
        except (ValueError, TypeError, OverflowError, struct.error):
            self.findings.add(row.pos, "the row cannot be read as format version 1")
        else:
            if expected != row.entry:
                self.findings.add(row.pos, "the entry does not follow from the row and the entry before")

    def check_name(self, name: str, thread: Thread) -> tuple[str, ...]:
        """Holds a thread's name against its erasure, if it has one; returns what could not be looked at."""
        if thread.erased_pos is None:
            if thread.thread_id != name:
                self.findings.add(None, "the thread is stored under another name")
            if self.redactions.erasure is not None:
                self.findings.add(self.redactions.erasure[0], "the thread was erased, and its head does not say so")
        else:
            self._stub(name, thread)
        if self.genesis is None and self.redactions.erasure is not None:
            self.genesis = self.redactions.erasure[1]
        elif self.redactions.erasure is not None and self.genesis != self.redactions.erasure[1]:
            self.findings.add(self.redactions.erasure[0], "the erasure does not keep the genesis of the thread")
        if self.first is None:
            return ()
        if self.genesis is not None:
            self._follows(*self.first, self.genesis)
        return (
            "the thread's name is erased, so that its thread_uid and its genesis could not be computed from it"
            + ("" if self.genesis is None else "; the genesis is that which the erasure kept"),
        )

    def _stub(self, name: str, thread: Thread) -> None:
        uid = erasure.stub_uid(name) or chain.thread_uid(self.tenant, name)
        if thread.thread_id != erasure.stub_name(uid) or thread.metadata:
            self.findings.add(None, "the thread was erased, and its name or metadata are not")
        if self.redactions.rows != self.ordinals["message"] + self.ordinals["compaction"]:
            self.findings.add(None, "the thread was erased, and some of its content is not")
        if thread.erased_pos != thread.last_pos:
            self.findings.add(thread.erased_pos, "the erasure of the thread is not its last entry")
        if self.last_kind != "redaction" or (self.content and self.redactions.erasure is None):
            self.findings.add(thread.erased_pos, "the head tells of an erasure that is not there")

    def erased(self, row: Row) -> None:
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


class _Pages:
    """A page of each kind, read on when it is used up."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {"message": [], "compaction": [], "event": []}
        # Before every number there is, not before the first one we would give: a forged row may have any.
        self._start = dict.fromkeys(self._rows, -_LARGEST - 1)
        self._limit = dict.fromkeys(self._rows, FIRST_PAGE)
        self._done = dict.fromkeys(self._rows, False)

    def fill(self) -> Generator[Page, list[tuple[Any, ...]], None]:
        for kind, rows in self._rows.items():
            if rows or self._done[kind]:
                continue
            fresh = [Row._make(values) for values in (yield Page(kind, self._start[kind], self._limit[kind]))]
            self._done[kind] = len(fresh) < self._limit[kind]
            if fresh:
                last = fresh[-1].pos if kind == "event" else fresh[-1].ordinal
                self._done[kind] = self._done[kind] or last == _LARGEST
                self._start[kind] = min(last + 1, _LARGEST)
                self._limit[kind] = _next_limit(fresh, self._limit[kind])
            rows.extend(reversed(fresh))

    def next(self) -> tuple[int, str] | None:
        """The pos and the kind of the next row; None where there is none."""
        return min(((rows[-1].pos, kind) for kind, rows in self._rows.items() if rows), default=None)

    def pop(self, kind: str) -> Row:
        return self._rows[kind].pop()

    def reopen(self) -> None:
        """Every kind may have more rows by now."""
        self._done = dict.fromkeys(self._rows, False)


def _next_limit(rows: list[Row], limit: int) -> int:
    """A page of about a megabyte, however large the bodies are."""
    size = sum(len(row.body or "") for row in rows) // len(rows) + 1
    return max(1, min(LONGEST_PAGE, limit * 8, PAGE_BYTES // size))


def verify(tenant: str, name: str, thread: Thread, level: Level) -> Generator[Page, list[tuple[Any, ...]], Report]:
    """Yields the pages it needs and is sent their rows; returns the report. Holds a page of each kind at most.

    `name` is what the caller calls the thread: a thread may be stored under another name once it was erased.
    """
    walk = _Chain(tenant, name, level == "content")
    pages = _Pages()
    while True:
        yield from pages.fill()
        # A row may be erased while we walk: the redaction then stands past the head that we know.
        pos, kind = pages.next() or (walk.redactions.latest, None)
        if pos > thread.last_pos:
            # Appended since the head was read, or never appended at all: the head of now tells which.
            known, thread = thread, _moved(thread, (yield Page("head", 0, 1))[0])
            walk.redactions.unordered(beyond=thread.last_pos)
            if thread.last_pos > known.last_pos or thread.head != known.head:
                pages.reopen()
            elif kind is not None:
                walk.findings.add(pos, f"a {kind} stands past the head")
                pages.pop(kind)
            continue
        if kind is None:
            break
        row = pages.pop(kind)
        walk.check(kind, row)
        if walk.last_kind == "redaction":
            for other, ranges in walk.redactions.reached(row.pos, row.body).items():
                yield from _again(walk, other, row.pos, ranges)
    walk.redactions.unordered(beyond=NEVER)
    notes = walk.check_name(name, thread)
    _head(walk, thread)
    return Report(
        name, level, walk.count, walk.redactions.rows, tuple(walk.findings), thread.head,
        walk.redactions.count, notes,
    )  # fmt: skip


def _again(
    walk: _Chain, kind: str, pos: int, ranges: list[tuple[int, int]]
) -> Generator[Page, list[tuple[Any, ...]], None]:
    """Reads rows again that a redaction names and that had their content: it may have been erased since."""
    for start, end in ranges:
        at = start
        while at <= end:
            rows = [Row._make(values) for values in (yield Page(kind, at, min(LONGEST_PAGE, end - at + 1)))]
            for row in rows:
                if row.ordinal <= end and row.redacted_pos == pos:
                    walk.redactions.rows += 1
                    walk.erased(row)
                elif row.ordinal <= end:
                    walk.findings.add(row.pos, f"the redaction at pos {pos} names the row, which is not erased by it")
            at = rows[-1].ordinal + 1 if rows else end + 1


def _moved(thread: Thread, row: tuple[Any, ...]) -> Thread:
    thread_id, _, _, last_seq, last_number, last_pos, view_tokens, last_at, head, erased_pos = row
    return replace(
        thread, thread_id=thread_id, last_seq=last_seq, last_number=last_number, last_pos=last_pos,
        view_tokens=view_tokens, last_at=last_at, head=head, erased_pos=erased_pos,
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
